"""Brokers that are joined come to the same retained values, whatever was published, deleted, cut and lost.

The stories at the end publish and delete at random at four nodes in a ring, whose clocks differ, while links
are cut and lost and nodes die: two with a store, two without. When all is mended, all hold the same.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hedgerow.broker.port import Port
from hedgerow.broker.retained import TOMBSTONE_S
from hedgerow.message import Message
from hedgerow.mqtt.packets import Connack, Publish
from tests.bridges.harness import Network, Node


def values(node: Node) -> dict[str, bytes]:
    return {message.topic: message.payload for message in node.broker.retained if message.topic[0] != "$"}


def publish(node: Node, topic: str, payload: bytes, qos: int = 1, skew_s: float = 0.0) -> None:
    """As a client of a node whose clock is wrong by so much."""
    port = Port(node.broker, "publisher", lambda message: None)
    port.publish(Message(topic, payload, qos, True), node.now + skew_s)
    port.close()
    node.broker.now = node.now
    node.settle()


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def pair(network: Network) -> tuple[Node, Node]:
    """Joined, each with the value x of v."""
    north, south = network.add("north", durable=True), network.add("south", durable=True)
    north.bridge("# both 1", restart_timeout="1 2")
    publish(north, "v", b"x")
    assert values(north) == values(south) == {"v": b"x"}
    return north, south


def heal(network: Network) -> None:
    network.mend("north", "south")
    network.advance(20)


@pytest.mark.parametrize("at", ["north", "south"])
@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("dies", [False, True])
def test_what_was_deleted_during_a_cut_stays_deleted(
    network: Network, pair: tuple[Node, Node], at: str, qos: int, dies: bool
) -> None:
    network.cut("north", "south")
    network.advance(5)
    publish(network.nodes[at], "v", b"", qos)
    if dies:
        network.nodes[at].crash()
    network.advance(3_600)
    heal(network)
    assert values(pair[0]) == values(pair[1]) == {}


def test_a_value_that_is_newer_than_the_deletion_survives_it(
    network: Network, pair: tuple[Node, Node]
) -> None:
    north, south = pair
    network.cut("north", "south")
    network.advance(5)
    publish(north, "v", b"", 0)
    network.advance(5)
    publish(south, "v", b"newer", 0)
    heal(network)
    assert values(north) == values(south) == {"v": b"newer"}
    assert len(north.broker.retained.tombstones) == len(south.broker.retained.tombstones) == 0


def test_the_deletion_of_what_only_the_other_side_has(network: Network, pair: tuple[Node, Node]) -> None:
    """It waits in the session, the value comes the other way meanwhile, and they cross."""
    north, south = pair
    network.cut("north", "south")
    network.advance(5)
    publish(south, "w", b"x")
    network.advance(5)
    publish(north, "w", b"")
    heal(network)
    assert values(north) == values(south) == {"v": b"x"}


def test_a_deletion_that_is_told_is_heard_where_it_deletes_something(
    network: Network, pair: tuple[Node, Node]
) -> None:
    north, south = pair
    publish(north, "gone before", b"x")
    publish(north, "gone before", b"")
    network.cut("north", "south")
    network.advance(5)
    publish(north, "v", b"", 0)
    client = south.connect("client")
    client.subscribe("#")
    client.take()
    heal(network)
    assert client.take() == [Publish("v", b"")], "without the mark, and once"
    network.lose("north", "south")
    network.advance(20)
    assert client.take() == []


def test_who_comes_later_hears_nothing_of_old_deletions(network: Network, pair: tuple[Node, Node]) -> None:
    north, _ = pair
    publish(north, "w", b"x")
    publish(north, "w", b"")
    network.advance(15)  # What has just flowed is sent to newcomers.
    west = network.add("west")
    west.listen()
    west.bridge("# both 1", address="north")
    assert west.take_heard() == [b"x"]
    tombstone = west.broker.retained.tombstones.get("w")
    assert tombstone is not None, "it may meet someone who has the value yet"
    assert tombstone.id == north.broker.retained.tombstones.get("w").id  # type: ignore[union-attr]


def test_the_deletion_comes_to_a_third_by_way_of_one_who_had_no_value(network: Network) -> None:
    """West has the value; south between them is new and memoryless; only the told deletion can go through."""
    north, west = network.add("north"), network.add("west")
    west.bridge("# both 1", name="direct", address="north", restart_timeout="1 2")
    publish(north, "v", b"x")
    network.cut("west", "north")
    network.advance(5)
    publish(north, "v", b"")
    west.delete("direct")
    assert values(west) == {"v": b"x"}
    south = network.add("south")
    west.bridge("# both 1", name="to-south", address="south")
    network.advance(5)
    assert values(south) == {"v": b"x"}
    south.bridge("# both 1", name="to-north", address="north")
    assert values(west) == values(south) == values(north) == {}


def test_a_node_without_a_store_gets_back_what_was_published_at_it(
    network: Network, pair: tuple[Node, Node]
) -> None:
    """Others have it, under ids that begin with its own name."""
    north, _ = pair
    west = network.add("west")
    west.bridge("# both 1", address="north", restart_timeout="1 2")
    publish(west, "w", b"mine")
    west.listen("w")
    west.take_heard()
    west.crash()
    network.advance(20)
    assert values(west) == values(north) == {"v": b"x", "w": b"mine"}
    assert west.take_heard() == [b"mine"]


def test_a_local_publication_is_the_newest_whatever_the_clocks_say(
    network: Network, pair: tuple[Node, Node]
) -> None:
    north, south = pair
    publish(north, "v", b"from the year 2100", skew_s=4.1e9)
    publish(south, "v", b"now")
    assert values(north) == values(south) == {"v": b"now"}
    publish(north, "v", b"", skew_s=-500.0)
    assert values(north) == values(south) == {}
    publish(south, "v", b"again", skew_s=-900.0)
    assert values(north) == values(south) == {"v": b"again"}


def test_values_of_one_moment_go_by_their_id_on_both_sides(network: Network) -> None:
    for names in (("a", "b"), ("b", "a")):
        near, far = network.add(f"{names[0]}1"), network.add(f"{names[1]}2")
        publish(near, "v", near.name.encode())
        publish(far, "v", far.name.encode())
        near.bridge("# both 0", address=far.name)
        assert values(near) == values(far) == {"v": max(near.name, far.name).encode()}


def test_after_a_restart_a_value_that_waits_has_its_time(network: Network, pair: tuple[Node, Node]) -> None:
    north, south = pair
    network.cut("north", "south")
    network.advance(5)
    publish(north, "v", b"older", 1)
    network.advance(5)
    publish(south, "v", b"newer", 1)
    north.crash()
    heal(network)
    assert values(north) == values(south) == {"v": b"newer"}


def test_deletions_are_forgotten_after_their_time(network: Network, pair: tuple[Node, Node]) -> None:
    """On both sides, though they tell each other of them on the way."""
    north, south = pair
    publish(north, "v", b"")
    for _ in range(2):
        assert len(north.broker.retained.tombstones) == len(south.broker.retained.tombstones) == 1
        network.now += TOMBSTONE_S / 2 - 25
        network.lose("north", "south")
        network.advance(20)
        assert north.is_up
    network.advance(30)
    assert len(north.broker.retained.tombstones) == len(south.broker.retained.tombstones) == 0
    assert [topic for node in pair for topic in node.store.retained if topic[0] != "$"] == []


def test_a_foreign_broker_is_told_of_no_old_deletion(network: Network) -> None:
    """It would take away what its own clients have published since."""
    scripts = network.script("far")
    north = network.add("north")
    publish(north, "v", b"x")
    publish(north, "v", b"")
    publish(north, "w", b"kept")
    north.bridge("# out 1", address="far", notifications=False)
    sent = scripts[0].accept(Connack())
    network.advance(5)
    sent += scripts[0].take()
    own = [each for each in sent if isinstance(each, Publish) and not each.topic.startswith("hedgerow/")]
    assert [(each.topic, each.payload) for each in own] == [("w", b"kept")]


def test_nor_a_node_that_is_not_to_retain(network: Network) -> None:
    north, south = network.add("north"), network.add("south")
    publish(north, "v", b"x")
    publish(north, "v", b"")
    south.listen()
    north.bridge("# out 1", bridge_outgoing_retain=False)
    assert south.take_heard() == []


# Stories

NAMES = ("a", "b", "c", "d")
LINKS = (("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"))
SKEWS = {"a": 0.0, "b": 4.0, "c": -3.0, "d": 0.5}
TOPICS = ("t", "u/1")


class RingStory:
    """Links between neighbours at QoS 0 or 1; nodes a and b have a store."""

    def __init__(self, line_qos: tuple[int, ...]) -> None:
        self.network = Network()
        self.count = 0
        for name in NAMES:
            self.network.add(name, durable=name in "ab")
        for (near, far), qos in zip(LINKS, line_qos, strict=True):
            self.network.nodes[near].bridge(
                f"# both {qos}", name=f"to-{far}", address=far, restart_timeout="0.2 1"
            )

    def publish(self, name: str, topic: str, qos: int, deletes: bool) -> None:
        self.count += 1
        payload = b"" if deletes else b"%d of %b" % (self.count, name.encode())
        publish(self.network.nodes[name], topic, payload, qos, SKEWS[name])

    def deliver(self, count: int) -> None:
        for _ in range(count):
            for wire in self.network.wires[:]:
                wire.deliver(0)
                wire.deliver(1)
            self.network.settle()

    def flow(self, flows: bool) -> None:
        self.network.flows = flows
        self.network.settle()

    def advance(self, seconds: float) -> None:
        self.network.advance(seconds)

    def lose(self, link: int) -> None:
        self.network.lose(*LINKS[link])

    def cut(self, link: int) -> None:
        self.network.cut(*LINKS[link])

    def mend(self, link: int) -> None:
        self.network.mend(*LINKS[link])

    def crash(self, name: str) -> None:
        self.network.nodes[name].crash()

    def heal(self) -> None:
        for link in range(len(LINKS)):
            self.mend(link)
        self.flow(True)
        self.network.advance(40)

    def check(self) -> None:
        nodes = self.network.nodes
        assert all(node.is_up for node in nodes.values())
        held = {name: values(node) for name, node in nodes.items()}
        assert all(each == held["a"] for each in held.values()), held
        for node in nodes.values():
            retained = node.broker.retained
            topics = Counter(message.topic for message in (*retained, *retained.tombstones))
            assert max(topics.values(), default=0) <= 1, "a topic has a value or a tombstone"
        for name in "ab":
            kept = nodes[name].broker.retained
            stored = {topic for topic in nodes[name].store.retained if topic[0] != "$"}
            assert stored == {each.topic for each in (*kept, *kept.tombstones) if each.topic[0] != "$"}


names, links = st.sampled_from(NAMES), st.integers(0, len(LINKS) - 1)
publications = st.tuples(st.just("publish"), names, st.sampled_from(TOPICS), st.integers(0, 1), st.booleans())
troubles = st.one_of(
    st.tuples(st.just("deliver"), st.integers(1, 4)),
    st.tuples(st.just("flow"), st.booleans()),
    st.tuples(st.just("advance"), st.sampled_from([0.1, 1.0, 8.0])),
    st.tuples(st.just("lose"), links),
    st.tuples(st.just("cut"), links),
    st.tuples(st.just("cut"), links),
    st.tuples(st.just("mend"), links),
    st.tuples(st.just("crash"), names),
)


@settings(max_examples=40)
@given(
    st.tuples(*[st.integers(0, 1)] * len(LINKS)),
    st.lists(st.one_of(publications, troubles), min_size=10, max_size=50),
)
@example(
    (0, 0, 0, 0),
    [  # The value of c comes back to it after a life that knew it, and after an older one.
        ("publish", "a", "t", 0, False),
        ("deliver", 1),
        ("lose", 0),
        ("lose", 1),
        ("publish", "a", "t", 0, False),
        ("publish", "c", "t", 0, False),
        ("flow", False),
        ("cut", 3),
        ("crash", "c"),
        ("crash", "d"),
    ],
)
def test_all_come_to_the_same(line_qos: tuple[int, ...], steps: list[tuple[object, ...]]) -> None:
    story = RingStory(line_qos)
    for name, *arguments in steps:
        getattr(story, str(name))(*arguments)
    story.heal()
    story.check()
