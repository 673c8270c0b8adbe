"""From what is heard at a stock broker to what its clients want."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.broker.elsewhere import ALWAYS
from hedgerow.errors import TopicError
from hedgerow.federation.interests.counts import COUNT_TOPIC, ROUND_S, SHARED_COUNT_TOPIC, UPTIME_TOPIC
from hedgerow.federation.interests.events import (
    InterestsForgotten,
    LeavingNotLogged,
    LogSilent,
    SubscriptionRefused,
    SystemTopicsSilent,
    UnknownSubscriptions,
)
from hedgerow.federation.interests.interests import LINGER_S, PROBE_AGAIN_S, PROBED_WITHIN_S, Interests
from hedgerow.federation.interests.log_lines import NOTICE_TOPIC, SUBSCRIBE_TOPIC, TOPICS, UNSUBSCRIBE_TOPIC
from hedgerow.federation.interests.subscription_log import LEAVING_TOPICS
from hedgerow.federation.mesh.announcements import NEW_REGULAR_TOPIC, TOPIC_FILTER
from hedgerow.federation.mesh.federator import Federator
from hedgerow.rates import Allowance

OWN = "hedgerow-federation-7"
BROKER = "mqtt://127.0.0.1:1883"
OWN_COUNT = len(Interests.topics) + 1


class Home:
    """A broker as its sidecar sees it: the lines that it logs, and what the sidecar makes of them."""

    def __init__(
        self,
        *assume: str,
        now: float = 0.0,
        remembered: tuple[str, ...] = (),
        until_known: tuple[str, ...] = (),
        new_filters: Allowance | None = None,
        leaving: tuple[str, ...] = LEAVING_TOPICS,
    ) -> None:
        """`leaving`: of what the broker logs a line when somebody unsubscribes and leaves."""
        self.now = now
        self.leaving = leaving
        self.probes = 0
        self.uptime_s = 0
        self.interests = Interests(
            now,
            assume,
            until_known=until_known,
            client_id=OWN,
            own_filters=["x"],
            broker=BROKER,
            user="hedge",
            remembered=remembered,
            new_filters=new_filters,
        )
        self.wanted = set(remembered)

    def connect(
        self,
        is_new_session: bool = True,
        uptime_s: int = 1000,
        has_log: bool = True,
        waited: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """`waited`: lines that were for us while we were away."""
        self.interests.connected(self.now, is_new_session)
        for topic, body in waited:
            self.line(topic, body)
        for topic_filter in Interests.topics:
            if has_log:
                self.line(SUBSCRIBE_TOPIC, f"{OWN} 1 {topic_filter}")
            self.interests.subscribed(topic_filter, True, "granted QoS 1")
        self.uptime_s = uptime_s
        self.receive(UPTIME_TOPIC, f"{uptime_s} seconds", retain=True)
        self.receive(COUNT_TOPIC, "999", retain=True)  # an old one
        self.receive(SHARED_COUNT_TOPIC, "99", retain=True)

    def line(self, topic: str, body: str) -> None:
        self.receive(topic, f"1700000000: {body}")

    def client(self, client_id: str, *filters: str, flags: str = "p2, c1, k60") -> None:
        self.line(NOTICE_TOPIC, f"New client connected from 127.0.0.1:45678 as {client_id} ({flags}).")
        for topic_filter in filters:
            self.line(SUBSCRIBE_TOPIC, f"{client_id} 1 {topic_filter}")

    def leave(self, client_id: str) -> None:
        self.line(NOTICE_TOPIC, f"Client {client_id} disconnected.")

    def count(self, others: int, shared: int = 0) -> None:
        """A round of the broker's numbers."""
        self.uptime_s += 10
        self.receive(UPTIME_TOPIC, f"{self.uptime_s} seconds")
        self.receive(COUNT_TOPIC, str(OWN_COUNT + others))
        self.receive(SHARED_COUNT_TOPIC, str(shared))
        self.at(self.now + ROUND_S)

    def receive(self, topic: str, payload: str, retain: bool = False) -> None:
        self.interests.receive(topic, payload.encode(), retain, self.now)

    def at(self, now: float) -> Home:
        """Every timer on the way, as a shell would."""
        while self.interests.deadline <= now:
            self.now = max(self.now, self.interests.deadline)
            self.interests.handle_timer(self.now)
            self.take()
        self.now = now
        return self

    def take(self) -> list[tuple[str, bool]]:
        if self.interests.take_probe():
            self.probes += 1
            lines = {UNSUBSCRIBE_TOPIC: f"{OWN}-log x", NOTICE_TOPIC: f"Client {OWN}-log disconnected."}
            self.interests.probed(True, self.now)
            for topic in self.leaving:
                self.line(topic, lines[topic])
        changes = self.interests.take_changes()
        assert len({topic_filter for topic_filter, _ in changes}) == len(changes)
        for topic_filter, is_wanted in changes:
            assert is_wanted != (topic_filter in self.wanted)
            (self.wanted.add if is_wanted else self.wanted.remove)(topic_filter)
        assert self.wanted == self.interests.filters
        return changes

    def wants(self, *filters: str) -> None:
        self.take()
        assert self.wanted == set(filters)

    def events(self) -> list[type]:
        return [type(event) for event in self.interests.take_events()]


def test_each_filter_is_told_once_however_many_clients() -> None:
    home = Home()
    home.connect()
    home.client("one", "field/+/soil")
    home.client("two", "field/+/soil", "$share/group/field/+/soil", "$SYS/#", "hedgerow/federation/x")
    home.receive(NEW_REGULAR_TOPIC, "field/+/soil")
    assert home.take() == [("field/+/soil", True)]
    home.leave("one")
    home.leave("two")
    home.at(100.0).wants("field/+/soil")
    home.receive(NEW_REGULAR_TOPIC, "")
    home.at(100.0 + LINGER_S).wants()
    assert home.interests.deadline == float("inf")
    assert home.events() == []


def test_federators_want_nothing_and_bridges_do() -> None:
    home = Home()
    home.connect()
    home.client("hedgerow-federation-8", "of/a/federator")
    home.line(SUBSCRIBE_TOPIC, f"{OWN} 1 of/us")
    home.line(NOTICE_TOPIC, "New bridge connected from 127.0.0.1:4711 as far.bridge (p2, c0, k60).")
    home.line(SUBSCRIBE_TOPIC, "far.bridge 1 of/a/bridge")
    home.wants("of/a/bridge")


def test_a_client_that_connects_anew_is_no_change() -> None:
    home = Home()
    home.connect()
    home.client("dev", "a")
    home.wants("a")
    home.leave("dev")
    home.at(LINGER_S / 2)
    home.client("dev", "a")
    assert home.at(100.0).take() == []
    home.wants("a")


def test_wanted_again_before_it_was_told() -> None:
    home = Home()
    home.connect()
    home.client("dev", "a")
    home.wants("a")
    home.line(UNSUBSCRIBE_TOPIC, "dev a")
    home.now = LINGER_S
    home.interests.handle_timer(LINGER_S)
    home.line(SUBSCRIBE_TOPIC, "dev 1 a")
    assert home.take() == []
    home.line(UNSUBSCRIBE_TOPIC, "dev a")
    home.at(100.0).wants()


def test_assumed_filters_are_wanted_from_the_start_and_cover_others() -> None:
    home = Home("a/#", "a/b", "a/#", "$share/group/b")
    assert home.take() == [("a/#", True), ("b", True)]
    home.connect()
    home.client("dev", "a/b", "a/#", "b", "c")
    assert home.take() == [("c", True)]
    home.leave("dev")
    home.at(100.0).wants("a/#", "b")


@pytest.mark.parametrize("topic_filter", ["$SYS/#", "hedgerow/federation/#", "a/#/b", ""])
def test_what_cannot_be_assumed(topic_filter: str) -> None:
    with pytest.raises(TopicError):
        Home(topic_filter)


def test_with_everything_assumed_nothing_else_is_announced_and_nothing_is_amiss() -> None:
    home = Home("#")
    assert home.take() == [("#", True)]
    home.connect()
    home.client("dev", "a", "+/#")
    home.count(50)
    home.count(51)
    assert home.at(1000.0).take() == []
    home.interests.connected(1000.0, True)
    home.interests.subscribed(SUBSCRIBE_TOPIC, False, "not authorised")
    home.at(2000.0)
    assert home.events() == []

    federator = Federator("7", 0.0, random=lambda: 0.5)
    federator.add_neighbour("8", 0.0)
    federator.subscribe("#", 0.0)
    federator.handle_timer(1.0)
    federator.take_packets()
    federator.subscribe("a", 2.0)
    federator.handle_timer(3.0)
    assert federator.core_of("#") == "7"
    assert federator.core_of("a") is None


@pytest.mark.parametrize("topic_filter", Interests.topics)
def test_a_right_that_is_missing_is_named_once(topic_filter: str) -> None:
    home = Home()
    home.interests.connected(0.0, True)
    home.interests.subscribed(topic_filter, False, "not authorised")
    (event,) = home.interests.take_events()
    assert isinstance(event, SubscriptionRefused)
    right = "$SYS/#" if topic_filter.startswith("$SYS") else TOPIC_FILTER
    assert f"give the user hedge the right `topic read {right}`" in str(event)
    assert topic_filter in str(event)
    assert BROKER in str(event)
    assert "--assume" in str(event)
    home.at(5.0).interests.disconnected(5.0)
    home.interests.connected(6.0, True)
    home.interests.subscribed(topic_filter, False, "not authorised")
    assert home.events() == []
    home.interests.subscribed(topic_filter, True, "granted QoS 1")
    home.interests.subscribed(topic_filter, False, "not authorised")
    assert home.events() == [SubscriptionRefused]


def test_a_refused_log_is_not_also_called_silent() -> None:
    home = Home()
    home.interests.connected(0.0, True)
    for topic in TOPICS:
        home.interests.subscribed(topic, False, "not authorised")
    home.at(1000.0)
    assert set(home.events()) == {SubscriptionRefused}


def test_a_broker_that_does_not_publish_its_log() -> None:
    home = Home()
    home.connect(has_log=False)
    home.at(5.0)
    assert home.events() == []
    home.at(10.0)
    (event,) = home.interests.take_events()
    assert isinstance(event, LogSilent)
    assert "log_dest topic, log_type subscribe, log_type unsubscribe, log_type notice" in str(event)
    home.interests.disconnected(20.0)
    home.connect(has_log=False)
    home.at(100.0)
    assert home.events() == []


def test_a_broker_that_withholds_its_system_topics() -> None:
    home = Home()
    home.interests.connected(0.0, True)
    for topic_filter in Interests.topics:
        home.interests.subscribed(topic_filter, True, "granted QoS 1")
    home.receive(NEW_REGULAR_TOPIC, "a")
    home.at(20.0).wants("a")
    (event,) = home.interests.take_events()
    assert isinstance(event, SystemTopicsSilent)
    assert "give the user hedge the right `topic read $SYS/#`" in str(event)


def test_a_connection_that_ends_at_once_is_no_silence() -> None:
    home = Home()
    home.interests.connected(0.0, True)
    home.interests.disconnected(1.0)
    home.at(1000.0)
    assert home.events() == []


@pytest.mark.parametrize(
    ("leaving", "remedy"),
    [
        ((UNSUBSCRIBE_TOPIC,), "add `log_type notice` to mosquitto.conf, and leave connection_messages on"),
        ((NOTICE_TOPIC,), "add `log_type unsubscribe` to mosquitto.conf"),
        ((), "add `log_type unsubscribe` and `log_type notice` to mosquitto.conf"),
    ],
)
def test_a_log_that_does_not_tell_who_leaves(leaving: tuple[str, ...], remedy: str) -> None:
    home = Home(leaving=leaving)
    home.connect()
    home.at(PROBED_WITHIN_S - 1)
    assert home.events() == []
    (event,) = home.at(PROBED_WITHIN_S + 1).interests.take_events()
    assert isinstance(event, LeavingNotLogged)
    assert remedy in str(event)
    home.leaving = LEAVING_TOPICS  # Somebody has added it, and Mosquitto has read it.
    home.at(home.now + PROBE_AGAIN_S)
    assert home.interests.log.unheard == ()
    assert home.probes == 2
    assert home.at(home.now + 10 * PROBE_AGAIN_S).events() == []
    assert home.probes == 2


def test_a_probe_that_cannot_connect_is_tried_again() -> None:
    home = Home()
    home.interests.connected(0.0, True)
    home.line(SUBSCRIBE_TOPIC, f"{OWN} 1 {SUBSCRIBE_TOPIC}")
    assert home.interests.take_probe()
    home.interests.probed(False, 1.0)
    assert not home.interests.take_probe()
    home.at(1.0 + PROBE_AGAIN_S)
    assert home.probes == 1
    assert home.events() == []


def test_what_others_leave_shows_it_too() -> None:
    home = Home(leaving=())
    home.connect()
    home.client("dev", "a")
    home.line(UNSUBSCRIBE_TOPIC, "dev a")
    home.leave("dev")
    assert home.interests.log.unheard == ()
    assert home.at(100.0).events() == []


def test_whoever_wants_everything_need_not_know_who_leaves() -> None:
    home = Home("#", leaving=())
    home.connect()
    assert home.at(100.0).events() == []
    assert home.probes == 0


def test_subscriptions_from_before_us_are_told_and_again_if_they_grow() -> None:
    home = Home()
    home.connect()
    home.client("dev", "a")
    assert home.events() == []  # The one that was retained is old.
    home.count(1 + 3)
    assert home.events() == []  # They may be federators that have yet to say so.
    home.at(home.now + 20)
    (event,) = home.interests.take_events()
    assert isinstance(event, UnknownSubscriptions)
    assert event.count == home.interests.unknown == 3
    assert "3 subscriptions" in str(event)
    assert "--assume FILTER" in str(event)
    home.at(1000.0).count(1 + 2)
    home.count(1 + 3)
    home.at(1020.0)
    assert home.events() == []
    home.count(1 + 4)
    home.count(1 + 5)
    home.at(1040.0)
    assert home.events() == [UnknownSubscriptions]  # and not with each one
    home.count(1 + 6)
    home.at(1060.0)
    assert home.events() == []
    home.at(2000.0)
    assert home.events() == [UnknownSubscriptions]
    home.count(1)
    assert home.interests.unknown == 0


def test_filters_of_an_earlier_life_stay_while_there_are_subscriptions_that_nobody_knows() -> None:
    home = Home(remembered=("a", "b"))
    home.connect()
    home.client("dev", "b")
    home.count(2)  # dev's, and one from before
    home.at(home.now + 20)
    home.wants("a", "b")
    home.count(1)
    home.at(home.now + 20)
    home.wants("b")


def test_what_is_known_in_the_end_is_not_told() -> None:
    home = Home()
    home.connect()
    home.count(1)
    home.client("hedgerow-federation-8", "a")
    home.at(home.now + 20)
    assert home.events() == []
    assert home.interests.unknown == 0


def test_federators_are_not_unknown() -> None:
    home = Home()
    home.connect()
    home.client("hedgerow-federation-8", "a", "b")
    home.line(SUBSCRIBE_TOPIC, f"{OWN} 1 of/us")
    home.count(3)
    assert home.events() == []
    assert home.interests.unknown == 0


def test_while_the_broker_is_away_all_stays() -> None:
    home = Home()
    home.connect()
    home.client("dev", "a")
    home.wants("a")
    home.interests.disconnected(1.0)
    assert home.at(1e6).take() == []
    home.wants("a")


def restarted(is_new_session: bool = True, flags: str = "p2, c1, k60") -> Home:
    """One broker, with two clients; it goes, and is there again with one that we heard come back."""
    home = Home()
    home.connect()
    home.client("back", "of/back")
    home.client("away", "of/away", flags=flags)
    home.at(100.0).count(2)
    home.wants("of/back", "of/away")
    home.interests.disconnected(200.0)
    home.at(210.0).connect(is_new_session=is_new_session, uptime_s=5)
    home.client("back", "of/back")
    return home


def test_after_a_restart_who_does_not_come_back_is_forgotten_in_the_end() -> None:
    home = restarted()
    home.count(1)
    home.at(265.0).wants("of/back", "of/away")
    home.at(300.0).wants("of/back")
    assert home.events() == [InterestsForgotten]


def test_after_a_restart_who_was_back_before_us_is_kept() -> None:
    home = restarted()
    home.count(2)
    home.at(1000.0).wants("of/back", "of/away")
    home.count(1)  # Now it is gone, though no line said so.
    home.at(1010.0).wants("of/back")


def test_after_a_restart_without_a_count_nothing_is_forgotten() -> None:
    home = restarted()
    home.at(1e6).wants("of/back", "of/away")


def test_after_a_restart_a_session_that_was_kept_stays() -> None:
    home = restarted(is_new_session=False, flags="p2, c0, k60")
    home.client("third", "of/third")
    home.leave("third")
    home.count(2)
    home.at(1000.0).wants("of/back", "of/away")


def test_after_a_restart_sessions_explain_what_is_counted_only_if_ours_was_kept() -> None:
    for is_new_session in (False, True):
        home = Home()
        home.connect()
        home.client("kept", "of/kept", flags="p2, c0, k60")
        home.client("away", "of/away")
        home.at(100.0).interests.disconnected(100.0)
        home.at(110.0).connect(is_new_session=is_new_session, uptime_s=5)
        home.count(1)  # Is it the one, or the other?
        home.at(1000.0).wants(*(["of/kept", "of/away"] if is_new_session else ["of/kept"]))


def test_without_a_restart_nobody_is_in_doubt() -> None:
    home = Home()
    home.connect(uptime_s=1000)
    home.client("dev", "a")
    home.at(100.0).interests.disconnected(100.0)
    home.at(110.0).connect(uptime_s=1105)  # retained five seconds ago
    home.receive(UPTIME_TOPIC, "1110 seconds")
    home.count(0)
    home.at(1000.0).wants("a")
    assert home.events() == []


def test_numbers_that_are_none() -> None:
    home = Home()
    home.connect()
    for payload in ("", " ", "x", "-1", "1.5", "²", "9" * 5000, "nan seconds"):
        home.receive(COUNT_TOPIC, payload)
        home.receive(UPTIME_TOPIC, payload)
    home.at(1000.0).wants()


def test_new_filters_are_told_at_a_bounded_rate_and_none_is_lost() -> None:
    home = Home(now=1000.0, new_filters=Allowance(10.0, 2.0))
    home.connect()
    home.client("dev", *(f"f/{number}" for number in range(100)))
    assert 20 <= len(home.take()) <= 22
    home.line(UNSUBSCRIBE_TOPIC, "dev f/99")  # It was not told, so that nothing is.
    assert len(home.at(1001.0).wanted) <= 33
    home.at(1060.0)
    assert home.wanted == {f"f/{number}" for number in range(99)}


def test_since_when_a_filter_is_wanted() -> None:
    """What was published before is not for its clients; unless they may have subscribed before we heard."""
    home = Home("assumed/#", now=1000.0, remembered=("remembered",))
    home.connect()
    home.receive(f"{NEW_REGULAR_TOPIC}/kept", "kept", retain=True)
    home.now = 1005.0
    home.client("one", "logged")
    home.receive(NEW_REGULAR_TOPIC, "announced")
    home.at(1010.0)
    home.client("two", "logged")
    home.take()
    assert home.wanted == {"assumed/#", "remembered", "kept", "logged", "announced"}
    assert {each: home.interests.since(each) for each in home.wanted} == {
        "assumed/#": ALWAYS,
        "remembered": ALWAYS,
        "kept": ALWAYS,
        "logged": 1005.0,
        "announced": 1005.0,
    }


def test_lines_of_the_gap_are_of_any_time() -> None:
    home = Home(now=1000.0)
    home.connect()
    home.interests.disconnected(1001.0)
    home.now = 1060.0
    home.interests.connected(home.now, is_new_session=False)
    home.client("dev", "in the gap")
    home.line(SUBSCRIBE_TOPIC, f"{OWN} 1 {Interests.topics[0]}")
    home.client("dev", "behind it")
    home.take()
    assert (home.interests.since("in the gap"), home.interests.since("behind it")) == (ALWAYS, 1060.0)


def test_a_filter_that_has_to_wait_counts_from_when_it_was_heard_of() -> None:
    home = Home(now=1000.0, new_filters=Allowance(1.0, 1.0))
    home.connect()
    home.client("dev", *(f"f/{number}" for number in range(10)))
    home.at(1060.0)
    assert len(home.wanted) == 10
    assert {home.interests.since(each) for each in home.wanted} == {1000.0}


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*TOPICS, COUNT_TOPIC, UPTIME_TOPIC, NEW_REGULAR_TOPIC, "other"]),
            st.one_of(
                st.binary(max_size=40),
                st.from_regex(r"1: (Client )?d 1 [a#/+$ ]{1,4}", fullmatch=True).map(str.encode),
            ),
            st.booleans(),
            st.floats(0.0, 100.0),
        ),
        max_size=30,
    )
)
def test_no_input_raises_and_changes_alternate(steps: list[tuple[str, bytes, bool, float]]) -> None:
    home = Home()
    home.connect()
    for topic, payload, retain, wait_s in steps:
        home.interests.receive(topic, payload, retain, home.now)
        home.take()
        home.at(home.now + wait_s)
