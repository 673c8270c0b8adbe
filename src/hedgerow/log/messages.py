"""Messages as frames, and back: what comes out is what went in.

A frame has columns for what is usual: topic, payload, QoS, RETAIN, the id, and the time of publication in
microseconds. All else goes into the text of properties as JSON: MQTT's properties under their names, bytes
as base64, and beside them what has no column (`expires_at`, `first_at`) or does not fit into its own (a
time between two microseconds, an id beyond 64 bits, a text that is not UTF-8). A message with nothing
unusual has no such text. Messages in a row that differ in payload alone, and whose ids count up, share one
entry, which makes them five times as cheap.

A frame has at most `FRAME_ROWS` messages, so that whoever wants one of them does not read many.
"""

from __future__ import annotations

import json
import sys
from array import array
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, islice
from typing import Any, cast

from hedgerow.log.checksum import crc32
from hedgerow.log.frame import HEADER_BYTES, NO_TIME, RUN_FIELDS, Group, LogFrame
from hedgerow.message import Message, MessageId, Properties

FRAME_ROWS = 1024
FRAME_BYTES = 256 * 1024
_MAX_INTEGER = 2**63
_MAX_US = 2**52  # Up to here a float is exact in microseconds.
BINARY_PROPERTIES = ("correlation_data", "authentication_data")
# Of a message, beside its properties.
_EXTRAS = ("id", "topic", "expires_at", "published_at", "first_at")
_COLUMNS = ("topic", "properties", "origin", "epoch", "sequence", "published_at", "flags")
_RETAIN = 4


def to_groups(
    messages: Sequence[Message], first_position: int, at: float, notes: Sequence[str | None] = ()
) -> list[Group]:
    """Frames to be, at consecutive positions. `at` is when they were written, Unix time. `notes`: something
    about each, as JSON, which `read_notes` gives back; None for nothing."""
    received_at = round(at * 1e6)
    group = Group(first_position)
    groups = [group] if messages else []
    begin, count = 0, len(messages)
    while begin < count:
        if group.rows >= FRAME_ROWS or group.bytes >= FRAME_BYTES:
            group = Group(group.end_position)
            groups.append(group)
        limit = min(count, begin + FRAME_ROWS - group.rows)
        end = _alone_end(messages, begin, limit, FRAME_BYTES - group.bytes)
        if end > begin:
            alone = messages[begin:end]
            group.add_each(
                [each.payload for each in alone],
                notes[begin:end] or (None,) * len(alone),
                [each.topic for each in alone],
                [each.id for each in alone],
                received_at,
                [each.qos & 3 | (_RETAIN if each.retain else 0) for each in alone],
            )
            begin = end
            continue
        first = messages[begin]
        published_us = NO_TIME
        message_id: MessageId | None = first.id
        topic, text = first.topic, None
        end = begin + 1
        if end < count and messages[end].topic == topic:
            end = _run_end(messages, begin, limit, FRAME_BYTES - group.bytes, notes)
        if (
            first.properties
            or first.expires_at is not None
            or first.published_at is not None
            or first.first_at is not None
            or not topic.isascii()
            or (message_id is not None and not _fits(message_id, end - begin))
        ):
            text, topic, message_id, published_us = _unusual(first, end - begin)
        group.add(
            [message.payload for message in messages[begin:end]],
            None, None, notes[begin] if notes else None, topic, text, message_id, published_us,
            received_at,
            first.qos & 3 | (_RETAIN if first.retain else 0),
        )  # fmt: skip
        begin = end
    return groups


def read_notes(frame: LogFrame, meta: memoryview) -> list[tuple[int, int, Any]]:
    """(first position, how many, note) of messages in a row; None: there is none."""
    texts = frame.texts(meta)
    found: list[tuple[int, int, Any]] = []
    position = frame.first_position
    for number, rows in zip(frame.numbers(meta, "client"), frame.numbers(meta, "rows"), strict=True):
        found.append((position, rows, json.loads(texts[number]) if number else None))
        position += rows
    return found


def _alone_end(messages: Sequence[Message], begin: int, limit: int, room: int) -> int:
    """Behind the last of which each has another topic than the next, and nothing unusual."""
    following: Message | None = messages[begin]
    for end in range(begin, limit):
        message, following = following, messages[end + 1] if end + 1 < len(messages) else None
        assert message is not None
        topic, message_id = message.topic, message.id
        if (
            (following is not None and following.topic == topic)
            or message.properties
            or message.expires_at is not None
            or message.published_at is not None
            or message.first_at is not None
            or not topic.isascii()
            or (message_id is not None and not _fits(message_id, 1))
            or room <= 0
        ):
            return end
        room -= len(message.payload)
    return limit


def _run_end(
    messages: Sequence[Message], begin: int, limit: int, room: int, notes: Sequence[str | None]
) -> int:
    """Behind the last message that differs from the first in nothing but its payload and its number."""
    first = messages[begin]
    end = begin + 1
    room -= len(first.payload)
    if end == limit or (first.id is not None and not _fits(first.id, limit - begin)):
        return end
    topic, qos, retain, properties = first.topic, first.qos, first.retain, first.properties
    expires_at, published_at, first_at = first.expires_at, first.published_at, first.first_at
    origin, epoch, sequence = first.id or (None, 0, 0)
    for message in islice(messages, end, limit):
        if message.topic != topic or message.qos != qos or message.retain != retain or room <= 0:
            break
        if notes and notes[end] != notes[begin]:
            break
        sequence += 1
        if message.id != (None if origin is None else (origin, epoch, sequence)):
            break
        if (
            message.properties != properties
            or message.expires_at != expires_at
            or message.published_at != published_at
            or message.first_at != first_at
        ):
            break
        room -= len(message.payload)
        end += 1
    return end


def _fits(message_id: MessageId, count: int) -> bool:
    """Can the columns have this id, and those of the next messages?"""
    origin, epoch, sequence = message_id
    return (
        -_MAX_INTEGER <= epoch < _MAX_INTEGER
        and -_MAX_INTEGER <= sequence < _MAX_INTEGER - count
        and (origin.isascii() or _is_utf8(origin))
    )


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


def _unusual(message: Message, count: int) -> tuple[str | None, str, MessageId | None, int]:
    """Of what is not usual: the text, and then what the columns get: topic, id, time of publication."""
    record: dict[str, object] = dict(message.properties)
    topic, message_id, published_us = message.topic, message.id, NO_TIME
    if not _is_utf8(topic):
        record["topic"], topic = topic, ""
    if message_id is not None and not _fits(message_id, count):
        record["id"], message_id = message_id, None
    if message.published_at is not None:
        published_us = _whole_us(message.published_at)
        if published_us == NO_TIME:
            record["published_at"] = message.published_at
    if message.expires_at is not None:
        record["expires_at"] = message.expires_at
    if message.first_at is not None:
        record["first_at"] = message.first_at
    text = json.dumps(record, default=_bytes_text, separators=(",", ":")) if record else None
    return text, topic, message_id, published_us


def _whole_us(at: float) -> int:
    """NO_TIME where the float would not come back from it."""
    if not -_MAX_US < at * 1e6 < _MAX_US:
        return NO_TIME
    microseconds = round(at * 1e6)
    return microseconds if microseconds / 1e6 == at else NO_TIME


def _bytes_text(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return b64encode(value).decode()
    raise TypeError(f"not a property: {value!r}")


class Rows:
    """The messages of a frame, made when they are asked for."""

    __slots__ = (
        "_data",
        "_fields",
        "_frame",
        "_payload_ends",
        "_payloads_at",
        "_run_ends",
        "_string_ends",
        "_strings",
        "_texts",
        "_unusual",
        "ends",
    )  # fmt: skip

    def __init__(self, frame: LogFrame, data: bytes, meta: memoryview) -> None:
        self._frame = frame
        self._data = data
        sizes, strings = frame.string_parts(meta)
        self._strings = strings
        self._string_ends = list(accumulate(numbers("I", sizes), initial=0))
        self._texts: dict[int, str] = {}
        self._unusual: dict[int, dict[str, Any]] = {}
        self._fields = [numbers(RUN_FIELDS[name], frame.field(meta, name)) for name in _COLUMNS]
        rows = numbers("I", frame.field(meta, "rows"))
        self._run_ends = None if frame.runs == frame.rows else list(accumulate(rows))
        lengths = numbers("I", frame.lengths(meta))
        self._payloads_at = HEADER_BYTES + frame.meta_bytes
        self._payload_ends = list(accumulate(lengths, initial=self._payloads_at))
        share = frame.string_bytes // frame.rows
        self.ends = (
            list(accumulate((length + share for length in lengths), initial=0))
            if share
            else [end - self._payloads_at for end in self._payload_ends]
        )
        """About how many bytes all the messages before each row take, and behind these of all."""

    @classmethod
    def read(cls, data: bytes, frame: LogFrame) -> Rows | None:
        """Of the bytes of a frame. None: they are damaged."""
        view = memoryview(data)
        meta = view[HEADER_BYTES : HEADER_BYTES + frame.meta_bytes]
        if (
            len(data) < frame.size
            or crc32(meta) != frame.meta_checksum
            or crc32(view[HEADER_BYTES + frame.meta_bytes : frame.size]) != frame.payload_checksum
        ):
            return None
        return cls(frame, data, meta)

    def message(self, row: int) -> Message:
        run, shift = row, 0
        if self._run_ends is not None:
            run = bisect_right(self._run_ends, row)
            shift = row - (self._run_ends[run - 1] if run else 0)
        begin, end = self._payload_ends[row : row + 2]
        return self._make(run, shift, self._data[begin:end])

    def messages(self) -> list[Message]:
        """All of them."""
        return self._each_alone() if self._run_ends is None else self._in_runs(self._run_ends)

    def _each_alone(self) -> list[Message]:
        data, text = self._data, self._text
        found: list[Message] = []
        begin = self._payloads_at
        ends = islice(self._payload_ends, 1, None)
        for end, topic, unusual, origin, epoch, sequence, published_us, flags in zip(
            ends, *self._fields, strict=True
        ):
            message = Message(
                text(topic),
                data[begin:end],
                flags & 3,
                flags & _RETAIN != 0,
                {},
                MessageId(text(origin), epoch, sequence) if origin else None,
                None,
                None if published_us == NO_TIME else published_us / 1e6,
            )
            if unusual:
                self._add_unusual(message, unusual)
            found.append(message)
            begin = end
        return found

    def _in_runs(self, run_ends: Sequence[int]) -> list[Message]:
        ends, data = self._payload_ends, self._data
        found: list[Message] = []
        row = 0
        for run, run_end in enumerate(run_ends):
            first = self._make(run, 0, data[ends[row] : ends[row + 1]])
            found.append(first)
            row += 1
            if row == run_end:
                continue
            topic, qos, retain, message_id = first.topic, first.qos, first.retain, first.id
            properties, expires_at = first.properties, first.expires_at
            published_at, first_at = first.published_at, first.first_at
            begin = ends[row]
            if message_id is None:
                ids: Sequence[MessageId] | None = None
            else:
                origin, epoch, sequence = message_id
                ids = [
                    MessageId(origin, epoch, number)
                    for number in range(sequence + 1, sequence + 1 + run_end - row)
                ]
            for shift, end in enumerate(islice(ends, row + 1, run_end + 1)):
                found.append(
                    Message(
                        topic, data[begin:end], qos, retain, properties.copy(),
                        None if ids is None else ids[shift], expires_at, published_at, first_at,
                    )
                )  # fmt: skip
                begin = end
            row = run_end
        return found

    def _make(self, run: int, shift: int, payload: bytes) -> Message:
        topic, text, origin, epoch, sequence, published_us, flags = [field[run] for field in self._fields]
        message = Message(
            self._text(topic),
            payload,
            flags & 3,
            flags & _RETAIN != 0,
            id=MessageId(self._text(origin), epoch, sequence + shift) if origin else None,
            published_at=None if published_us == NO_TIME else published_us / 1e6,
        )
        if text:
            self._add_unusual(message, text)
        return message

    def _text(self, number: int) -> str:
        text = self._texts.get(number)
        if text is None:
            text = str(self._strings[self._string_ends[number - 1] : self._string_ends[number]], "utf-8")
            self._texts[number] = text
        return text

    def _add_unusual(self, message: Message, number: int) -> None:
        record = self._unusual.get(number)
        if record is None:
            record = self._unusual[number] = read_record(self._text(number))
        extras = {name: record[name] for name in _EXTRAS if name in record}
        properties = {name: value for name, value in record.items() if name not in extras}
        message.properties = cast(Properties, properties)
        for name, value in extras.items():
            setattr(message, name, value)


def numbers(code: Any, data: memoryview) -> Sequence[int]:
    """A column. Where the machine counts as the file does, nothing is copied."""
    if sys.byteorder == "little":
        return data.cast(code) if code != "B" else data
    found = array(code, bytes(data))
    found.byteswap()
    return found


def read_record(text: str) -> dict[str, Any]:
    """Properties as JSON, as messages have them."""
    record: dict[str, Any] = json.loads(text)
    for name in BINARY_PROPERTIES:
        if name in record:
            record[name] = b64decode(record[name])
    if "user_property" in record:
        record["user_property"] = tuple(map(tuple, record["user_property"]))
    if "subscription_identifier" in record:
        record["subscription_identifier"] = tuple(record["subscription_identifier"])
    if "id" in record:
        record["id"] = MessageId(*record["id"])
    return record
