"""A mobile or a fixed broker that lies about what waited for a client whose session it hands over."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from hedgerow.message import Message, MessageId
from hedgerow.mobility.delegation.publications import (
    EventBody,
    GuestSubscription,
    PublicationKind,
    Roaming,
    RoamingStep,
)
from hedgerow.mobility.held_sessions import LOOK_S, MANY_MERGED, MERGED_PER_S
from hedgerow.mobility.roaming import waiting_in
from tests.mobility.domain import DOMAIN, Domain
from tests.mobility.test_sessions_that_follow import RULES, make, session_at

PANEL = "panel@m1"
ROW = 500  # filters in one OFFER


def offer(number: int, filters: list[str]) -> list[Roaming]:
    rows = [filters[start : start + ROW] for start in range(0, len(filters), ROW)]
    return [
        Roaming(
            PANEL,
            RoamingStep.OFFER,
            number,
            "alice",
            row is not rows[-1],
            300,
            tuple(GuestSubscription(each, PANEL, 1) for each in row),
        )
        for row in rows
    ]


def hand_over(
    domain: Domain, *forged: Message, number: int = 7, filters: Sequence[str] = ("#",), within_s: float = 0.5
) -> list[tuple[str, bytes]]:
    """What m1 makes up waits for alice's panel at the fixed broker then."""
    machine = domain["m1"].node.machine
    uplink = machine.current
    assert uplink is not None
    for row in offer(number, list(filters)):
        machine.roam(row, domain.now)
    for message in forged:
        event = EventBody(message, ((PANEL, 1),), is_missed=True)
        uplink.stream.put(PublicationKind.EVENT, event, domain.now)
    machine.roam(Roaming(PANEL, RoamingStep.END, number), domain.now)
    domain["m1"].node.has_work = True
    domain["m1"].settle()
    domain.advance(within_s)
    return waiting_at_fixed(domain)


def waiting_at_fixed(domain: Domain) -> list[tuple[str, bytes]]:
    session = session_at(domain, "f")
    assert session is not None
    return [(message.topic, message.payload) for message, _, _ in waiting_in(domain["f"].broker, session)]


@pytest.mark.parametrize("topic", ["secret", f"{DOMAIN}/m2/delegate"])
def test_what_it_may_neither_read_nor_write_it_does_not_bring(topic: str) -> None:
    forged = Message(topic, b"forged", 1, id=MessageId("m1", 1, 10**9))
    true = Message("t/a", b"true", 1, id=MessageId("m1", 1, 10**9 + 1))
    domain = make(rules=f"{RULES}user alice\ntopic read #\n")
    assert hand_over(domain, forged, true) == [("t/a", b"true")]


def test_what_waits_already_does_not_change() -> None:
    """By its id: m1 has read that, too."""
    domain = make()
    assert hand_over(domain) == []
    domain["f"].publish("t/a", b"true")
    session = session_at(domain, "f")
    assert session is not None
    ((message, _, _),) = waiting_in(domain["f"].broker, session)
    forged = Message("t/b", b"forged", 1, id=message.id)
    assert hand_over(domain, forged) == [("t/a", b"true")]


def test_many_messages_and_many_filters_are_not_multiplied() -> None:
    """One packet made the fixed broker look for each of them among all of the others: ten seconds here."""
    domain = make()
    hand_over(domain, filters=["t/a", *(f"t/{number}" for number in range(4_999))])
    for _ in range(1_000):
        domain["f"].publish("t/a", b"true")
    began_at = time.process_time()
    brought = Message("t/a", b"brought", 1, id=MessageId("m1", 1, 10**9))
    assert hand_over(domain, brought, number=8)[:1] == [("t/a", b"brought")]
    assert time.process_time() - began_at < 3.0


def test_whoever_has_had_many_put_in_order_waits_for_the_next_time() -> None:
    domain = make()
    hand_over(domain)
    for _ in range(MANY_MERGED + 1):
        domain["f"].publish("t/a", b"true")
    first, second = (Message("t/a", b"new", 1, id=MessageId("m1", 1, 10**9 + each)) for each in (1, 2))
    wait_s = MANY_MERGED / MERGED_PER_S
    assert len(hand_over(domain, first, number=8, within_s=wait_s / 5)) == MANY_MERGED + 2
    assert len(hand_over(domain, second, number=9, within_s=wait_s / 5)) == MANY_MERGED + 2
    domain.advance(wait_s + LOOK_S)
    assert len(waiting_at_fixed(domain)) == MANY_MERGED + 3
