"""Whatever happens to sessions that read the log: what is counted of it stays true, and all of it goes.

Clients that keep their sessions, alone and in a shared subscription, publish and subscribe at QoS 1 and 2 at
a broker whose log is tiny, while connections, sessions and the broker end, the disk is full for a while, and
the store commits late. After each step the broker's counts are compared with what they count. In the end
everybody comes back and reads all, and nothing may be left.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.broker.events import ShareExceeded
from hedgerow.broker.limits import Limits, LogBounds
from hedgerow.broker.session import Session
from hedgerow.broker.unwritten import UnwrittenMessage
from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5, Publish, Subscribe, Subscription
from hedgerow.topics import matches, split_shared
from tests.broker.harness import Client, World
from tests.broker.model_client import SUBSCRIBE_ID, ModelClient

TOPICS = ("t/0", "t/1")
LOG_BYTES = 3_000  # Some forty messages
AGE_S = 1_000.0
SHARED = "$share/g/t/+"
BOUNDS = {
    "waits": LogBounds(LOG_BYTES),
    "drops oldest": LogBounds(LOG_BYTES, drops_oldest=True),
    "ages": LogBounds(LOG_BYTES, AGE_S),
    "explicit": LogBounds(LOG_BYTES),
    "shares": LogBounds(LOG_BYTES),
    "shares, drops oldest": LogBounds(LOG_BYTES, drops_oldest=True),
}
OWNED = ("shares", "shares, drops oldest")  # Each client has an address of its own, and so an owner.
LIMITS = {"explicit": Limits(in_flight=3, queue_messages=6)}
CLIENTS = (
    (MQTT_5, 1, ("t/0", "t/+")),
    (MQTT_5, 2, ("t/+", "t/1")),
    (MQTT_3_1_1, 2, ("t/0", "t/+")),
    (MQTT_5, 1, (SHARED, "t/1")),
    (MQTT_5, 2, (SHARED,)),
)
GROUP = {3, 4}


class Reader(ModelClient):
    """Its subscriptions have identifiers, where it can say so."""

    address = "192.0.2.1"

    def open(self) -> Client:
        return self.world.open(self.address)

    def _send_subscribe(self) -> None:
        for topic_filter, qos in self.wanted.items():
            if topic_filter in self.granted:
                continue
            self.asked.append([topic_filter])
            no_local = self.client_id == "client-1"
            subscription = Subscription(topic_filter, qos, no_local)
            if self.version == MQTT_5 and len(topic_filter) > 3:
                self._send(
                    Subscribe(SUBSCRIBE_ID, [subscription], {"subscription_identifier": (len(topic_filter),)})
                )
            else:
                self._send(Subscribe(SUBSCRIBE_ID, [Subscription(topic_filter, qos, no_local)]))

    def forget_session(self) -> None:
        for each in self.outgoing, self.received, self.wanted, self.granted, self.unwanted:
            each.clear()
        self.had_session = False


@dataclass
class Sent:
    publisher: int
    topic: str
    qos: int
    number: int
    owed: set[int] = field(default_factory=set)
    """Clients that were subscribed then, and since."""
    acknowledged: bool = False
    is_shared: bool = False


class LogStory:
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.world = World(LIMITS.get(kind, Limits(in_flight=3)), durable=True, log_bounds=BOUNDS[kind])
        self.world.commits = False
        self.clients = [
            Reader(self.world, f"client-{number}", each[0]) for number, each in enumerate(CLIENTS)
        ]
        if kind in OWNED:
            for number, client in enumerate(self.clients):
                client.address = f"192.0.2.{number + 1}"
        self.told: set[str] = set()  # owners that did without
        self.sent: dict[bytes, Sent] = {}
        self.renewed: set[int] = set()
        self.disturbed: set[int] = set()  # whose subscriptions ended at some time
        self.shared_is_kept = True

    def tell(self, steps: list[tuple[object, ...]]) -> None:
        for client in range(len(CLIENTS)):
            self.connect(client, 65_535)
            self.subscribe(client, 0)
        for name, *arguments in steps:
            getattr(self, str(name))(*arguments)
            self.check_counts()
        self.quiesce()
        self.check_end()

    # Steps

    def connect(self, client: int, receive_maximum: int) -> None:
        each = self.clients[client]
        if each.version == MQTT_5:
            each.receive_maximum = receive_maximum
        each.connect()
        self._take(client, 1)

    def lose(self, client: int) -> None:
        self.clients[client].lose()

    def process(self, client: int, count: int) -> None:
        self._take(client, count)

    def publish(self, client: int, topic: int, qos: int, count: int) -> None:
        for _ in range(count):
            payload = b"%d" % len(self.sent)
            sent = Sent(client, TOPICS[topic], qos, len(self.sent))
            sent.owed = {
                number
                for number, each in enumerate(self.clients)
                for topic_filter in each.granted
                if matches(split_shared(topic_filter)[1], TOPICS[topic]) and topic_filter != SHARED
                if number != 1 or client != 1
            }
            sent.is_shared = any(SHARED in self.clients[number].granted for number in GROUP)
            self.sent[payload] = sent
            if not self.clients[client].publish(TOPICS[topic], payload, qos):
                del self.sent[payload]

    def subscribe(self, client: int, choice: int) -> None:
        _, qos, filters = CLIENTS[client]
        topic_filter = filters[choice % len(filters)]
        if topic_filter not in self.clients[client].wanted:
            self.clients[client].subscribe(topic_filter, qos)

    def unsubscribe(self, client: int, choice: int) -> None:
        each = self.clients[client]
        filters = CLIENTS[client][2]
        topic_filter = filters[choice % len(filters)]
        if topic_filter in each.granted and each.connected:
            self._disturb(client)
            each.unsubscribe(topic_filter)

    def renew(self, client: int) -> None:
        each = self.clients[client]
        if each.version == MQTT_5:
            self._forget(client)
            each.renew()
            self._take(client, 1)

    def end(self, client: int) -> None:
        """The session expires."""
        each = self.clients[client]
        each.lose()
        session = self.world.broker.sessions.get(each.client_id)
        if session is not None:
            self._forget(client)
            each.forget_session()
            self.world.broker.discard(session)
            self.world.settle()
            # Whether that is stored when the broker crashes is not known.
            each.renewing = each.version == MQTT_5 or each.renewing
            if each.version == MQTT_3_1_1:
                self.commit_all()

    def congest(self, client: int, congested: bool) -> None:
        connection = self.clients[client].connection
        if connection is not None and self.clients[client].connected and not connection.closed:
            connection.set_congested(congested)

    def fill(self, has_room: bool) -> None:
        self.world.broker.set_disk_room(has_room)

    def advance(self, seconds: float) -> None:
        self.world.advance(seconds)

    def take(self) -> None:
        self.world.take_changes()

    def let_go(self) -> None:
        self.world.let_go()

    def commit(self) -> None:
        self.world.commit()
        self.world.settle()

    def commit_all(self) -> None:
        while self.world.commit():
            self.world.settle()

    def crash(self, written: bool) -> None:
        if written:
            self.world.write_taken()
        self._restart()

    def stop(self) -> None:
        """As it should."""
        self.world.broker.shut_down(self.world.now)
        self.world.settle()
        self.commit_all()
        self._restart()

    def _restart(self) -> None:
        for each in self.clients:
            each.forget_connection()
        self.world.crash()
        self.check_counts()

    def _forget(self, client: int) -> None:
        self.renewed.add(client)
        self._disturb(client)

    def _disturb(self, client: int) -> None:
        self.disturbed.add(client)
        for sent in self.sent.values():
            sent.owed.discard(client)

    def _take(self, client: int, count: int | None = None) -> bool:
        each = self.clients[client]
        before = len(each.acknowledged)
        taken = each.process(count)
        for payload in each.acknowledged[before:]:
            self.sent[payload].acknowledged = True
        return taken

    # What is counted

    def check_counts(self) -> None:
        broker = self.world.broker
        self.told |= {each.owner for each in broker.take_events() if isinstance(each, ShareExceeded)}
        durability = broker.durability
        positions: Counter[int] = Counter()
        by_owner: Counter[tuple[str, int]] = Counter()
        pending: Counter[Session] = Counter(
            owner
            for entry in durability.unwritten_entries()
            for owner in (
                [owner for owner, _ in entry.left]
                if isinstance(entry, UnwrittenMessage)
                else [owner for owner in entry.left for _ in entry.messages]
            )
        )
        for session in broker.sessions.values():
            queue = session.stored
            if queue is None:
                continue
            here = [
                position
                for chunk in queue.chunks
                for first, count in chunk.runs_from(0)
                for position in range(first, first + count)
            ]
            assert here == sorted(set(here))
            assert all(chunk.count for chunk in queue.chunks)
            assert queue.count == len(here) == sum(chunk.count for chunk in queue.chunks)
            assert queue.pending == pending[session]
            unread = [each for each in here if each >= queue.cursor] if queue.unloaded else []
            assert queue.unloaded == len(unread)
            in_memory = {each.position for each in session.loaded() if each.position > 0}
            assert in_memory <= set(here) or self.kind in ("drops oldest", "ages", *OWNED)
            assert set(here) - set(unread) <= in_memory, "nobody would ever finish it"
            assert not set(unread) - queue.ahead & in_memory
            outbox = session.outbox
            if outbox is not None:
                assert outbox.bytes == sum(each.size for each in session.loaded())
            positions.update(here)
            by_owner.update((queue.owner, position) for position in here)
        segments = durability.segments
        held: Counter[str] = Counter()
        for segment, end in durability.needed.spans(durability.next_position):
            for owner in segment.holders:
                held[owner] += segment.held_by(owner, segment.count or end - segment.first)
        assert durability.needed.held_bytes(durability.next_position) == +held
        published = sum((Counter(each.published) for each in segments), Counter())
        assert durability.needed.published == published
        ends = [each.first for each in segments[1:]] + [durability.next_position]
        for segment, end in zip(segments, ends, strict=False):
            needed = sum(positions[each] for each in range(segment.first, end))
            owned = {
                owner: sum(by_owner[owner, each] for each in range(segment.first, end))
                for owner in {session.owner for session in broker.sessions.values()}
                if owner
            }
            assert GROUP & self.disturbed or segment.holders == {
                owner: count for owner, count in owned.items() if count
            }
            # What a member has left is needed until another has it.
            assert segment.references == needed or (segment.references > needed and GROUP & self.disturbed)

    # The end

    def quiesce(self) -> None:
        self.fill(True)
        for client in range(len(self.clients)):
            self.connect(client, 65_535)
        busy = True
        while busy:
            busy = sum(self._take(client) for client in range(len(self.clients))) > 0
            busy = self.world.commit() or busy
            self.world.settle()
            self.check_counts()

    def check_end(self) -> None:
        store, durability = self.world.store, self.world.broker.durability
        assert not [*store.deliveries, *store.chunks, *store.received], "something was never deleted"
        assert not durability.has_unwritten
        assert not durability.is_behind  # and so nothing is held
        assert durability.references == 0
        assert len(store.segments) <= 1
        assert durability.log_bytes <= LOG_BYTES
        for session in self.world.broker.sessions.values():
            assert session.waiting_count == 0
            if session.stored is not None:
                assert session.stored.bytes == 0
        for index, client in enumerate(self.clients):
            assert client.outgoing == {}, "a publication was never acknowledged"
            assert client.received == set(), "a QoS 2 identifier was never released"
            self._check_deliveries(index, client)
        if self.kind == "waits" and not GROUP & self.disturbed:
            self._check_shared()

    def _check_deliveries(self, index: int, client: Reader) -> None:
        copies = Counter(packet.payload for packet in client.delivered)
        _, wanted, filters = CLIENTS[index]
        for payload, sent in self.sent.items():
            does_without = f"site:{client.address}" in self.told
            is_kept = self.kind == "waits" or (self.kind == "shares" and not does_without)
            if sent.acknowledged and index in sent.owed and is_kept:
                assert copies[payload], f"{payload!r} was acknowledged, and lost"
            if min(sent.qos, wanted) == 2 and SHARED not in filters:
                assert copies[payload] <= 1, f"{payload!r} came twice"
        if SHARED in filters:
            return
        last = list(dict.fromkeys(packet.payload for packet in reversed(client.delivered)))[::-1]
        seen: dict[tuple[int, str, int], list[int]] = {}
        for payload in last:
            sent = self.sent[payload]
            if min(sent.qos, wanted) == 2 or not ({index, sent.publisher} & (self.disturbed | self.renewed)):
                seen.setdefault((sent.publisher, sent.topic, sent.qos), []).append(sent.number)
        for numbers in seen.values():
            assert numbers == sorted(numbers), "out of order"

    def _check_shared(self) -> None:
        copies = Counter(
            packet.payload
            for index in GROUP
            for packet in self.clients[index].delivered
            if _is_of_group(packet)
        )
        for payload, sent in self.sent.items():
            if sent.acknowledged and sent.is_shared:
                assert copies[payload], f"{payload!r} was acknowledged, and lost to the group"


def _is_of_group(packet: Publish) -> bool:
    return len(SHARED) in packet.properties.get("subscription_identifier", ())


clients = st.sampled_from([1, 1, 2, 3, 3, 4, 0])
STEPS = st.one_of(
    st.tuples(st.just("commit")),
    st.tuples(st.just("process"), clients, st.integers(1, 6)),
    st.tuples(st.just("publish"), clients, st.integers(0, 1), st.integers(1, 2), st.integers(1, 2)),
    st.tuples(st.just("process"), clients, st.integers(1, 6)),
    st.tuples(st.just("commit")),
    st.tuples(st.just("publish"), clients, st.integers(0, 1), st.integers(1, 2), st.integers(1, 2)),
    st.tuples(st.just("connect"), clients, st.sampled_from([1, 2, 65_535])),
    st.tuples(st.just("subscribe"), clients, st.integers(0, 2)),
    st.tuples(st.just("take")),
    st.tuples(st.just("let_go")),
    st.tuples(st.just("lose"), clients),
    st.tuples(st.just("fill"), st.booleans()),
    st.tuples(st.just("crash"), st.booleans()),
    st.tuples(st.just("stop")),
    st.tuples(st.just("renew"), clients),
    st.tuples(st.just("end"), clients),
    st.tuples(st.just("unsubscribe"), clients, st.integers(0, 2)),
    st.tuples(st.just("congest"), clients, st.booleans()),
    st.tuples(st.just("advance"), st.sampled_from([11.0, AGE_S / 2])),
)
STORIES = st.lists(STEPS, min_size=40, max_size=150)


@settings(max_examples=80)
@given(st.sampled_from([*BOUNDS, "waits"]), STORIES)
def test_what_is_counted_of_the_log_stays_true_and_all_of_it_goes(
    kind: str, steps: list[tuple[object, ...]]
) -> None:
    LogStory(kind).tell(steps)


@pytest.mark.soak
@settings(max_examples=10_000)
@given(st.sampled_from([*BOUNDS, "waits"]), STORIES)
def test_all_of_the_log_goes_in_many_stories(kind: str, steps: list[tuple[object, ...]]) -> None:
    LogStory(kind).tell(steps)
