"""Subscribers made with gmqtt, of MQTT 5."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import gmqtt

from hedgerow.client.urls import BusUrl
from hedgerow.errors import ProtocolError
from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import DISCONNECT, MQTT_5, Disconnect
from hedgerow_workshop.lab.storm.follower import KEEP_ALIVE_S, SESSION_EXPIRY_S, Ended, Follower
from hedgerow_workshop.lab.storm.record import Tally

# It connects again by itself, after some seconds and to where it was. -1 means for ever to it, and 0 once.
NO_RECONNECTS = -2


class GmqttSubscriber(Follower):
    """A client for each connection: the end of the last one may be told after the next has begun."""

    def __init__(self, tally: Tally, url: str) -> None:
        super().__init__(tally, url)
        self._client: Any = None
        self._connecting: asyncio.Task[None] | None = None

    async def connect(self, address: BusUrl) -> None:
        await self._stop_connecting()
        client = self._client = gmqtt.Client(
            self.tally.name, clean_session=False, session_expiry_interval=SESSION_EXPIRY_S
        )
        client.set_config({"reconnect_retries": NO_RECONNECTS})
        client.on_connect = lambda client, flags, code, properties: self.accepted(bool(flags))
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = lambda *told: self.subscribed()
        client.on_message = self._on_message
        # It would wait for ever for the answer of a server that hangs up.
        self._connecting = asyncio.create_task(
            client.connect(address.host, address.port, keepalive=KEEP_ALIVE_S)
        )
        self._connecting.add_done_callback(self._on_connect_done)

    def _on_connect_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None and task is self._connecting:
            self.ended(Ended())

    async def _stop_connecting(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await self._connecting

    def subscribe(self) -> None:
        self._client.subscribe(self.tally.topic, qos=1)

    async def disconnect(self) -> None:
        await self._stop_connecting()
        if self._client is not None and self._client.is_connected:
            await self._client.disconnect()

    def _on_disconnect(self, client: Any, packet: object, *more: Any) -> None:
        if client is self._client:
            self.ended(read_disconnect(packet))

    def _on_message(self, client: Any, topic: str, payload: bytes, qos: int, properties: Any) -> int:
        self.received(bytes(payload), bool(properties["dup"]))
        return 0


def read_disconnect(packet: object) -> Ended:
    """gmqtt hands over the packet's body, and an empty one when the connection was lost."""
    if not isinstance(packet, bytes) or not packet:
        return Ended()
    try:
        read = codec.decode(DISCONNECT << 4, packet, MQTT_5)
    except ProtocolError:
        return Ended()
    assert isinstance(read, Disconnect)
    return Ended(read.reason_code, read.properties.get("server_reference"))


async def open_subscriber(tally: Tally, url: str) -> GmqttSubscriber:
    subscriber = GmqttSubscriber(tally, url)
    await subscriber.open()
    return subscriber
