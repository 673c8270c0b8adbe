"""What comes back from other federators of that which began at a node of ours."""

from __future__ import annotations

from hedgerow.federation.document.federator import DocumentPublication
from hedgerow.federation.document.held import HeldPublications
from hedgerow.federation.document.limits import HOLD_S, MAX_HELD, OURS_S
from hedgerow.federation.document.numbers import OF_OURS, PublicationId

OURS = OF_OURS | 5


def publication(origin: int, number: int) -> DocumentPublication:
    return DocumentPublication("t", b"%d" % number, PublicationId(origin, number), 2)


def test_what_began_elsewhere_is_taken_at_once() -> None:
    assert HeldPublications().take(publication(7, 1), 0.0) == [publication(7, 1)]


def test_what_comes_by_our_own_links_too_is_dropped() -> None:
    held = HeldPublications()
    assert held.take(publication(OURS, 1), 0.0) == []
    held.hear(OURS, 0.1)
    assert held.handle_timer(10.0) == []
    assert held.take(publication(OURS, 2), 1.0) == []
    assert held.dropped == 2


def test_another_fabrics_are_taken_a_moment_later_and_then_at_once_in_order() -> None:
    held = HeldPublications()
    assert held.take(publication(OURS, 1), 0.0) == []
    assert held.take(publication(OURS, 2), 0.1) == []
    assert held.deadline == HOLD_S
    assert held.handle_timer(HOLD_S) == [publication(OURS, 1), publication(OURS, 2)]
    assert held.take(publication(OURS, 3), 1.0) == [publication(OURS, 3)]


def test_an_origin_that_our_links_no_longer_bring_is_asked_about_again() -> None:
    held = HeldPublications()
    held.hear(OURS, 0.0)
    assert held.take(publication(OURS, 1), OURS_S - 1) == []
    assert held.take(publication(OURS, 2), OURS_S + 1) == []
    assert held.handle_timer(OURS_S + 1 + HOLD_S) == [publication(OURS, 2)]


def test_no_more_than_so_many_wait() -> None:
    held = HeldPublications()
    taken = [each for number in range(2 * MAX_HELD) for each in held.take(publication(OURS, number), 0.0)]
    assert taken == [publication(OURS, number) for number in range(2 * MAX_HELD)]
    for origin in range(3 * MAX_HELD):
        held.take(publication(OF_OURS | origin, 1), 1.0)
    assert len(held.handle_timer(100.0)) <= MAX_HELD
