"""What people see under `$SYS/broker/hot/`: all of it retained, and each part told when it has changed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hedgerow.federation.state import TELL_S
from hedgerow.hot.hot_topics import HotTopics
from hedgerow.hot.plan import HotPlan
from hedgerow.mobility.hot_state import HOT_TOPIC, MAX_MOVES, MAX_TOPICS, HotState
from hedgerow.mqtt.packets import Publish, Subscribe, Subscription
from tests.broker.harness import START, Client, World


class Watched:
    """A broker's hot topics, and a client that watches them."""

    def __init__(self) -> None:
        self.world = World()
        self.monitor = HotTopics()
        self.state = HotState(self.world.broker, self.monitor, START)
        self.client: Client = self.world.connect("watcher")
        self.client.send(Subscribe(1, [Subscription(f"{HOT_TOPIC}#", 0)]))
        self.client.take()

    def note(self, counts: dict[str, int], now: float) -> None:
        for topic, count in counts.items():
            self.monitor.note_many(topic, count, now)

    def tell(self, now: float) -> dict[str, Any]:
        """What the client is told at this time, by the name below the prefix."""
        self.world.now = now
        self.state.handle_timer(now)
        self.world.settle()
        told = [packet for packet in self.client.take() if isinstance(packet, Publish)]
        assert not any(packet.retain for packet in told)
        return {packet.topic.removeprefix(HOT_TOPIC): json.loads(packet.payload) for packet in told}

    def retained(self) -> dict[str, Any]:
        newcomer = self.world.connect("newcomer")
        newcomer.send(Subscribe(1, [Subscription(f"{HOT_TOPIC}#", 0)]))
        told = [packet for packet in newcomer.take() if isinstance(packet, Publish)]
        assert all(packet.retain for packet in told)
        return {packet.topic.removeprefix(HOT_TOPIC): json.loads(packet.payload) for packet in told}


@pytest.fixture
def watched() -> Watched:
    return Watched()


NOTHING = {
    "registry/in": {"count": 0, "topics": []},
    "registry/out": {"count": 0, "topics": []},
    "scores": {"count": 0, "scores": {}},
    "plan": None,
    "uncounted": 0,
}


def test_all_is_told_at_the_start(watched: Watched) -> None:
    assert watched.state.deadline == START
    assert watched.tell(START) == NOTHING
    assert watched.retained() == NOTHING
    assert watched.state.deadline == float("inf")


def test_what_has_changed_is_told_and_nothing_else(watched: Watched) -> None:
    watched.tell(START)
    watched.note({"wind": 9, "soil": 2}, START)
    watched.monitor.handle_timer(START + 0.4)
    changed = {
        "registry/in": {"count": 1, "topics": ["wind"]},
        "registry/out": {"count": 1, "topics": ["soil"]},
        "scores": {"count": 2, "scores": {"wind": 9, "soil": 2}},
    }
    assert watched.tell(START + 0.4) == changed
    assert watched.tell(START + 0.8) == {}
    assert watched.retained() == NOTHING | changed


def test_it_is_told_at_a_pace(watched: Watched) -> None:
    watched.tell(START)
    watched.state.look(START + 0.01)
    assert watched.state.deadline == START + TELL_S
    watched.state.look(START + 0.02)
    assert watched.state.deadline == START + TELL_S
    watched.tell(START + TELL_S)
    watched.state.look(START + 5)
    assert watched.state.deadline == START + 5


def test_of_many_topics_the_first_are_told_and_less_often(watched: Watched) -> None:
    watched.note({f"{number:04}": 1 + number % 2 for number in range(4_000)}, START)
    watched.monitor.handle_timer(START + 0.4)
    told = watched.tell(START + 0.4)
    assert told["scores"]["count"] == 4_000
    assert list(told["scores"]["scores"].items())[:2] == [("0001", 2), ("0003", 2)]
    for part in (told["scores"]["scores"], told["registry/in"]["topics"], told["registry/out"]["topics"]):
        assert len(part) == MAX_TOPICS
    watched.state.look(START + 0.5)
    assert watched.state.deadline == START + 0.4 + 4 * TELL_S


def test_a_plan_is_told_with_the_time_it_has_left(watched: Watched) -> None:
    watched.tell(START)
    watched.monitor.follow(HotPlan(frozenset({"wind", "soil"}), 7, START + 30), START)
    assert watched.tell(START + 1)["plan"] == {"version": 7, "expires_in_s": 29, "topics": 2}
    assert watched.state.deadline == START + 11
    assert watched.tell(START + 2) == {}
    assert watched.state.deadline == START + 11
    assert watched.tell(START + 11) == {"plan": {"version": 7, "expires_in_s": 19, "topics": 2}}
    watched.monitor.follow(HotPlan(frozenset(), 8, START + 30), START + 12)
    assert watched.tell(START + 12) == {"plan": {"version": 8, "expires_in_s": 18, "topics": 0}}
    watched.monitor.handle_timer(START + 30)
    assert watched.tell(START + 30) == {"plan": None}
    assert watched.state.deadline == float("inf")


def test_the_last_moves_are_told(watched: Watched) -> None:
    watched.tell(START)
    for number in range(MAX_MOVES + 2):
        move = {"what": "delegated", "which": f"farm/{number}", "at": 1_000_000.0 + number, "fixed": "f"}
        watched.state.note_move(move, START + 1)
    assert watched.state.deadline == START + 1
    moves = watched.tell(START + 1)["moves"]
    assert len(moves) == MAX_MOVES
    assert moves[-1] == {"what": "delegated", "which": "farm/51", "at": 1_000_051.0, "fixed": "f"}
    assert moves[0]["which"] == "farm/2"


def test_the_link_is_told_when_there_is_one(watched: Watched) -> None:
    watched.tell(START)
    watched.state.link = {"url": "mqtt://192.0.2.1:1883", "state": "up"}
    assert watched.tell(START + 1) == {"fixed": {"url": "mqtt://192.0.2.1:1883", "state": "up"}}
    watched.state.link = {"url": "mqtt://192.0.2.1:1883", "state": "away"}
    assert watched.tell(START + 2) == {"fixed": {"url": "mqtt://192.0.2.1:1883", "state": "away"}}


def test_nothing_of_it_is_stored(watched: Watched) -> None:
    watched.tell(START)
    assert watched.world.store.retained == {}
