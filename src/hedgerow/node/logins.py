"""Password checks, off the event loop and fair, for whatever asks for them: MQTT, WebSocket, HTTP.

A check costs tens of milliseconds by design, so a peer that sends many wrong passwords could keep
everyone else waiting. Waiting logins stand in fair lines (`login_line`): those go first who have logged in
from there before, and whose networks give few wrong passwords; in a line networks take turns, in them sites
(`rates.site_of`), and at a site users. After several wrong passwords the next ones are held (`back_off`), and
refused unseen where that would take long. Where too many are held, those of whoever has most are refused.

A right password is remembered, and the next check of it costs nothing. So it does not wait either, where it
was given before. One at a time: a crowd of guesses would get as many free looks.

Who is right is an `Identity`'s to say: the password file, a signed token in the place of the password
(`web_tokens`), or, of users that the file does not name, a service that is asked (`login_hook`). That takes a
wait and no work, so more of them may be asked at once than passwords are hashed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from hedgerow.errors import ConfigError, ConnectError
from hedgerow.mqtt.reasons import Reason
from hedgerow.node.back_off import KNOWN, STANDINGS, BackOff
from hedgerow.node.fair_line import FairLine, Place
from hedgerow.node.login_line import LoginLine
from hedgerow.node.part import NEVER, NodeContext, Part
from hedgerow.node.verdicts import Claims, Verdict, looks_like_token
from hedgerow.rates import networks_of, site_of

if TYPE_CHECKING:
    from hedgerow.broker.connection import Connection
    from hedgerow.broker.handle_connect import Login
    from hedgerow.node.config import Config
    from hedgerow.node.login_hook import HookAsker
    from hedgerow.node.passwords import Passwords
    from hedgerow.node.web_tokens import WebTokens

logger = logging.getLogger(__name__)

WORKERS = 2
MAX_ASKING = 16  # at once, of users whom a hook knows
MIN_LOOKED_AT = 1_000  # connections by claims, before those that are gone are looked for
MAX_HELD_S = 5.0  # longer, and a login is refused: what it came with would have to be kept
MAX_HELD = 1_024  # logins, of up to 64 KiB each
MAX_HELD_OF_ONE = 32  # site
# Passwords that came over HTTP and wait: whoever asks and hangs up, again and again, leaves one each time.
MAX_ASKED = 256
MAX_ASKED_OF_ONE = 32  # site


class Verifier(Protocol):
    def verify(self, username: str, password: bytes) -> Verdict:
        """In a thread."""
        ...

    def remembers(self, username: str, password: bytes) -> bool:
        """Was it right before? At once; False says nothing."""


class Identity:
    """Who users are, by all that the configuration names."""

    def __init__(self, passwords: Passwords | None, tokens: WebTokens | None, hook: HookAsker | None) -> None:
        self.passwords = passwords
        self.tokens = tokens
        self.hook = hook

    def is_disabled(self, username: str) -> bool:
        """By the password file, and so for tokens and the hook, too."""
        return self.passwords is not None and username in self.passwords.disabled

    def verify(self, username: str, password: bytes) -> Verdict:
        if self.is_disabled(username):
            return False
        if self.tokens is not None and looks_like_token(password):
            return self.tokens.verify(username, password)
        return self.passwords is not None and self.passwords.verify(username, password)

    def remembers(self, username: str, password: bytes) -> bool:
        return self.passwords is not None and self.passwords.remembers(username, password)

    def asks_for(self, username: str, password: bytes) -> bool:
        """Is it the hook's to say who this is?"""
        if self.hook is None or (self.tokens is not None and looks_like_token(password)):
            return False
        is_of_file = self.passwords is not None and username in self.passwords
        return not is_of_file and not self.is_disabled(username)


class TooManyError(Exception):
    """No password of this user is looked at now; `wait_s` says for how long."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"try again in {wait_s:.0f} s")
        self.wait_s = wait_s


@dataclass(slots=True, eq=False)
class Attempt:
    """Somebody at a site gives a password."""

    site: str
    username: str
    password: bytes
    finish: Callable[[Verdict], None]
    """Called when the password has been looked at."""
    refuse: Callable[[float], None]
    """Called with the seconds to wait when it is not going to be."""
    is_wanted: Callable[[], bool] = lambda: True
    """Does anybody wait for the answer?"""

    @property
    def place(self) -> Place:
        return (*networks_of(self.site), self.username)


def too_many(line: FairLine[Attempt], added: Attempt, most: int, most_of_one: int) -> Iterator[Attempt]:
    """Who must leave a line of which a site may have `most_of_one`, since one was added."""
    *site, _ = added.place
    for branch, bound in ((tuple(site), most_of_one), ((), most)):
        if line.size(branch) > bound:
            yield line.heaviest(branch)


class LoginQueue:
    """`passwords` are those in force, and `hook` who else is asked, and of whom."""

    def __init__(
        self,
        passwords: Verifier,
        clock: Callable[[], float],
        back_off: BackOff | None = None,
        hook: Callable[[Attempt], Awaitable[Verdict | None] | None] = lambda attempt: None,
    ) -> None:
        self.passwords = passwords
        self.hook = hook
        self._asking: set[asyncio.Future[Verdict | None]] = set()
        self.back_off = back_off or BackOff()
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(WORKERS, "hedgerow-login")
        self._waiting: LoginLine[Attempt] = LoginLine(STANDINGS, self._standing)
        self._held: FairLine[Attempt] = FairLine()
        self._timers: dict[Attempt, asyncio.TimerHandle] = {}  # of those that are held
        self._running: Counter[Place] = Counter()
        self._closed = False

    def _standing(self, attempt: Attempt) -> int:
        return self.back_off.standing(attempt.username, attempt.site, self._clock())

    def add(self, attempt: Attempt) -> None:
        """Raises nothing: what comes of it is told to the attempt."""
        delay_s = self.back_off.delay_s(attempt.username, attempt.site, self._clock())
        if delay_s:
            self._hold(attempt, delay_s)
        elif self._is_known(attempt):
            self._loop.call_soon(self._accept, attempt, self.passwords)
        else:
            self._queue(attempt)

    def _is_known(self, attempt: Attempt) -> bool:
        """Has this user given this password from this site before, and is nothing else open there?"""
        place = attempt.place
        is_open = self._running[place] or self._waiting.size(place) or self._held.size(place)
        if is_open or self._standing(attempt) != KNOWN:
            return False
        return self.passwords.remembers(attempt.username, attempt.password)

    def _accept(self, attempt: Attempt, passwords: Verifier) -> None:
        if self._closed:
            return
        if passwords is not self.passwords:
            self._queue(attempt)
            return
        self.back_off.note(attempt.username, attempt.site, accepted=True, now=self._clock())
        attempt.finish(True)

    def close(self) -> None:
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for asking in self._asking:
            asking.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def withdraw(self, attempt: Attempt) -> None:
        """Unless its password is being looked at, it never will be."""
        if attempt in self._timers:
            self._timers.pop(attempt).cancel()
            self._held.remove(attempt.place, attempt)
        else:
            self._waiting.discard(attempt.place, attempt)

    def _queue(self, attempt: Attempt) -> None:
        self._waiting.add(attempt.place, attempt)
        self._start()

    def _hold(self, attempt: Attempt, wait_s: float) -> None:
        if wait_s > MAX_HELD_S:
            attempt.refuse(wait_s)
            return
        self._timers[attempt] = self._loop.call_later(wait_s, self._release, attempt)
        self._held.add(attempt.place, attempt)
        for each in too_many(self._held, attempt, MAX_HELD, MAX_HELD_OF_ONE):
            left_s = self._timers[each].when() - self._loop.time()
            self.withdraw(each)
            each.refuse(max(left_s, 0.0))

    def _release(self, attempt: Attempt) -> None:
        self.withdraw(attempt)
        self._queue(attempt)

    def _start(self) -> None:
        while not self._closed and len(self._waiting) and self._has_place:
            attempt = self._waiting.take(_place_of)
            if not attempt.is_wanted():
                continue  # it has hung up
            # Asked when its turn has come: those before it may have been wrong.
            wait_s = self.back_off.wait_s(attempt.username, attempt.site, self._clock())
            if wait_s:
                self._hold(attempt, wait_s)
                continue
            self._running[attempt.place] += 1
            check = self._check(attempt)
            check.add_done_callback(partial(self._finished, attempt, self.passwords))

    @property
    def _has_place(self) -> bool:
        """For one more. Those who are asked for take no processor, but the next may be hashed."""
        asking = len(self._asking)
        return self._running.total() - asking < WORKERS and asking < MAX_ASKING

    def _check(self, attempt: Attempt) -> asyncio.Future[Verdict | None]:
        asked = self.hook(attempt)
        if asked is not None:
            asking = asyncio.ensure_future(asked)
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)
            return asking
        work: Callable[[], Verdict | None] = partial(
            self.passwords.verify, attempt.username, attempt.password
        )
        return self._loop.run_in_executor(self._threads, work)

    def _finished(self, attempt: Attempt, passwords: Verifier, check: asyncio.Future[Verdict | None]) -> None:
        self._running[attempt.place] -= 1
        if not self._running[attempt.place]:
            del self._running[attempt.place]
        if self._closed:
            return
        if passwords is not self.passwords:  # reloaded meanwhile: the user may be gone
            self._queue(attempt)
            return
        verdict = check.result()
        if verdict is not None:  # Else whoever was asked did not say.
            self.back_off.note(attempt.username, attempt.site, bool(verdict), self._clock())
        attempt.finish(verdict or False)
        self._start()


class Logins(Part):
    """Of a node that has users: reads who they are, and checks those of its clients."""

    def __init__(self, node: NodeContext) -> None:
        """Raises ConfigError."""
        super().__init__(node)
        self.identity = self._load(node.config)
        node.passwords = self.identity.passwords
        self.queue = LoginQueue(self.identity, self._now, hook=self._ask_hook)
        self._asked: FairLine[Attempt] = FairLine()  # over HTTP
        self._fetching: asyncio.Task[None] | None = None
        # When the claims end by which a client was let in: no file names its user.
        self._claimed: dict[Connection, float] = {}
        self._claims_end_at = NEVER  # the first of them, or before
        self._look_at = MIN_LOOKED_AT

    async def start(self) -> None:
        self._look_for_keys()

    def _ask_hook(self, attempt: Attempt) -> Awaitable[Verdict | None] | None:
        identity = self.identity
        if identity.hook is None or not identity.asks_for(attempt.username, attempt.password):
            return None
        return identity.hook.ask(attempt.username, attempt.password, attempt.site)

    def _now(self) -> float:
        return self.node.clock()

    @property
    def back_off(self) -> BackOff:
        return self.queue.back_off

    @property
    def asked(self) -> int:
        """How many passwords that came over HTTP wait."""
        return len(self._asked)

    @property
    def has_work(self) -> bool:
        return bool(self.node.broker.logins)

    def serve(self) -> None:
        for login in self.node.broker.take_logins():
            self.queue.add(
                Attempt(
                    site_of(login.connection.address),
                    login.username,
                    login.password,
                    partial(self._finish, login),
                    partial(self._refuse, login),
                    partial(_has_link, login),
                )
            )

    def _finish(self, login: Login, verdict: Verdict) -> None:
        broker, now = self.node.broker, self.node.clock()
        if isinstance(verdict, Claims):
            self._note_groups(login.username, verdict)
        broker.finish_login(login, bool(verdict), now)
        if isinstance(verdict, Claims) and login.connection.is_connected:
            self._note_claims(login.connection, verdict)
        self._look_for_keys()
        self.node.flush()

    def _refuse(self, login: Login, wait_s: float) -> None:
        if login.connection.link is None:
            return
        reason = f"too many wrong passwords for {login.username!r}: try again in {max(wait_s, 1):.0f} s"
        self.node.broker.now = self.node.clock()
        login.connection.refuse_connect(Reason.CONNECTION_RATE_EXCEEDED, reason, login.connect.client_id)
        self.node.flush()

    # Users whom no file names

    def _note_groups(self, username: str, claims: Claims) -> None:
        if self.node.memberships.set(username, claims.groups):
            self.node.broker.forget_rights(username)

    def _note_claims(self, connection: Connection, claims: Claims) -> None:
        if len(self._claimed) >= self._look_at:
            self._claimed = {each: at for each, at in self._claimed.items() if each.is_connected}
            self._look_at = MIN_LOOKED_AT + 2 * len(self._claimed)
        at = self._claimed[connection] = NEVER if claims.ends_at is None else claims.ends_at
        self._claims_end_at = min(self._claims_end_at, at)
        self.node.wake_at(self._claims_end_at)

    @property
    def deadline(self) -> float:
        return min(self._claims_end_at, self._fetch_at)

    async def verify(self, address: str, username: str, password: bytes) -> bool:
        """For HTTP, which has no connection to hold for long. Raises TooManyError."""
        site, loop = site_of(address), asyncio.get_running_loop()
        wait_s = self.back_off.wait_s(username, site, self.node.clock())
        if wait_s:
            raise TooManyError(wait_s)
        answer: asyncio.Future[bool] = loop.create_future()

        def finish(verdict: Verdict) -> None:
            self._answered(attempt)
            if isinstance(verdict, Claims):
                self._note_groups(username, verdict)
            self._look_for_keys()
            if not answer.done():
                answer.set_result(bool(verdict))

        def refuse(wait_s: float) -> None:
            self._answered(attempt)
            if not answer.done():
                answer.set_exception(TooManyError(max(wait_s, 1.0)))

        # Whether or not anybody waits: whoever hangs up must not get around the count of wrong passwords.
        attempt = Attempt(site, username, password, finish, refuse)
        self._asked.add(attempt.place, attempt)
        self.queue.add(attempt)
        for each in too_many(self._asked, attempt, MAX_ASKED, MAX_ASKED_OF_ONE):
            self.queue.withdraw(each)
            each.refuse(1.0)
        return await answer

    def _answered(self, attempt: Attempt) -> None:
        if self._asked.contains(attempt.place, attempt):
            self._asked.remove(attempt.place, attempt)

    def reload(self, config: Config) -> Callable[[], None]:
        return partial(self._set, self._load(config))

    def read_again(self) -> None:
        """Their file was changed by this node. Raises ConfigError."""
        self.reload(self.node.config)()

    def _load(self, config: Config) -> Identity:
        # Most nodes have no such file, and start the sooner.
        passwords = tokens = hook = None
        if config.passwords is not None:
            from hedgerow.node.passwords import Passwords

            passwords = Passwords.load(config.passwords)
        if config.jwt is not None:
            from hedgerow.node.web_tokens import WebTokens

            tokens = WebTokens(config.jwt)
        if config.hook is not None:
            from hedgerow.node.login_hook import HookAsker

            hook = HookAsker(config.hook, self._now)
        return Identity(passwords, tokens, hook)

    def _set(self, identity: Identity) -> None:
        """And disconnect whoever is no longer a user."""
        node = self.node
        self.identity = self.queue.passwords = identity
        passwords = node.passwords = identity.passwords
        node.broker.now = node.clock()
        has_others = identity.tokens is not None or identity.hook is not None
        for connection in list(node.broker.connections):
            if connection.session is None or connection.certificate_name is not None:
                continue
            username = connection.session.username
            if username is None:
                continue
            if has_others and connection in self._claimed and not identity.is_disabled(username):
                continue
            if passwords is None or username not in passwords:
                connection.disconnect(Reason.NOT_AUTHORIZED, "the user is gone")
        self._look_for_keys()
        node.flush()

    def handle_timer(self, now: float) -> None:
        """Tokens have ended, or keys are to be fetched."""
        for connection in [each for each, at in self._claimed.items() if at <= now]:
            del self._claimed[connection]
            if connection.is_connected:
                self.node.broker.now = now
                connection.disconnect(Reason.NOT_AUTHORIZED, "the token has ended")
        self._claims_end_at = min(self._claimed.values(), default=NEVER)
        self._look_for_keys()

    @property
    def _fetch_at(self) -> float:
        tokens = self.identity.tokens
        return NEVER if tokens is None or self._fetching is not None else tokens.fetch_at

    def _look_for_keys(self) -> None:
        """Fetch them, if it is time; nobody waits for that."""
        if self._fetch_at <= self.node.clock() and not self.node.stopping:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch_keys())

    async def _fetch_keys(self) -> None:
        tokens = self.identity.tokens
        try:
            if tokens is not None:
                await tokens.fetch()
        except (ConnectError, ConfigError) as error:
            logger.warning("jwt.keys: %s: the keys are as they were", error)
        finally:
            self._fetching = None
            self.node.wake_at(self._fetch_at)

    async def close(self) -> None:
        self.queue.close()
        if self._fetching is not None:
            self._fetching.cancel()


def _place_of(attempt: Attempt) -> Place:
    return attempt.place


def _has_link(login: Login) -> bool:
    return login.connection.link is not None
