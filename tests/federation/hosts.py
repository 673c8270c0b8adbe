"""What a fabric is made of: brokers, federated nodes, and the links between them.

A `Host` is a broker that federations do not know of, as Mosquitto is. A `Node` is federated, and with a home
it is a sidecar. Each is driven as the shell drives it: a machine's deadline is asked for when it had work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from hedgerow.bridges.bridge_set import BridgeSet
from hedgerow.bridges.far_connection import OWN_FILTERS
from hedgerow.bridges.section import FarAddress, Section
from hedgerow.bridges.values import Backoff
from hedgerow.broker.broker import Broker
from hedgerow.broker.connection import Connection
from hedgerow.broker.port import Port
from hedgerow.broker.session import Session
from hedgerow.federation.federation import Federation
from hedgerow.federation.home import Home
from hedgerow.federation.interests.interests import Interests
from hedgerow.federation.neighbours import NEIGHBOUR_PREFIX
from hedgerow.federation.overlay.wire import Peer
from hedgerow.federation.presence import PRESENCE_TOPIC
from hedgerow.federation.tunnel.frames import quote_node_id
from hedgerow.message import Message
from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import MQTT_5, Connect
from tests.broker.harness import World
from tests.federation.clients import Inbox
from tests.packets import PacketReader

if TYPE_CHECKING:
    from tests.federation.fabric_of_nodes import Fabric

HOME = "federation-home"


class Pipe:
    """Bytes in order between two connections, each `Fabric.delay_s` later at the other end."""

    def __init__(self, fabric: Fabric, near: Connection, far: Connection, names: tuple[str, str]) -> None:
        self.fabric = fabric
        self.names = names
        self.is_cut = False
        self.sides = (near, far)
        near.link, far.link = PipeEnd(self, 0), PipeEnd(self, 1)

    def carry(self, index: int, data: bytes) -> None:
        if data and not self.is_cut:
            self.fabric.later(self.fabric.delay_s, lambda: self.deliver(1 - index, data))

    def deliver(self, index: int, data: bytes) -> None:
        side, host = self.sides[index], self.fabric[self.names[index]]
        if not self.is_cut and side.link is not None:
            if host.is_frozen:
                host.unheard.append(lambda: self.deliver(index, data))
            else:
                side.receive_data(host.read(side, data), self.fabric.now)
                host.settle()

    def close(self, index: int) -> None:
        """One side has closed; the other hears of it behind the last bytes."""
        self.leave(index)
        self.fabric.later(self.fabric.delay_s, lambda: self.end(1 - index))

    def end(self, index: int) -> None:
        """This side hears that the other has closed."""
        host = self.fabric[self.names[index]]
        if host.is_frozen:
            host.unheard.append(lambda: self.end(index))
        elif not self.is_cut:
            self.leave(index, was_closed=True)
            self.fabric.forget(self)
            host.settle()

    def leave(self, index: int, was_closed: bool = False) -> None:
        side = self.sides[index]
        if side.link is not None:
            side.link = None
            side.lost(self.fabric.now, was_closed)

    def cut(self) -> None:
        self.is_cut = True


class PipeEnd:
    """What a connection takes for its link."""

    def __init__(self, pipe: Pipe, index: int) -> None:
        self.pipe = pipe
        self.index = index

    def transmit(self) -> None:
        connection = self.pipe.sides[self.index]
        self.pipe.carry(self.index, connection.take_output())
        if connection.closing:
            self.pipe.close(self.index)

    def unacknowledged_bytes(self) -> int:
        return 0

    def silent_s(self) -> float:
        return float("inf")


class Host(World):
    """A broker somewhere in the fabric. By itself it is one that federations do not know of."""

    is_foreign = True

    def __init__(self, fabric: Fabric, name: str, **options: Any) -> None:
        self.fabric = fabric
        self.name = name
        self.is_frozen = False
        self.is_gone = False
        self.unheard: list[Callable[[], None]] = []
        self._is_settling = False
        self._inboxes = count(1)
        super().__init__(**options)

    @property
    def now(self) -> float:
        return self.fabric.now

    @now.setter
    def now(self, now: float) -> None:
        """It is the fabric's."""

    def _start(self) -> Broker:
        snapshot = self.store.snapshot() if self._options["durable"] else None
        return Broker(self.name, self.epoch, self.now, snapshot=snapshot, log=self.store, **self._options)  # type: ignore[arg-type]

    def read(self, connection: Connection, data: bytes) -> bytes:
        """A broker that is not ours knows neither our client ids nor our user properties."""
        if connection.protocol_version or not self.is_foreign:
            return data
        reader = PacketReader()
        reader.feed(data)
        packet = reader.take(MQTT_5)
        assert isinstance(packet, Connect), packet
        packet.client_id = packet.client_id.replace(NEIGHBOUR_PREFIX, "federator-")
        packet.properties.pop("user_property", None)
        return codec.encode(packet, packet.protocol_version) + reader.take_bytes()

    # Clients

    def subscribe(self, *filters: str, qos: int = 1, client_id: str | None = None, **options: Any) -> Inbox:
        inbox = Inbox(self, client_id or f"inbox-{next(self._inboxes)}", kept=client_id is not None)
        for topic_filter in filters:
            inbox.subscribe(topic_filter, qos, **options)
        return inbox

    def publish(self, topic: str, payload: bytes = b"", qos: int = 1, retain: bool = False) -> None:
        publisher = Port(self.broker, "publisher", lambda message: None)
        publisher.publish(Message(topic, payload, qos, retain), self.now)
        publisher.close()
        self.settle()

    @property
    def retained(self) -> dict[str, bytes]:
        found = self.broker.retained.match("#", self.now)
        return {message.topic: message.payload for message in found}

    # The shell's part

    def settle(self) -> None:
        if self._is_settling or self.is_frozen or self.is_gone:
            return
        self._is_settling = True
        try:
            rounds = 0
            while self.settle_once():
                rounds += 1
                assert rounds < 1_000, "something goes round"
        finally:
            self._is_settling = False
        self.fabric.wake(self, self.deadline)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """All that comes meanwhile is read before anything else is done, as in a turn of many sockets."""
        self._is_settling = True
        try:
            yield
        finally:
            self._is_settling = False
        self.settle()

    def settle_once(self) -> bool:
        broker, is_busy = self.broker, bool(self.broker.dirty)
        for connection in broker.take_dirty():
            if connection.link is not None:
                connection.link.transmit()
        if self.commits and self.commit():
            is_busy = True
        if broker.deadline <= self.now:
            broker.handle_timer(self.now)
            is_busy = True
        return is_busy

    @property
    def deadline(self) -> float:
        return self.broker.deadline

    def crash(self, after_s: float = 0.0, *, is_empty: bool = False) -> None:
        """Killed, and started again: from its store, or with an empty one."""
        self.kill()
        self.fabric.advance(after_s)
        self.start(is_empty=is_empty)

    def kill(self) -> None:
        """The process is gone; its kernel tells the others."""
        self.is_gone = True
        for pipe, index in self.fabric.pipes_of(self.name):
            pipe.sides[index].link = None  # The dead hear nothing.
            self.fabric.later(self.fabric.delay_s, partial(pipe.end, 1 - index))

    def start(self, *, is_empty: bool = False) -> None:
        self.is_gone = False
        self.epoch += 1
        self._taken = None
        self.unheard.clear()
        if is_empty:
            self.store = type(self.store)()
        self.broker = self._start()
        self.settle()

    def thaw(self) -> None:
        self.is_frozen = False
        unheard, self.unheard = self.unheard, []
        for each in unheard:
            each()
        self.settle()


class Node(Host):
    is_foreign = False

    def __init__(
        self,
        fabric: Fabric,
        name: str,
        neighbours: Iterable[str] = (),
        *,
        home: str | None = None,
        assume: tuple[str, ...] = (),
        join: Iterable[str] = (),
        is_found: bool = False,
        federation: dict[str, Any] | None = None,
        node_id: str | None = None,
        username: str | None = None,
        **options: Any,
    ) -> None:
        self.node_id = node_id or name
        self.username = username  # as whom it connects to others, by certificate
        self.neighbours = list(neighbours)
        self.join = list(join)
        self.is_found = is_found  # by others than those whom it dials
        self.home = home
        self.assume = assume
        self.events: list[Any] = []
        self._federation_options = federation or {}
        super().__init__(fabric, name, **options)
        self.federate()

    def _start(self) -> Broker:
        snapshot = self.store.snapshot() if self._options["durable"] else None
        return Broker(self.node_id, self.epoch, self.now, snapshot=snapshot, log=self.store, **self._options)  # type: ignore[arg-type]

    def federate(self) -> None:
        random, now = self.fabric.random, self.now
        self.bridges = BridgeSet(
            self.broker,
            random.random,
            lambda: random.getrandbits(48),
            lambda address: False,
            lambda: b"key" * 8,
        )
        self.federation = Federation(
            self.broker,
            [f"mqtt://{self.name}"] if self.join or self.is_found else [],
            now,
            random=random.random,
            random_bytes=random.randbytes,
            **self._federation_options,
        )
        for each in self.neighbours:
            self.federation.overlay.add_static(Peer("", (f"mqtt://{each}",)), now)
        for each in self.join:
            self.federation.overlay.join(Peer("", (f"mqtt://{each}",)), now)
        if self.home is not None:
            self._stand_beside(self.home)
        self.bridges.leave_unclaimed()
        # As the shell does: a deadline is asked for when something had work.
        self._federation_at = self._bridges_at = now if self.home is not None else float("inf")
        self.federation.handle_timer(now)

    def _stand_beside(self, home: str) -> None:
        client_id = f"{NEIGHBOUR_PREFIX}{self.node_id}-home"
        section = Section(
            name=HOME,
            addresses=(FarAddress(home, 1883),),
            topics=(),
            follows=True,
            remote_clientid=client_id,
            restart_timeout=Backoff(0.2, 2.0),
            keepalive_interval_s=5,
            notification_topic=PRESENCE_TOPIC + quote_node_id(self.node_id),
            try_private=False,
        )
        bridge = self.bridges.follow(section, self.now)
        interests = Interests(
            self.now,
            self.assume,
            client_id=client_id,
            own_filters=OWN_FILTERS,
            broker=home,
            remembered=bridge.listened,
        )
        Home(self.federation, bridge, interests)

    def start(self, *, is_empty: bool = False) -> None:
        super().start(is_empty=is_empty)
        self.federate()
        self.settle()

    def settle_once(self) -> bool:
        federation, is_busy = self.federation, False
        if self._federation_at <= self.now:
            federation.handle_timer(self.now)
        if federation.has_work:
            is_busy = True
            federation.serve(self.now)
            for peer in federation.take_dials():
                self.fabric.dial(self, peer)
            self.events += federation.take_events()
            self._federation_at = federation.deadline
        if self.home is not None:
            is_busy = self._settle_bridges() or is_busy
        return super().settle_once() or is_busy or federation.has_work

    def _settle_bridges(self) -> bool:
        bridges, is_busy = self.bridges, self.bridges.has_work
        if self._bridges_at <= self.now:
            bridges.handle_timer(self.now)
            is_busy = True
        bridges.has_work = False
        for bridge, address in bridges.take_dials(self.now):
            is_busy = True
            self.fabric.dial_home(self, bridge, address)
        bridges.changed(self.now)
        bridges.take_events()
        if is_busy:
            self._bridges_at = bridges.deadline
        return is_busy

    @property
    def deadline(self) -> float:
        return min(self.broker.deadline, self._federation_at, self._bridges_at)

    def link_to(self, name: str) -> None:
        """A static neighbour, from now on."""
        self.neighbours.append(name)
        self.federation.overlay.add_static(Peer("", (f"mqtt://{name}",)), self.now)
        self.federation.has_work = True
        self.settle()

    # What tests ask

    @property
    def linked(self) -> set[str]:
        """Neighbours by its own view."""
        return {peer.node_id for peer in self.federation.overlay.active}

    def session_of(self, neighbour: str) -> Session:
        return self.broker.sessions[NEIGHBOUR_PREFIX + neighbour]

    def filters_of(self, neighbour: str) -> set[str]:
        session = self.broker.sessions.get(NEIGHBOUR_PREFIX + neighbour)
        return set(session.subscriptions or ()) if session is not None else set()

    def told(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]
