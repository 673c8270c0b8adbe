"""What records say: mean delays and their ratio, and on the farm what was lost, doubled, or waited.

Delays are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from statistics import mean

from hedgerow_workshop.lab.harness.measure import delays_ms, firsts, further, lost, spread
from hedgerow_workshop.lab.harness.record import Arrival
from hedgerow_workshop.lab.morales.record import FarmRecord, MoralesRecord, MoralesSpec, SceneRecord
from hedgerow_workshop.lab.morales.setting import DELAYS_S, NAIVE, window_name
from hedgerow_workshop.lab.morales.traffic import BURST

WAITED_S = 0.5
"""No delivery takes so long, unless something was out of reach."""
IN_FLIGHT_S = 0.1
"""What is sent so shortly before coverage ends may be on its way then."""


def share_beyond(record: MoralesRecord) -> float | None:
    """Percent of the deliveries that cannot have been made without the fixed broker's answer."""
    round_trip_ms = 2_000 * DELAYS_S[record.spec.uplink]
    found = delays_ms(record.hearings())
    return 100 * sum(each >= round_trip_ms for each in found) / len(found) if found else None


class MeanDelays:
    """The mean delays of all runs, by what they were."""

    def __init__(self, records: Iterable[MoralesRecord]) -> None:
        self.means: dict[MoralesSpec, float] = {}
        for record in records:
            for part in record.bursts():
                found = spread(delays_ms(part.hearings()))
                if found is not None:
                    self.means[part.spec] = found.mean

    def naive(self, like: MoralesSpec) -> float | None:
        """Of the same traffic: the mean of both halves, so that every topic is delegated once."""
        found = [self.means.get(replace(like, algorithm=algorithm)) for algorithm in NAIVE]
        known = [value for value in found if value is not None]
        return mean(known) if len(known) == len(NAIVE) else None

    def ratio(self, spec: MoralesSpec) -> float | None:
        """To the naïve one."""
        naive = self.naive(spec)
        return None if naive is None else self.means[spec] / naive


def is_burst(spec: MoralesSpec) -> bool:
    return spec.traffic.startswith(BURST)


def point_name(spec: MoralesSpec) -> str:
    """As rows have it: the traffic, for bursts the window, and the score unless it is the default."""
    window_s = spec.algorithm.window_s
    name = f"burst/{window_name(window_s)}" if is_burst(spec) and window_s else spec.traffic
    return name if spec.algorithm.score == "window" else f"{name}/{spec.algorithm.score}"


# Scenes, the farm among them


def missing(record: SceneRecord) -> Iterator[tuple[str, str, int]]:
    """(subscriber, publisher, number) of what counts and has not arrived."""
    for hearing in record.hearings():
        for number in lost(hearing):
            yield hearing.subscriber, hearing.stream.publisher, number


def doubled(record: SceneRecord) -> int:
    """Deliveries beyond the first, other than those that the broker repeated on a new connection."""
    return sum(not arrival.is_repeated for hearing in record.hearings() for arrival in further(hearing))


def repeated(record: SceneRecord) -> int:
    """Those."""
    return sum(arrival.is_repeated for hearing in record.hearings() for arrival in further(hearing))


def disordered(record: SceneRecord) -> int:
    """First deliveries that came after one that the same publisher had said later."""
    count = 0
    for hearing in record.hearings():
        last = -1
        for arrival in firsts(hearing):
            count += arrival.number < last
            last = max(last, arrival.number)
    return count


def delivered(record: SceneRecord) -> int:
    """Each message once for each subscriber."""
    return sum(len(hearing.numbers) for hearing in record.hearings())


def waits(record: SceneRecord, longer_s: float = WAITED_S) -> Iterator[tuple[str, Arrival, float]]:
    """(subscriber, what arrived, seconds) of what waited so long, and was handed on."""
    for hearing in record.hearings():
        since = hearing.since or float("-inf")
        for arrival in firsts(hearing):
            sent_at = hearing.stream.sent[arrival.number]
            if sent_at >= since and arrival.at - sent_at > longer_s:
                yield hearing.subscriber, arrival, arrival.at - sent_at


def longest_wait_s(record: SceneRecord) -> float | None:
    """Of all deliveries that count."""
    return max((seconds for _, _, seconds in waits(record, 0.0)), default=None)


def farm_heard(record: FarmRecord, subscriber: str) -> float | None:
    """Percent of the datagrams that arrived, of those that were sent while nothing was out of coverage and
    nobody had to catch up. The others may be lost, as datagrams and as QoS 0."""
    arrived = [
        number in hearing.numbers
        for hearing in record.heard(subscriber)
        if hearing.stream.publisher in record.datagrams
        for number, at in hearing.stream.sent.items()
        if not any(each.began_at - IN_FLIGHT_S <= at <= each.caught_up_at for each in record.outages)
    ]
    return 100 * sum(arrived) / len(arrived) if arrived else None
