"""A subscriber made with a client of MQTT 5 by others, and a little beside it that follows Server References.

It connects with Clean Start 0 and keeps its session for minutes. Told to use another server, it connects
there at once; when a connection is lost it tries where it was, and where it began, in turn. It subscribes
where the server does not know its session.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import NamedTuple

from hedgerow.client.following import Whereabouts
from hedgerow.client.urls import BusUrl, parse_url
from hedgerow_workshop.lab.storm.record import Tally

SESSION_EXPIRY_S = 300
KEEP_ALIVE_S = 30
CONNECT_S = 5.0
RETRY_S = 0.1


class Ended(NamedTuple):
    """Why a connection is over; both None: it was lost."""

    reason_code: int | None = None
    server_reference: str | None = None


class Follower(ABC):
    def __init__(self, tally: Tally, url: str) -> None:
        self.tally = tally
        self._where = Whereabouts(parse_url(url))
        self._loop = asyncio.get_running_loop()
        self._answered: asyncio.Future[bool] = self._loop.create_future()
        self._ended: asyncio.Future[Ended] = self._loop.create_future()
        self._subscribed: asyncio.Future[None] = self._loop.create_future()
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def connect(self, address: BusUrl) -> None:
        """Send CONNECT there; raises OSError where that cannot be."""

    @abstractmethod
    def subscribe(self) -> None:
        """Send SUBSCRIBE, at QoS 1."""

    @abstractmethod
    async def disconnect(self) -> None: ...

    # What the client's callbacks tell

    def accepted(self, session_present: bool) -> None:
        if not self._answered.done():
            self._answered.set_result(session_present)

    def ended(self, ended: Ended) -> None:
        if not self._ended.done():
            self._ended.set_result(ended)

    def subscribed(self) -> None:
        if not self._subscribed.done():
            self._subscribed.set_result(None)

    def received(self, payload: bytes, is_repeated: bool) -> None:
        self.tally.receive(payload, is_repeated, time.monotonic())

    # From server to server

    async def open(self) -> None:
        """Returns when it is subscribed."""
        self._task = asyncio.create_task(self._stay_connected())
        await asyncio.wait((self._task, self._subscribed), return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self._task.result()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self.disconnect()

    async def _stay_connected(self) -> None:
        attempt = 0
        address: BusUrl | None = None
        while True:
            ended = await self._stay(address or self._where.candidate(attempt))
            address = self._where.redirect(ended.reason_code, ended.server_reference)
            if address is None:
                attempt = attempt + 1 if not self._answered.done() else 0
                await asyncio.sleep(RETRY_S)

    async def _stay(self, address: BusUrl) -> Ended:
        """One connection, from the attempt to its end."""
        self._answered, self._ended = self._loop.create_future(), self._loop.create_future()
        try:
            async with asyncio.timeout(CONNECT_S):
                await self.connect(address)
                await asyncio.wait((self._answered, self._ended), return_when=asyncio.FIRST_COMPLETED)
        except (OSError, TimeoutError):
            return Ended()
        if not self._answered.done():
            return self._ended.result()
        self._where.address = address
        self.tally.connections.append((time.monotonic(), str(address)))
        if self._answered.result():
            self.subscribed()
        else:
            self.subscribe()
        return await self._ended
