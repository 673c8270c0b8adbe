"""Subscribers of our own making, which speak the extension for brokers that move."""

from __future__ import annotations

import time

from hedgerow.client.transport import State, StateChange
from hedgerow.message import Message
from hedgerow.mqtt.client.events import MessageReceived
from hedgerow_workshop.lab.harness.clients import Clients
from hedgerow_workshop.lab.storm.record import Tally


class ExtensionSubscriber(Clients):
    def __init__(self, tally: Tally, url: str) -> None:
        super().__init__(follow=True, on_state=self._note_state)
        self.tally = tally
        self._url = url

    async def open(self) -> None:
        bus = await self.connect(self.tally.name, self._url)
        await self.listen(bus, self.tally.topic, 1, self._receive)

    def _receive(self, message: Message) -> None:
        is_repeated = isinstance(message, MessageReceived) and message.dup
        self.tally.receive(message.payload, is_repeated, time.monotonic())

    def _note_state(self, change: StateChange) -> None:
        if change.state is State.CONNECTED:
            self.tally.connections.append((time.monotonic(), ""))

    async def close(self) -> None:
        await self.__aexit__(None, None, None)


async def open_subscriber(tally: Tally, url: str) -> ExtensionSubscriber:
    subscriber = ExtensionSubscriber(tally, url)
    await subscriber.open()
    return subscriber
