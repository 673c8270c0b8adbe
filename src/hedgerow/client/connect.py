"""`hedgerow.connect`: a URL and options to a `Bus`.

Unless the application asks for a session of its own (`clean_start`, `session_expiry`), an MQTT 5
session lasts as long as the bus: the server keeps it for some minutes when the link breaks, so that
nothing of QoS 1 or 2 is lost or doubled, and it ends with the bus.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Coroutine, Generator
from importlib import import_module
from types import TracebackType
from typing import Any

from hedgerow.client.bus import Bus, StateChange
from hedgerow.client.bus_options import BusOptions
from hedgerow.client.dial import TlsOptions
from hedgerow.client.driver import DriverOptions
from hedgerow.client.urls import parse_url
from hedgerow.errors import ConfigError
from hedgerow.message import MAX_NUMBER, MAX_ORIGIN, Message, Properties
from hedgerow.mqtt import packets
from hedgerow.mqtt.client.events import ConnectOptions
from hedgerow.mqtt.ids import may_bear
from hedgerow.mqtt.packets import NEVER_EXPIRES

# How long the server keeps the session of a bus that lost its link.
IMPLIED_SESSION_EXPIRY_S = 300


class Connecting:
    """What `connect` returns: `async with` it, or `await` it and close the bus yourself."""

    def __init__(self, open_bus: Callable[[], Coroutine[Any, Any, Bus]]) -> None:
        self._open_bus = open_bus
        self._bus: Bus | None = None

    def __await__(self) -> Generator[Any, None, Bus]:
        return self._open_bus().__await__()

    async def __aenter__(self) -> Bus:
        self._bus = await self
        return self._bus

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._bus is not None
        await self._bus.__aexit__(kind, error, traceback)


def connect(
    url: str,
    *,
    client_id: str | None = None,
    username: str | None = None,
    password: str | bytes | None = None,
    clean_start: bool = True,
    session_expiry: int | None = None,
    keep_alive: int = 60,
    version: int | None = None,
    will: Message | None = None,
    ca_file: str | None = None,
    cert_file: str | None = None,
    key_file: str | None = None,
    insecure: bool = False,
    reconnect: bool = True,
    keep_trying: bool = False,
    reconnect_delay: tuple[float, float] = (0.5, 60.0),
    follow: bool | None = None,
    timeout: float = 10.0,
    manual_acknowledgement: bool = False,
    receive_maximum: int = 65_535,
    max_in_flight: int = 65_535,
    maximum_packet_size: int | None = None,
    topic_alias_maximum: int = 0,
    properties: Properties | None = None,
    origin: str | None = None,
    epoch: int | None = None,
    on_state: Callable[[StateChange], None] | None = None,
) -> Connecting:
    """Connect to `url` and give a `Bus`; docs/client.md says what each option means."""
    address = parse_url(url)
    if version not in (None, packets.MQTT_3_1, packets.MQTT_3_1_1, packets.MQTT_5):
        raise ConfigError(f"version {version} is none of MQTT's: 5, 4 (3.1.1) or 3 (3.1)")
    _check_ids(origin, epoch, version)
    username = address.username if username is None else username
    password = address.password if password is None else password
    implied = session_expiry is None and clean_start
    if session_expiry is None:
        # A session that is taken up again is one that was meant to stay.
        session_expiry = IMPLIED_SESSION_EXPIRY_S if clean_start else NEVER_EXPIRES
    connect_options = ConnectOptions(
        client_id=f"hedgerow-{secrets.token_hex(6)}" if client_id is None else client_id,
        version=version or packets.MQTT_5,
        clean_start=clean_start,
        session_expiry_s=session_expiry,
        keep_alive_s=keep_alive,
        username=username,
        password=password.encode(errors="surrogateescape") if isinstance(password, str) else password,
        will=None if will is None else _make_will(will),
        receive_maximum=receive_maximum,
        maximum_packet_size=maximum_packet_size,
        topic_alias_maximum=topic_alias_maximum,
        max_in_flight=max_in_flight,
        manual_acknowledgement=manual_acknowledgement,
        connect_timeout_s=timeout,
        first_packet_id=1 if clean_start else 1 + secrets.randbelow(65_535),
        properties=properties or {},
        origin=origin,
        # Microseconds: two runs of a program in one second must not give the same ids.
        epoch=time.time_ns() // 1000 if epoch is None else epoch,
    )
    driver_options = DriverOptions(
        connect_options,
        version_may_fall=version is None and origin is None,
        tls=TlsOptions(ca_file, cert_file, key_file, insecure),
        reconnect=reconnect,
        keep_trying=keep_trying,
        first_delay_s=reconnect_delay[0],
        max_delay_s=reconnect_delay[1],
        dial_timeout_s=timeout,
        # A Server Reference is MQTT 5's own; the extension costs a connection at servers that do not know it.
        follow=follow is not False,
        # A session of its own, and what MQTT 5 alone has, the application gets in the version that has it.
        renewals=bool(follow) and implied and version != packets.MQTT_5 and not (properties or origin),
    )
    options = BusOptions(driver_options, session_is_implied=implied, on_state=on_state)
    module = import_module(address.scheme.module)
    return Connecting(lambda: module.open_bus(address, options))


def _check_ids(origin: str | None, epoch: int | None, version: int | None) -> None:
    if origin is None:
        if epoch is not None:
            raise ConfigError("an epoch is part of an origin's ids: give origin=NAME too")
        return
    if not may_bear(origin):
        raise ConfigError(f"origin {origin!r}: a name of 1 to {MAX_ORIGIN} printable characters")
    if epoch is not None and not 0 <= epoch <= MAX_NUMBER:
        raise ConfigError(f"epoch {epoch}: a number from 0 to {MAX_NUMBER}")
    if version not in (None, packets.MQTT_5):
        raise ConfigError("origin: ids are MQTT 5 properties, and older versions have no place for them")


def _make_will(message: Message) -> packets.Will:
    return packets.Will(message.topic, message.payload, message.qos, message.retain, message.properties)
