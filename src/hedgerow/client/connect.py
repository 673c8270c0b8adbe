"""`hedgerow.connect`: a URL and options to a `Bus`.

Unless the application asks for a session of its own (`clean_start`, `session_expiry`), an MQTT 5
session lasts as long as the bus: the server keeps it for some minutes when the link breaks, so that
nothing of QoS 1 or 2 is lost or doubled, and it ends with the bus.
"""

from __future__ import annotations

import os
import secrets
import ssl
import time
from collections.abc import Callable, Coroutine, Generator, Iterable
from importlib import import_module
from types import TracebackType
from typing import Any

from hedgerow.client.bus import Bus
from hedgerow.client.options import BusOptions, DriverOptions, ServerRoute, TlsOptions
from hedgerow.client.socks import parse_proxy
from hedgerow.client.transport import StateChange, Transport
from hedgerow.client.urls import parse_url, read_host
from hedgerow.errors import ConfigError
from hedgerow.message import MAX_NUMBER, MAX_ORIGIN, Message, Properties
from hedgerow.mqtt import packets
from hedgerow.mqtt.client.events import ConnectOptions
from hedgerow.mqtt.ids import may_bear
from hedgerow.mqtt.packets import NEVER_EXPIRES

FilePath = str | os.PathLike[str]

# How long the server keeps the session of a bus that lost its link.
IMPLIED_SESSION_EXPIRY_S = 300


class Connecting:
    """What `connect` returns: `async with` it, or `await` it and close the bus yourself."""

    def __init__(self, open_transport: Callable[[], Coroutine[Any, Any, Transport]]) -> None:
        self._open_transport = open_transport
        self._bus: Bus | None = None

    def __await__(self) -> Generator[Any, None, Bus]:
        return Bus((yield from self._open_transport().__await__()))

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
    tls: ssl.SSLContext | None = None,
    ca_file: FilePath | None = None,
    cert_file: FilePath | None = None,
    key_file: FilePath | None = None,
    insecure: bool = False,
    ca_path: FilePath | None = None,
    ciphers: str | None = None,
    alpn: str | None = None,
    local_address: str | None = None,
    proxy: str | None = None,
    unix_path: FilePath | None = None,
    reconnect: bool = True,
    keep_trying: bool = False,
    reconnect_delay: tuple[float, float] = (0.5, 60.0),
    follow: bool | None = None,
    follow_to: Iterable[str] = (),
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
    """Connect to `url`, and give a `Bus` to `async with` or to `await`; what `await` gives is yours to close.

    `url` is mqtt://HOST, mqtts://HOST, ws://HOST/PATH, wss://HOST/PATH, udp://HOST or multicast://, with
    `USER:PASSWORD@` before the host and `:PORT` behind it where needed. What a transport lacks is refused
    with a ConfigError. docs/client.md says more of each option.

    Who connects, and how:

    client_id            the name at the server. None: made up; "": the server chooses
    username, password   None: those of the URL
    version              of MQTT: 5, 4 (3.1.1) or 3 (3.1). None: 5, or 3.1.1 where the server does not take it
    keep_alive           seconds without a word from the server after which it is asked for one
    timeout              seconds to open a link, and for the server's answer to CONNECT
    properties           of CONNECT in MQTT 5, by the specification's names, beside those that have options

    The session at the server:

    clean_start          False: take up the session that this client id has left
    session_expiry       seconds for which the server keeps it without a link. None: 300, and no longer than
                         the bus is open; with `clean_start=False` for ever
    will                 a message that the server publishes if this client vanishes

    TLS, for mqtts:// and wss://:

    tls                  an `ssl.SSLContext`, used as it is; the other options make one
    ca_file              authorities to trust, PEM. None: the system's
    cert_file, key_file  the client's certificate and its private key, PEM
    ca_path              a folder of authorities, by the names that `openssl rehash` gives them
    insecure             do not check the host name; without `ca_file` and `ca_path`, check nothing
    ciphers              of TLS 1.2, as OpenSSL names them
    alpn                 the protocol that the server is asked for, such as "mqtt"

    Another way to the server:

    local_address        the address of this machine to connect from
    proxy                socks5h://[USER[:PASSWORD]@]HOST[:PORT]
    unix_path            a socket in the file system; the URL's host is the one that TLS checks

    Lost links:

    reconnect            connect again when the link is lost. False: the bus is closed instead
    keep_trying          wait for the first connection too. False: raise ConnectError
    reconnect_delay      seconds before the first attempt, and at most before any; doubled each time
    follow               True: go where servers send us, by the extension too. None: by MQTT 5 alone.
                         False: nowhere
    follow_to            hosts, HOST or HOST:PORT, where a password may be shown after a redirection; without
                         them it goes to the same host, or over TLS whose certificate is checked
    on_state             a function that is called with each `StateChange`

    Messages:

    manual_acknowledgement  QoS 1 and 2 are acknowledged when `Bus.acknowledge` says so
    receive_maximum      messages of QoS 1 and 2 that the server may send before we acknowledge
    max_in_flight        publications at QoS 1 and 2 that may be on their way; the server may allow fewer
    maximum_packet_size  of what the server may send, in bytes
    topic_alias_maximum  topic aliases that the server may use
    origin               give messages ids under this name, which needs MQTT 5
    epoch                the number of this origin's life in these ids. None: the time in microseconds

    Raises ConfigError at once for what cannot be meant, and ConnectError when there is no connection.
    """
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
        tls=_make_tls(tls, ca_file, cert_file, key_file, insecure, ca_path, ciphers, alpn),
        route=_make_route(local_address, proxy, unix_path),
        reconnect=reconnect,
        keep_trying=keep_trying,
        first_delay_s=reconnect_delay[0],
        max_delay_s=reconnect_delay[1],
        dial_timeout_s=timeout,
        # A Server Reference is MQTT 5's own; the extension costs a connection at servers that do not know it.
        follow=follow is not False,
        follow_to=tuple(map(read_host, (follow_to,) if isinstance(follow_to, str) else follow_to)),
        # A session of its own, and what MQTT 5 alone has, the application gets in the version that has it.
        renewals=bool(follow) and implied and version != packets.MQTT_5 and not (properties or origin),
    )
    options = BusOptions(driver_options, session_is_implied=implied, on_state=on_state)
    module = import_module(address.scheme.module)
    return Connecting(lambda: module.open_transport(address, options))


def _make_tls(
    context: ssl.SSLContext | None,
    ca_file: FilePath | None,
    cert_file: FilePath | None,
    key_file: FilePath | None,
    insecure: bool,
    ca_path: FilePath | None,
    ciphers: str | None,
    alpn: str | None,
) -> TlsOptions:
    ca, certificate, key, folder = (
        None if each is None else os.fspath(each) for each in (ca_file, cert_file, key_file, ca_path)
    )
    options = TlsOptions(ca, certificate, key, insecure, ca_path=folder, ciphers=ciphers, alpn=alpn)
    if context is None:
        return options
    if options != TlsOptions():
        raise ConfigError(
            "tls is used as it is: set in it what ca_file, cert_file, key_file and other options of TLS say"
        )
    return TlsOptions(context=context)


def _make_route(local_address: str | None, proxy: str | None, unix_path: FilePath | None) -> ServerRoute:
    if unix_path is not None and (local_address or proxy):
        raise ConfigError("unix_path: a path is reached without local_address and proxy")
    return ServerRoute(
        local_address,
        None if proxy is None else parse_proxy(proxy),
        None if unix_path is None else os.fspath(unix_path),
    )


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
