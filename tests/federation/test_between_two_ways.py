"""A mesh that changes its ways, since announcements or their answers come late: the last ways stay beside the
new ones, and nothing that is published meanwhile is lost, however much it is."""

from __future__ import annotations

import pytest

from hedgerow.broker import recent
from tests.federation.fabric_of_nodes import Fabric

SLOW_S = 0.4  # one way: far longer than answers to an announcement are waited for


@pytest.fixture(autouse=True)
def much_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if so much were published that what has just flowed is forgotten at once."""
    monkeypatch.setattr(recent, "MAX_MESSAGES", 0)


def publish_for(fabric: Fabric, seconds: float, sent: list[bytes]) -> None:
    ends_at = fabric.now + seconds
    while fabric.now < ends_at:
        sent.append(b"%d" % len(sent))
        fabric["a"].publish("t/x", sent[-1])
        fabric.advance(0.02)


def pair_with_subscribers() -> Fabric:
    """a is the core; b is a member, and so its child."""
    fabric = Fabric(delay_s=SLOW_S)
    fabric.line("a", "b")
    fabric.settle_links()
    fabric["a"].subscribe("t/#")
    return fabric


def test_a_child_whose_answers_are_late_gets_everything() -> None:
    fabric = pair_with_subscribers()
    inbox = fabric["b"].subscribe("t/#")
    fabric.advance(6)
    sent: list[bytes] = []
    for number in range(6):
        # Each is announced at once, and b is taken for silent before it can have answered.
        fabric["a"].subscribe(f"other/{number}")
        publish_for(fabric, 0.15, sent)
    publish_for(fabric, 2, sent)
    fabric.advance(2)
    assert inbox.payloads == sent


def test_what_nobody_wants_is_taken_back_at_once() -> None:
    fabric = pair_with_subscribers()
    inbox = fabric["b"].subscribe("u/#")
    fabric.advance(6)
    assert fabric["a"].filters_of("b") == {"u/#"}
    inbox.unsubscribe("u/#")
    fabric.advance(2)
    assert fabric["a"].filters_of("b") == set()


def test_the_last_ways_are_left_when_the_new_ones_are_sure() -> None:
    fabric = pair_with_subscribers()
    inbox = fabric["b"].subscribe("t/#")
    fabric.advance(6)
    assert fabric["a"].filters_of("b") == {"t/#"}
    inbox.unsubscribe("t/#")
    fabric.advance(5)
    assert fabric["a"].filters_of("b") == {"t/#"}
    fabric.advance(10)
    assert fabric["a"].filters_of("b") == set()
