"""A foreign broker in simulation, with carriers at it: links with delays, in order, that may be cut.

The broker hands what is published to all its subscribers in one order, and knows nothing of ids unless it
carries them. Time is the simulation's own; each carrier is driven as a shell would drive it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from random import Random

from hedgerow.bridges.stamp_tables import BOUNDS, StampBounds
from hedgerow.bridges.stamps import CONTROL_FILTER, Stamps, is_control
from hedgerow.message import Message, MessageId
from hedgerow.topics import matches


@dataclass(slots=True)
class Born:
    """A message at the broker: what the test knows of it."""

    number: int
    message: Message
    at: float
    subscribers: set[str]
    """Carriers on the connections that they had when it was born, as `Node.connection`."""
    sender: str
    """In the same way; empty for the broker's own clients."""


@dataclass(eq=False)
class Node:
    """A carrier: its machine, its link, and what came out."""

    foreign: Foreign
    stamps: Stamps
    filters: tuple[str, ...]
    connection: str = ""
    connections: int = 0
    subscriptions: list[str] = field(default_factory=list)
    frozen: list[Callable[[], object]] | None = None
    up_at: float = 0.0
    down_at: float = 0.0
    identified: list[tuple[Born, MessageId]] = field(default_factory=list)
    timer_at: float = float("inf")

    @property
    def name(self) -> str:
        return self.stamps.attendance.carrier_id

    def connect(self) -> None:
        foreign = self.foreign
        self.connections += 1
        self.connection = f"{self.name} {self.connections}"
        self.subscriptions = []
        self.up_at = self.down_at = foreign.now
        self.stamps.connected(foreign.now)
        self._send(lambda: foreign.subscribe(self, CONTROL_FILTER))
        self.pump()
        for topic_filter in self.filters:
            self._send(lambda topic_filter=topic_filter: foreign.subscribe(self, topic_filter))  # type: ignore[misc]

    def cut(self, has_will: bool = False, knows: bool = True) -> None:
        """The connection is gone, with all that was under way on it."""
        if has_will:
            self.foreign.after(0.01, lambda: self.foreign.publish(self.stamps.attendance.will, None))
        self.connection = ""
        if knows:
            self.stamps.disconnected()
            self.pump()

    def send(self, message: Message) -> None:
        """From the fabric to the broker."""
        self.stamps.note_sent(message, self.foreign.now)
        self.pump()
        self._send(lambda: self.foreign.publish(message, self))

    def freeze(self) -> None:
        self.frozen = []

    def thaw(self) -> None:
        frozen, self.frozen = self.frozen or [], None
        for each in frozen:
            self._do(each)

    def pump(self) -> None:
        stamps = self.stamps
        for message in stamps.take_publications():
            if self.connection:
                self._send(lambda message=message: self.foreign.publish(message, self))  # type: ignore[misc]
        for message, context in stamps.take_identified():
            assert isinstance(context, Born)
            assert message.id is not None
            self.identified.append((context, message.id))
        if self.connection and stamps.deadline < self.timer_at:
            self.timer_at = stamps.deadline
            self.foreign.after(self.timer_at - self.foreign.now, lambda: self._do(self._handle_timer))

    def deliver(self, act: Callable[[], object]) -> None:
        """What the broker sends arrives after what it sent before."""
        connection = self.connection
        self.down_at = max(self.down_at, self.foreign.now + self.foreign.delay())
        self.foreign.after(
            self.down_at - self.foreign.now,
            lambda: self._do(act) if self.connection == connection else None,
        )

    def _send(self, act: Callable[[], object]) -> None:
        connection = self.connection
        self.up_at = max(self.up_at, self.foreign.now + self.foreign.delay())
        self.foreign.after(
            self.up_at - self.foreign.now, lambda: act() if self.connection == connection else None
        )

    def _do(self, act: Callable[[], object]) -> None:
        if self.frozen is not None:
            self.frozen.append(act)
            return
        act()
        self.pump()

    def _handle_timer(self) -> None:
        self.timer_at = float("inf")
        if self.connection:
            self.stamps.handle_timer(self.foreign.now)


class Foreign:
    def __init__(
        self,
        random: Random,
        max_delay_s: float = 0.05,
        carries_ids: bool = True,
        echoes: bool = True,
        bounds: StampBounds = BOUNDS,
    ) -> None:
        self.now = 1_000.0
        self.random = random
        self.max_delay_s = max_delay_s
        self.carries_ids = carries_ids
        self.bounds = bounds
        self.echoes = echoes
        """Whether a carrier is handed its own publications, where it did not ask for No Local."""
        self.nodes: dict[str, Node] = {}
        self.born: list[Born] = []
        self.published: list[Message] = []
        self.retained: dict[str, tuple[Message, Born | None]] = {}
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0

    def add(self, name: str, *filters: str) -> Node:
        life, identity = self.random.getrandbits(48), self.random.randbytes(12).hex()
        stamps = Stamps(name, life, self.carries_ids, identity, filters, bounds=self.bounds)
        node = self.nodes[name] = Node(self, stamps, filters)
        return node

    def join(self, *names: str) -> list[Node]:
        """Carriers for everything, that have settled."""
        nodes = []
        for name in names:
            nodes.append(self.add(name, "#"))
            nodes[-1].connect()
            self.run(1.0)
        return nodes

    def delay(self) -> float:
        return self.random.random() * self.max_delay_s

    def after(self, delay_s: float, act: Callable[[], object]) -> None:
        self._count += 1
        heappush(self._events, (self.now + max(delay_s, 0.0), self._count, act))

    def run(self, duration_s: float) -> None:
        until = self.now + duration_s
        while self._events and self._events[0][0] <= until:
            self.now, _, act = heappop(self._events)
            act()
        self.now = until

    def bear(self, topic: str, payload: bytes, qos: int = 1, retain: bool = False) -> Born:
        """One of the broker's own clients publishes."""
        born = self.publish(Message(topic, payload, qos, retain), None)
        assert born is not None
        return born

    def publish(self, message: Message, sender: Node | None) -> Born | None:
        self.published.append(message)
        topic, born = message.topic, None
        subscribers = [node for node in self.nodes.values() if self._hears(node, message, sender)]
        if not is_control(topic):
            names = {node.connection for node in subscribers}
            born = Born(len(self.born), message, self.now, names, sender.connection if sender else "")
            self.born.append(born)
        if message.retain:
            self.retained[topic] = message, born
        for node in subscribers:
            self._hand(node, message, born)
        return born

    def subscribe(self, node: Node, topic_filter: str) -> None:
        node.subscriptions.append(topic_filter)
        if topic_filter == CONTROL_FILTER:
            node.deliver(lambda: node.stamps.receive_subscribed(self.now))
        for topic, (message, born) in self.retained.items():
            if message.payload and matches(topic_filter, topic):
                self._hand(node, message, born)

    def _hears(self, node: Node, message: Message, sender: Node | None) -> bool:
        if not node.connection or not any(matches(each, message.topic) for each in node.subscriptions):
            return False
        has_no_local = self.carries_ids and not is_control(message.topic)
        return node is not sender or (self.echoes and not has_no_local)

    def _hand(self, node: Node, message: Message, born: Born | None) -> None:
        if is_control(message.topic):
            node.deliver(lambda: node.stamps.receive_control(message.topic, message.payload, self.now))
        elif message.id is None or not self.carries_ids:
            copy = replace(message, id=None)
            node.deliver(lambda: node.stamps.receive_message(copy, born, self.now))
