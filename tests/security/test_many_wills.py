"""Wills that are due at one moment are published in turns, and each before its client is back."""

from __future__ import annotations

import itertools

import pytest

from hedgerow.broker.core import TURN_WORK
from hedgerow.broker.deliveries import DELIVERY_WORK
from hedgerow.broker.events import ConnectionFailed
from hedgerow.broker.role import Role
from hedgerow.broker.session import Session
from hedgerow.mqtt.packets import MQTT_5, Connect, Publish, Subscribe, Subscription, Will
from tests.broker.harness import KEPT, Client, World

READERS = 100
WILLS = 300
MOST = 3 * TURN_WORK // DELIVERY_WORK
PATHS = 10


def readers(world: World) -> list[Client]:
    clients = [world.connect(f"reader {number}") for number in range(READERS)]
    for client in clients:
        client.subscribe("w/#", 1)
    return clients


def leave_at_once(world: World, clients: list[Client]) -> None:
    """In one turn of the shell's loop."""
    for client in clients:
        client.closed = True
        client.connection.link = None
        client.connection.lost(world.now)


def with_wills(world: World, **fields: object) -> list[Client]:
    return [
        world.connect(f"c{number}", will=Will(f"w/{number}", b"gone", 1), **fields)  # type: ignore[arg-type]
        for number in range(WILLS)
    ]


@pytest.mark.parametrize("kept", [False, True])
def test_wills_of_connections_that_end_at_one_moment_leave_in_turns(kept: bool) -> None:
    world = World()
    heard, clients = readers(world), with_wills(world, kept=kept)
    before = world.broker.stats.publish_sent
    leave_at_once(world, clients)
    assert world.broker.stats.publish_sent - before <= MOST
    while world.broker.deadline <= world.now:
        before = world.broker.stats.publish_sent
        world.broker.handle_timer(world.now)
        assert world.broker.stats.publish_sent - before <= MOST
    world.settle()
    for client in heard:
        topics = {each.topic for each in client.take() if isinstance(each, Publish)}
        assert topics == {f"w/{number}" for number in range(WILLS)}
    assert len(world.broker.sessions) == READERS + (WILLS if kept else 0)
    assert world.broker.stats.sessions_expired == 0


@pytest.mark.parametrize("kept", [False, True])
def test_a_client_that_is_back_at_once_finds_its_will_behind_it(kept: bool) -> None:
    """Who says "online" after its will has said "gone" is online for those who ask later."""
    world = World()
    heard = readers(world)
    for client in heard[1:]:
        client.lose()
    clients = with_wills(world, kept=kept)
    world.broker.work = world.broker.round_ends_at + 1
    leave_at_once(world, clients)
    back = world.open()
    back.version = MQTT_5
    properties = {"session_expiry_interval": KEPT} if kept else {}
    back.send_later(
        Connect("c7", MQTT_5, clean_start=not kept, properties=properties),  # type: ignore[arg-type]
        Publish("w/7", b"online", 1, packet_id=1),
    )
    world.settle()
    payloads = [each.payload for each in heard[0].take() if isinstance(each, Publish) and each.topic == "w/7"]
    assert payloads == [b"gone", b"online"]


def test_what_looking_up_their_topics_costs_is_charged() -> None:
    world = World()
    reader = world.connect("reader")
    filters = ["/".join(each) for each in itertools.product("a+", repeat=PATHS)]
    reader.send(Subscribe(1, [Subscription(each) for each in filters]))
    head = "a/" * (PATHS - 1)
    for number in range(60):
        will = Will(f"{head}x{number}", b"gone", properties={"will_delay_interval": 30})
        world.connect(f"c{number}", kept=True, will=will).lose()
    looked_up = world.broker.subscriptions.visited
    world.now += 31
    world.broker.handle_timer(world.now)
    assert 0 < world.broker.subscriptions.visited - looked_up < 2 * TURN_WORK
    world.settle()
    assert world.broker.stats.publish_sent == 60


def test_a_session_whose_timer_fails_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    for number in range(3):
        world.connect(f"c{number}", properties={"session_expiry_interval": 5}).lose()

    def fail_for_one(self: Role, session: Session) -> None:
        if session.client_id == "c0":
            raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(Role, "discarded", fail_for_one)
    world.now += 6
    world.settle()
    assert list(world.broker.sessions) == ["c0"]
    failures = [each for each in world.broker.take_events() if isinstance(each, ConnectionFailed)]
    assert [each.client_id for each in failures] == ["c0"]
