"""What waits for a far broker that is away: its limits, its order, its ledger, and that nothing is lost.

The last tests are stories of random traffic, cuts, losses and crashes, in which bytes move a chunk at a time
and stores commit late.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.bridges.bridge import Bridge, BridgePhase
from hedgerow.broker.limits import Limits
from hedgerow.broker.session import DELIVERY_BYTES
from hedgerow.mqtt.packets import Connack, Puback, Publish, Pubrec, Suback, Subscribe
from hedgerow.mqtt.reasons import Reason
from tests.bridges.harness import Network, Node, balance, make_section
from tests.broker.harness import Client

FAR = (("hedgerow-node", "far"),)


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def north(network: Network) -> Node:
    return network.add("north")


def waiting(bridge: Bridge) -> int:
    return bridge.session.waiting_count


def arrive(network: Network) -> Node:
    """The far broker comes, and hears what waited for it."""
    south = network.add("south")
    south.listen()
    network.advance(40)
    return south


# Limits


def test_a_full_queue_drops_the_oldest(network: Network, north: Node) -> None:
    bridge = north.bridge("# out 1", queue_bytes=10 * (600 + DELIVERY_BYTES))
    for number in range(30):
        north.publish("a", (b"%d " % number).ljust(599))
        assert balance(bridge.ledger, waiting(bridge)) == 0
    assert (waiting(bridge), bridge.ledger.overflowed) == (10, 20)
    heard = arrive(network).take_heard()
    assert [int(payload) for payload in heard] == list(range(20, 30))


def test_or_the_newest(network: Network, north: Node) -> None:
    bridge = north.bridge("# out 1", queue_bytes=10 * (600 + DELIVERY_BYTES), queue_overflow="drop-newest")
    for number in range(30):
        north.publish("a", (b"%d " % number).ljust(599))
    assert (waiting(bridge), bridge.ledger.overflowed) == (10, 20)
    heard = arrive(network).take_heard()
    assert [int(payload) for payload in heard] == list(range(10))


@pytest.mark.parametrize("overflow", ["drop-oldest", "drop-newest"])
def test_one_that_has_no_room_at_all_pushes_nothing_out(network: Network, north: Node, overflow: str) -> None:
    bridge = north.bridge("# out 1", queue_bytes=10_000, queue_overflow=overflow)
    for number in range(5):
        north.publish("a", b"%d" % number)
    north.publish("a", b"x" * 20_000)
    assert (waiting(bridge), bridge.ledger.overflowed) == (5, 1)


def test_small_messages_count_with_what_they_take(network: Network, north: Node) -> None:
    """Empty ones without end must not fill the memory."""
    bridge = north.bridge("# out 1", queue_bytes=10_000)
    for _ in range(1_000):
        north.publish("a", b"")
    assert waiting(bridge) < 30


def test_what_waited_for_too_long_is_dropped(network: Network, north: Node) -> None:
    bridge = north.bridge("# out 1", queue_age=60, restart_timeout="1000")
    north.publish("a", b"old")
    network.advance(50)
    north.publish("a", b"young")
    network.advance(30)
    assert (waiting(bridge), bridge.ledger.expired) == (1, 1)
    assert balance(bridge.ledger, 1) == 0
    network.advance(60)
    assert (waiting(bridge), bridge.ledger.expired) == (0, 2)


def test_for_ever(network: Network, north: Node) -> None:
    bridge = north.bridge("# out 1", queue_age=0, restart_timeout="3600")
    north.publish("a", b"old")
    network.advance(5_000)
    assert waiting(bridge) == 1


def test_a_message_that_expires_is_not_sent(network: Network, north: Node) -> None:
    bridge = north.bridge("# out 1")
    north.connect("client").publish("a", b"short", 1, properties={"message_expiry_interval": 5})
    north.publish("a", b"lasts")
    network.advance(10)
    south = arrive(network)
    assert south.take_heard() == [b"lasts"]
    assert bridge.ledger.expired == 1
    assert balance(bridge.ledger, 0) == 0


def test_after_a_restart_what_waits_is_not_taken_for_old(network: Network) -> None:
    north = network.add("north", durable=True)
    north.bridge("# out 1", queue_age=600)
    north.publish("a", b"waits")
    north.crash()
    network.advance(60)
    assert arrive(network).take_heard() == [b"waits"]
    bridge = north.find()
    assert (bridge.ledger.published, bridge.ledger.relayed) == (1, 1)


@pytest.mark.parametrize("local", [False, True])
def test_a_clean_session_keeps_nothing(network: Network, local: bool) -> None:
    north, south = network.add("north", durable=True), network.add("south")
    south.listen()
    options = {"local_cleansession": True} if local else {"cleansession": True}
    bridge = north.bridge("# out 1", **options)
    network.cut("north", "south")
    north.publish("a", b"in flight")
    network.advance(2.1)
    assert (waiting(bridge), bridge.ledger.discarded) == (0, 1)
    north.publish("a", b"while away")
    network.mend("north", "south")
    network.advance(20)
    assert b"in flight" not in south.take_heard()
    assert balance(bridge.ledger, waiting(bridge)) == 0


def test_qos_0_is_counted_as_away(network: Network, north: Node) -> None:
    bridge = north.bridge("# out 1")
    client = north.connect("client")
    client.send(Publish("a", b"1"), Publish("a", b"2"), Publish("a", b"3", 0, True))
    assert (bridge.ledger.published, bridge.ledger.away) == (3, 3)


def test_what_the_far_broker_refuses_is_counted(network: Network, north: Node) -> None:
    scripts = network.script("far")
    bridge = north.bridge("# out 2", address="far", notifications=False)
    far = scripts[0]
    far.accept(Connack(properties={"user_property": FAR}))
    north.publish("a", b"", 1)
    north.publish("a", b"", 2)
    first, second = (each for each in far.take() if isinstance(each, Publish))
    far.send(Puback(first.packet_id, Reason.NOT_AUTHORIZED), Pubrec(second.packet_id, Reason.QUOTA_EXCEEDED))
    assert bridge.ledger.refused == 2
    assert balance(bridge.ledger, waiting(bridge)) == 0


# Order


@pytest.mark.parametrize("window", [1, 3, 1024])
def test_order_on_return(network: Network, window: int) -> None:
    north, south = network.add("north"), network.add("south", Limits(receive_maximum=window))
    south.listen("a")
    north.bridge("# both 1")
    network.cut("north", "south")
    for number in range(5):
        north.publish("a", b"%d" % number)  # in flight, as far as the window allows
    network.advance(2.1)
    for number in range(5, 10):
        north.publish("a", b"%d" % number)
    network.mend("north", "south")
    network.flows = False
    network.now += 30
    network.settle()
    for number in range(10, 20):  # between CONNACK and SUBACK, and during the drain
        north.publish("a", b"%d" % number)
        for wire in network.wires:
            wire.deliver(0)
            wire.deliver(1)
        network.settle()
    network.flows = True
    network.settle()
    assert south.take_heard() == [b"%d" % number for number in range(20)]


def test_what_is_published_before_the_suback_is_sent_once_and_behind(network: Network, north: Node) -> None:
    """A foreign broker would have it twice."""
    scripts = network.script("far")
    north.bridge("# both 1", address="far", restart_timeout="1", notifications=False)
    scripts[0].accept(Connack(properties={"user_property": FAR}))
    north.publish("a", b"0")
    network.lose("north", "far")
    network.advance(1.1)
    far = scripts[1]
    far.take_connect()
    far.send(Connack(session_present=True, properties={"user_property": FAR}))
    north.publish("a", b"1")
    packets = far.take()
    (subscribe,) = [each for each in packets if isinstance(each, Subscribe)]
    far.send(Suback(subscribe.packet_id, [1]))
    sent = [each for each in (*packets, *far.take()) if isinstance(each, Publish)]
    assert [(each.payload, each.dup) for each in sent] == [(b"0", True), (b"1", False)]


def test_a_long_queue_does_not_go_out_in_one_piece(network: Network, north: Node) -> None:
    """Live traffic of others has its turn in between."""
    north.bridge("# out 1", queue_bytes=64_000_000)
    for _ in range(40):
        north.publish("a", b"x" * 50_000)
    network.flows = False
    network.add("south")
    network.now += 40
    sizes: list[int] = []
    for _ in range(40):
        network.settle()
        for wire in network.wires:
            sizes += map(len, wire.waiting[1])
            wire.deliver(0)
            wire.deliver(1)
    assert sum(sizes) > 40 * 50_000
    assert max(sizes) <= 400_000


# Retained values


def value(node: Node) -> bytes | None:
    message = node.broker.retained.get("v")
    return None if message is None else message.payload


@pytest.mark.parametrize("newer", ["north", "south"])
@pytest.mark.parametrize("qos", [0, 1])
def test_both_sides_come_to_the_newer_value(network: Network, newer: str, qos: int) -> None:
    north, south = network.add("north"), network.add("south")
    older = {"north": south, "south": north}[newer]
    older.publish("v", b"old", retain=True)
    network.advance(1)
    network.nodes[newer].publish("v", b"new", retain=True)
    north.bridge(f"v both {qos}")
    assert value(north) == value(south) == b"new"


def test_while_the_link_is_away_the_newer_value_wins(network: Network) -> None:
    north, south = network.add("north"), network.add("south")
    north.bridge("v both 1")
    north.publish("v", b"first", retain=True)
    assert value(south) == b"first"
    network.cut("north", "south")
    north.publish("v", b"second", retain=True)  # It waits, and is the older one when it comes.
    network.advance(5)
    south.publish("v", b"third", retain=True)
    network.mend("north", "south")
    network.advance(30)
    assert value(north) == value(south) == b"third"


def test_a_value_that_is_deleted_is_deleted_there(network: Network) -> None:
    north, south = network.add("north"), network.add("south")
    north.bridge("v both 1")
    north.publish("v", b"x", retain=True)
    network.advance(1)
    north.publish("v", b"", retain=True)
    assert value(north) is value(south) is None


def test_without_outgoing_retain(network: Network, north: Node) -> None:
    south = network.add("south")
    south.listen()
    north.bridge("v out 1", bridge_outgoing_retain=False)
    north.publish("v", b"x", retain=True)
    assert south.take_heard() == [b"x"]
    assert value(south) is None


def test_a_value_comes_once_to_who_listens(network: Network) -> None:
    """However often the link comes up."""
    north, south = network.add("north", durable=True), network.add("south", durable=True)
    south.publish("v", b"x", retain=True)
    reader = Counter[bytes]()
    north.bridge("v both 1", restart_timeout="1")
    north.listen("v")
    for _ in range(3):
        network.lose("north", "south")
        network.advance(2)
    south.crash()
    network.advance(2)
    reader.update(north.take_heard())
    assert reader == {b"x": 1}


@pytest.mark.parametrize("qos", [1, 2])
def test_what_comes_by_another_way_after_a_crash_is_known(network: Network, qos: int) -> None:
    """South hears it from north, dies, and hears it again from west, which kept it for south."""
    north, south, west = (network.add(name, durable=True) for name in ("north", "south", "west"))
    west.bridge(f"# both {qos}", name="south", address="south", restart_timeout="1")
    north.bridge(f"# both {qos}", name="west", address="west", restart_timeout="1")
    south.listen()
    network.cut("west", "south")
    north.bridge(f"# both {qos}", name="south", address="south", restart_timeout="1")
    for number in range(5):
        north.publish("a", b"%d" % number, qos)
    assert south.take_heard() == [b"0", b"1", b"2", b"3", b"4"]
    south.crash()
    network.mend("west", "south")
    network.advance(5)
    assert west.is_up
    assert south.take_heard() == []
    north.publish("a", b"new", qos)
    assert south.take_heard() == [b"new"]


# Stories: the ledger

traffic = st.one_of(
    st.tuples(st.just("publish"), st.integers(0, 2), st.sampled_from([0, 1, 1, 300, 3_000]), st.booleans()),
    st.tuples(st.just("publish"), st.integers(0, 2), st.sampled_from([0, 1, 1, 300, 3_000]), st.booleans()),
    st.tuples(st.just("publish_many"), st.integers(2, 20)),
    st.tuples(st.just("deliver"), st.integers(1, 5)),
    st.tuples(st.just("advance"), st.sampled_from([0.1, 1.0, 3.0, 30.0])),
    st.tuples(st.just("lose")),
    st.tuples(st.just("cut")),
    st.tuples(st.just("mend")),
    st.tuples(st.just("congest"), st.booleans()),
    st.tuples(st.just("flow"), st.booleans()),
    st.tuples(st.just("replace"), st.sampled_from(["drop-oldest", "drop-newest"]), st.booleans()),
)


class LedgerStory:
    """One bridge in all kinds of trouble, whose ledger is looked at after every step."""

    def __init__(self) -> None:
        self.network = Network()
        self.north = self.network.add("north", Limits(in_flight=3, queue_bytes=2_000))
        self.south = self.network.add("south", Limits(packet_bytes=2_000, receive_maximum=2))
        self.north.bridge(
            "# both 2", "x/# out 1 l/ r/", queue_bytes=4_000, queue_age=20, restart_timeout="1 3"
        )
        self.client: Client = self.north.connect("client")
        self.count = 0

    def publish(self, qos: int, size: int, retain: bool) -> None:
        self.count += 1
        topic = ("a", "l/x/1")[self.count % 2]
        self.north.publish(topic, (b"%d" % self.count).ljust(size), qos, retain=retain)

    def publish_many(self, count: int) -> None:
        self.client.send(*[Publish("a", b"%d" % number) for number in range(count)])

    def deliver(self, count: int) -> None:
        for _ in range(count):
            for wire in self.network.wires[:]:
                wire.deliver(0)
                wire.deliver(1)
            self.network.settle()

    def advance(self, seconds: float) -> None:
        self.network.advance(seconds)

    def lose(self) -> None:
        self.network.lose("north", "south")

    def cut(self) -> None:
        self.network.cut("north", "south")

    def mend(self) -> None:
        self.network.mend("north", "south")

    def congest(self, congested: bool) -> None:
        connection = self.north.find().connection
        if connection is not None and connection.is_connected:
            connection.set_congested(congested, self.network.now)
            self.network.settle()

    def flow(self, flows: bool) -> None:
        self.network.flows = flows
        self.network.settle()

    def replace(self, overflow: str, large: bool) -> None:
        limit = 8_000 if large else 2_000
        section = make_section(
            "# both 2", queue_bytes=limit, queue_age=20, queue_overflow=overflow, replace=True
        )
        self.north.create(section)

    def check(self) -> None:
        bridge = self.north.find()
        outbox = bridge.session.outbox
        assert balance(bridge.ledger, waiting(bridge)) == 0, bridge.ledger
        assert all(count >= 0 for count in asdict(bridge.ledger).values())
        assert outbox is None or outbox.bytes == sum(
            each.size for each in (*outbox.in_flight.values(), *outbox.queue)
        )


@settings(max_examples=60)
@given(st.lists(traffic, min_size=10, max_size=60))
def test_the_ledger_balances_at_every_step(steps: list[tuple[object, ...]]) -> None:
    story = LedgerStory()
    for name, *arguments in steps:
        getattr(story, str(name))(*arguments)
        story.check()
    story.congest(False)
    story.mend()
    story.flow(True)
    story.advance(60)
    story.check()
    assert story.north.is_up
    assert waiting(story.north.find()) == 0


# Stories: nothing lost, nothing twice

NAMES = ("a", "b", "c")


@dataclass
class Sent:
    publisher: str
    number: int
    client: Client
    is_taken: bool = False


@dataclass
class LineStory:
    """Three nodes in a line with stores, a subscriber at each, publishers at each."""

    qos: int = 1
    network: Network = field(default_factory=Network)
    sent: dict[bytes, Sent] = field(default_factory=dict)
    crashed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for name in NAMES:
            node = self.network.add(name, Limits(in_flight=2), durable=True)
            node.listen("t")
        for near, far in (("a", "b"), ("b", "c")):
            self.node(near).bridge(f"t both {self.qos}", address=far, restart_timeout="0.2 1")
        self.network.flows = False
        for name in NAMES:
            self.node(name).commits = False

    def node(self, name: str) -> Node:
        return self.network.nodes[name]

    def publish(self, name: str) -> None:
        number = len(self.sent)
        payload = b"%d" % number
        client = self.node(name).connect(f"publisher {number}")
        client.send(Publish("t", payload, 1, packet_id=1))
        self.sent[payload] = Sent(name, number, client)

    def deliver(self, which: int, count: int) -> None:
        for _ in range(count):
            for wire in self.network.wires[which : which + 1]:
                wire.deliver(0)
                wire.deliver(1)
            self.network.settle()

    def commit(self, name: str) -> None:
        self.node(name).commit()
        self.network.settle()

    def take(self, name: str) -> None:
        self.node(name).take_changes()

    def crash(self, name: str, written: bool) -> None:
        """`written`: the batch under way reached the disk, and nobody was told."""
        if written:
            self.node(name).write_taken()
        self.crashed.add(name)
        self.node(name).crash()

    def lose(self, which: int) -> None:
        for wire in self.network.wires[which : which + 1]:
            wire.lose()
        self.network.settle()

    def cut(self, which: int) -> None:
        for wire in self.network.wires[which : which + 1]:
            wire.cut()

    def advance(self, seconds: float) -> None:
        self.network.advance(seconds)

    def note_taken(self) -> None:
        for sent in self.sent.values():
            if any(isinstance(packet, Puback) for packet in sent.client.take()):
                sent.is_taken = True

    def heal(self) -> None:
        self.network.flows = True
        for name in NAMES:
            self.node(name).commits = True
        self.network.settle()
        self.network.advance(14)  # A link that was cut before its CONNACK is waited for, for 10 s.
        self.note_taken()

    def check(self) -> None:
        for name in NAMES:
            node = self.node(name)
            assert node.is_up
            heard = [message.payload for message in node.heard]
            counts = Counter(heard)
            for payload, sent in self.sent.items():
                if sent.is_taken:
                    assert counts[payload] >= 1, f"{payload!r} of {sent.publisher} is lost at {name}"
                if name not in self.crashed or sent.publisher == name:
                    assert counts[payload] <= 1, f"{payload!r} of {sent.publisher} came twice to {name}"
            if name not in self.crashed:
                for publisher in NAMES:
                    numbers = [
                        self.sent[each].number for each in heard if self.sent[each].publisher == publisher
                    ]
                    assert numbers == sorted(numbers), f"{publisher} to {name} out of order"
        for name in NAMES:
            store = self.node(name).store
            left = [*store.deliveries, *store.chunks, *store.received]
            assert not left, f"{name} keeps something for ever"


names = st.sampled_from(NAMES)
wires = st.integers(0, 1)
story_steps = st.one_of(
    st.tuples(st.just("publish"), names),
    st.tuples(st.just("publish"), names),
    st.tuples(st.just("deliver"), wires, st.integers(1, 4)),
    st.tuples(st.just("deliver"), wires, st.integers(1, 4)),
    st.tuples(st.just("commit"), names),
    st.tuples(st.just("commit"), names),
    st.tuples(st.just("take"), names),
    st.tuples(st.just("advance"), st.sampled_from([0.3, 1.0])),
    st.tuples(st.just("lose"), wires),
    st.tuples(st.just("cut"), wires),
    st.tuples(st.just("crash"), names, st.booleans()),
)


@settings(max_examples=60)
@given(st.sampled_from([1, 2]), st.lists(story_steps, min_size=20, max_size=80))
def test_nothing_is_lost_and_nothing_comes_twice(qos: int, steps: list[tuple[object, ...]]) -> None:
    story = LineStory(qos)
    for name, *arguments in steps:
        getattr(story, str(name))(*arguments)
        story.note_taken()
    story.heal()
    story.check()
    assert all(bridge.state is BridgePhase.UP for name in NAMES for bridge in story.node(name).bridges)
