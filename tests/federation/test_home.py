"""A sidecar and the broker that it stands beside: rights, presence, and what it tells of itself there."""

from __future__ import annotations

import json

import pytest

from hedgerow.federation.events import RightMissing
from hedgerow.federation.presence import GONE, PRESENCE_TOPIC
from hedgerow.federation.rights import ECHO_TOPIC, HEAR_S, MANY_LOST
from hedgerow.federation.state import HOME_STATE_TOPIC, STATE_TOPIC
from tests.federation.fabric_of_nodes import Fabric
from tests.federation.test_tunnels import sidecars


def test_a_sidecar_that_hears_itself_lacks_no_right() -> None:
    fabric = Fabric()
    heard = fabric.add_foreign("home").subscribe(ECHO_TOPIC + "+")
    sidecar = fabric.add("sidecar", home="home")
    for lives in range(1, MANY_LOST + 2):
        fabric.advance(HEAR_S + 1)
        assert heard.payloads == [b""] * lives
        fabric.close("sidecar", "home")
    fabric.advance(HEAR_S + 1)
    assert sidecar.told(RightMissing) == []


@pytest.mark.parametrize("level", ["%ZZ", "", "%41"])
def test_the_presence_of_no_node(level: str) -> None:
    fabric = sidecars("a", "b")
    fabric["B"].publish(PRESENCE_TOPIC + level, GONE)
    fabric.advance(1)
    assert fabric["a"].linked == {"b"}
    assert fabric["a"].federation.ignored_frames["presence"] == 1


def test_the_state_is_told_to_a_broker_that_has_forgotten_it() -> None:
    fabric = Fabric()
    home = fabric.add_foreign("home", durable=False)
    fabric.add("sidecar", home="home")
    topic = HOME_STATE_TOPIC + "sidecar"
    fabric.wait_for(lambda: home.broker.retained.get(topic) is not None, 5)
    home.broker.retained.remove(topic)
    fabric.close("sidecar", "home")
    fabric.wait_for(lambda: home.broker.retained.get(topic) is not None, 5)


def test_a_node_without_neighbours_tells_its_state_too() -> None:
    fabric = Fabric()
    node = fabric.add("a")
    fabric.advance(1)
    inbox = node.subscribe(STATE_TOPIC)
    node.subscribe("t")
    fabric.advance(1)
    assert [list(json.loads(each)["filters"]) for each in inbox.payloads] == [[], ["t"]]
