"""Password checks, off the event loop and fair.

A check costs tens of milliseconds by design, so a peer that sends many wrong passwords could keep
everyone else waiting. Waiting logins stand in one queue for each address, and the addresses take
turns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hedgerow.broker.handle_connect import Login
    from hedgerow.node.passwords import Passwords
    from hedgerow.node.server import Server

WORKERS = 2


class Logins:
    def __init__(self, server: Server, passwords: Passwords) -> None:
        self.passwords = passwords
        self._server = server
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

    def _finished(self, login: Login, passwords: Passwords, check: asyncio.Future[bool]) -> None:
        self._running -= 1
        if self._closed:
            return
        if passwords is not self.passwords:  # reloaded meanwhile: the user may be gone
            self.add(login)
            return
        self._server.broker.finish_login(login, check.result(), self._server.clock())
        self._server.flush()
        self._start()
