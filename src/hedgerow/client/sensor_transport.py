"""Publishing and subscribing over the sensors' UDP protocol: `udp://HOST[:PORT][?topics=01=farm/soil,…&port=N&renew=S]`.

Topics are those of a table, by number or by name; the broker's own table says which MQTT topics they are.
Nothing is acknowledged, so a subscription is announced twice at once and then renewed for as long as it is
wanted, and what was published may be lost. What the protocol has no place for (QoS 1 and 2, retained
messages, wildcards, names and passwords) is refused in words rather than quietly left out.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from hedgerow.client.options import BusOptions
from hedgerow.client.transport import Inbox, State, StateChange, Transport, settle
from hedgerow.client.urls import BusUrl, parse_url
from hedgerow.errors import ConfigError, ConnectError, HedgerowError, RefusedError, reason_of
from hedgerow.message import Message
from hedgerow.mqtt.client.events import MessageReceived
from hedgerow.mqtt.reasons import Reason
from hedgerow.node import udp
from hedgerow.sensors.config import read_topic_lines
from hedgerow.sensors.packet import (
    DEFAULT_TOPICS,
    MAX_DATAGRAM_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_PORT,
    PUBLISHER,
    SUBSCRIBER,
    Malformed,
    build,
    parse,
    read_number,
)

logger = logging.getLogger(__name__)

RENEW_S = 60.0  # well before a broker forgets; and after it was restarted, this long until it knows again
REPEAT_S = 1.0  # a first announcement may be lost like any datagram
RETRY_S = 2.0  # while the other side says that nobody listens

LACKING = {
    "name": "user names and passwords",
    "will": "a will",
    "session": "sessions",
    "tls": "TLS",
    "properties": "MQTT properties",
    "origin": "ids",
    "route": "bind address, proxy or path",
}


class SensorTopics:
    """The table of topics: each has a number, and most a name."""

    def __init__(self, names: Mapping[int, str] = DEFAULT_TOPICS) -> None:
        self._names = dict(names)
        self._numbers = {name: number for number, name in names.items()}

    def __str__(self) -> str:
        return ", ".join(f"{number:02} {name}" for number, name in sorted(self._names.items()))

    def name_of(self, number: int) -> str:
        return self._names.get(number, f"{number:02}")

    def number_of(self, topic: str, reason: Reason = Reason.TOPIC_FILTER_INVALID) -> int:
        """Of a topic by number or by name. Raises RefusedError."""
        number = self._numbers.get(topic, read_number(topic))
        if number is not None:
            return number
        if "+" in topic or "#" in topic:
            text = f"udp:// has no wildcards, such as in {topic}"
            raise RefusedError(text, Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED)
        raise RefusedError(f'there is no topic "{topic}"; there are {self}', reason)


@dataclass(slots=True)
class SensorOptions:
    """What stands behind the `?` of the URL, and how often to ask."""

    topics: SensorTopics = field(default_factory=SensorTopics)
    port: int = 0
    """Where to receive; 0: the system chooses."""
    renew_s: float = RENEW_S
    repeat_s: float = REPEAT_S
    retry_s: float = RETRY_S


def read_options(address: BusUrl) -> SensorOptions:
    """Raises ConfigError."""
    options = SensorOptions()
    path, _, query = address.rest.partition("?")
    if path not in ("", "/"):
        raise ConfigError(f'"{path}" after {address}: udp:// takes no path')
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name == "topics":
            options.topics = SensorTopics(read_topic_lines(text.split(",")))
        elif name == "port" and text.isascii() and text.isdecimal() and 0 < int(text) <= MAX_PORT:
            options.port = int(text)
        elif name == "renew" and text.isascii() and text.isdecimal() and int(text) > 0:
            options.renew_s = float(text)
        else:
            known = "topics=NUMBER=TOPIC,…, port=1…65535 and renew=SECONDS"
            raise ConfigError(f'"{name}={text}" after {address}: there are {known}')
    return options


def read_topics(url: str) -> SensorTopics | None:
    """The table of topics behind a URL; None: it is another transport's. Raises ConfigError."""
    address = parse_url(url)
    return read_options(address).topics if address.scheme.name == "udp" else None


async def open_transport(address: BusUrl, options: BusOptions) -> Transport:
    options.refuse(LACKING, f"{address}: the sensors' protocol has no place for")
    transport = SensorTransport(
        address, read_options(address), options.on_state, raises=not options.driver.reconnect
    )
    await transport.open()
    return transport


async def _open_socket(address: BusUrl, port: int) -> socket.socket:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            address.host, address.port, type=socket.SOCK_DGRAM
        )
        # IPv4 first: nothing tells us that a broker is not there on IPv6, where many sensors' are not.
        family, _, _, _, resolved = min(found, key=lambda entry: entry[0] != socket.AF_INET)
        opened = udp.open_socket(family)
        try:
            if port:
                opened.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port))
            # Connected, so that nobody but the broker is heard, and its absence is.
            opened.connect(resolved)
        except BaseException:
            opened.close()
            raise
    except (OSError, UnicodeError) as error:
        raise ConnectError(f"{address}: {reason_of(error)}") from None
    return opened


class SensorTransport(Transport):
    """`raises`: to publish where nobody listens is an error; otherwise, or with a subscription that waits
    for the broker, a warning, once."""

    def __init__(
        self,
        address: BusUrl,
        options: SensorOptions,
        on_state: Callable[[StateChange], None] | None = None,
        *,
        raises: bool = False,
    ) -> None:
        super().__init__(on_state)
        self.address = address
        self.malformed = 0
        """Datagrams that were dropped because they are no packets."""
        self._options = options
        self._topics = options.topics
        self._raises = raises
        self._socket: socket.socket
        self._wanted: dict[int, dict[Inbox, None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._warned = False

    async def open(self) -> None:
        self._socket = await _open_socket(self.address, self._options.port)
        self._port: int = self._socket.getsockname()[1]
        self._loop.add_reader(self._socket.fileno(), self._read)
        self.set_state(StateChange(State.CONNECTED))

    # Publishing

    async def send(self, message: Message) -> None:
        packet = self._build(message)
        while not self._try_to_send(packet):
            writable: asyncio.Future[None] = self._loop.create_future()
            self._loop.add_writer(self._socket.fileno(), settle, writable)
            try:
                await writable
            finally:
                if self.state is not State.CLOSED:
                    self._loop.remove_writer(self._socket.fileno())
            self.check_open()
        await asyncio.sleep(0)

    def send_nowait(self, message: Message) -> asyncio.Future[None]:
        if not self._try_to_send(self._build(message)):
            raise HedgerowError(f"{self.address}: no room for another datagram")
        return self._done

    def _build(self, message: Message) -> bytes:
        self.check_open()
        if message.qos:
            raise RefusedError("udp:// has QoS 0 alone: nothing is acknowledged", Reason.QOS_NOT_SUPPORTED)
        if message.retain:
            raise RefusedError("udp:// has no retained messages", Reason.RETAIN_NOT_SUPPORTED)
        if message.properties:
            text = "the sensors' protocol has no place for MQTT properties"
            raise RefusedError(text, Reason.IMPLEMENTATION_SPECIFIC_ERROR)
        number = self._topics.number_of(message.topic, Reason.TOPIC_NAME_INVALID)
        size = len(message.payload)
        if size > MAX_PAYLOAD_BYTES:
            text = f"{size:,} bytes do not fit a datagram; there is room for {MAX_PAYLOAD_BYTES:,}"
            raise RefusedError(text, Reason.PACKET_TOO_LARGE)
        return build(self.address.port, PUBLISHER, number, message.payload)

    def _try_to_send(self, packet: bytes) -> bool:
        """False: there is no room now."""
        for _ in range(2):  # an error of an earlier datagram comes instead of sending this one
            try:
                self._socket.send(packet)
                break
            except (BlockingIOError, InterruptedError):
                return False
            except OSError as error:
                self._fail(error)
        # On this machine, and only there, the answer to this datagram is here already.
        failure = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failure:
            self._fail(OSError(failure, os.strerror(failure)))
        return True

    def _fail(self, error: OSError) -> None:
        if self._raises and not self._wanted:
            raise ConnectError(f"{self.address}: {_describe(error)}") from None
        self._handle_error(error)

    # Subscribing

    async def open_subscription(self, inbox: Inbox) -> None:
        self.check_open()
        options = inbox.options
        if options.qos:
            raise RefusedError("udp:// has QoS 0 alone: nothing is acknowledged", Reason.QOS_NOT_SUPPORTED)
        if options.no_local or options.properties or options.since is not None:
            text = "udp:// subscribes to a topic and knows no options"
            raise RefusedError(text, Reason.IMPLEMENTATION_SPECIFIC_ERROR)
        numbers = [self._topics.number_of(each) for each in inbox.topic_filters]
        self.inboxes.add(inbox)
        self._renew_after(self._options.repeat_s)
        for number in numbers:
            self._wanted.setdefault(number, {})[inbox] = None
            self._announce(number)

    def close_subscription(self, inbox: Inbox, left: list[Message]) -> None:
        """The broker cannot be told; it forgets in time, and what still comes is not wanted here."""
        self.inboxes.discard(inbox)
        self._full.discard(inbox)
        self.regulate()
        for number in [each for each, wanting in self._wanted.items() if inbox in wanting]:
            del self._wanted[number][inbox]
            if not self._wanted[number]:
                del self._wanted[number]

    async def unsubscribe(self, topic_filter: str) -> None:
        self.check_open()
        number = self._topics.number_of(topic_filter)
        for inbox in list(self._wanted.get(number, ())):
            inbox.end(None)
            self.close_subscription(inbox, [])

    def regulate(self) -> None:
        self.overflowing = bool(self._full)  # There is no way to stop a sensor.

    def _announce(self, number: int) -> None:
        """To be called when the timer is set: an error sets it to an earlier time."""
        try:
            self._socket.send(build(self._port, SUBSCRIBER, number))
        except OSError as error:
            self._handle_error(error)

    def _renew(self) -> None:
        self._renew_after(self._options.renew_s)
        for number in list(self._wanted):
            self._announce(number)

    def _renew_after(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, self._renew)

    # What arrives

    def _read(self) -> None:
        for data in udp.read_turn(self._socket.recv, MAX_DATAGRAM_BYTES, self._handle_error):
            packet = parse(data)
            if isinstance(packet, Malformed) or packet.role != PUBLISHER:
                self.malformed += 1
                continue
            self._warned = False
            message = MessageReceived(self._topics.name_of(packet.topic), packet.payload)
            for inbox in self._wanted.get(packet.topic, ()):
                inbox.put(message)

    def _handle_error(self, error: OSError) -> None:
        """The network's word on a datagram that was sent before: nobody listens, or no way there."""
        text = _describe(error)
        if self._wanted:
            retry_s = min(self._options.retry_s, self._options.renew_s)
            self._renew_after(retry_s)
            text = f"{text}; asking every {retry_s:g} s"
        if not self._warned:
            self._warned = True
            logger.warning("%s: %s", self.address, text)

    # The end

    async def close(self, *, at_once: bool = False) -> None:
        if self.state is State.CLOSED:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        if self._timer is not None:
            self._timer.cancel()
        self._socket.close()
        self._wanted.clear()
        self.finish()


def _describe(error: OSError) -> str:
    return "nobody listens there" if error.errno == errno.ECONNREFUSED else reason_of(error)
