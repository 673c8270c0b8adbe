"""Subscribers of our own making, which speak the extension for brokers that move."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, suppress

import hedgerow
from hedgerow.client.bus import Subscription
from hedgerow.client.transport import State, StateChange
from hedgerow.mqtt.client.events import MessageReceived
from hedgerow_workshop.lab.clients import RECONNECT_S
from hedgerow_workshop.lab.storm.record import Tally


class ExtensionSubscriber:
    def __init__(self, tally: Tally, url: str) -> None:
        self.tally = tally
        self._url = url
        self._stack = AsyncExitStack()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        bus = await self._stack.enter_async_context(
            hedgerow.connect(
                self._url,
                client_id=self.tally.name,
                follow=True,
                reconnect_delay=RECONNECT_S,
                on_state=self._note_state,
            )
        )
        subscription = await self._stack.enter_async_context(bus.subscribe(self.tally.topic, qos=1))
        self._task = asyncio.create_task(self._read(subscription))

    async def _read(self, subscription: Subscription) -> None:
        async for message in subscription:
            is_repeated = isinstance(message, MessageReceived) and message.dup
            self.tally.receive(message.payload, is_repeated, time.monotonic())

    def _note_state(self, change: StateChange) -> None:
        if change.state is State.CONNECTED:
            self.tally.connections.append((time.monotonic(), ""))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._stack.aclose()


async def open_subscriber(tally: Tally, url: str) -> ExtensionSubscriber:
    subscriber = ExtensionSubscriber(tally, url)
    await subscriber.open()
    return subscriber
