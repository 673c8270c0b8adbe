"""Password checks, off the event loop and fair, for whatever asks for them: MQTT, WebSocket, HTTP.

A check costs tens of milliseconds by design, so a peer that sends many wrong passwords could keep
everyone else waiting. Waiting logins stand in fair lines (`login_line`): those go first who have logged in
from there before, and whose networks give few wrong passwords; in a line networks take turns, in them sites
(`rates.site_of`), and at a site users. After several wrong passwords the next ones are held (`back_off`), and
refused unseen where that would take long. Where too many are held, those of whoever has most are refused.

A right password is remembered, and the next check of it costs nothing. So it does not wait either, where it
was given before. One at a time: a crowd of guesses would get as many free looks.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from hedgerow.mqtt.reasons import Reason
from hedgerow.node.back_off import KNOWN, STANDINGS, BackOff
from hedgerow.node.fair_line import FairLine, Place
from hedgerow.node.login_line import LoginLine
from hedgerow.node.part import NodeContext, Part
from hedgerow.rates import networks_of, site_of

if TYPE_CHECKING:
    from pathlib import Path

    from hedgerow.broker.handle_connect import Login
    from hedgerow.node.config import Config
    from hedgerow.node.passwords import Passwords

WORKERS = 2
MAX_HELD_S = 5.0  # longer, and a login is refused: what it came with would have to be kept
MAX_HELD = 1_024  # logins, of up to 64 KiB each
MAX_HELD_OF_ONE = 32  # site
# Passwords that came over HTTP and wait: whoever asks and hangs up, again and again, leaves one each time.
MAX_ASKED = 256
MAX_ASKED_OF_ONE = 32  # site


class Verifier(Protocol):
    def verify(self, username: str, password: bytes | None) -> bool: ...

    def remembers(self, username: str, password: bytes) -> bool:
        """Was it right before? At once; False says nothing."""


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
    finish: Callable[[bool], None]
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
    """`passwords` are those in force."""

    def __init__(
        self, passwords: Verifier, clock: Callable[[], float], back_off: BackOff | None = None
    ) -> None:
        self.passwords = passwords
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
        while not self._closed and len(self._waiting) and self._running.total() < WORKERS:
            attempt = self._waiting.take(_place_of)
            if not attempt.is_wanted():
                continue  # it has hung up
            # Asked when its turn has come: those before it may have been wrong.
            wait_s = self.back_off.wait_s(attempt.username, attempt.site, self._clock())
            if wait_s:
                self._hold(attempt, wait_s)
                continue
            self._running[attempt.place] += 1
            check = self._loop.run_in_executor(
                self._threads, self.passwords.verify, attempt.username, attempt.password
            )
            check.add_done_callback(partial(self._finished, attempt, self.passwords))

    def _finished(self, attempt: Attempt, passwords: Verifier, check: asyncio.Future[bool]) -> None:
        self._running[attempt.place] -= 1
        if not self._running[attempt.place]:
            del self._running[attempt.place]
        if self._closed:
            return
        if passwords is not self.passwords:  # reloaded meanwhile: the user may be gone
            self._queue(attempt)
            return
        accepted = check.result()
        self.back_off.note(attempt.username, attempt.site, accepted, self._clock())
        attempt.finish(accepted)
        self._start()


class Logins(Part):
    """Of a node that has passwords: reads them, and checks those of its clients."""

    def __init__(self, node: NodeContext) -> None:
        """Raises ConfigError."""
        super().__init__(node)
        assert node.config.passwords is not None
        node.passwords = self._load(node.config.passwords)
        self.queue = LoginQueue(node.passwords, self._now)
        self._asked: FairLine[Attempt] = FairLine()  # over HTTP

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

    def _finish(self, login: Login, accepted: bool) -> None:
        self.node.broker.finish_login(login, accepted, self.node.clock())
        self.node.flush()

    def _refuse(self, login: Login, wait_s: float) -> None:
        if login.connection.link is None:
            return
        reason = f"too many wrong passwords for {login.username!r}: try again in {max(wait_s, 1):.0f} s"
        self.node.broker.now = self.node.clock()
        login.connection.refuse_connect(Reason.CONNECTION_RATE_EXCEEDED, reason, login.connect.client_id)
        self.node.flush()

    async def verify(self, address: str, username: str, password: bytes) -> bool:
        """For HTTP, which has no connection to hold for long. Raises TooManyError."""
        site, loop = site_of(address), asyncio.get_running_loop()
        wait_s = self.back_off.wait_s(username, site, self.node.clock())
        if wait_s:
            raise TooManyError(wait_s)
        answer: asyncio.Future[bool] = loop.create_future()

        def finish(accepted: bool) -> None:
            self._answered(attempt)
            if not answer.done():
                answer.set_result(accepted)

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
        assert config.passwords is not None
        return partial(self._set, self._load(config.passwords))

    def read_again(self) -> None:
        """Their file was changed by this node. Raises ConfigError."""
        self.reload(self.node.config)()

    def _load(self, file: Path) -> Passwords:
        # Most nodes have no such file, and start the sooner.
        from hedgerow.node.passwords import Passwords

        return Passwords.load(file)

    def _set(self, passwords: Passwords) -> None:
        """And disconnect whoever is no longer a user."""
        node = self.node
        node.passwords = self.queue.passwords = passwords
        node.broker.now = node.clock()
        for connection in list(node.broker.connections):
            if connection.session is None or connection.certificate_name is not None:
                continue
            username = connection.session.username
            if username is not None and username not in passwords:
                connection.disconnect(Reason.NOT_AUTHORIZED, "the user is gone")
        node.flush()

    async def close(self) -> None:
        self.queue.close()


def _place_of(attempt: Attempt) -> Place:
    return attempt.place


def _has_link(login: Login) -> bool:
    return login.connection.link is not None
