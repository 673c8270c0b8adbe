"""Figures of a run: what was lost, what came twice, who moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from hedgerow_workshop.lab.storm.record import Kind, Record, Tally


class Counts(NamedTuple):
    """Of all subscribers of one kind."""

    expected: int
    lost: int
    doubled: int
    """Everything beyond the first time, with DUP or without."""
    repeated: int
    """Those of them that came with DUP."""
    moves: int
    """Connections after the first."""


def count(record: Record, kind: Kind) -> Counts | None:
    """None where there was no subscriber of this kind."""
    tallies = [tally for tally in record.tallies if tally.kind is kind]
    if not tallies:
        return None
    return Counts(
        sum(len(record.sent[tally.topic]) for tally in tallies),
        sum(len(lost(record, tally)) for tally in tallies),
        sum(len(tally.numbers) - len(set(tally.numbers)) for tally in tallies),
        sum(sum((doubled(tally) & Counter(tally.repeated)).values()) for tally in tallies),
        sum(max(0, len(tally.connections) - 1) for tally in tallies),
    )


def lost(record: Record, tally: Tally) -> list[int]:
    return sorted(set(range(len(record.sent[tally.topic]))) - set(tally.numbers))


def doubled(tally: Tally) -> Counter[int]:
    """Number → how many times too often."""
    return Counter(tally.numbers) - Counter(set(tally.numbers))


def delays_ms(record: Record, kind: Kind) -> list[float]:
    """Of all that came, each number's first time."""
    found = []
    for tally in record.tallies:
        if tally.kind is kind:
            sent, seen = record.sent[tally.topic], set()
            for number, at in zip(tally.numbers, tally.times, strict=True):
                if number not in seen and number < len(sent):
                    seen.add(number)
                    found.append(1_000 * (at - sent[number]))
    return sorted(found)


def incidents(record: Record) -> Iterator[tuple[float, str]]:
    """Each publication that was lost or doubled: (seconds since the beginning, what)."""
    for tally in record.tallies:
        sent = record.sent[tally.topic]
        for number in lost(record, tally):
            yield sent[number] - record.began_at, f"{tally.name}: {tally.topic} {number} lost"
        for number, times in doubled(tally).items():
            moments = [
                f"{at - record.began_at:.3f}"
                for each, at in zip(tally.numbers, tally.times, strict=True)
                if each == number
            ]
            text = f"{tally.name}: {tally.topic} {number} came {times + 1} times, at {', '.join(moments)} s"
            yield sent[number] - record.began_at, text
