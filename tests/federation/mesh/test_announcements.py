"""NEW_REGULAR_TOPIC: every way to say it, when it ends, and what of it is ignored."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.federation.mesh import announcements, wire
from hedgerow.federation.mesh.announcements import (
    ANNOUNCEMENT_S,
    NEW_REGULAR_TOPIC,
    RESENT_WITHIN_S,
    Announcements,
    read_announcement,
)
from hedgerow.federation.mesh.wire import MeshKind, RegularTopic, WireError


class Heard:
    def __init__(self, announcements: Announcements | None = None) -> None:
        self.now = 0.0
        self.announcements = Announcements() if announcements is None else announcements

    def receive(self, payload: bytes | str, name: str = "", retain: bool = False) -> None:
        payload = payload.encode() if isinstance(payload, str) else payload
        topic = f"{NEW_REGULAR_TOPIC}/{name}" if name else NEW_REGULAR_TOPIC
        self.announcements.receive(topic, payload, retain, self.now)

    def at(self, now: float) -> Heard:
        self.now = now
        self.announcements.handle_timer(now)
        return self

    def has(self, topic_filter: str) -> bool:
        return topic_filter in self.announcements


def packet(topic_filter: str, is_subscribed: bool = True) -> bytes:
    entry = wire.encode_regular_topic(RegularTopic(topic_filter, is_subscribed))
    return wire.encode_packet(MeshKind.NEW_REGULAR_TOPIC, [entry])


@pytest.mark.parametrize(
    "payload",
    [
        b"field/+/soil",
        b"field/+/soil\n",
        b"field/+/soil\r\n",
        b"$share/group/field/+/soil",
        b'{"subscribe": "field/+/soil"}',
        b'{"subscribe": ["field/+/soil"], "unsubscribe": ["other"], "publish": "field/7/soil"}',
        bytes.fromhex("0103 01 0100 0c") + b"field/+/soil",
        packet("field/+/soil"),
    ],
)
def test_every_way_to_announce_a_filter(payload: bytes) -> None:
    heard = Heard()
    heard.receive(payload)
    assert heard.announcements.take_changed() == ["field/+/soil"]
    assert heard.has("field/+/soil")
    assert not heard.announcements.ignored


@pytest.mark.parametrize("payload", [b'{"unsubscribe": "a"}', packet("a", is_subscribed=False), b""])
def test_every_way_to_end_it(payload: bytes) -> None:
    heard = Heard()
    heard.receive("a")
    heard.announcements.take_changed()
    heard.receive(payload)
    assert not heard.has("a")
    assert heard.announcements.take_changed() == ["a"]
    assert heard.announcements.deadline == float("inf")


def test_a_first_publication_needs_no_announcement_and_may_be_told() -> None:
    heard = Heard()
    heard.receive('{"publish": "a"}')
    assert not heard.has("a")
    assert not heard.announcements.ignored


def test_an_announcement_ends_unless_it_is_repeated() -> None:
    heard = Heard()
    heard.receive("a")
    heard.receive("b")
    heard.at(100.0).receive("a")
    assert heard.announcements.deadline == ANNOUNCEMENT_S
    heard.at(ANNOUNCEMENT_S)
    assert (heard.has("a"), heard.has("b")) == (True, False)
    heard.at(ANNOUNCEMENT_S + 100.0)
    assert not heard.has("a")


def test_names_are_apart() -> None:
    heard = Heard()
    heard.receive("a", "one")
    heard.receive("a", "two")
    heard.receive('{"unsubscribe": "a"}', "one")
    assert heard.has("a")
    heard.receive("", "two")
    assert not heard.has("a")


def test_a_retained_one_holds_until_it_is_replaced() -> None:
    heard = Heard()
    heard.receive('{"subscribe": ["a", "b"]}', "dev", retain=True)
    heard.receive('{"unsubscribe": "a"}', "dev")
    heard.receive("a", "dev")
    heard.at(10 * ANNOUNCEMENT_S)
    assert heard.has("a")
    heard.receive("b", "dev", retain=True)
    assert (heard.has("a"), heard.has("b")) == (False, True)
    heard.receive("", "dev", retain=True)
    assert not heard.has("b")


def test_a_retained_one_whose_flag_was_lost_holds_from_the_next_connection() -> None:
    heard = Heard()
    heard.receive("a", "dev")
    heard.announcements.connected()
    heard.receive("a", "dev", retain=True)
    heard.announcements.subscribed(0.0)
    heard.at(10 * ANNOUNCEMENT_S)
    assert heard.has("a")


def test_a_retained_one_that_is_not_sent_again_is_gone() -> None:
    heard = Heard()
    heard.receive("a", "one", retain=True)
    heard.receive("b", "two", retain=True)
    heard.receive("c", "one")
    heard.announcements.connected()
    heard.receive("b", "two", retain=True)
    heard.at(100.0)
    assert heard.has("a")  # No SUBACK so far: it may be on its way.
    heard.announcements.subscribed(100.0)
    assert heard.announcements.deadline == 100.0 + RESENT_WITHIN_S
    heard.at(100.0 + RESENT_WITHIN_S)
    assert [heard.has(name) for name in "abc"] == [False, True, True]


def test_a_connection_that_is_lost_again_proves_nothing() -> None:
    heard = Heard()
    heard.receive("a", retain=True)
    heard.announcements.connected()
    heard.announcements.subscribed(0.0)
    heard.announcements.disconnected()
    heard.at(1e9)
    assert heard.has("a")


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\xff", "malformed"),
        (b"{", "malformed"),
        (b'{"subscribe": 1}', "malformed"),
        (b'{"subscribe": ["a", null]}', "malformed"),
        (b'{"subscribe": {"a": 1}}', "malformed"),
        (b'{"other": "a"}', "malformed"),
        (b'{"a":' + b"[" * 60_000, "malformed"),
        (b'{"a":' + b"9" * 60_000 + b"}", "malformed"),
        (b'{"subscribe": "\\ud800"}', "filter"),
        (b"a/#/b", "filter"),
        (b"\n", "filter"),
        (b"$share//a", "filter"),
        (b"$SYS/#", "local topic"),
        (b"$share/group/$SYS/#", "local topic"),
        (b"hedgerow/federation/#", "local topic"),
        (packet("$SYS/#"), "local topic"),
        (b"\x01", "malformed"),
        (b"\x01\x04\x00", "kind"),
        (wire.encode_packet(MeshKind.REPAIR, []), "kind"),
        (b"a" * 1_025, "too large"),
        (b"a" * 100_000, "too large"),
    ],
)
def test_what_is_ignored_is_counted(payload: bytes, reason: str) -> None:
    heard = Heard()
    heard.receive(payload)
    assert heard.announcements.ignored == {reason: 1}
    assert len(heard.announcements) == 0


@given(st.one_of(st.binary(min_size=1), st.from_regex(r"\{.*", fullmatch=True).map(str.encode)))
def test_any_bytes_are_read_or_refused(payload: bytes) -> None:
    with suppress(WireError):
        read_announcement(payload)


def test_what_can_grow_is_bounded() -> None:
    heard = Heard(Announcements(max_names=3, max_announced=20, max_announced_per_name=8))
    for name in range(5):
        heard.receive(json.dumps({"subscribe": [f"{name}/{number}" for number in range(10)]}), f"n{name}")
    assert len(heard.announcements) == 20
    assert heard.announcements.ignored["full"] == 2 + 2 + 6 + 20
    heard.receive("x", "n" * 256)
    assert heard.announcements.ignored["name"] == 1
    heard.receive("", "n0")
    heard.receive("x", "n4")
    assert heard.has("x")


def test_floods_are_dropped_and_what_is_retained_comes_at_once() -> None:
    heard = Heard()
    for number in range(announcements.MAX_NAMES):
        heard.receive("a", f"n{number}", retain=True)
    assert not heard.announcements.ignored
    for number in range(5_000):
        heard.receive(f"f/{number}")
    assert heard.announcements.ignored["rate"] > 3_000
    heard.at(60.0).receive("later")
    assert heard.has("later")
