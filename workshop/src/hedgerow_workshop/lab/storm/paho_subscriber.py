"""Subscribers made with Eclipse Paho: of MQTT 5, which follow, and of MQTT 3.1.1, which cannot be told to.

Many of them share a process, and one thread of it: an event loop reads and writes their sockets.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from hedgerow.client.urls import BusUrl
from hedgerow_workshop.lab.storm.follower import KEEP_ALIVE_S, SESSION_EXPIRY_S, Ended, Follower
from hedgerow_workshop.lab.storm.record import SubscriberKind, Tally

MISC_S = 1.0  # How often Paho looks whether it has to ping.


class PahoSubscriber(Follower):
    def __init__(self, tally: Tally, url: str) -> None:
        super().__init__(tally, url)
        self._is_5 = tally.kind is SubscriberKind.PAHO_5
        options: dict[str, Any] = {} if self._is_5 else {"clean_session": False}
        version = MQTTProtocolVersion.MQTTv5 if self._is_5 else MQTTProtocolVersion.MQTTv311
        client = self._client = Client(CallbackAPIVersion.VERSION2, tally.name, protocol=version, **options)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_subscribe = lambda *told: self.subscribed()
        client.on_message = self._on_message
        client.on_socket_open = self._on_open
        client.on_socket_close = self._on_close
        client.on_socket_register_write = self._on_register_write
        client.on_socket_unregister_write = self._on_unregister_write
        self._misc = self._loop.call_later(MISC_S, self._look_after)

    async def connect(self, address: BusUrl) -> None:
        options: dict[str, Any] = {}
        if self._is_5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = SESSION_EXPIRY_S
            options = {"clean_start": False, "properties": properties}
        # It waits for the connection, which on one machine is there or refused at once.
        self._client.connect(address.host, address.port, KEEP_ALIVE_S, **options)

    def subscribe(self) -> None:
        self._client.subscribe(self.tally.topic, 1)

    async def disconnect(self) -> None:
        self._misc.cancel()
        self._client.disconnect()
        if self._client.socket() is not None:
            self._client.loop_write()

    # Paho's callbacks

    def _on_connect(self, client: Any, userdata: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            self.ended(Ended(reason.value, getattr(properties, "ServerReference", None)))
        else:
            self.accepted(flags.session_present)

    def _on_disconnect(self, client: Any, userdata: Any, flags: Any, reason: Any, properties: Any) -> None:
        if flags.is_disconnect_packet_from_server:
            self.ended(Ended(reason.value, getattr(properties, "ServerReference", None)))
        else:
            self.ended(Ended())

    def _on_message(self, client: Any, userdata: Any, message: MQTTMessage) -> None:
        self.received(bytes(message.payload), message.dup)

    # Its socket

    def _on_open(self, client: Any, userdata: Any, opened: Any) -> None:
        assert isinstance(opened, socket.socket)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop.add_reader(opened, self._read)

    def _on_close(self, client: Any, userdata: Any, closed: Any) -> None:
        with suppress(ValueError):
            self._loop.remove_reader(closed)
            self._loop.remove_writer(closed)

    def _on_register_write(self, client: Any, userdata: Any, opened: Any) -> None:
        self._loop.add_writer(opened, self._client.loop_write)

    def _on_unregister_write(self, client: Any, userdata: Any, opened: Any) -> None:
        with suppress(ValueError):
            self._loop.remove_writer(opened)

    def _read(self) -> None:
        self._client.loop_read()

    def _look_after(self) -> None:
        if self._client.socket() is not None and self._client.loop_misc() != MQTTErrorCode.MQTT_ERR_SUCCESS:
            self.ended(Ended())
        self._misc = self._loop.call_later(MISC_S, self._look_after)


async def open_subscriber(tally: Tally, url: str) -> PahoSubscriber:
    subscriber = PahoSubscriber(tally, url)
    await subscriber.open()
    return subscriber
