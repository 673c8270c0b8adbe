"""What goes into frames as messages comes out as the same messages."""

from __future__ import annotations

import dataclasses
import json
import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.log.frame import HEADER_BYTES, Group, LogFrame
from hedgerow.log.messages import FRAME_BYTES, FRAME_ROWS, Rows, read_notes, to_groups
from hedgerow.message import Message, MessageId
from tests.node.logged_messages import message_properties

MARKER = b"a marker"


def read(group: Group) -> Rows:
    data = b"".join(group.encode(MARKER))
    frame = LogFrame.read(data, 0, MARKER)
    assert frame is not None
    assert (frame.first_position, frame.rows, frame.size) == (group.first_position, group.rows, len(data))
    rows = Rows.read(data, frame)
    assert rows is not None
    return rows


def through_frames(messages: list[Message], first_position: int = 1) -> list[Message]:
    groups = to_groups(messages, first_position, 1.5)
    assert [group.first_position for group in groups[:1]] == [first_position] * bool(messages)
    assert all(each.end_position == following.first_position for each, following in pairwise(groups))
    found = []
    for group in groups:
        rows = read(group)
        made = rows.messages()
        assert made == [rows.message(row) for row in range(group.rows)]
        assert len(rows.ends) == group.rows + 1
        found += made
    return found


NAMES = [each.name for each in dataclasses.fields(Message)]


def fields(message: Message) -> tuple[object, ...]:
    """All, to the type: 1 and True are equal, as are messages that differ in `first_at`."""
    return tuple((type(value), value) for value in (getattr(message, name) for name in NAMES))


anything = st.text(max_size=20)  # with lone surrogates and NUL
numbers = st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**70), 2**70)
times = st.none() | st.floats(allow_nan=False) | st.floats(1.7e9, 1.8e9) | st.just(1.7e9 + 1e-6)
messages = st.builds(
    Message,
    topic=st.sampled_from(["a", "b/°"]) | anything,
    payload=st.binary(max_size=20),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    properties=st.just({}) | message_properties,
    id=st.none()
    | st.builds(MessageId, st.sampled_from(["n", "m"]), st.just(1), st.integers(0, 4))
    | st.builds(MessageId, anything, numbers, numbers),
    expires_at=times,
    published_at=times,
    first_at=times,
)


@settings(max_examples=300)
@given(st.lists(messages, max_size=30), st.integers(1, 2**62))
def test_messages_come_back_as_they_were(given_messages: list[Message], first_position: int) -> None:
    found = through_frames(given_messages, first_position)
    assert list(map(fields, found)) == list(map(fields, given_messages))


@settings(max_examples=100)
@given(st.lists(st.tuples(messages, st.integers(1, 5), st.booleans()), max_size=8))
def test_runs_come_back_as_they_were(runs: list[tuple[Message, int, bool]]) -> None:
    """Messages in a row that are alike, with ids that count up or not."""
    given_messages = []
    for first, count, counts_up in runs:
        for shift in range(count):
            message_id = first.id
            if message_id is not None and counts_up:
                message_id = MessageId(message_id.origin, message_id.epoch, message_id.sequence + shift)
            given_messages.append(
                Message(
                    first.topic, b"%d" % shift, first.qos, first.retain, first.properties.copy(), message_id,
                    first.expires_at, first.published_at, first.first_at,
                )
            )  # fmt: skip
    found = through_frames(given_messages)
    assert list(map(fields, found)) == list(map(fields, given_messages))


@settings(max_examples=100)
@given(st.lists(st.tuples(messages, st.sampled_from([None, "[[1,1,[]]]", "[[2,5,[7,8]]]"])), max_size=20))
def test_notes_come_back_with_their_messages(noted: list[tuple[Message, str | None]]) -> None:
    found = []
    for group in to_groups([message for message, _ in noted], 1, 1.5, [note for _, note in noted]):
        data = b"".join(group.encode(MARKER))
        frame = LogFrame.read(data, 0, MARKER)
        assert frame is not None
        for _, count, note in read_notes(frame, memoryview(data)[HEADER_BYTES:][: frame.meta_bytes]):
            found += [note] * count
    assert found == [note and json.loads(note) for _, note in noted]


def test_what_is_alike_is_written_once() -> None:
    alike = [Message("topic", b"12345678", 1, id=MessageId("node", 1, each)) for each in range(FRAME_ROWS)]
    (group,) = to_groups(alike, 1, 1.5)
    assert len(b"".join(group.encode(MARKER))) < 13 * FRAME_ROWS
    assert through_frames(alike) == alike


def test_ids_at_the_end_of_their_range() -> None:
    last = 2**63 - 1
    given_messages = [Message("t", b"", id=MessageId("n", last, last - shift)) for shift in (2, 1, 0)]
    assert through_frames(given_messages) == given_messages


def test_frames_have_a_bounded_size() -> None:
    small = [Message("t", b"", id=MessageId("n", 1, each)) for each in range(3 * FRAME_ROWS + 1)]
    assert [group.rows for group in to_groups(small, 1, 1.5)] == [FRAME_ROWS] * 3 + [1]
    large = [Message("t", bytes(FRAME_BYTES // 4), id=MessageId("n", 1, each)) for each in range(40)]
    assert max(group.bytes for group in to_groups(large, 1, 1.5)) < 1.5 * FRAME_BYTES
    assert through_frames(small + large) == small + large


def test_a_time_that_is_no_number() -> None:
    (found,) = through_frames([Message("t", b"", expires_at=math.nan, published_at=math.nan)])
    assert math.isnan(found.expires_at or 0)
    assert math.isnan(found.published_at or 0)


@pytest.mark.parametrize("step", [1, 3])
def test_a_frame_that_is_damaged_is_not_read(step: int) -> None:
    (group,) = to_groups([Message("topic", b"payload", 1), Message("other", b"", 2)], 7, 1.5)
    data = b"".join(group.encode(MARKER))
    for offset in range(len(data)):
        damaged = data[:offset] + bytes([data[offset] ^ 1 << offset * step % 8]) + data[offset + 1 :]
        frame = LogFrame.read(damaged, 0, MARKER)
        assert frame is None or Rows.read(damaged, frame) is None
        frame = LogFrame.read(data[:offset], 0, MARKER)
        assert frame is None or Rows.read(data[:offset], frame) is None
