"""A neighbour that sends many filters is given what has just flowed in turns, so that others are heard."""

from __future__ import annotations

from random import Random

import pytest

from hedgerow.broker.core import TURN_WORK
from hedgerow.broker.deliveries import enqueue
from hedgerow.broker.session import Session
from hedgerow.federation.federation import Federation
from hedgerow.federation.mesh.meshes import Change
from hedgerow.federation.neighbour_session import Keeping, take_session
from hedgerow.message import Message, MessageId
from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.outbox import Delivery
from hedgerow.mqtt.packets import MQTT_5, Pingreq
from tests.broker.harness import World

MESSAGES = 8_000  # that flowed in the last seconds
FILTERS = 2_000


class Scene:
    """A node, and the sessions of its neighbours, which are away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = World(relays=False)
        broker, random = self.world.broker, Random(1)
        self.federation = Federation(
            broker, (), self.world.now, random=random.random, random_bytes=random.randbytes
        )
        self.changes: list[Change] = []
        monkeypatch.setattr(self.federation.federator, "take_changes", self._take_changes)

    def _take_changes(self) -> list[Change]:
        changes, self.changes = self.changes, []
        return changes

    def neighbour(self, name: str) -> Session:
        return take_session(self.world.broker, name, Keeping())

    def give(self, name: str) -> None:
        self.changes += [(name, f"t/{number}", True) for number in range(FILTERS)]
        self.federation.has_work = True
        self.federation.serve(self.world.now)

    def rounds(self, session: Session) -> list[int]:
        """How many more deliveries wait after each round, until there is nothing left to do."""
        found = []
        while self.world.broker.deadline <= self.world.now:
            before, worked = session.waiting_count, self.world.broker.work
            self.world.broker.handle_timer(self.world.now)
            assert self.world.broker.work - worked < 2 * TURN_WORK
            found.append(session.waiting_count - before)
        return found


def message(number: int) -> Message:
    return Message(f"t/{number % FILTERS}", b"%d" % number, 1, id=MessageId("elsewhere", 1, number + 1))


def payloads(session: Session) -> list[bytes]:
    return [delivery.message.payload for delivery in session.loaded()]


ALL = [message(number).payload for number in range(MESSAGES)]


def test_what_has_just_flowed_is_given_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    world, far = scene.world, scene.neighbour("far")
    other = world.connect("other")
    for number in range(MESSAGES):
        world.broker.recent.add(message(number), world.now)
    scene.give("far")
    assert far.waiting_count < MESSAGES, "not all at once"
    assert len(far.subscriptions or ()) == FILTERS, "what is published from now on is for it"
    other.connection.receive_data(encode(Pingreq(), MQTT_5), world.now)
    assert other.connection.out
    rounds = scene.rounds(far)
    assert len(rounds) < FILTERS / 10, "not one by one"
    assert sorted(payloads(far)) == sorted(ALL)


def test_what_waits_for_others_is_given_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    away, far = scene.neighbour("away"), scene.neighbour("far")
    scene.give("away")
    for number in range(MESSAGES):
        assert enqueue(scene.world.broker, away, Delivery(message(number), 1, False))
    scene.give("far")
    assert far.waiting_count < MESSAGES
    scene.rounds(far)
    assert sorted(payloads(far)) == sorted(ALL) == sorted(payloads(away))


def test_a_neighbour_that_goes_for_good_meanwhile_gets_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    world, far = scene.world, scene.neighbour("far")
    for number in range(MESSAGES):
        world.broker.recent.add(message(number), world.now)
    scene.give("far")
    world.broker.discard(far)
    scene.rounds(far)
    assert not far.waiting_count
    assert world.broker.stats.connections_failed == 0
    again = scene.neighbour("far")
    scene.give("far")
    scene.rounds(again)
    assert sorted(payloads(again)) == sorted(ALL)
