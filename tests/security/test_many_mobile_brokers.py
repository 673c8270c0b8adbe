"""What the mobile brokers of one user or address may have at a fixed one: they leave room for others."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from hedgerow.message import Message, MessageId
from hedgerow.mobility.delegation import codec
from hedgerow.mobility.delegation.fixed import FixedSide
from hedgerow.mobility.delegation.limits import (
    MAX_WAITING_BYTES,
    MIN_EXPECTED,
    OWNER_WAITING,
    DelegationLimits,
)
from hedgerow.mobility.delegation.publications import (
    Body,
    EmptyBody,
    Filters,
    HelloBody,
    PublicationKind,
    Registration,
    Registrations,
    Serving,
    StreamHeader,
)
from tests.mobility.domain import Domain

DOMAIN = "farm/sector1"
PLACES = 64
MIB = 1024 * 1024


class Fixed:
    """A fixed broker, and mobile brokers that write to it what they like."""

    def __init__(self, **limits: int) -> None:
        self.side = FixedSide("f", DOMAIN, 1, lambda mobile_id: True, limits=DelegationLimits(**limits))
        self._numbers: dict[str, Iterator[int]] = {}

    def come(self, mobile_id: str, whose: str) -> bool:
        self.side.link_up(mobile_id, whose=whose)
        if mobile_id not in self.side.mobiles:
            return False
        self._numbers[mobile_id] = count(1)
        self._write(mobile_id, PublicationKind.HELLO, StreamHeader(9, 0, 1, 0, 0), HelloBody(0, 0))
        return True

    def say(self, mobile_id: str, kind: PublicationKind, body: Body) -> None:
        epoch = self.side.mobiles[mobile_id].stream.epoch
        header = StreamHeader(9, epoch, 1, next(self._numbers[mobile_id]), 0)
        self._write(mobile_id, kind, header, body)

    def delegate(self, mobile_id: str, *topic_filters: str) -> None:
        entries = ((f"c@{mobile_id}", 1),)
        topics = tuple(Registration(each, entries) for each in topic_filters)
        self.say(mobile_id, PublicationKind.DELEGATE, Registrations(topics))

    def topics_of(self, mobile_id: str) -> set[str]:
        return set(self.side.mobiles[mobile_id].topics)

    def leave(self, mobile_id: str) -> None:
        self.say(mobile_id, PublicationKind.UNSUBSCRIPTION_ALL, EmptyBody())
        self.side.link_down(mobile_id, 2.0)

    def _write(self, mobile_id: str, kind: PublicationKind, header: StreamHeader, body: Body) -> None:
        self.side.receive_publication(mobile_id, codec.write(DOMAIN, mobile_id, kind, header, body), 1.0)
        self.side.take_publications()


def test_invented_mobile_brokers_leave_places_for_others() -> None:
    fixed = Fixed(mobile_brokers=PLACES)
    assert [fixed.come(f"invented-{number}", "thief") for number in range(PLACES)].count(True) == PLACES // 2
    assert fixed.come("tractor", "farm")
    assert fixed.come("invented-0", "thief")
    for number in (1, 2):
        fixed.leave(f"invented-{number}")
    assert fixed.come("another", "thief")


def test_topics_are_measured_and_not_only_counted() -> None:
    """4,000 filters of 60 KB took 700 MiB, and 100,000 were allowed."""
    fixed = Fixed(topic_bytes=24 * MIB)
    assert fixed.come("rogue", "thief")
    assert fixed.come("rogue-2", "thief")
    assert fixed.come("tractor", "farm")
    long = [f"{number}/{'x' * 60_000}" for number in range(200)]
    for name in long:
        fixed.delegate("rogue", name)
        fixed.delegate("rogue-2", name)
    assert 60 <= len(fixed.topics_of("rogue")) + len(fixed.topics_of("rogue-2")) <= 70
    fixed.say("rogue", PublicationKind.RECOVER, Filters(tuple(f"r/{name}" for name in long[:100])))
    assert len(fixed.topics_of("rogue")) + len(fixed.topics_of("rogue-2")) <= 70
    ordinary = [f"farm/{number}" for number in range(500)]
    fixed.delegate("tractor", *ordinary)
    assert fixed.topics_of("tractor") == set(ordinary)
    fixed.leave("rogue")
    fixed.delegate("rogue-2", *long[100:130])
    assert fixed.topics_of("rogue-2") >= set(long[100:130])


@pytest.mark.parametrize("username", [None, "u" * 10_000], ids=["anonymous", "long name"])
def test_announced_clients_leave_room_for_others(username: str | None) -> None:
    fixed = Fixed(expected=4 * MIN_EXPECTED)
    for name, whose in (("rogue", "thief"), ("rogue-2", "thief"), ("tractor", "farm")):
        assert fixed.come(name, whose)
    for number in range(2 * MIN_EXPECTED):
        for name in ("rogue", "rogue-2"):
            fixed.say(name, PublicationKind.SERVING, Serving(f"{name}-{number}@{name}", False, username))
    assert len(fixed.side.attached.expected) <= (2 * MIN_EXPECTED if username is None else 100)
    fixed.say("tractor", PublicationKind.SERVING, Serving("panel@tractor", False, None))
    assert fixed.side.callback_for("panel", None) == "panel@tractor"
    fixed.leave("rogue")
    fixed.say("rogue-2", PublicationKind.SERVING, Serving("one-more@rogue-2", False, username))
    assert fixed.side.callback_for("one-more", username) == "one-more@rogue-2"


def test_what_waits_for_many_of_one_owner_is_bounded_together() -> None:
    fixed = Fixed()
    names = [f"rogue-{number}" for number in range(2 * OWNER_WAITING)]
    for name in names:
        assert fixed.come(name, "thief")
        fixed.say(name, PublicationKind.RECOVER, Filters(("#",)))
        fixed.side.link_down(name, 1.0)
    assert fixed.come("tractor", "farm")
    fixed.say("tractor", PublicationKind.RECOVER, Filters(("#",)))
    payload = bytes(2 * MIB)
    for number in range(1, MAX_WAITING_BYTES // len(payload) - 4):
        fixed.side.publish(Message("field/1", payload, 1, id=MessageId("f", 1, number)), 1.0)
    waiting = [fixed.side.mobiles[name].stream.waiting_bytes for name in names]
    assert sum(waiting) <= OWNER_WAITING * MAX_WAITING_BYTES + MIB
    assert fixed.side.mobiles["tractor"].stream.waiting_bytes > max(waiting)


@pytest.mark.parametrize(("username", "whose"), [("farm", "user:farm"), (None, "site:tractor")])
def test_they_belong_to_the_user_or_the_address(username: str | None, whose: str) -> None:
    domain = Domain()
    fixed = domain.add_fixed("f")
    tractor = domain.add_mobile("tractor", "f", username=username)
    domain.wait_for(lambda: tractor.node.machine.may_send_clients, 5)
    assert fixed.node.machine.mobiles["tractor"].whose == whose
