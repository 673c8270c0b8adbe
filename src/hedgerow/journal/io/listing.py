"""What is in a journal, for people: its segments, its topics, its messages one by one. Needs no Arrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hedgerow.journal.io import files
from hedgerow.journal.io.pages import find_position, read_page
from hedgerow.journal.io.times import times_of
from hedgerow.journal.replay.names import POSITION, Start
from hedgerow.journal.replay.pages import Place
from hedgerow.log import scan
from hedgerow.log.files import segments
from hedgerow.log.frame import NO_TIME
from hedgerow.message import Message
from hedgerow.topics import matches

EVERYTHING = Start(POSITION, 0)


class ListedSegment(NamedTuple):
    name: str
    first_position: int
    end_position: int
    bytes: int
    earliest: float | None
    """When the first of it was received, Unix time; None: it holds nothing."""
    latest: float | None


class RecordedMessage(NamedTuple):
    position: int
    received_at: float
    client: str | None
    broker: str | None
    transport: str | None
    message: Message


def end_of(directory: Path) -> int:
    """Behind the newest message that is durable. StoreError: there is no journal."""
    files.journal_id(directory)
    told = files.durable_position(directory)
    if told is not None:
        return told
    ends = [frame.end_position for _, _, frame in scan.frames(directory, 0, None, lambda gap: None)]
    return max(ends, default=0)


def list_segments(directory: Path) -> list[ListedSegment]:
    """StoreError: there is no journal."""
    end = end_of(directory)
    found = segments(directory)
    listed = []
    for segment, following in zip(found, [*found[1:], None], strict=False):
        try:
            size = segment.path.stat().st_size
            times = times_of(segment, keeps=following is not None)
        except FileNotFoundError:
            continue  # Retention was here.
        behind = end if following is None else following.first_position
        earliest, latest = (None, None) if times is None else (times.earliest / 1e6, times.latest / 1e6)
        listed.append(
            ListedSegment(segment.path.name, segment.first_position, behind, size, earliest, latest)
        )
    return listed


def count_topics(directory: Path, start: Start = EVERYTHING, filters: Sequence[str] = ("#",)) -> Counter[str]:
    """How many messages each topic has. Payloads are not read."""
    end = end_of(directory)
    first = find_position(directory, start, filters, end)
    counts: Counter[str] = Counter()
    for _, file, frame in scan.frames(directory, first, end, lambda gap: None):
        meta = frame.read_meta(file)
        if meta is None:
            continue
        texts = frame.texts(meta)
        position = frame.first_position
        for number, rows in zip(frame.numbers(meta, "topic"), frame.numbers(meta, "rows"), strict=True):
            counts[texts[number]] += max(0, position + rows - max(position, first))
            position += rows
    return Counter({topic: count for topic, count in counts.items() if count and _matches(filters, topic)})


def recorded(
    directory: Path, start: Start = EVERYTHING, filters: Sequence[str] = ("#",)
) -> Iterator[RecordedMessage]:
    """Messages that match one of the filters, in order, up to what is durable now; what is damaged is left
    out. StoreError: there is no journal."""
    end = end_of(directory)
    position = find_position(directory, start, filters, end)
    wanted: dict[str, bool] = {}
    while position < end:
        place = Place(read_page(directory, position, end), position)
        while (runs := place.runs) is not None:
            run, count = place.run, runs.column("rows")[place.run] - place.shift
            topic = runs.text("topic", run) or ""
            if topic not in wanted:
                wanted[topic] = _matches(filters, topic)
            if wanted[topic]:
                received_at = runs.column("received_at")[run]
                for shift, payload in enumerate(
                    runs.cut(place.offset, runs.column("head")[run], place.row, count)
                ):
                    yield RecordedMessage(
                        place.position + shift,
                        0.0 if received_at == NO_TIME else received_at / 1e6,
                        runs.text("client", run),
                        runs.text("broker", run),
                        runs.text("transport", run),
                        runs.message(run, place.shift + shift, payload),
                    )
            place.advance(count, runs.size(run, place.row, count))
        position = place.position


def _matches(filters: Sequence[str], topic: str) -> bool:
    return any(matches(each, topic) for each in filters)
