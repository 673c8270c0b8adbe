"""Pages take turns: one is made at a time, and after each the node has as long for its other work.

A page of a large fabric takes a tenth of a second of the event loop. Any number of them may be asked for at
once, and the loop would make all of them before it looks at a socket again: clients of MQTT would wait for
all. So they wait for one.

Each address has a line of its own, of bounded length, and the next page is that of the address that was
served longest ago: who asks for hundreds waits for itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hedgerow.rates import site_of

MAX_WAITING = 200
MAX_WAITING_OF_ONE = 50  # address; a proxy in front of the node asks for many people


class TooManyPagesError(Exception):
    """There is no room in the line."""


class Turns:
    """`async with turns.turn(address):` around the making of a page. Raises TooManyPagesError."""

    def __init__(self, max_waiting: int = MAX_WAITING, max_waiting_of_one: int = MAX_WAITING_OF_ONE) -> None:
        self._max_waiting = max_waiting
        self._max_waiting_of_one = max_waiting_of_one
        self._lines: dict[str, dict[asyncio.Future[None], None]] = {}  # whose turn is next stands first
        self._is_taken = False

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        await self._wait(site_of(address))
        began_at = time.perf_counter()
        try:
            yield
        finally:
            took_s = time.perf_counter() - began_at
            asyncio.get_running_loop().call_later(took_s, self._begin_next)

    async def _wait(self, site: str) -> None:
        waiting = sum(map(len, self._lines.values()))
        if waiting >= self._max_waiting or len(self._lines.get(site, ())) >= self._max_waiting_of_one:
            raise TooManyPagesError
        if not self._is_taken:
            self._is_taken = True
            return
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(site, {})[turn] = None
        try:
            await turn
        except asyncio.CancelledError:
            self._leave(site, turn)
            if not turn.cancelled():  # It had just been given its turn.
                self._begin_next()
            raise

    def _leave(self, site: str, turn: asyncio.Future[None]) -> None:
        line = self._lines.get(site, {})
        line.pop(turn, None)
        if not line:
            self._lines.pop(site, None)

    def _begin_next(self) -> None:
        while self._lines:
            site = next(iter(self._lines))
            line = self._lines.pop(site)
            turn = next(iter(line))
            del line[turn]
            if line:
                self._lines[site] = line
            if not turn.done():  # Who has hung up leaves the line a moment later.
                turn.set_result(None)
                return
        self._is_taken = False
