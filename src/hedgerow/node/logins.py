"""Password checks, off the event loop and fair.

A check costs tens of milliseconds by design, so a peer that sends many wrong passwords could keep
everyone else waiting. Waiting logins stand in one queue for each address, and the addresses take
turns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Protocol

from hedgerow.mqtt.reasons import Reason
from hedgerow.node.part import NodeContext, Part
from hedgerow.node.passwords import Passwords

if TYPE_CHECKING:
    from pathlib import Path

    from hedgerow.broker.handle_connect import Login

WORKERS = 2


class Verifier(Protocol):
    def verify(self, username: str, password: bytes | None) -> bool: ...


class LoginQueue:
    """`passwords` are those in force. `finish` is told of each login whether it is right."""

    def __init__(self, passwords: Verifier, finish: Callable[[Login, bool], None]) -> None:
        self.passwords = passwords
        self._finish = finish
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(WORKERS, "hedgerow-login")
        self._waiting: dict[str, deque[Login]] = {}  # by address, whose turn it is first
        self._running = 0
        self._closed = False

    def add(self, login: Login) -> None:
        self._waiting.setdefault(login.connection.address, deque()).append(login)
        self._start()

    def close(self) -> None:
        self._closed = True
        self._waiting.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        while self._waiting and self._running < WORKERS:
            address, queue = next(iter(self._waiting.items()))
            login = queue.popleft()
            del self._waiting[address]
            if queue:
                self._waiting[address] = queue
            if login.connection.link is None:
                continue  # it has hung up
            self._running += 1
            check = self._loop.run_in_executor(
                self._threads, self.passwords.verify, login.username, login.password
            )
            check.add_done_callback(partial(self._finished, login, self.passwords))

    def _finished(self, login: Login, passwords: Verifier, check: asyncio.Future[bool]) -> None:
        self._running -= 1
        if self._closed:
            return
        if passwords is not self.passwords:  # reloaded meanwhile: the user may be gone
            self.add(login)
            return
        self._finish(login, check.result())
        self._start()


class Logins(Part):
    """Of a node that has passwords: reads them, and checks those of its clients."""

    def __init__(self, node: NodeContext) -> None:
        """Raises ConfigError."""
        super().__init__(node)
        assert node.config.passwords is not None
        self._file: Path = node.config.passwords
        node.passwords = Passwords.load(self._file)
        self._queue = LoginQueue(node.passwords, self._finish)

    @property
    def has_work(self) -> bool:
        return bool(self.node.broker.logins)

    def serve(self) -> None:
        for login in self.node.broker.take_logins():
            self._queue.add(login)

    def _finish(self, login: Login, accepted: bool) -> None:
        self.node.broker.finish_login(login, accepted, self.node.clock())
        self.node.flush()

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
