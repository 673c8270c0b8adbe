"""A broker machine with clients around it, a clock that a test moves, and a store made of dicts.

    world = World()
    alice = world.connect("alice")
    alice.send(Subscribe(1, [Subscription("a/#", 1)]))
    assert alice.take() == [Suback(1, [1])]

After every input the world does what the shell does: hands each client the bytes meant for it, commits
what is to be stored (unless `commit` is off) and lets the broker go on with what is due now.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from hedgerow.broker.access import Access
from hedgerow.broker.broker import Broker
from hedgerow.broker.changes import Changes, SessionRecord, Snapshot, SubscriptionRecord
from hedgerow.broker.connection import Connection
from hedgerow.broker.limits import Limits, LogBounds
from hedgerow.broker.roles import IdentifiedRole
from hedgerow.broker.session import Channel
from hedgerow.broker.stored import Chunk, LoggedMessage, Run
from hedgerow.duplicates import PageKey
from hedgerow.message import Message, Properties
from hedgerow.mqtt import codec
from hedgerow.mqtt.outbox import Delivery
from hedgerow.mqtt.packets import (
    MQTT_5,
    Connack,
    Connect,
    Packet,
    Publish,
    Suback,
    Subscribe,
    Subscription,
)
from tests.packets import PacketReader, read_packet, read_packets

START = 1_000.0
PAGE = 3  # messages that are read from the log at once
KEPT = 3_600  # a Session Expiry Interval that outlasts every test

Kind = TypeVar("Kind", bound=Packet)


class FakeStore:
    """What a store would hold: every committed batch applied to plain dicts."""

    def __init__(self) -> None:
        self.sessions: dict[int, SessionRecord] = {}
        self.subscriptions: dict[tuple[int, str], SubscriptionRecord] = {}
        self.log: dict[int, LoggedMessage] = {}
        """By position."""
        self.next_position = 1
        self.segments: list[int] = []
        """Where each begins."""
        self.shrunk: list[tuple[int, int, int]] = []
        self.chunks: dict[tuple[int, int], Chunk] = {}
        self.deliveries: dict[tuple[int, int], Delivery] = {}
        self.received: dict[tuple[int, int], bool] = {}
        self.retained: dict[str, Message] = {}
        self.kept: dict[tuple[str, str], str] = {}
        self.seen: dict[PageKey, bytes] = {}

    def write(self, changes: Changes) -> None:
        """Apply a batch."""
        if changes.messages:
            assert changes.first_position == self.next_position, "positions without a gap"
            if changes.begins_segment:
                self.segments.append(changes.first_position)
            for position, message in enumerate(changes.messages, changes.first_position):
                self.log[position] = LoggedMessage(position, replace(message), changes.at)
            self.next_position = changes.first_position + len(changes.messages)
        for place, chunk in changes.chunks.items():
            self.chunks.pop(place, None)
            if chunk.count:
                self.chunks[place] = copy_of(chunk)
        for page, bits in changes.seen.items():
            self.seen.pop(page, None)
            if bits is not None:
                self.seen[page] = bytes(bits)
        for changed, stored in self._tables(changes):
            for key, value in changed.items():
                if value is None or value is False:
                    stored.pop(key, None)
                else:
                    stored[key] = value
        for key, record in changes.sessions.items():
            if record is None:
                tables: list[dict[Any, Any]] = [
                    self.subscriptions,
                    self.chunks,
                    self.deliveries,
                    self.received,
                ]
                for table in tables:
                    for place in [place for place in table if place[0] == key]:
                        del table[place]
        for begin, end, runs in changes.sparse:
            needed = {position for first, count in runs for position in range(first, first + count)}
            assert not {each for _, each in self.waits if begin <= each < end} - needed, "somebody needs it"
            for position in range(begin, end):
                if position not in needed:
                    self.log.pop(position, None)
            self.shrunk.append((begin, self.segment_bytes(begin), len(needed)))
        for begin, end in changes.removed:
            assert not any(begin <= position < end for _, position in self.waits), "somebody needs it"
            self.segments.remove(begin)
            for position in range(begin, end):
                self.log.pop(position, None)

    def _tables(self, changes: Changes) -> list[tuple[dict[Any, Any], dict[Any, Any]]]:
        return [
            (changes.sessions, self.sessions),
            (changes.subscriptions, self.subscriptions),
            (changes.deliveries, self.deliveries),
            (changes.received, self.received),
            (changes.retained, self.retained),
            (changes.kept, self.kept),
        ]

    def segment_bytes(self, first: int) -> int:
        end = next((each for each in self.segments if each > first), self.next_position)
        here = (each for position, each in self.log.items() if first <= position < end)
        return sum(each.message.size + 64 for each in here)

    @property
    def is_empty(self) -> bool:
        return not any((self.sessions, self.subscriptions, self.chunks, self.deliveries, self.received))

    @property
    def waits(self) -> list[tuple[int, int]]:
        """(session key, position) of all that is not finished, in the order of positions."""
        found = [
            (session_key, position)
            for (session_key, _), chunk in self.chunks.items()
            for first, count in chunk.runs_from(0)
            for position in range(first, first + count)
        ]
        return sorted(found, key=lambda place: place[1])

    @property
    def messages(self) -> dict[int, Message]:
        """By position, those that somebody waits for."""
        return {position: self.log[position].message for _, position in self.waits}

    def read(self, runs: Sequence[Run], most_bytes: int) -> tuple[list[LoggedMessage], int]:
        """As a node's log: in small pages, so that these are tested too."""
        found: list[LoggedMessage] = []
        end = runs[0][0]
        for first, count in runs:
            for position in range(first, first + count):
                if len(found) == PAGE or position >= self.next_position:
                    return found, end
                end = position + 1
                if position in self.log:
                    found.append(self.log[position])
        return found, end

    def snapshot(self) -> Snapshot:
        deliveries = []
        for (session_key, position), delivery in sorted(self.deliveries.items(), key=lambda item: item[0][1]):
            if position not in self.log:  # Its segment is gone.
                del self.deliveries[session_key, position]
                continue
            deliveries.append((session_key, copy_of_delivery(delivery, self.log[position].message)))
        return Snapshot(
            [replace(record) for record in self.sessions.values()],
            [(key, replace(record)) for (key, _), record in self.subscriptions.items()],
            [(first, self.segment_bytes(first)) for first in self.segments],
            self.next_position,
            [(key, copy_of(chunk)) for (key, _), chunk in sorted(self.chunks.items())],
            deliveries,
            list(self.received),
            list(self.retained.values()),
            dict(self.kept),
            list(self.seen.items()),
        )


def copy_of(chunk: Chunk) -> Chunk:
    copied = Chunk(chunk.number, chunk.base, chunk.flags, chunk.identifiers)  # Its group is not stored.
    copied.runs = array("H", chunk.runs)
    copied.count, copied.bytes, copied.sent = chunk.count, chunk.bytes, chunk.sent
    copied.at, copied.began_at = chunk.at, chunk.began_at
    return copied


def copy_of_delivery(delivery: Delivery, message: Message) -> Delivery:
    copied = Delivery(
        message,
        delivery.qos,
        delivery.retain,
        delivery.subscription_identifiers,
        delivery.position,
        delivery.packet_id,
        delivery.stage,
        delivery.queued_at,
    )
    copied.is_again = delivery.is_again  # Its group is not stored.
    return copied


class RelayRole(IdentifiedRole):
    """Of peers that are taken for proven nodes: their ids count as they are."""

    def origin_of(self, connection: Channel, origin: str) -> str | None:
        return origin


class World:
    """A broker, its clients, its store and the time. Whoever says `hedgerow-node` is a proven node, if
    `relays`."""

    def __init__(
        self,
        limits: Limits | None = None,
        access: Access | None = None,
        *,
        durable: bool = False,
        verifies_passwords: bool = False,
        sys_interval_s: float = 0.0,
        relays: bool = True,
        log_bounds: LogBounds | None = None,
    ) -> None:
        self._relays = relays
        self.now = START
        self.epoch = 1
        self.commits = True  # off: batches wait for `commit`
        self.store = FakeStore()
        self._taken: Changes | None = None
        self._options = {
            "limits": limits,
            "access": access,
            "durable": durable,
            "verifies_passwords": verifies_passwords,
            "sys_interval_s": sys_interval_s,
            "log_bounds": log_bounds,
        }
        self.broker = self._start()

    def _start(self) -> Broker:
        broker = Broker(
            "node",
            self.epoch,
            self.now,
            snapshot=self.store.snapshot(),
            log=self.store,
            **self._options,  # type: ignore[arg-type]
        )
        if self._relays:
            broker.register(RelayRole(broker))
        self.prepare(broker)
        return broker

    def prepare(self, broker: Broker) -> None:
        """What features would register, for a subclass to say."""

    def crash(self, after_s: float = 0.0) -> None:
        """The broker's memory is gone, with every connection; it starts again from what was committed."""
        self.now += after_s
        self.epoch += 1
        self._taken = None
        self.broker = self._start()
        self.settle()

    def open(
        self, address: str = "192.0.2.1", anonymous: bool = True, certificate_name: str | None = None
    ) -> Client:
        connection = self.broker.open(self.now, address, anonymous, certificate_name)
        client = Client(self, connection)
        connection.link = client
        self.settle()
        return client

    def connect(
        self,
        client_id: str,
        version: int = MQTT_5,
        properties: Properties | None = None,
        *,
        kept: bool = False,
        **fields: Any,
    ) -> Client:
        """A client that is connected; `kept`: its session outlives the connection, and is resumed."""
        properties = dict(properties or {})  # type: ignore[assignment]
        assert properties is not None
        if kept:
            fields.setdefault("clean_start", False)
            if version == MQTT_5:
                properties.setdefault("session_expiry_interval", KEPT)
        client = self.open()
        client.send(Connect(client_id, version, properties=properties, **fields))
        client.connack = client.take_first(Connack)
        assert client.connack.reason_code == 0, client.connack
        return client

    def settle(self) -> None:
        """What the shell does after each input, until nothing is left to do at this moment."""
        broker = self.broker
        busy = True
        while busy:
            busy = False
            for connection in broker.take_dirty():
                busy = True
                if connection.link is not None:
                    connection.link.transmit()
            if self.commits and self.commit():
                busy = True
            if broker.deadline <= self.now:
                broker.handle_timer(self.now)
                busy = True

    def take_changes(self) -> bool:
        """The store begins to write; False when there is nothing, or a batch is being written."""
        if self._taken is None:
            self._taken = self.broker.take_changes()
            if self._taken is not None:
                # Rows are written when a batch is taken: the broker goes on to change what they are of.
                deliveries, chunks = self._taken.deliveries, self._taken.chunks
                self._taken.deliveries = {
                    place: None if each is None else copy_of_delivery(each, each.message)
                    for place, each in deliveries.items()
                }
                self._taken.chunks = {place: copy_of(each) for place, each in chunks.items()}
        return self._taken is not None

    def commit(self) -> bool:
        """Write what is to be stored, and say so; False when there was nothing."""
        if not self.take_changes():
            return False
        changes, self._taken = self._taken, None
        assert changes is not None
        self.store.write(changes)
        shrunk, self.store.shrunk = self.store.shrunk, []
        self.broker.segments_shrunk(shrunk)
        self.broker.changes_committed(self.now)
        return True

    def let_go(self) -> bool:
        """As the shell does while it waits for acknowledgements: answer for what everyone has acknowledged,
        with nothing written. False when there was nothing."""
        broker = self.broker
        if self._taken is not None or not broker.durability.is_on_its_way or broker.take_finished() is None:
            return False
        broker.changes_committed(self.now)
        self.settle()
        return True

    def write_taken(self) -> None:
        """The batch under way reaches the store, and the broker does not hear of it."""
        if self._taken is not None:
            self.store.write(self._taken)

    def advance(self, seconds: float) -> None:
        """Let the time pass, stopping at every deadline on the way."""
        end = self.now + seconds
        while self.broker.deadline <= end:
            self.now = max(self.now, self.broker.deadline)
            self.settle()
        self.now = end
        self.settle()


class Client:
    """The far side of one connection."""

    def __init__(self, world: World, connection: Connection) -> None:
        self.world = world
        self.connection = connection
        self.version = 0
        self.connack = Connack()
        self.closed = False
        self.unread_since = float("inf")
        """When it sent what the broker's loop has not come to."""
        self.pieces: list[bytes] = []
        """What the broker had for it, as it was put together."""
        self._received = PacketReader()

    def silent_s(self) -> float:
        return self.world.now - self.unread_since if self.unread_since <= self.world.now else float("inf")

    def send(self, *packets: Packet) -> None:
        """Send packets, in one chunk."""
        for packet in packets:
            if isinstance(packet, Connect):
                self.version = packet.protocol_version
        self.send_bytes(b"".join(codec.encode(packet, self.version) for packet in packets))

    def send_bytes(self, data: bytes) -> None:
        self.connection.receive_data(data, self.world.now)
        self.world.settle()

    def send_later(self, *packets: Packet) -> None:
        """Send packets, and leave it to the test when the world goes on."""
        data = b"".join(codec.encode(packet, self.version) for packet in packets)
        self.connection.receive_data(data, self.world.now)

    def transmit(self) -> None:
        """What a transport does for a dirty connection."""
        self.pieces += self.connection.out
        self._received.feed(self.connection.take_output())
        if self.connection.closing and not self.closed:
            self.closed = True
            self.connection.link = None
            self.connection.lost(self.world.now)

    def lose(self) -> None:
        """The network goes away without a word."""
        self.closed = True
        self.connection.link = None
        self.connection.lost(self.world.now)
        self.world.settle()

    def set_congested(self, congested: bool) -> None:
        """The transport's buffer is full, or has drained."""
        self.connection.set_congested(congested, self.world.now)
        self.world.settle()

    @property
    def has_bytes(self) -> bool:
        return bool(self._received.pending)

    def take_bytes(self) -> bytes:
        return self._received.take_bytes()

    def take(self) -> list[Packet]:
        """The packets that came since the last call."""
        return read_packets(self.take_bytes(), self.version)

    def take_packet(self) -> Packet:
        """The first packet that came since the last call; others are left to be taken."""
        return read_packet(self.take_raw_packet(), self.version)

    def take_raw_packet(self) -> bytes:
        data = self._received.take_raw()
        assert data is not None, f"half a packet came: {self._received.pending!r}"
        return data

    def take_first(self, kind: type[Kind]) -> Kind:
        """The first packet that came since the last call, of this kind; others are left to be taken."""
        packet = self.take_packet()
        assert isinstance(packet, kind), packet
        return packet

    def take_one(self, kind: type[Kind]) -> Kind:
        """The one packet that came since the last call, of this kind."""
        packets = self.take()
        assert len(packets) == 1, packets
        assert isinstance(packets[0], kind), packets
        return packets[0]

    def take_payloads(self) -> list[bytes]:
        """The payloads of what came since the last call, which was nothing but PUBLISH."""
        packets = self.take()
        assert all(isinstance(packet, Publish) for packet in packets), packets
        return [packet.payload for packet in packets if isinstance(packet, Publish)]

    def subscribe(
        self, topic_filter: str, qos: int = 0, identifier: int | None = None, **options: Any
    ) -> None:
        """Subscribe, and see it granted. Retained messages are left to be taken."""
        properties: Properties = {} if identifier is None else {"subscription_identifier": (identifier,)}
        self.send(Subscribe(1, [Subscription(topic_filter, qos, **options)], properties))
        granted = self.take_first(Suback)
        assert granted.reason_codes == [qos], granted

    def publish(
        self, topic: str, payload: bytes = b"", qos: int = 0, packet_id: int = 0, **fields: Any
    ) -> None:
        self.send(Publish(topic, payload, qos, packet_id=packet_id or (1 if qos else 0), **fields))
