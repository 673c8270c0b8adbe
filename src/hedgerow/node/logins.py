"""Password checks, off the event loop and fair, for whatever asks for them: MQTT, WebSocket, HTTP.

A check costs tens of milliseconds by design, so a peer that sends many wrong passwords could keep
everyone else waiting. Waiting logins stand in one queue for each site (`rates.site_of`: whoever has an IPv6
network has very many addresses), and the sites take turns. After several wrong passwords the next ones are
held (`back_off`), and refused unseen where that would take long.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from hedgerow.mqtt.reasons import Reason
from hedgerow.node.back_off import BackOff
from hedgerow.node.part import NodeContext, Part
from hedgerow.node.passwords import Passwords
from hedgerow.rates import site_of

if TYPE_CHECKING:
    from pathlib import Path

    from hedgerow.broker.handle_connect import Login

WORKERS = 2
MAX_HELD_S = 5.0  # longer, and a login is refused: what it came with would have to be kept
MAX_HELD = 1_024  # logins, of up to 64 KiB each
MAX_HELD_OF_ONE = 32  # site
# Passwords that came over HTTP and wait: whoever asks and hangs up, again and again, leaves one each time.
MAX_ASKED = 256
MAX_ASKED_OF_ONE = 32  # site


class Verifier(Protocol):
    def verify(self, username: str, password: bytes | None) -> bool: ...


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
        self._waiting: dict[str, deque[Attempt]] = {}  # by site, whose turn it is first
        self._held: dict[Attempt, asyncio.TimerHandle] = {}
        self._held_of: Counter[str] = Counter()  # by site
        self._running = 0
        self._closed = False

    def add(self, attempt: Attempt) -> None:
        """Raises nothing: what comes of it is told to the attempt."""
        delay_s = self.back_off.delay_s(attempt.username, attempt.site, self._clock())
        if delay_s:
            self._hold(attempt, delay_s)
        else:
            self._queue(attempt)

    def close(self) -> None:
        self._closed = True
        self._waiting.clear()
        for timer in self._held.values():
            timer.cancel()
        self._held.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _queue(self, attempt: Attempt) -> None:
        self._waiting.setdefault(attempt.site, deque()).append(attempt)
        self._start()

    def _hold(self, attempt: Attempt, wait_s: float) -> None:
        site = attempt.site
        if wait_s > MAX_HELD_S or len(self._held) >= MAX_HELD or self._held_of[site] >= MAX_HELD_OF_ONE:
            attempt.refuse(wait_s)
            return
        self._held[attempt] = self._loop.call_later(wait_s, self._release, attempt)
        self._held_of[site] += 1

    def _release(self, attempt: Attempt) -> None:
        del self._held[attempt]
        self._held_of[attempt.site] -= 1
        if not self._held_of[attempt.site]:
            del self._held_of[attempt.site]
        self._queue(attempt)

    def _start(self) -> None:
        while self._waiting and self._running < WORKERS:
            site, queue = next(iter(self._waiting.items()))
            attempt = queue.popleft()
            del self._waiting[site]
            if queue:
                self._waiting[site] = queue
            if not attempt.is_wanted():
                continue  # it has hung up
            # Asked when its turn has come: those before it may have been wrong.
            wait_s = self.back_off.wait_s(attempt.username, site, self._clock())
            if wait_s:
                self._hold(attempt, wait_s)
                continue
            self._running += 1
            check = self._loop.run_in_executor(
                self._threads, self.passwords.verify, attempt.username, attempt.password
            )
            check.add_done_callback(partial(self._finished, attempt, self.passwords))

    def _finished(self, attempt: Attempt, passwords: Verifier, check: asyncio.Future[bool]) -> None:
        self._running -= 1
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
        self._file: Path = node.config.passwords
        node.passwords = Passwords.load(self._file)
        self._queue = LoginQueue(node.passwords, self._now)
        self._asked: Counter[str] = Counter()  # over HTTP, by site

    def _now(self) -> float:
        return self.node.clock()

    @property
    def back_off(self) -> BackOff:
        return self._queue.back_off

    @property
    def has_work(self) -> bool:
        return bool(self.node.broker.logins)

    def serve(self) -> None:
        for login in self.node.broker.take_logins():
            self._queue.add(
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
        if self._asked[site] >= MAX_ASKED_OF_ONE or self._asked.total() >= MAX_ASKED:
            raise TooManyError(1.0)
        self._asked[site] += 1
        answer: asyncio.Future[bool] = loop.create_future()

        def finish(accepted: bool) -> None:
            self._answered(site)
            if not answer.done():
                answer.set_result(accepted)

        def refuse(wait_s: float) -> None:
            self._answered(site)
            if not answer.done():
                answer.set_exception(TooManyError(max(wait_s, 1.0)))

        # Whether or not anybody waits: whoever hangs up must not get around the count of wrong passwords.
        self._queue.add(Attempt(site, username, password, finish, refuse))
        return await answer

    def _answered(self, site: str) -> None:
        self._asked[site] -= 1
        if not self._asked[site]:
            del self._asked[site]

    def reload(self) -> Callable[[], None]:
        return partial(self._set, Passwords.load(self._file))

    def _set(self, passwords: Passwords) -> None:
        """And disconnect whoever is no longer a user."""
        node = self.node
        node.passwords = self._queue.passwords = passwords
        node.broker.now = node.clock()
        for connection in list(node.broker.connections):
            if connection.session is None or connection.certificate_name is not None:
                continue
            username = connection.session.username
            if username is not None and username not in passwords:
                connection.disconnect(Reason.NOT_AUTHORIZED, "the user is gone")
        node.flush()

    async def close(self) -> None:
        self._queue.close()


def _has_link(login: Login) -> bool:
    return login.connection.link is not None
