"""What hearings say: what was lost or doubled, how long it took, and when something was heard again.

Delays are in milliseconds, other times in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import mean, pstdev
from typing import NamedTuple

from hedgerow_workshop.lab.harness.record import Arrival, Hearing


class Spread(NamedTuple):
    mean: float
    deviation: float


def spread(values: Iterable[float]) -> Spread | None:
    """None where there is no value."""
    found = list(values)
    return Spread(mean(found), pstdev(found)) if found else None


def lost(hearing: Hearing) -> list[int]:
    """Numbers that the subscriber was to get, and never got."""
    if not hearing.is_due:
        return []
    since = float("-inf") if hearing.since is None else hearing.since
    return [
        number for number, at in hearing.stream.sent.items() if at >= since and number not in hearing.numbers
    ]


def firsts(hearing: Hearing) -> Iterator[Arrival]:
    """Of each publication, its first arrival."""
    seen = set()
    for arrival in hearing.arrivals:
        if arrival.number not in seen:
            seen.add(arrival.number)
            yield arrival


def further(hearing: Hearing) -> Iterator[Arrival]:
    """The arrivals beyond the first of each publication."""
    seen = set()
    for arrival in hearing.arrivals:
        if arrival.number in seen:
            yield arrival
        seen.add(arrival.number)


def count_lost(hearings: Iterable[Hearing]) -> int:
    return sum(len(lost(hearing)) for hearing in hearings)


def count_doubled(hearings: Iterable[Hearing]) -> int:
    return sum(len(hearing.arrivals) - len(hearing.numbers) for hearing in hearings)


def delays(hearings: Iterable[Hearing]) -> Iterator[tuple[float, float]]:
    """(when it was published, ms until it first arrived), but for what only warms up."""
    for hearing in hearings:
        stream = hearing.stream
        for arrival in firsts(hearing):
            sent_at = stream.sent.get(arrival.number)
            if sent_at is not None and arrival.number >= stream.warm_up:
                yield sent_at, 1_000 * (arrival.at - sent_at)


def delays_ms(hearings: Iterable[Hearing]) -> list[float]:
    return [ms for _, ms in delays(hearings)]


def first_heard(hearings: Iterable[Hearing], since: float) -> float | None:
    """When something first arrived that was published after a moment."""
    times = [
        arrival.at
        for hearing in hearings
        for arrival in hearing.arrivals
        if hearing.stream.sent.get(arrival.number, since) > since
    ]
    return min(times, default=None)
