"""The UDP sockets of a node, between sensors, their subscribers and the broker.

Each turn of the loop reads a bounded number of datagrams from a socket, gives them to the `Exchange`,
sends what it has to send, and publishes what sensors said through a port of the broker. A datagram that the
system does not take is counted, not queued: the next reading is worth more than an old one.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hedgerow.broker.port import Port
from hedgerow.message import Message
from hedgerow.node import udp
from hedgerow.node.addresses import is_of_this_machine
from hedgerow.node.authority import authority
from hedgerow.node.listener import bind, encoded_host
from hedgerow.node.part import NEVER, NodeContext, Part
from hedgerow.sensors.config import SensorSettings
from hedgerow.sensors.exchange import Destination, Exchange
from hedgerow.sensors.packet import MAX_DATAGRAM_BYTES

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from hedgerow.node.config import Config

LOOK_AT_DROPS_S = 5.0
TURNS_AT_THE_END = 1_024  # for what has arrived when the node stops; a flood would have no end
SENDS_PER_TURN = 1_024  # some 4 ms: one datagram may go to thousands of subscribers
DEFAULT_PACKETS_PER_S = 1_000


class SensorsPart(Part):
    """Every UDP address of one node."""

    exchange: Exchange
    look_at_drops_s = LOOK_AT_DROPS_S

    def __init__(self, node: NodeContext) -> None:
        """Binds. Raises ConfigError."""
        super().__init__(node)
        self._sockets: list[socket.socket] = []
        try:
            for address in node.config.of(SensorSettings).udp:
                self._sockets += bind(address, "udp", self.open_socket)
        except BaseException:
            self._close_sockets()
            raise
        self._drop_watch = udp.DropWatch()
        self._look_at_drops_at = NEVER
        self._dropped = 0
        """By the system, at sockets that are closed."""
        self._ports = {int(each.getsockname()[1]) for each in self._sockets}
        self._port: Port | None = None

    @staticmethod
    def open_socket(host: str, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        opened = udp.open_socket(family)
        try:
            if family == socket.AF_INET6:
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # By name, since a link-local address carries its interface: fe80::1%eth0.
            found = socket.getaddrinfo(encoded_host(host), port, family, socket.SOCK_DGRAM)
            _, _, _, _, resolved = found[0]
            opened.bind(resolved)
        except BaseException:
            opened.close()
            raise
        return opened

    @property
    def urls(self) -> list[str]:
        return [f"udp://{authority(*each.getsockname()[:2])}" for each in self._sockets]

    async def start(self) -> None:
        node, options = self.node, self.node.config.of(SensorSettings)
        self._loop = asyncio.get_running_loop()
        self.exchange = Exchange(
            options.topics,
            self._sockets[0].getsockname()[1],
            self._is_own,
            subscription_expiry_s=options.subscription_expiry_s,
            keeps_last_value=options.last_value,
            packets_per_s=DEFAULT_PACKETS_PER_S if options.rate is None else options.rate,
            # As with connections: the default spares this machine's own processes.
            spares_loopback=options.rate is None,
        )
        self._set_access()
        self._port = Port(node.broker, "sensors", self._deliver, "sensors")
        now = node.clock()
        for name in self.exchange.topic_names:
            self._port.subscribe(name, now)
        for via, each in enumerate(self._sockets):
            self._loop.add_reader(each.fileno(), self._read, via)
        self._look_at_drops_at = now

    def reload(self, config: Config) -> Callable[[], None]:
        return self._set_access

    def _set_access(self) -> None:
        """A sensor is a client without a name: what the broker's ACL grants to those holds for it."""
        access = self.node.broker.access
        self.exchange.permit(
            lambda topic: access.may_read(None, "", topic), lambda topic: access.may_write(None, "", topic)
        )

    async def stop(self) -> None:
        if self._port is not None:
            self._read_to_the_end()
            self._port.close()
        for each in self._sockets:
            self._loop.remove_reader(each.fileno())
        self._close_sockets()

    async def close(self) -> None:
        self._close_sockets()

    def _close_sockets(self) -> None:
        for each in self._sockets:
            self._dropped += udp.count_dropped(each)
            each.close()
        self._sockets = []

    def _is_own(self, host: str, port: int) -> bool:
        return port in self._ports and is_of_this_machine(host)

    @property
    def overruns(self) -> int:
        """Packets that arrived, and found a socket's buffer full."""
        return self._dropped + sum(map(udp.count_dropped, self._sockets))

    @property
    def receive_buffer_bytes(self) -> int:
        """What the system gave to each socket; the least, where they differ."""
        return min(map(udp.granted_bytes, self._sockets), default=0)

    def _look_at_drops(self, now: float) -> None:
        self._look_at_drops_at = now + self.look_at_drops_s
        dropped = self._drop_watch.look(", ".join(self.urls), self.overruns, self.receive_buffer_bytes)
        if dropped is not None:
            self.node.event_log.write(dropped, now)

    def _read_to_the_end(self) -> None:
        """What has arrived is taken before the sockets are closed."""
        stats = self.exchange.stats
        for via in range(len(self._sockets)):
            for _ in range(TURNS_AT_THE_END):
                received = stats.received
                self._read(via)
                if stats.received == received:
                    break
        self._look_at_drops(self.node.clock())

    def _read(self, via: int) -> None:
        node, exchange = self.node, self.exchange
        receive, handle = self._sockets[via].recvfrom, exchange.receive_datagram
        now = node.clock()
        stats = exchange.stats
        enough = stats.forwarded + SENDS_PER_TURN
        for data, source in udp.read_turn(receive, MAX_DATAGRAM_BYTES):
            handle(data, via, source, now)
            if stats.forwarded > enough:
                break
        self._send(exchange.take_datagrams())
        assert self._port is not None
        publish = self._port.publish
        for message in exchange.take_messages():
            publish(message, now)
        for event in exchange.take_events():
            node.event_log.write(event, now)
        node.wake_at(self.deadline)
        node.flush()

    def _deliver(self, message: Message) -> None:
        """The broker has a message of a topic in the table."""
        self.exchange.send_message(message, self.node.clock())
        self._send(self.exchange.take_datagrams())

    def _send(self, datagrams: list[tuple[bytes, tuple[Destination, ...]]]) -> None:
        send = [each.sendto for each in self._sockets]
        for packet, destinations in datagrams:
            for via, address in destinations:
                try:
                    send[via](packet, address)
                except OSError:  # no room, no route, too large for that family: one subscriber's loss
                    self.exchange.stats.unsent += 1

    @property
    def deadline(self) -> float:
        deadline = self.exchange.deadline
        return min(deadline if deadline is not None else NEVER, self._look_at_drops_at)

    def handle_timer(self, now: float) -> None:
        # Renewals that came while the process did not run are heard before anyone's time is over.
        for via in range(len(self._sockets)):
            self._read(via)
        self.exchange.handle_timer(self.node.clock())
        if now >= self._look_at_drops_at:
            self._look_at_drops(now)

    def status(self) -> Mapping[str, Any]:
        if self._port is None:
            return {}
        stats = self.exchange.stats
        return {
            "sensors": {
                "received": stats.received,
                "published": stats.published,
                "subscriptions": self.exchange.subscription_count,
                "overruns": self.overruns,
                "receive_buffer_bytes": self.receive_buffer_bytes,
            }
        }

    def metrics(self) -> Iterable[Metric]:
        from hedgerow.sensors.metrics import sensor_metrics

        return sensor_metrics(self.exchange, self.overruns, self.receive_buffer_bytes)
