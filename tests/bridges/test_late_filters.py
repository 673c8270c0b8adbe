"""What comes late to a filter, or from another bridge's queue, is for those who were there."""

from __future__ import annotations

from hedgerow.broker.recent import KEEP_S
from hedgerow.mqtt.packets import Publish
from tests.bridges.harness import Network
from tests.bridges.test_following import answer, join, publications, wait
from tests.bridges.test_past_values import Scene, publish_there, scene
from tests.bridges.test_retained_values import publish
from tests.broker.test_identified import connect_peer, with_id

__all__ = ["scene"]


def test_what_went_by_before_is_not_for_them() -> None:
    network = Network()
    north, _ = network.add("north"), network.add("south")
    north.bridge("# both 1", name="other", address="south")
    bridge, far = join(network, north)
    north.publish("a/1", b"old")
    wait(far, 2)
    north.publish("a/2", b"new")
    bridge.listen("a/#", since=network.now - 1)
    network.settle()
    assert publications(answer(far)) == [("a/2", b"new", 1, False)]


def test_what_comes_late_is_for_them_if_they_were_there() -> None:
    network = Network()
    north = network.add("north")
    bridge, far = join(network, north)
    bridge.listen("a", since=network.now)
    wait(far, 10)
    peer = connect_peer(north, "peer")
    for number, age in enumerate(("5", "15")):
        properties = with_id(f"origin/1/{number}", ("hedgerow-age", age))
        peer.send(Publish("a", age.encode(), 1, packet_id=1, properties=properties))
    network.settle()
    assert publications(answer(far)) == [("a", b"5", 1, False)]


def test_a_deletion_that_is_the_newest_is_told_all_the_same(scene: Scene) -> None:
    south, bridge, far = scene
    publish_there(scene, b"old")
    publish(south, "x", b"")
    wait(far, 3)
    bridge.listen("x", since=far.network.now)
    assert [each.payload for each in answer(far) if isinstance(each, Publish) and each.topic == "x"] == [b""]


def test_what_waited_for_one_broker_says_its_age_to_another() -> None:
    network = Network()
    north, south = network.add("north"), network.add("south")
    early, later = south.connect("early"), south.connect("later")
    early.subscribe("a", 1)
    north.bridge("# out 1", name="dead", address="nowhere")
    north.publish("a", b"old")
    network.advance(2 * KEEP_S)
    later.subscribe("a", 1)
    north.bridge("# out 1", name="other", address="south")
    network.advance(1)
    assert (early.take_payloads(), later.take_payloads()) == ([b"old"], [])
