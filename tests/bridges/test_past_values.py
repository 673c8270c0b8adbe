"""A filter that is new at a foreign broker does not bring back values that are past.

Such a broker keeps whatever retained message comes last, and cannot be told which is older.
"""

from __future__ import annotations

import pytest

from hedgerow.bridges.following import FollowingBridge
from hedgerow.message import Properties
from hedgerow.mqtt.packets import Publish
from tests.bridges.harness import Network, Node, Script
from tests.bridges.test_following import answer, identifier_of, join
from tests.bridges.test_retained_values import publish

Scene = tuple[Node, FollowingBridge, Script]


@pytest.fixture
def scene() -> Scene:
    """South – north – far, which is foreign. What its clients publish to x comes to north."""
    network = Network()
    north, south = network.add("north"), network.add("south")
    bridge, far = join(network, north)
    south.bridge("# both 1", address="north")
    bridge.ask_for("x")
    answer(far)
    return south, bridge, far


def publish_there(scene: Scene, payload: bytes) -> None:
    _, bridge, far = scene
    properties: Properties = {"subscription_identifier": (identifier_of(bridge, "x"),)}
    far.network.advance(0.01)
    far.send(Publish("x", payload, 1, True, packet_id=7, properties=properties))
    answer(far)


def told(scene: Scene, topic: str) -> list[bytes]:
    """What a client of far hears of a topic, when it is the first there to subscribe to it."""
    _, bridge, far = scene
    bridge.listen(topic)
    return [each.payload for each in answer(far) if isinstance(each, Publish) and each.topic == topic]


@pytest.mark.parametrize("there", [b"new", b""])
def test_a_value_of_the_brokers_own_clients_stays(scene: Scene, there: bytes) -> None:
    publish(scene[0], "x", b"old")
    publish_there(scene, there)
    assert told(scene, "x") == []


def test_a_newer_value_from_elsewhere_replaces_it(scene: Scene) -> None:
    publish_there(scene, b"old")
    publish(scene[0], "x", b"new")
    assert told(scene, "x") == [b"new"]


def test_a_value_is_told_once_and_its_former_ones_are_not(scene: Scene) -> None:
    for payload in (b"1", b"2", b"3"):
        publish(scene[0], "x", payload)
    assert told(scene, "x") == [b"3"]


def test_a_deletion_is_told_while_it_is_the_newest(scene: Scene) -> None:
    publish_there(scene, b"old")
    publish(scene[0], "x", b"")
    assert told(scene, "x") == [b""]
