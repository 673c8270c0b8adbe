"""What waits for a neighbour that is away: for how long, through which restarts, and by which other way."""

from __future__ import annotations

import pytest

from hedgerow.federation.neighbour_session import Keeping
from tests.bridges.harness import balance
from tests.federation.fabric_of_nodes import Fabric
from tests.federation.hosts import Node


def pair(**options: object) -> Fabric:
    fabric = Fabric()
    fabric.line("a", "b", durable=True, **options)
    fabric.settle_links()
    fabric["b"].subscribe("t/#", client_id="reader")
    fabric.advance(1)
    return fabric


def ledger_balance(node: Node, neighbour: str) -> int:
    session = node.session_of(neighbour)
    assert session.ledger is not None
    return balance(session.ledger, session.waiting_count)


def test_a_neighbour_that_is_away_for_an_hour() -> None:
    fabric = pair()
    fabric["b"].kill()
    sent = [b"%d" % index for index in range(60)]
    for payload in sent:
        fabric["a"].publish("t/x", payload, qos=1 + int(payload) % 2)
        fabric.advance(60)
    assert fabric["a"].session_of("b").waiting_count == 60
    fabric["b"].start()
    inbox = fabric["b"].subscribe(client_id="reader")
    fabric.advance(15)
    assert sorted(inbox.payloads) == sorted(sent)
    assert [payload for payload in inbox.payloads if int(payload) % 2 == 0] == sent[::2]
    assert fabric["a"].session_of("b").waiting_count == 0
    assert ledger_balance(fabric["a"], "b") == 0


@pytest.mark.parametrize("both", [False, True])
def test_the_node_that_keeps_restarts(both: bool) -> None:
    fabric = pair()
    inbox = fabric["b"].subscribe(client_id="reader")
    fabric.cut("a", "b")
    fabric.advance(5)
    for index in range(10):
        fabric["a"].publish("t/x", b"%d" % index)
    fabric["a"].crash(1.0)
    fabric.advance(30)
    for index in range(10, 20):
        fabric["a"].publish("t/x", b"%d" % index)
    if both:
        fabric["b"].crash(1.0)
        inbox = fabric["b"].subscribe(client_id="reader")
    fabric.heal()
    fabric.settle_links()
    fabric.advance(3)
    assert inbox.payloads == [b"%d" % index for index in range(20)]
    assert ledger_balance(fabric["a"], "b") == 0


def test_what_is_not_acknowledged_when_a_node_dies_comes_once() -> None:
    """The PUBACK is lost with the link: it is sent again, and known by its id."""
    fabric = pair()
    inbox = fabric["b"].subscribe(client_id="reader")
    fabric["a"].publish("t/x", b"1")
    fabric["a"].publish("t/x", b"2", qos=2)
    fabric.advance(0.003)
    assert set(inbox.payloads) == {b"1", b"2"}
    assert fabric["a"].session_of("b").waiting_count == 2
    fabric["a"].crash()
    fabric.settle_links()
    fabric.advance(3)
    assert sorted(inbox.payloads) == [b"1", b"2"]
    assert fabric["a"].session_of("b").waiting_count == 0


def test_what_waits_goes_by_another_way() -> None:
    fabric = Fabric()
    fabric.line("a", "b", "c")
    fabric.settle_links()
    inbox = fabric["c"].subscribe("t/#")
    fabric.advance(1)
    fabric.cut("a", "b")
    fabric.advance(20)
    for index in range(10):
        fabric["a"].publish("t/x", b"%d" % index)
    fabric.advance(20)
    assert inbox.payloads == []
    fabric["a"].link_to("c")
    fabric.advance(3)
    assert sorted(inbox.payloads) == [b"%d" % index for index in range(10)]
    fabric.heal()
    fabric.advance(20)
    assert fabric["a"].linked == {"b", "c"}
    assert len(inbox.payloads) == 10
    assert ledger_balance(fabric["a"], "b") == ledger_balance(fabric["a"], "c") == 0


def test_the_queue_is_bounded_and_its_ledger_balances() -> None:
    fabric = pair(federation={"keeping": Keeping(seconds=3_600, queue_bytes=20_000)})
    inbox = fabric["b"].subscribe(client_id="reader")
    fabric.cut("a", "b")
    fabric.advance(5)
    for index in range(100):
        fabric["a"].publish("t/x", b"%04d" % index + bytes(500))
        fabric["a"].publish("t/x", b"unreliable", qos=0)
    session = fabric["a"].session_of("b")
    assert session.ledger is not None
    assert 0 < session.waiting_count < 40
    assert session.ledger.overflowed == 100 - session.waiting_count
    assert session.ledger.away == 100
    assert ledger_balance(fabric["a"], "b") == 0
    kept = session.waiting_count
    fabric.heal()
    fabric.advance(15)
    assert [payload[:4] for payload in inbox.payloads] == [b"%04d" % i for i in range(100 - kept, 100)]
    assert ledger_balance(fabric["a"], "b") == 0


def test_what_has_waited_too_long_is_dropped_with_the_session() -> None:
    fabric = pair(federation={"keeping": Keeping(seconds=60)})
    fabric.cut("a", "b")
    fabric.advance(5)
    fabric["a"].publish("t/x", b"old")
    fabric.advance(100)
    assert "hedgerow-federation-b" not in fabric["a"].broker.sessions
    assert not fabric["a"].store.waits
    fabric.heal()
    fabric.settle_links()
    inbox = fabric["b"].subscribe(client_id="reader")
    fabric["a"].publish("t/x", b"new")
    fabric.advance(2)
    assert inbox.payloads == [b"new"]


def test_a_filter_that_is_gone_when_a_neighbour_comes_back_is_taken_back() -> None:
    fabric = pair()
    inbox = fabric["b"].subscribe("other", client_id="reader")
    fabric.advance(1)
    fabric.cut("a", "b")
    fabric.advance(5)
    inbox.unsubscribe("t/#")
    assert fabric["a"].filters_of("b") == {"t/#", "other"}
    fabric.heal()
    fabric.settle_links()
    fabric.advance(12)
    assert fabric["a"].filters_of("b") == {"other"}


@pytest.mark.parametrize("moment_s", [0.0, 0.002, 0.1, 1.0, 1.6, 3.0, 7.0])
@pytest.mark.parametrize("is_silent", [True, False])
@pytest.mark.parametrize("publisher", ["a", "b"])
def test_published_in_any_moment_after_the_only_link_was_lost(
    moment_s: float, is_silent: bool, publisher: str
) -> None:
    """Who is next to the lost neighbour stays in its meshes, though nobody else there has subscribed."""
    fabric = Fabric()
    fabric.line("a", "b", "c")
    fabric.settle_links()
    inboxes = [fabric["a"].subscribe("t/#"), fabric["c"].subscribe("t/#")]
    fabric.advance(1)
    if not is_silent:
        fabric.close("b", "c")
    fabric.cut("b", "c")
    fabric.advance(moment_s)
    fabric[publisher].publish("t/x", b"x")
    fabric.advance(30)
    fabric.heal()
    fabric.settle_links()
    assert [inbox.payloads for inbox in inboxes] == [[b"x"]] * 2
