"""Figures of a run: what was lost, what came twice, who moved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hedgerow_workshop.lab.harness.measure import count_doubled, count_lost, further, lost
from hedgerow_workshop.lab.harness.record import Hearing
from hedgerow_workshop.lab.storm.record import StormRecord, SubscriberKind


class KindCounts(NamedTuple):
    """Of all subscribers of one kind."""

    expected: int
    lost: int
    doubled: int
    """Everything beyond the first time, with DUP or without."""
    repeated: int
    """Those of them that came with DUP."""
    moves: int
    """Connections after the first."""


def of_kind(record: StormRecord, kind: SubscriberKind) -> list[Hearing]:
    return [hearing for hearing in record.hearings() if hearing.group == kind]


def count(record: StormRecord, kind: SubscriberKind) -> KindCounts | None:
    """None where there was no subscriber of this kind."""
    hearings = of_kind(record, kind)
    if not hearings:
        return None
    return KindCounts(
        sum(len(hearing.stream.sent) for hearing in hearings),
        count_lost(hearings),
        count_doubled(hearings),
        sum(arrival.is_repeated for hearing in hearings for arrival in further(hearing)),
        sum(max(0, len(tally.connections) - 1) for tally in record.tallies if tally.kind is kind),
    )


def incidents(record: StormRecord) -> Iterator[tuple[float, str]]:
    """Each publication that was lost or doubled: (seconds since the beginning, what)."""
    for hearing in record.hearings():
        sent, topic = hearing.stream.sent, hearing.stream.topic
        for number in lost(hearing):
            yield sent[number] - record.began_at, f"{hearing.subscriber}: {topic} {number} lost"
        for number in dict.fromkeys(arrival.number for arrival in further(hearing)):
            times = [f"{each.at - record.began_at:.3f}" for each in hearing.arrivals if each.number == number]
            text = f"{hearing.subscriber}: {topic} {number} came {len(times)} times, at {', '.join(times)} s"
            yield sent[number] - record.began_at, text
