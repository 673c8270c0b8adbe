"""Lines of Mosquitto's log, as recorded from 2.0.11, and what follows from them."""

from __future__ import annotations

import pytest

from hedgerow.federation.interests.log_lines import (
    DEPARTURES,
    NOTICE_TOPIC,
    SUBSCRIBE_TOPIC,
    UNSUBSCRIBE_TOPIC,
)
from hedgerow.federation.interests.subscription_log import SubscriptionLog

OWN = "hedgerow-7f3a"
TIME = "1700000000: "


class Lines:
    """A log that is live, fed with the part of lines after the time."""

    def __init__(self, time: str = TIME, log: SubscriptionLog | None = None) -> None:
        self.time = time
        self.now = 0.0
        self.log = log or SubscriptionLog(OWN, "hedgerow-")
        self.subscribe(f"{OWN} 1 {SUBSCRIBE_TOPIC}")
        assert self.log.is_live

    def subscribe(self, body: str) -> None:
        self.log.receive(SUBSCRIBE_TOPIC, f"{self.time}{body}".encode(), self.now)

    def unsubscribe(self, body: str) -> None:
        self.log.receive(UNSUBSCRIBE_TOPIC, f"{self.time}{body}".encode(), self.now)

    def notice(self, body: str) -> None:
        self.log.receive(NOTICE_TOPIC, f"{self.time}{body}".encode(), self.now)

    def connect(self, client_id: str, flags: str = "p2, c1, k60") -> None:
        self.notice(f"New client connected from 127.0.0.1:45678 as {client_id} ({flags}).")

    def disconnect(self, client_id: str) -> None:
        self.notice(f"Client {client_id} disconnected.")


@pytest.mark.parametrize(
    "time", ["", TIME, "2026-11-15T14:20:01: ", "Sunday,  5 November 2026: 14.20: ", "[x+y]* 1: ", ": "]
)
def test_the_first_subscriber_and_the_last_are_told(time: str) -> None:
    lines = Lines(time)
    lines.connect("one")
    lines.connect("number two")
    lines.subscribe("one 0 field/#")
    assert lines.log.take_changes() == [("field/#", True)]
    lines.subscribe("number two 2 field/#")
    lines.unsubscribe("one field/#")
    assert lines.log.take_changes() == []
    lines.disconnect("number two")
    assert lines.log.take_changes() == [("field/#", False)]
    assert lines.log.filters == set()
    assert lines.log.stats.unreadable == 0


def test_the_time_before_lines_may_change_its_length() -> None:
    lines = Lines("Sunday, 9 May 2027: ")
    lines.time = "Wednesday,  12 September 2028: "
    lines.subscribe("dev 0 a")
    assert lines.log.take_changes() == [("a", True)]


def test_what_comes_and_goes_between_two_looks_is_no_change() -> None:
    lines = Lines()
    lines.subscribe("one 0 a")
    lines.unsubscribe("one a")
    assert lines.log.take_changes() == []


def test_nothing_counts_before_our_own_line() -> None:
    log = SubscriptionLog(OWN)
    log.receive(SUBSCRIBE_TOPIC, b"1700000000: dev 0 a", 0.0)
    log.receive(NOTICE_TOPIC, b"1700000000: Client dev disconnected.", 0.0)
    assert not log.is_live
    assert log.stats.early == 2
    assert log.take_changes() == []


def test_our_own_subscriptions_are_not_those_of_clients() -> None:
    lines = Lines()
    lines.connect("hedgerow-other")
    lines.subscribe("hedgerow-other 1 field/#")
    lines.subscribe(f"{OWN} 1 a")
    lines.unsubscribe(f"{OWN} a")
    assert lines.log.take_changes() == []


@pytest.mark.parametrize("ending", [*DEPARTURES, " disconnected: Connection reset by peer."])
def test_every_way_to_leave(ending: str) -> None:
    lines = Lines()
    for client_id in ("dev", f"dev{ending}", f"dev{ending} x"):
        lines.connect(client_id)
        lines.subscribe(f"{client_id} 1 only/{len(client_id)}")
    lines.notice(f"Client dev{ending}")
    assert lines.log.filters == {f"only/{3 + len(ending)}", f"only/{5 + len(ending)}"}
    lines.notice(f"Client dev{ending} x{ending}")
    assert lines.log.filters == {f"only/{3 + len(ending)}"}
    lines.notice(f"Client dev{ending}{ending}")
    assert lines.log.filters == set()


def test_no_way_to_leave_is_the_end_of_another() -> None:
    assert not any(a != b and a.endswith(b) for a in DEPARTURES for b in DEPARTURES)


def test_other_notices_mean_nothing() -> None:
    lines = Lines()
    lines.connect("dev")
    lines.subscribe("dev 1 a")
    for body in (
        "Client dev disconnected, not authorised.",
        "Client <unknown> disconnected, not authorised.",
        "New connection from 127.0.0.1:45678 on port 1883.",
        "Client connection from dev denied: max_connections exceeded.",
        "Bad client dev sending multiple CONNECT messages.",
        "Client dev",
        "Client ",
        "Client dev disconnected",
        "",
    ):
        lines.notice(body)
    assert lines.log.filters == {"a"}
    lines.notice("Bad socket read/write on client dev: Invalid input")
    assert lines.log.filters == set()


@pytest.mark.parametrize("flags", ["p1, c0, k60", "p2, c0, k60", "p5, c0, k0, u'name'"])
def test_a_persistent_session_stays_until_it_expires(flags: str) -> None:
    lines = Lines(log=SubscriptionLog(OWN, "hedgerow-", uncertain_s=0.0))
    lines.connect("dev", flags)
    lines.subscribe("dev 1 a")
    lines.disconnect("dev")
    lines.log.handle_timer(1e9)
    assert lines.log.filters == {"a"}
    lines.notice("Expiring client dev due to timeout.")
    assert lines.log.filters == set()


def test_a_session_of_mqtt_5_that_began_clean_is_uncertain_and_then_remembered() -> None:
    lines = Lines(log=SubscriptionLog(OWN, "hedgerow-", uncertain_s=60.0))
    lines.connect("dev", "p5, c1, k60")
    lines.subscribe("dev 1 a")
    lines.disconnect("dev")
    assert lines.log.deadline == 60.0
    lines.log.handle_timer(59.0)
    assert lines.log.filters == {"a"}
    lines.log.handle_timer(60.0)
    assert lines.log.filters == set()
    assert lines.log.deadline == float("inf")
    lines.connect("dev", "p5, c0, k60")
    assert lines.log.filters == {"a"}
    lines.disconnect("dev")
    assert lines.log.filters == {"a"}
    lines.connect("dev", "p5, c1, k60")
    assert lines.log.filters == set()


def test_a_connection_that_is_taken_over() -> None:
    lines = Lines()
    lines.connect("dev", "p2, c0, k60")
    lines.subscribe("dev 1 a")
    lines.connect("dev", "p2, c0, k60")
    assert lines.log.filters == {"a"}
    lines.connect("dev", "p2, c1, k60")
    assert lines.log.filters == set()
    lines.subscribe("dev 1 b")
    lines.connect("dev", "p2, c0, k60")  # The clean session that was there has left nothing.
    assert lines.log.filters == set()


def test_a_client_from_before_us_is_heard_and_stays() -> None:
    lines = Lines()
    lines.subscribe("my old dev 1 a")
    lines.disconnect("my old dev")
    assert lines.log.filters == {"a"}
    lines.unsubscribe("my old dev a")
    assert lines.log.filters == set()


def test_shared_and_own_affairs() -> None:
    lines = Lines()
    lines.subscribe("dev 1 $share/group/a/+")
    lines.subscribe("dev 1 $SYS/#")
    lines.subscribe("dev 1 $share/group/$SYS/#")
    assert lines.log.take_changes() == [("a/+", True)]
    lines.subscribe("dev 1 a/+")
    lines.unsubscribe("dev $share/group/a/+")
    assert lines.log.take_changes() == []
    lines.unsubscribe("dev a/+")
    assert lines.log.take_changes() == [("a/+", False)]


def test_a_name_is_the_longest_that_is_known() -> None:
    lines = Lines()
    lines.connect("victim")
    lines.connect("victim 0 a")
    lines.subscribe("victim 0 a 1 b")
    assert lines.log.filters == {"b"}
    lines.disconnect("victim")
    assert lines.log.filters == {"b"}
    lines.connect("x")
    lines.subscribe("x 0 a 1 b")  # Here only one reading names anybody.
    assert lines.log.filters == {"b", "a 1 b"}


def test_an_unsubscription_with_two_readings_takes_nothing() -> None:
    lines = Lines()
    lines.connect("victim")
    lines.connect("victim a")
    lines.subscribe("victim 0 a b")
    lines.subscribe("victim a 0 b")
    lines.unsubscribe("victim a b")
    assert lines.log.filters == {"a b", "b"}
    assert lines.log.stats.ambiguous == 1


@pytest.mark.parametrize(
    "client_id",
    [
        "victim (p2, c1, k60).",
        "victim (p2, c1, k60, u'x",
        "x as victim (p2, c1, k60).\n1700000000: New client connected from 127.0.0.1:1 as victim",
        "x\nClient victim disconnected.",
        "New client connected from 127.0.0.1:1 as victim (p2, c1, k60).",
        "victim disconnected: x",
        " victim",
        "victim ",
    ],
)
@pytest.mark.parametrize("user", ["", ", u'x'", ", u'x (p2, c1, k60, u'y'"])
def test_names_that_imitate_lines_end_nothing_of_another(client_id: str, user: str) -> None:
    lines = Lines()
    lines.connect("victim", "p2, c0, k60")
    lines.subscribe("victim 1 a")
    lines.connect(client_id, f"p2, c1, k60{user}")
    lines.subscribe(f"{client_id} 1 b")
    lines.unsubscribe(f"{client_id} a")
    lines.disconnect(client_id)
    lines.notice(f"Expiring client {client_id} due to timeout.")
    assert "a" in lines.log.filters


def test_cut_and_unreadable_lines_are_counted() -> None:
    lines = Lines()
    lines.subscribe("dev 0 " + "x" * 975)
    assert len(f"{TIME}dev 0 ") + 975 < 999
    lines.subscribe("dev 0 " + "y" * 999)
    lines.log.receive(SUBSCRIBE_TOPIC, b"1700000000: dev 0 \xff", 0.0)
    lines.log.receive(SUBSCRIBE_TOPIC, b"no time", 0.0)
    lines.subscribe("dev 3 a")
    lines.subscribe("dev 0 a/#/b")
    lines.subscribe("")
    lines.log.receive("another/topic", b"1700000000: dev 0 z", 0.0)
    assert lines.log.filters == {"x" * 975}
    assert (lines.log.stats.cut, lines.log.stats.unreadable) == (1, 5)


def test_after_a_connection_whoever_was_not_heard_again_is_in_doubt() -> None:
    lines = Lines()
    lines.connect("clean")
    lines.connect("back")
    lines.connect("kept", "p2, c0, k60")
    lines.connect("new", "p5, c1, k60")
    for client_id in ("clean", "back", "kept", "new"):
        lines.subscribe(f"{client_id} 1 of/{client_id}")
    assert lines.log.in_doubt(with_sessions=True) == []
    lines.log.connected(is_new_session=True)
    assert not lines.log.is_live
    lines.subscribe(f"{OWN} 1 {SUBSCRIBE_TOPIC}")
    lines.connect("back")
    assert lines.log.in_doubt(with_sessions=False) == ["clean", "new"]
    assert lines.log.in_doubt(with_sessions=True) == ["clean", "kept", "new"]
    assert lines.log.filters == {"of/clean", "of/kept", "of/new"}
    assert lines.log.count_of(["clean", "new"]) == 2
    lines.subscribe("new 1 of/new")
    lines.log.forget(lines.log.in_doubt(with_sessions=False))
    assert lines.log.filters == {"of/kept", "of/new"}


def test_known_is_what_the_broker_counts() -> None:
    lines = Lines()
    assert lines.log.known == 1
    lines.connect("dev", "p5, c1, k60")
    for topic_filter in ("a", "a", "$SYS/#", "hedgerow/federation/#", "$share/group/a"):
        lines.subscribe(f"dev 1 {topic_filter}")
    lines.subscribe("hedgerow-other 1 b")
    assert lines.log.known == 5
    assert lines.log.filters == {"a"}
    lines.unsubscribe("dev $SYS/#")
    lines.unsubscribe("dev $share/group/a")
    assert lines.log.known == 4
    lines.disconnect("dev")
    lines.log.handle_timer(1e9)
    assert lines.log.known == 2
    assert lines.log.count_of(["dev"]) == 0
    lines.connect("dev", "p5, c0, k60")
    assert lines.log.known == 4
    lines.log.connected(is_new_session=True)  # Our own subscriptions are gone with our session.
    assert lines.log.known == 3


def test_the_reader_may_have_any_id() -> None:
    log = SubscriptionLog("reader", "hedgerow-")
    log.receive(SUBSCRIBE_TOPIC, f"reader 1 {SUBSCRIBE_TOPIC}".encode(), 0.0)
    for client_id in ("reader", "hedgerow-x"):
        log.receive(SUBSCRIBE_TOPIC, f"{client_id} 1 of/{client_id}".encode(), 0.0)
    assert log.filters == set()
    for client_id in ("readers", "hedgerow"):
        log.receive(SUBSCRIBE_TOPIC, f"{client_id} 1 of/{client_id}".encode(), 0.0)
    assert log.filters == {"of/readers", "of/hedgerow"}


def test_a_session_that_was_kept_brings_the_lines_of_the_gap() -> None:
    lines = Lines()
    lines.log.connected(is_new_session=False)
    lines.subscribe("dev 1 a")
    lines.subscribe(f"x: {OWN} 1 {SUBSCRIBE_TOPIC}")  # An imitation must not teach us its name as a time.
    assert lines.log.filters == {"a"}
    assert not lines.log.is_live
    lines.subscribe(f"{OWN} 1 {SUBSCRIBE_TOPIC}")
    assert lines.log.is_live
    lines.subscribe("dev 1 b")
    assert lines.log.filters == {"a", "b"}


def test_the_time_before_lines_may_be_another_after_a_restart() -> None:
    lines = Lines("1700000000: ")
    lines.log.connected(is_new_session=False)
    lines.time = "2026-11-15T14:20:01: "
    lines.subscribe("dev 1 lost")
    lines.subscribe(f"{OWN} 1 {SUBSCRIBE_TOPIC}")
    lines.subscribe("dev 1 a")
    assert lines.log.filters == {"a"}


def test_what_we_were_subscribed_to_before_is_known() -> None:
    log = SubscriptionLog(OWN, own_filters=["hedgerow/bridge/#", "a"])
    for _ in range(2):
        log.connected(is_new_session=True)
        assert log.known == 0
        log.receive(SUBSCRIBE_TOPIC, f"{OWN} 1 {SUBSCRIBE_TOPIC}".encode(), 0.0)
        log.receive(SUBSCRIBE_TOPIC, f"{OWN} 1 a".encode(), 0.0)
        assert log.known == 3
        assert log.filters == set()


def test_federators_take_no_room_from_clients() -> None:
    lines = Lines(log=SubscriptionLog(OWN, "hedgerow-", max_subscriptions=20))
    for number in range(50):
        lines.subscribe(f"{OWN} 1 {number}")
    assert lines.log.known == 20
    for number in range(50):
        lines.subscribe(f"dev 1 {number}")
    assert len(lines.log.filters) == 20


def test_what_clients_can_make_grow_is_bounded() -> None:
    lines = Lines(
        log=SubscriptionLog(
            OWN,
            "hedgerow-",
            uncertain_s=0.0,
            max_clients=10,
            max_subscriptions=20,
            max_subscriptions_per_client=5,
        )
    )
    for number in range(50):
        lines.subscribe(f"greedy 0 g/{number}")
    assert len(lines.log.filters) == 5
    for client in range(20):
        lines.connect(f"c{client}", "p5, c1, k60")
        lines.subscribe(f"c{client} 0 f/{client}")
    assert len(lines.log.filters) == 13  # Of ten clients one is the reader itself.
    assert lines.log.stats.overflowed == 45 + 12 * 2
    lines.disconnect("c0")
    lines.log.handle_timer(0.0)  # It sleeps now, and its place is the first that is given away.
    lines.subscribe("new 0 n")
    assert "n" in lines.log.filters
    lines.connect("c0", "p5, c0, k60")
    assert "f/0" not in lines.log.filters


def test_subscriptions_of_a_federator_that_no_line_told_of_are_known() -> None:
    lines = Lines()
    before = lines.log.known
    for _ in range(2):
        lines.log.note(f"{OWN}-dialler", ["hedgerow/federation/node/n", "hedgerow/federation/home/+"])
    lines.subscribe(f"{OWN}-dialler 0 hedgerow/federation/home/+")
    assert lines.log.known == before + 2
    assert lines.log.filters == set()
