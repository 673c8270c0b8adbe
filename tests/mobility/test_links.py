"""Links of a mobile broker that come beside another: of several to one fixed broker the newest stays, and
nobody dials on."""

from __future__ import annotations

import pytest

from hedgerow.mobility.events import FixedLinked, FixedNotLinked
from hedgerow.mobility.links import UNLISTED
from tests.mobility.domain import Domain, MobileHost

FIXED = "mqtt://f:1883"
LONG_S = 20.0  # more than the longest pause between two attempts


@pytest.fixture
def domain() -> Domain:
    domain = Domain()
    domain.add_fixed("f")
    domain.add_mobile("m", "f")
    domain.advance(0.5)
    return domain


@pytest.fixture
def mobile(domain: Domain) -> MobileHost:
    host: MobileHost = domain["m"]
    assert len(host.told(FixedLinked)) == 1
    return host


def is_linked(domain: Domain, mobile: MobileHost) -> bool:
    current = mobile.node.machine.current
    return len(domain.between("m", "f")) == 1 and current is not None and current.stream.is_open


@pytest.mark.parametrize("is_silent", [False, True], ids=["and is told to end", "and hears nothing"])
def test_a_second_link_takes_the_place_of_the_first_and_there_is_no_third(
    domain: Domain, mobile: MobileHost, is_silent: bool
) -> None:
    """An attempt that hung while the link was cut gets through beside the one that is there."""
    (first,) = domain.between("m", "f")
    if is_silent:
        first.cut()
    domain.dial_fixed(mobile, FIXED)
    domain.advance(LONG_S)
    assert len(mobile.told(FixedLinked)) == 2
    assert is_linked(domain, mobile)


def test_an_attempt_that_ends_beside_a_link_is_no_loss(domain: Domain, mobile: MobileHost) -> None:
    hung = mobile.node.links.open(FIXED, "m:1883", domain.now)
    hung.lost(domain.now)
    mobile.settle()
    domain.advance(LONG_S)
    assert len(mobile.told(FixedLinked)) == 1
    assert not mobile.told(FixedNotLinked)
    assert is_linked(domain, mobile)


def test_the_loss_of_the_newest_link_is_one(domain: Domain, mobile: MobileHost) -> None:
    domain.dial_fixed(mobile, FIXED)
    domain.wait_for(lambda: len(mobile.told(FixedLinked)) == 2, 1)
    domain.advance(1)
    domain.close("m", "f")
    domain.advance(LONG_S)
    assert len(mobile.told(FixedLinked)) == 3
    assert is_linked(domain, mobile)


def test_a_broker_that_answers_when_it_is_not_listed_any_more_is_left_at_once(
    domain: Domain, mobile: MobileHost
) -> None:
    domain.add_fixed("g")
    domain.dial_fixed(mobile, "mqtt://g:1883")
    domain.advance(LONG_S)
    assert [event.fixed_broker for event in mobile.told(FixedLinked)] == ["f"]
    assert [event.reason for event in mobile.told(FixedNotLinked)] == [UNLISTED]
    assert not domain.between("m", "g")
    assert is_linked(domain, mobile)
