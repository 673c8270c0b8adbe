"""A journal read row by row, without Arrow: what the columns are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import unpack
from typing import NamedTuple

from hedgerow.journal.io.files import durable_position
from hedgerow.log import scan
from hedgerow.log.frame import RUN_FIELDS, LogFrame
from hedgerow.log.scan import Gap
from hedgerow.message import Message, MessageId


class Row(NamedTuple):
    position: int
    id: MessageId | None
    broker: str | None
    transport: str | None
    client: str | None
    topic: str | None
    payload: bytes
    flags: int
    properties: str | None
    published_at: int
    received_at: int


def read_plain(directory: Path, start: int = 0, gaps: list[Gap] | None = None) -> list[Row]:
    """What is durable, from `start`."""
    rows: list[Row] = []
    gaps = [] if gaps is None else gaps
    for segment, file, frame in scan.frames(directory, start, durable_position(directory), gaps.append):
        meta, payloads = frame.read_meta(file), frame.read_payloads(file)
        if meta is None or payloads is None:
            gaps.append(scan.damage_in(segment, frame, "frame"))
        else:
            rows += [row for row in _rows(frame, meta, bytes(payloads)) if row.position >= start]
    return rows


def _rows(frame: LogFrame, meta: memoryview, payloads: bytes) -> Iterator[Row]:
    strings: list[str | None] = [None, *frame.texts(meta)[1:]]
    lengths = iter(unpack(f"<{frame.rows}I", frame.lengths(meta)))
    at = 0
    runs = zip(*(frame.numbers(meta, name) for name in RUN_FIELDS), strict=True)
    position = frame.first_position
    for count, *numbers, epoch, sequence, published_at, received_at, flags, head, _ in runs:
        broker, transport, client, origin, topic, properties = (strings[number] for number in numbers)
        for shift in range(count):
            begin = at + head
            at = begin + next(lengths)
            yield Row(
                position,
                None if origin is None else MessageId(origin, epoch, sequence + shift),
                broker,
                transport,
                client,
                topic,
                payloads[begin:at],
                flags,
                properties,
                published_at,
                received_at,
            )
            position += 1


def numbered(sequence: int, topic: str = "field/1", payload: bytes | None = None) -> Message:
    """A message with an id."""
    content = b"%d" % sequence if payload is None else payload
    return Message(topic, content, 1, id=MessageId("node-a", 1, sequence))
