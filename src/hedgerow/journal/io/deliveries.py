"""Under which packet identifiers the newest messages of a journal came, for the recorder that wrote them.

A broker that has heard no acknowledgement sends a message once more under the same packet identifier. Where
messages have no ids, that is all by which it can be known again after the recorder was killed. The identifier
is in the very frame that holds the message, so there is no moment at which one is durable without the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, chain, repeat
from operator import add
from pathlib import Path
from struct import unpack
from typing import NamedTuple

from hedgerow.log import scan
from hedgerow.log.frame import LogFrame, SegmentFile


class RecordedDelivery(NamedTuple):
    position: int
    """Of the message."""
    broker: str
    packet_id: int
    topic: str
    payload: bytes


def last_deliveries(directory: Path, start: int, end: int, count: int) -> list[RecordedDelivery]:
    """The last `count` messages from `start` to before `end` that came under a packet identifier, in order.

    To be called by who holds the writer. It looks back step by step, further each time: most often the newest
    frames have enough.
    """
    step = count
    while True:
        begin = max(start, end - step)
        found = list(_deliveries(directory, begin, end))
        if begin <= start or len(found) >= count:
            return found[-count:]
        step *= 4


def _deliveries(directory: Path, start: int, end: int) -> Iterator[RecordedDelivery]:
    for _, file, frame in scan.frames(directory, start, end, lambda gap: None):
        for delivery in _in_frame(file, frame):
            if start <= delivery.position < end:
                yield delivery


def _in_frame(file: SegmentFile, frame: LogFrame) -> Iterator[RecordedDelivery]:
    meta = frame.read_meta(file)
    if meta is None:
        return
    packet_ids = frame.numbers(meta, "packet_id")
    payloads = frame.read_payloads(file) if any(packet_ids) else None
    if payloads is None:
        return
    texts = frame.texts(meta)
    names = ("packet_id", "broker", "topic", "head")
    runs = zip(*(frame.numbers(meta, name) for name in names), strict=True)
    rows = frame.numbers(meta, "rows")
    of_rows = list(chain.from_iterable(repeat(run, count) for run, count in zip(runs, rows, strict=True)))
    lengths = unpack(f"<{frame.rows}I", frame.lengths(meta))
    ends = list(accumulate(map(add, lengths, (run[-1] for run in of_rows))))
    for row, (packet_id, broker, topic, _) in enumerate(of_rows):
        if packet_id:
            payload = bytes(payloads[ends[row] - lengths[row] : ends[row]])
            yield RecordedDelivery(
                frame.first_position + row, texts[broker], packet_id, texts[topic], payload
            )
