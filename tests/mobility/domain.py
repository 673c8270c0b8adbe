"""Mobile and fixed brokers in memory, and clients that go where they are sent.

    domain = Domain()
    domain.add_fixed("f")
    domain.add_mobile("m", "f")
    roamer = Roamer(domain, "m", "r", MQTT_EXTENDED, "t/cold")

Everything else is as in `fabric_of_nodes.py`: a virtual clock, links that may be cut or closed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from hedgerow.broker.connection import Connection
from hedgerow.message import Properties
from hedgerow.mobility.delegation.events import DelegationEvent
from hedgerow.mobility.events import NodeEvent
from hedgerow.mobility.fixed import FixedNode
from hedgerow.mobility.mobile import MobileNode
from hedgerow.mobility.settings import MobileSettings
from hedgerow.mqtt import codec
from hedgerow.mqtt.extension import Renewal
from hedgerow.mqtt.packets import (
    MQTT_5,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcallback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Renew,
    Subscribe,
    Subscription,
    Unsubscribe,
)
from tests.federation.fabric_of_nodes import Fabric
from tests.federation.hosts import Host
from tests.packets import PacketReader

DOMAIN = "farm/sector1"
PASSWORD = b"right"  # of every user


class MovingHost(Host):
    """One with a role; it keeps the role when it is started again."""

    is_foreign = False
    node: MobileNode | FixedNode

    def __init__(self, fabric: Fabric, name: str, **options: Any) -> None:
        self.events: list[DelegationEvent | NodeEvent] = []
        self._node_at = float("inf")
        super().__init__(fabric, name, **options)
        self._take_role()

    def _take_role(self) -> None:
        raise NotImplementedError

    def start(self, *, is_empty: bool = False) -> None:
        super().start(is_empty=is_empty)
        self._take_role()
        self.settle()

    def settle_once(self) -> bool:
        node, is_busy = self.node, False
        for login in self.broker.take_logins():
            self.broker.finish_login(login, login.password == PASSWORD, self.now)
            is_busy = True
        if self._node_at <= self.now:
            node.handle_timer(self.now)
        if node.has_work:
            is_busy = True
            node.serve(self.now)
            if isinstance(node, MobileNode):
                for url in node.links.take_dials():
                    self.fabric.dial_fixed(self, url)  # type: ignore[attr-defined]
            self.events += node.take_events()
        self._node_at = node.deadline
        return super().settle_once() or is_busy or node.has_work

    @property
    def deadline(self) -> float:
        return min(self.broker.deadline, self._node_at)

    def told(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


class FixedHost(MovingHost):
    node: FixedNode

    def __init__(
        self,
        fabric: Fabric,
        name: str,
        allow: frozenset[str] | None = None,
        domain: str = DOMAIN,
        homes: frozenset[str] = frozenset(),
        **options: Any,
    ) -> None:
        self._allow = allow
        self._homes = homes
        self._domain = domain
        super().__init__(fabric, name, **options)

    def _take_role(self) -> None:
        self.node = FixedNode(self.broker, self._domain, self._allow, 3.0, self._homes)


class MobileHost(MovingHost):
    node: MobileNode

    def __init__(
        self, fabric: Fabric, name: str, fixed: tuple[str, ...], settings: Any, **options: Any
    ) -> None:
        urls = tuple(f"mqtt://{each}:1883" for each in fixed)
        self.settings = MobileSettings(fixed=urls, **{"address": f"{name}:1883"} | settings)
        self._domain = options.pop("domain", DOMAIN)
        self.username: str | None = options.pop("username", None)
        super().__init__(fabric, name, **options)

    def _take_role(self) -> None:
        self.node = MobileNode(self.broker, self._domain, self.settings, self.now)

    @property
    def delegated(self) -> set[str]:
        return set(self.broker.subscriptions.inactive)


class Domain(Fabric):
    def add_fixed(self, name: str, **options: Any) -> FixedHost:
        host = self.hosts[name] = FixedHost(self, name, **options)
        host.settle()
        return host

    def add_mobile(self, name: str, *fixed: str, settings: Any = None, **options: Any) -> MobileHost:
        host = self.hosts[name] = MobileHost(self, name, fixed, settings or {}, **options)
        host.settle()
        return host

    def dial_fixed(self, host: MobileHost, url: str) -> None:
        broker, node, name = host.broker, host.node, url.removeprefix("mqtt://").partition(":")[0]

        def fail(reason: str) -> None:
            if host.broker is broker and not host.is_gone:
                node.links.dial_failed(url, reason, self.now)
                host.settle()

        password = PASSWORD if host.username is not None else None

        def reach() -> None:
            if host.broker is broker and not host.is_gone:
                clients_at = host.settings.address
                self._join(
                    host,  # type: ignore[arg-type]
                    name,
                    lambda now: node.links.open(url, clients_at, now, host.username, password),
                )

        self._reach(host, name, reach, fail)  # type: ignore[arg-type]


class Line:
    """One connection of a roamer."""

    def __init__(self, roamer: Roamer, host: Host) -> None:
        self.roamer = roamer
        self.host = host
        self.reader = PacketReader()
        self.connection: Connection = host.broker.open(host.now, "192.0.2.9:1", True)
        self.connection.link = self

    def silent_s(self) -> float:
        return float("inf")

    def send(self, *packets: Packet) -> None:
        data = b"".join(codec.encode(packet, self.roamer.version) for packet in packets)
        self.connection.receive_data(data, self.host.now)
        self.host.settle()

    def close(self) -> None:
        if self.connection.link is self:
            self.connection.link = None
            self.connection.lost(self.host.now)
            self.host.settle()

    def transmit(self) -> None:
        self.reader.feed(self.connection.take_output())
        replies: list[Packet] = []
        while (packet := self.reader.take(self.roamer.version)) is not None:
            replies += self.roamer.answer(self, packet)
        if self.connection.closing:
            self.connection.link = None
            self.connection.lost(self.host.now)
            self.roamer.ended(self)
        elif replies and self.connection.link is self:
            data = b"".join(codec.encode(each, self.roamer.version) for each in replies)
            self.connection.receive_data(data, self.host.now)


class Roamer:
    """A client that follows renewals and Server References, as ours and as a user of paho would write it.

    It acknowledges all that it gets. A client of the extension drops what it had, by id, on another line.
    """

    RETRY_S = 0.3

    def __init__(
        self,
        domain: Domain,
        home: str,
        client_id: str,
        version: int,
        *filters: str,
        qos: int = 1,
        username: str | None = None,
    ) -> None:
        self.domain = domain
        self.username = username
        self.home = home
        self.client_id = client_id
        self.version = version
        self.filters = dict.fromkeys(filters, qos)
        self.payloads: list[bytes] = []
        self.connacks: list[Connack | Renew] = []
        self.lines: list[Line] = []
        self.moves: list[str] = []
        self._seen: dict[str, Line] = {}
        self._packet_ids = count(1)
        self.go(home)
        domain.advance(0.01)

    @property
    def at(self) -> str | None:
        return self.lines[-1].host.name if self.lines else None

    @property
    def tally(self) -> Counter[bytes]:
        return Counter(self.payloads)

    def subscribe(self, topic_filter: str, qos: int = 1) -> None:
        self.filters[topic_filter] = qos
        self._send(Subscribe(next(self._packet_ids), [Subscription(topic_filter, qos)]))

    def unsubscribe(self, topic_filter: str) -> None:
        del self.filters[topic_filter]
        self._send(Unsubscribe(next(self._packet_ids), [topic_filter]))

    def publish(self, topic: str, payload: bytes, qos: int = 1) -> None:
        self._send(Publish(topic, payload, qos, packet_id=next(self._packet_ids) % 60_000 + 1 if qos else 0))

    def leave(self) -> None:
        """It is done."""
        line = self.lines.pop()
        line.send(Disconnect())

    def lose(self) -> None:
        """Its connection is gone; it does not come back by itself."""
        lines, self.lines = self.lines, []
        for line in lines:
            line.close()

    def _send(self, packet: Packet) -> None:
        self.lines[-1].send(packet)

    def go(self, name: str) -> None:
        host = self.domain[name]
        if host.is_gone or host.is_frozen:
            self.domain.later(self.RETRY_S, partial(self.go, self._other(name)))
            return
        line = Line(self, host)
        self.lines.append(line)
        self.moves.append(name)
        properties: Properties = {"session_expiry_interval": 300} if self.version == MQTT_5 else {}
        password = PASSWORD if self.username is not None else None
        line.send(
            Connect(self.client_id, self.version, False, 0, self.username, password, properties=properties)
        )

    def _other(self, name: str) -> str:
        return self.home if name != self.home or len(self.moves) < 2 else self.moves[-2]

    def answer(self, line: Line, packet: Packet) -> list[Packet]:
        match packet:
            case Publish() | Pubcallback():
                return self.take(line, packet)
            case Pubrel():
                return [Pubcomp(packet.packet_id)]
            case Pubrec():
                return [Pubrel(packet.packet_id)]
            case Renew(code=Renewal.CONNECTION):
                return self._greet(packet, packet.session_present)
            case Renew():
                self._later(partial(self._follow, line, packet))
            case Connack():
                return self._greet(packet, packet.session_present)
            case Disconnect() if packet.properties.get("server_reference"):
                name = packet.properties["server_reference"].partition(":")[0]
                self.lines.remove(line)
                self._later(partial(self.go, name))
        return []

    def _greet(self, packet: Connack | Renew, session_present: bool) -> list[Packet]:
        self.connacks.append(packet)
        if session_present or not self.filters:
            return []
        wanted = [Subscription(each, qos) for each, qos in self.filters.items()]
        return [Subscribe(next(self._packet_ids), wanted)]

    def _follow(self, line: Line, packet: Renew) -> None:
        if line is not self.lines[-1] or line.connection.link is not line:
            return
        name = packet.address.partition(":")[0]
        if self.domain[name].is_gone:
            return
        self.go(name)
        self._later(partial(self._quit, line))

    def _quit(self, line: Line) -> None:
        if line in self.lines and len(self.lines) > 1:
            self.lines.remove(line)
            if line.connection.link is line:
                line.send(Disconnect())

    def _later(self, act: Callable[[], None]) -> None:
        self.domain.later(self.domain.delay_s, act)

    def take(self, line: Line, packet: Publish | Pubcallback) -> list[Packet]:
        message_id = packet.message_id if isinstance(packet, Pubcallback) else ""
        if not message_id or self._seen.setdefault(message_id, line) is line:
            self.payloads.append(packet.payload)
        acknowledgements: dict[int, list[Packet]] = {
            0: [],
            1: [Puback(packet.packet_id)],
            2: [Pubrec(packet.packet_id)],
        }
        return acknowledgements[packet.qos]

    def ended(self, line: Line) -> None:
        """The server closed: where there is no other line, look for one."""
        if line in self.lines:
            self.lines.remove(line)
            if not self.lines:
                self.domain.later(self.RETRY_S, partial(self.go, self._other(line.host.name)))
