"""A `Bus` over the sensors' UDP protocol: `udp://HOST[:PORT][?topics=01=farm/temperature,…&port=N&renew=S]`.

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
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qsl

from hedgerow.client.bus import Bus, State, StateChange, Subscription, settle
from hedgerow.client.bus_options import BusOptions
from hedgerow.client.urls import BusUrl
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
}


@dataclass(slots=True)
class SensorOptions:
    """What stands behind the `?` of the URL."""

    topics: dict[int, str] = field(default_factory=DEFAULT_TOPICS.copy)
    port: int = 0
    """Where to receive; 0: the system chooses."""
    renew_s: float = RENEW_S


def read_options(address: BusUrl) -> SensorOptions:
    """Raises ConfigError."""
    options = SensorOptions()
    path, _, query = address.rest.partition("?")
    if path not in ("", "/"):
        raise ConfigError(f'"{path}" after {address}: udp:// takes no path')
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name == "topics":
            options.topics = read_topic_lines(text.split(","))
        elif name == "port" and text.isascii() and text.isdecimal() and 0 < int(text) <= MAX_PORT:
            options.port = int(text)
        elif name == "renew" and text.isascii() and text.isdecimal() and int(text) > 0:
            options.renew_s = float(text)
        else:
            known = "topics=NUMBER=TOPIC,…, port=1…65535 and renew=SECONDS"
            raise ConfigError(f'"{name}={text}" after {address}: there are {known}')
    return options


async def open_bus(address: BusUrl, options: BusOptions) -> Bus:
    options.refuse(LACKING, f"{address}: the sensors' protocol has no place for")
    sensor_options = read_options(address)
    opened = await _open_socket(address, sensor_options.port)
    bus = SensorBus(address, sensor_options, opened, options.on_state, raises=not options.driver.reconnect)
    bus.start()
    return bus


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


class SensorBus(Bus):
    """`raises`: to publish where nobody listens is an error; otherwise, or with a subscription that waits
    for the broker, a warning, once."""

    def __init__(
        self,
        address: BusUrl,
        options: SensorOptions,
        opened: socket.socket,
        on_state: Callable[[StateChange], None] | None = None,
        *,
        raises: bool = False,
    ) -> None:
        super().__init__(on_state)
        self.address = address
        self.topics = options.topics
        self.malformed = 0
        """Datagrams that were dropped because they are no packets."""
        self._renew_s = options.renew_s
        self._socket = opened
        self._port: int = opened.getsockname()[1]
        self._raises = raises
        self._numbers = {name: number for number, name in options.topics.items()}
        self._wanted: dict[int, dict[Subscription, None]] = {}
        self._full: set[Subscription] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._warned = False

    def start(self) -> None:
        self._loop.add_reader(self._socket.fileno(), self._read)
        self.set_state(StateChange(State.CONNECTED))

    def find_number(self, topic: str, reason: Reason) -> int:
        """The number of a topic, given by number or by name. Raises RefusedError."""
        number = self._numbers.get(topic, read_number(topic))
        if number is not None:
            return number
        if "+" in topic or "#" in topic:
            text = f"udp:// has no wildcards, such as in {topic}"
            raise RefusedError(text, Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED)
        known = ", ".join(f"{number:02} {name}" for number, name in sorted(self.topics.items()))
        raise RefusedError(f'there is no topic "{topic}"; there are {known}', reason)

    # Publishing

    async def send(self, message: Message) -> None:
        packet = self._build(message)
        while not self._try_to_send(packet):
            writable: asyncio.Future[None] = self._loop.create_future()
            self._loop.add_writer(self._socket.fileno(), settle, writable)
            try:
                await writable
            finally:
                if not self.closed:
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
        number = self.find_number(message.topic, Reason.TOPIC_NAME_INVALID)
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

    async def open_subscription(self, subscription: Subscription) -> None:
        self.check_open()
        options = subscription.options
        if options.qos:
            raise RefusedError("udp:// has QoS 0 alone: nothing is acknowledged", Reason.QOS_NOT_SUPPORTED)
        if options.no_local or options.properties:
            text = "udp:// subscribes to a topic and knows no options"
            raise RefusedError(text, Reason.IMPLEMENTATION_SPECIFIC_ERROR)
        numbers = [self.find_number(each, Reason.TOPIC_FILTER_INVALID) for each in subscription.topic_filters]
        self.subscriptions.add(subscription)
        self._renew_after(REPEAT_S)
        for number in numbers:
            self._wanted.setdefault(number, {})[subscription] = None
            self._announce(number)

    def close_subscription(self, subscription: Subscription, left: list[Message]) -> None:
        """The broker cannot be told; it forgets in time, and what still comes is not wanted here."""
        self.subscriptions.discard(subscription)
        self._full.discard(subscription)
        self.overflowing = bool(self._full)
        for number in [each for each, wanting in self._wanted.items() if subscription in wanting]:
            del self._wanted[number][subscription]
            if not self._wanted[number]:
                del self._wanted[number]

    async def unsubscribe(self, topic_filter: str) -> None:
        self.check_open()
        number = self.find_number(topic_filter, Reason.TOPIC_FILTER_INVALID)
        for subscription in list(self._wanted.get(number, ())):
            subscription.end(None)
            self.close_subscription(subscription, [])

    def full_changed(self, subscription: Subscription) -> None:
        if subscription.full:
            self._full.add(subscription)
        else:
            self._full.discard(subscription)
        self.overflowing = bool(self._full)  # there is no way to stop a sensor

    def _announce(self, number: int) -> None:
        """To be called when the timer is set: an error sets it to an earlier time."""
        try:
            self._socket.send(build(self._port, SUBSCRIBER, number))
        except OSError as error:
            self._handle_error(error)

    def _renew(self) -> None:
        self._renew_after(self._renew_s)
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
            name = self.topics.get(packet.topic, f"{packet.topic:02}")
            message = MessageReceived(name, packet.payload)
            for subscription in self._wanted.get(packet.topic, ()):
                subscription.put(message)

    def _handle_error(self, error: OSError) -> None:
        """The network's word on a datagram that was sent before: nobody listens, or no way there."""
        text = _describe(error)
        if self._wanted:
            retry_s = min(RETRY_S, self._renew_s)
            self._renew_after(retry_s)
            text = f"{text}; asking every {retry_s:g} s"
        if not self._warned:
            self._warned = True
            logger.warning("%s: %s", self.address, text)

    # The end

    async def close(self) -> None:
        if self.closed:
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
