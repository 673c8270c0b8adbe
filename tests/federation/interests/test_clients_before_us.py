"""Everything is wanted until it is known what clients that were there first subscribe to."""

from __future__ import annotations

import pytest

from hedgerow.federation.interests.events import (
    EverythingUntilKnown,
    InterestsForgotten,
    LogSilent,
    SubscriptionsKnown,
    UnknownSubscriptions,
)
from hedgerow.federation.interests.interests import EVERYTHING, LINGER_S, UNKNOWN_S, Interests
from hedgerow.federation.interests.log_lines import NOTICE_TOPIC, SUBSCRIBE_TOPIC, UNSUBSCRIBE_TOPIC
from hedgerow.federation.interests.subscription_log import LEAVING_TOPICS
from hedgerow.federation.mesh.announcements import NEW_REGULAR_TOPIC
from hedgerow.federation.neighbours import NEIGHBOUR_PREFIX
from hedgerow.rates import Allowance
from tests.federation.interests.test_interests import OWN, Home


def home(
    *assume: str,
    remembered: tuple[str, ...] = (),
    allowance: Allowance | None = None,
    leaving: tuple[str, ...] = LEAVING_TOPICS,
) -> Home:
    return Home(
        *assume, remembered=remembered, until_known=EVERYTHING, new_filters=allowance, leaving=leaving
    )


def test_everything_is_wanted_at_once_and_said_so() -> None:
    it = home()
    it.connect()
    it.wants("#")
    (event,) = it.interests.take_events()
    assert isinstance(event, EverythingUntilKnown)
    assert "everything (#) goes to the broker at mqtt://127.0.0.1:1883 until" in str(event)
    assert "It counted 999 subscriptions a moment ago" in str(event)
    it.at(5.0)
    assert it.events() == []


def test_without_a_count_it_is_said_too() -> None:
    it = home()
    it.interests.connected(0.0, is_new_session=True)
    (event,) = it.at(2.0).interests.take_events()
    assert isinstance(event, EverythingUntilKnown)
    assert "counted" not in str(event)


def test_once_all_are_known_everything_leaves_behind_what_is_wanted() -> None:
    it = home()
    it.connect()
    it.client("dev", "a")
    it.wants("#", "a")
    it.events()
    it.count(1)
    (event,) = it.interests.take_events()
    assert isinstance(event, SubscriptionsKnown)
    assert "1 filter goes there" in str(event)
    it.wants("#", "a")
    it.at(it.now + LINGER_S).wants("a")
    assert it.interests.unknown == 0


@pytest.mark.parametrize(("plain", "shared"), [(1, 0), (0, 1)])
def test_one_subscription_is_enough(plain: int, shared: int) -> None:
    it = home()
    it.connect()
    it.events()
    it.count(plain, shared)
    it.count(plain, shared)
    it.at(it.now + UNKNOWN_S).wants("#")
    (event,) = it.interests.take_events()
    assert isinstance(event, UnknownSubscriptions)
    assert "has 1 subscription that we do not know" in str(event)
    assert "everything (#) goes there until their clients connect again" in str(event)
    # The client comes back.
    it.line(NOTICE_TOPIC, "Client dev disconnected.")
    it.client("dev", "$share/group/a" if shared else "a")
    it.count(plain, shared)
    assert it.events() == [SubscriptionsKnown]
    it.at(it.now + LINGER_S).wants("a")


@pytest.mark.parametrize("leaving", [(), (UNSUBSCRIBE_TOPIC,), (NOTICE_TOPIC,)])
def test_a_log_that_does_not_tell_who_leaves_proves_nothing(leaving: tuple[str, ...]) -> None:
    """Whoever has left is known still, and would stand for one that was there before us."""
    it = home(remembered=("#", "before"), leaving=leaving)
    it.connect()
    it.client("dev", "a", flags="p4, c0, k60")  # It unsubscribes or leaves, and no line says so.
    it.count(1)
    it.at(it.now + UNKNOWN_S).wants("#", "before", "a")
    it.line(UNSUBSCRIBE_TOPIC, "other x")
    it.line(NOTICE_TOPIC, "Client other disconnected.")
    it.count(1)
    it.at(it.now + LINGER_S).wants("a")


def test_each_connection_has_to_show_it_anew() -> None:
    """The broker may have been configured anew."""
    it = home()
    it.connect()
    it.count(0)
    it.at(it.now + LINGER_S).wants()
    it.interests.disconnected(it.now)
    it.leaving = (NOTICE_TOPIC,)
    it.connect()
    it.count(0)
    it.at(it.now + UNKNOWN_S).wants("#")
    assert it.probes == 2


def test_without_connections_in_the_log_a_federator_that_is_gone_stands_for_nobody() -> None:
    it = home(leaving=())
    it.connect()
    it.line(SUBSCRIBE_TOPIC, f"{NEIGHBOUR_PREFIX}far 1 hedgerow/federation/x")
    it.count(1)
    it.at(it.now + UNKNOWN_S).wants("#")


def test_sessions_that_may_have_ended_prove_nothing() -> None:
    """Whose is the one that is counted: a session that was kept, or one that we do not know?"""
    for flags in ("p5, c1, k60", "p5, c0, k60"):
        it = home()
        it.connect()
        it.client("gone", "of/gone", flags=flags)
        it.leave("gone")
        it.count(1)
        it.at(it.now + 5).wants("#", "of/gone")
        assert it.events() == [EverythingUntilKnown]


def test_a_session_that_surely_stays_is_known() -> None:
    it = home()
    it.connect()
    it.client("gone", "of/gone", flags="p4, c0, k60")
    it.leave("gone")
    it.count(1)
    it.at(it.now + LINGER_S).wants("of/gone")


def test_a_federator_that_left_takes_nobodys_place() -> None:
    it = home()
    it.connect()
    it.interests.log.note("hedgerow-federation-8", ["x", "y"])
    it.leave("hedgerow-federation-8")
    it.count(2)
    it.at(it.now + 5).wants("#")
    it.count(0)
    it.at(it.now + LINGER_S).wants()


def test_a_subscription_that_no_line_told_of_brings_everything_back() -> None:
    it = home()
    it.connect()
    it.count(0)
    it.at(it.now + LINGER_S).wants()
    it.events()
    it.line(SUBSCRIBE_TOPIC, "dev 1 " + "a" * 1000)  # cut
    it.count(1)
    it.wants()
    it.at(it.now + UNKNOWN_S).wants("#")
    assert it.events() == [UnknownSubscriptions]
    it.count(0)
    it.at(it.now + LINGER_S).wants()
    it.count(1)  # told already, and wanted all the same
    it.at(it.now + UNKNOWN_S).wants("#")


def test_what_is_named_takes_the_place_of_everything() -> None:
    it = Home("farm/#", until_known=())
    it.connect()
    it.count(3)
    it.at(it.now + UNKNOWN_S).wants("farm/#")
    (event,) = it.interests.take_events()
    assert isinstance(event, UnknownSubscriptions)
    assert "unless --assume names it" in str(event)


def test_a_broker_without_a_log_gets_everything_unless_somebody_announces() -> None:
    it = home()
    it.connect(has_log=False)
    it.at(60.0).wants("#")
    events = it.interests.take_events()
    assert [type(event) for event in events] == [EverythingUntilKnown, LogSilent]
    assert "and everything (#) goes there: add these lines" in str(events[1])
    it.receive(NEW_REGULAR_TOPIC, "kitchen/#")
    it.wants("#", "kitchen/#")
    it.at(60.0 + LINGER_S).wants("kitchen/#")


def test_announcements_are_not_all_while_the_log_may_come() -> None:
    it = home()
    it.connect()
    it.receive(NEW_REGULAR_TOPIC, "kitchen/#")
    it.at(60.0).wants("#", "kitchen/#")


def test_everything_stays_until_all_that_takes_its_place_was_told() -> None:
    it = home(allowance=Allowance(1.0, 1.0))
    it.connect()
    it.take()
    it.client("dev", "a", "b", "c", "d", "e", "f")
    it.count(6)
    while len(it.wanted) < 7:
        assert "#" in it.wanted
        it.at(it.now + 0.5)
    it.at(it.now + 2 * LINGER_S).wants("a", "b", "c", "d", "e", "f")


def test_a_restarted_broker_may_have_clients_that_were_quicker() -> None:
    it = home()
    it.connect()
    it.client("dev", "a")
    it.count(1)
    it.at(100.0).wants("a")
    it.interests.disconnected(100.0)
    it.at(101.0).connect(uptime_s=1)
    it.wants("#", "a")
    it.client("dev", "a")
    it.count(1)
    it.at(110.0).wants("a")
    it.interests.disconnected(110.0)
    it.at(111.0).connect(is_new_session=False, uptime_s=20)
    it.wants("a")  # Our session had the lines of the gap.


def test_a_later_life_that_remembers_all_needs_not_everything() -> None:
    it = home(remembered=("a", "b"))
    came = (NOTICE_TOPIC, "New client connected from 127.0.0.1:1 as new (p4, c1, k60).")
    it.connect(is_new_session=False, waited=(came, (SUBSCRIBE_TOPIC, "new 1 of/new")))
    it.wants("a", "b", "of/new")
    it.count(2 + 1)
    it.at(100.0).wants("a", "b", "of/new")
    assert it.events() == []
    assert it.interests.unknown == 0
    it.count(2 + 1 + 1)
    it.at(200.0).wants("a", "b", "of/new", "#")
    assert set(it.events()) <= {UnknownSubscriptions, EverythingUntilKnown, InterestsForgotten}


@pytest.mark.parametrize(("remembered", "is_new_session"), [(("#", "a"), False), ((), False), (("a",), True)])
def test_a_later_life_that_does_not_remember_all_wants_everything(
    remembered: tuple[str, ...], is_new_session: bool
) -> None:
    it = home(remembered=remembered)
    it.connect(is_new_session=is_new_session)
    it.wants("#", *remembered)


def test_lines_that_waited_are_bounded_and_then_everything_is_wanted() -> None:
    it = home(remembered=("a",))
    waited = tuple((SUBSCRIBE_TOPIC, f"dev 1 of/{number}") for number in range(5000))
    it.connect(is_new_session=False, waited=waited)
    assert it.interests.log.stats.early == 4500
    assert len(it.interests.log.filters) == 500
    it.count(5000)
    it.at(it.now + UNKNOWN_S)
    assert "#" in it.wanted


def test_topics_that_each_broker_keeps_are_no_everything() -> None:
    interests = Interests(0.0, ["#"], until_known=EVERYTHING, client_id=OWN, broker="b")
    interests.connected(0.0, is_new_session=True)
    assert interests.take_changes() == [("#", True)]
