"""The gateway between federators that are not ours and a node's own broker, without links."""

from __future__ import annotations

from struct import pack

import pytest

from hedgerow.broker.broker import Broker
from hedgerow.broker.owners import owner_of
from hedgerow.broker.port import Port
from hedgerow.federation.document.gateway import DocumentGateway, GatewaySettings
from hedgerow.federation.document.link import DOCUMENT_PREFIX
from hedgerow.federation.document.neighbours import DocumentPeer
from hedgerow.federation.document.numbers import OF_OURS, PublicationId, fabric_id
from hedgerow.federation.neighbour_session import Keeping
from hedgerow.message import Message, MessageId

THEIRS = "mqtt://theirs:1883"
OTHERS = "mqtt://others:1883"
PEERS = (DocumentPeer(THEIRS, 2, "theirs"), DocumentPeer(OTHERS, 3, "others"))


class World:
    def __init__(self, node_id: str = "1", *, is_in_fabric: bool = False) -> None:
        self.now = 1_000.0
        self.broker = Broker(node_id, 1, self.now)
        self.gateway = DocumentGateway(
            self.broker,
            GatewaySettings(PEERS, 1 << 20, 0.0, 2, 5.0, Keeping()),
            self.now,
            is_in_fabric=lambda: is_in_fabric,
            token=lambda: 7,
            is_sidecar=False,
        )
        self.heard: list[Message] = []
        self.client = Port(self.broker, "a client", self.heard.append)
        self.neighbour = Port(self.broker, "what a neighbour publishes here", lambda message: None)

    def say(self, topic: str, payload: bytes, origin: str = "1", by: str = "theirs") -> None:
        """Published at this broker by that user; under an id of another node if it came from there."""
        self.neighbour.share = owner_of(by, "")
        message_id = None if origin == "1" else MessageId(origin, 1, self.broker.sequence + 99)
        self.neighbour.publish(Message(topic, payload, 2, id=message_id), self.now)
        self.gateway.serve(self.now)

    def run(self, seconds: float) -> None:
        self.now += seconds
        self.gateway.handle_timer(self.now)
        self.gateway.serve(self.now)

    def waiting(self, address: str) -> list[tuple[str, bytes]]:
        """Of publications, as they are to be published there."""
        session = self.broker.sessions[DOCUMENT_PREFIX + address]
        return [(each.message.topic, each.message.payload) for each in session.loaded()]

    def announce(self, core: int = 2, sequence: int = 1, topic: str = "t") -> None:
        self.say(f"federator/core_ann/{topic}", pack("<4I", core, sequence, 0, core))

    def route(self, payload: bytes, origin: int = 9, sequence: int = 1, sender: int = 2) -> None:
        data = pack("<3IQ", origin, sequence, sender, len(payload)) + payload
        self.say("federator/routing/t", data, by={2: "theirs", 3: "others"}[sender])


def test_what_a_client_wants_makes_this_node_a_core_and_ends_with_it() -> None:
    world = World()
    world.client.subscribe("t", world.now)
    world.run(0)
    mesh = world.gateway.federator.mesh_of("t")
    assert mesh is not None
    assert mesh.is_core
    world.client.unsubscribe("t")
    world.run(0)
    assert world.gateway.federator.mesh_of("t") is None


def test_what_comes_is_published_here_once_under_an_id_of_its_own() -> None:
    world = World()
    world.client.subscribe("t", world.now)
    world.run(0)
    world.route(b"x")
    world.route(b"x", sender=3)
    assert [message.payload for message in world.heard] == [b"x"]
    assert world.heard[0].id == fabric_id("t", PublicationId(9, 1), b"x")


def test_what_is_published_here_goes_to_the_mesh_and_waits_there() -> None:
    world = World()
    world.announce()
    world.neighbour.publish(Message("t", b"x", 1), world.now)
    world.gateway.serve(world.now)
    ((topic, payload),) = world.waiting(THEIRS)
    assert (topic, payload[-1:]) == ("federator/routing/t", b"x")
    assert payload[8:12] == pack("<I", 1)
    assert world.waiting(OTHERS) == []


def test_what_came_from_there_does_not_go_back() -> None:
    world = World()
    world.client.subscribe("t", world.now)
    for child in (2, 3):
        by = {2: "theirs", 3: "others"}[child]
        world.say("federator/memb_ann/t", pack("<3I", 1, 1_001, child), by=by)
    world.route(b"x", sender=2)
    assert [name for name, _ in world.waiting(OTHERS)] == ["federator/routing/t"]
    assert world.waiting(THEIRS) == []


def test_its_own_interest_is_not_taken_for_that_of_others() -> None:
    """It listens to what those want who are behind the neighbour: nobody here does."""
    world = World()
    world.announce()
    mesh = world.gateway.federator.mesh_of("t")
    assert mesh is not None
    assert mesh.is_listening
    assert not mesh.is_wanted
    assert world.broker.subscriptions.local.counts["t/#"] == 1
    world.run(60)
    assert world.gateway.federator.mesh_of("t") is None
    assert not [each for each in world.broker.subscriptions.local.counts if each.startswith("t")]
    assert not [each for each in world.broker.subscriptions.beyond.counts if each.startswith("t")]


def test_the_interest_of_another_gateway_keeps_no_mesh() -> None:
    """It is a member while there is a subscriber somewhere, and makes nobody a core."""
    world = World()
    other = Port(world.broker, "another gateway", lambda message: None)
    other.listen("t/#", world.now)
    world.announce()
    mesh = world.gateway.federator.mesh_of("t")
    assert mesh is not None
    assert mesh.is_wanted
    world.run(60)
    assert world.gateway.federator.mesh_of("t") is None


def test_a_subscriber_here_is_not_hidden_behind_the_gateways_own_interest() -> None:
    world = World("5")
    world.announce()
    counts = world.broker.subscriptions.local.counts
    assert (counts.get("t"), counts.get("t/#")) == (None, 1)
    world.client.subscribe("t", world.now)
    world.run(0)
    assert (counts.get("t"), counts.get("t/#")) == (2, None)
    world.neighbour.publish(Message("t", b"x", 1), world.now)
    assert len(world.heard) == 1
    world.client.unsubscribe("t")
    world.run(0)
    assert (counts.get("t"), counts.get("t/#")) == (None, 1)


def test_what_others_say_at_their_brokers_is_not_for_this_one() -> None:
    world = World()
    world.say("federator/core_ann/t", pack("<4I", 2, 1, 0, 2), origin="another node")
    assert world.gateway.federator.mesh_of("t") is None


def test_what_is_retained_is_of_some_other_time() -> None:
    world = World()
    world.gateway.hear("federator/core_ann/t", pack("<4I", 2, 1, 0, 2), retain=True)
    assert world.gateway.federator.mesh_of("t") is None


def test_in_a_fabric_what_began_at_a_node_of_ours_waits_for_our_own_links() -> None:
    world = World(is_in_fabric=True)
    world.client.subscribe("t", world.now)
    world.announce()
    world.route(b"x", origin=OF_OURS | 5)
    assert world.heard == []
    world.run(0.6)
    assert [message.payload for message in world.heard] == [b"x"]
    world.route(b"y", origin=OF_OURS | 5, sequence=2)
    assert [message.payload for message in world.heard] == [b"x", b"y"]


@pytest.mark.parametrize("topic", ["$SYS/broker/x", "hedgerow/x", "federator/x", "federated/x"])
def test_nothing_is_published_to_topics_that_stay_at_a_broker(topic: str) -> None:
    world = World()
    world.client.subscribe("#", world.now)
    world.announce(topic=topic)
    world.say(f"federated/{topic}", b"x")
    assert not list(world.gateway.federator.meshes)
    assert topic not in [message.topic for message in world.heard]


def test_neighbours_come_and_go_while_it_runs() -> None:
    world = World()
    world.announce()
    world.neighbour.publish(Message("t", b"x", 1), world.now)
    world.gateway.serve(world.now)
    world.gateway.set_neighbours([PEERS[1], DocumentPeer("mqtt://new:1883")], world.now)
    world.gateway.serve(world.now)
    assert DOCUMENT_PREFIX + THEIRS not in world.broker.sessions
    assert set(world.gateway.take_dials()) == {OTHERS, "mqtt://new:1883"}
    world.route(b"y")  # of one that is no neighbour any more
    world.run(20)
    assert world.waiting(OTHERS) == []


def test_a_link_that_fails_is_tried_again_and_told_once() -> None:
    world = World()
    assert set(world.gateway.take_dials()) == {THEIRS, OTHERS}
    for _ in range(10):
        world.gateway.dial_failed(THEIRS, "nobody there")
        world.run(5.0)
        assert list(world.gateway.take_dials()) == [THEIRS]
    assert list(map(str, world.gateway.take_events())) == [f"no link to {THEIRS}: nobody there"]
