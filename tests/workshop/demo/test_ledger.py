"""The ledger counts what it is told, and nothing else."""

from __future__ import annotations

import pytest

from hedgerow.message import Message, MessageId
from hedgerow_workshop.demo.ledger import Ledger, key_of

LISTENERS = {"farmer": ("farm/#", "home/#"), "mop": ("home/vacuum/mission",)}


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(LISTENERS)


def publish(ledger: Ledger, key: str, topic: str, now: float, place: str = "north") -> None:
    ledger.begin(key, place, topic, now)
    ledger.acknowledge(key)


def test_what_is_heard_once_by_all_is_neither_lost_nor_doubled(ledger: Ledger) -> None:
    publish(ledger, "1", "home/vacuum/mission", 1.0)
    assert ledger.lost == 2
    ledger.hear("mop", "1", 1.1)
    ledger.hear("farmer", "1", 1.2)
    assert (ledger.published, ledger.delivered, ledger.lost, ledger.doubled) == (1, 2, 0, 0)
    assert ledger.explain() == ""


def test_what_a_listener_lacks_is_lost_and_what_it_hears_again_is_doubled(ledger: Ledger) -> None:
    publish(ledger, "1", "farm/soil", 1.0)
    publish(ledger, "2", "farm/soil", 2.0)
    ledger.hear("farmer", "1", 1.1)
    ledger.hear("farmer", "1", 1.2)
    assert (ledger.lost, ledger.doubled) == (1, 1)
    assert ledger.explain() == "farmer lacks 1 of farm/soil; farmer heard 1 of farm/soil again"


def test_what_is_heard_before_it_is_acknowledged_is_delivered(ledger: Ledger) -> None:
    ledger.begin("1", "north", "farm/soil", 1.0)
    ledger.hear("farmer", "1", 1.1)
    assert (ledger.published, ledger.lost) == (0, 0)
    ledger.acknowledge("1")
    assert (ledger.published, ledger.delivered, ledger.lost) == (1, 1, 0)


def test_what_was_never_acknowledged_is_not_lost(ledger: Ledger) -> None:
    ledger.begin("1", "north", "farm/soil", 1.0)
    assert ledger.lost == 0


def test_what_was_not_begun_here_is_not_counted(ledger: Ledger) -> None:
    ledger.hear("farmer", "a hello", 1.0)
    assert (ledger.delivered, ledger.doubled) == (0, 0)


def test_all_have_heard_from_all_when_the_last_of_them_has(ledger: Ledger) -> None:
    places, listeners = ("north", "south"), ("farmer",)
    publish(ledger, "early", "farm/soil", 1.0, "south")
    ledger.hear("farmer", "early", 1.1)
    publish(ledger, "missed", "farm/soil", 4.0, "north")
    publish(ledger, "1", "farm/soil", 5.0, "north")
    ledger.hear("farmer", "1", 5.5)
    assert ledger.through_at(2.0, places, listeners) is None
    assert ledger.unheard(2.0, places, listeners) == "nobody from south"
    publish(ledger, "2", "farm/soil", 6.0, "south")
    assert ledger.unheard(2.0, places, listeners) == "farmer from south"
    ledger.hear("farmer", "2", 7.0)
    publish(ledger, "3", "farm/soil", 8.0, "north")
    ledger.hear("farmer", "3", 9.0)
    assert ledger.through_at(2.0, places, listeners) == 7.0


def test_what_waits_and_what_was_heard_in_a_time(ledger: Ledger) -> None:
    publish(ledger, "1", "farm/soil", 1.0)
    publish(ledger, "2", "farm/soil", 2.0)
    assert ledger.waiting(("farmer",)) == 2
    assert ledger.waiting(("farmer",), begun_before=1.5) == 1
    assert ledger.waiting(("mop",)) == 0
    ledger.hear("farmer", "1", 3.0)
    assert ledger.heard_between(2.0, 4.0, ("north",), ("farmer",)) == 1
    assert ledger.heard_between(2.0, 4.0, ("south",), ("farmer",)) == 0
    assert ledger.heard_between(3.5, 4.0, ("north",), ("farmer",)) == 0


def test_what_is_done_can_be_forgotten_and_what_is_due_is_not(ledger: Ledger) -> None:
    publish(ledger, "done", "farm/soil", 1.0)
    publish(ledger, "due", "farm/soil", 1.0)
    ledger.hear("farmer", "done", 1.1)
    ledger.forget_before(2.0)
    ledger.hear("farmer", "done", 3.0)
    assert (ledger.doubled, ledger.lost) == (0, 1)
    ledger.hear("farmer", "due", 3.0)
    assert (ledger.delivered, ledger.lost) == (2, 0)


@pytest.mark.parametrize(
    ("message", "key"),
    [
        (Message("farm/west/station", b'{"number": 7, "wind": 3}'), "farm/west/station 7"),
        (Message("home/mop/mission", b"completed 3"), "home/mop/mission completed 3"),
        (Message("farm/north/mast/wind", b"3 m/s", id=MessageId("n", 1, 2)), str(MessageId("n", 1, 2))),
    ],
)
def test_the_key_of_a_message(message: Message, key: str) -> None:
    assert key_of(message) == key
