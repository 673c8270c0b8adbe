"""What records say: delays, their ratio, and what was lost, doubled, or waited. Functions of records alone.

Delays are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import mean, pstdev
from typing import NamedTuple

from hedgerow_workshop.lab.morales.record import FarmArrival, FarmRecord, Record, Spec
from hedgerow_workshop.lab.morales.setting import DELAYS_S, NAIVE, window_name
from hedgerow_workshop.lab.morales.traffic import BURST

WAITED_S = 0.5
"""No delivery takes so long, unless something was out of reach."""
IN_FLIGHT_S = 0.1
"""What is sent so shortly before coverage ends may be on its way then."""


class Delay(NamedTuple):
    mean: float
    deviation: float


def delays(record: Record) -> Iterator[float]:
    """Until a publication first arrived; of what is measured."""
    seen = set()
    for number, at in record.arrived:
        if number >= record.warm_up and number not in seen:
            seen.add(number)
            yield 1_000 * (at - record.sent[number])


def delay(record: Record) -> Delay | None:
    """None where nothing arrived."""
    found = list(delays(record))
    return Delay(mean(found), pstdev(found)) if found else None


def share_beyond(record: Record) -> float | None:
    """Percent of the deliveries that cannot have been made without the fixed broker's answer."""
    round_trip_ms = 2_000 * DELAYS_S[record.spec.uplink]
    found = list(delays(record))
    return 100 * sum(each >= round_trip_ms for each in found) / len(found) if found else None


def count_lost(record: Record) -> int:
    """Of the warm-up too."""
    return len(record.sent) - len({arrival.number for arrival in record.arrived})


def count_doubled(record: Record) -> int:
    return len(record.arrived) - len({arrival.number for arrival in record.arrived})


class Delays:
    """The mean delays of all runs, by what they were."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.means: dict[Spec, float] = {}
        for record in records:
            found = delay(record)
            if found is not None:
                self.means[record.spec] = found.mean

    def naive(self, like: Spec) -> float | None:
        """Of the same traffic: the mean of both halves, so that every topic is delegated once."""
        found = [self.means.get(replace(like, algorithm=algorithm)) for algorithm in NAIVE]
        known = [value for value in found if value is not None]
        return mean(known) if len(known) == len(NAIVE) else None

    def ratio(self, spec: Spec) -> float | None:
        """To the naïve one."""
        naive = self.naive(spec)
        return None if naive is None else self.means[spec] / naive


def is_burst(spec: Spec) -> bool:
    return spec.traffic.startswith(BURST)


def point_name(spec: Spec) -> str:
    """As rows have it: the traffic, and for bursts the window."""
    window_s = spec.algorithm.window_s
    return f"burst/{window_name(window_s)}" if is_burst(spec) and window_s else spec.traffic


# The farm


def farm_missing(record: FarmRecord) -> Iterator[tuple[str, str, int]]:
    """(subscriber, publisher, number) of what counts and has not arrived."""
    for subscriber, arrivals in record.arrived.items():
        heard = {(arrival.publisher, arrival.number) for arrival in arrivals}
        since = record.since.get(subscriber)
        for publisher, sent in record.sent.items():
            for number, at in enumerate(sent):
                if since is not None and at >= since and (publisher, number) not in heard:
                    yield subscriber, publisher, number


def farm_doubled(record: FarmRecord) -> int:
    """Deliveries beyond the first, other than those that the broker repeated on a new connection."""
    return sum(not arrival.is_repeated for arrival in _further(record))


def farm_repeated(record: FarmRecord) -> int:
    """Those."""
    return sum(arrival.is_repeated for arrival in _further(record))


def _further(record: FarmRecord) -> Iterator[FarmArrival]:
    """What a subscriber had received before."""
    for arrivals in record.arrived.values():
        seen: set[tuple[str, int]] = set()
        for arrival in arrivals:
            name = arrival.publisher, arrival.number
            if name in seen:
                yield arrival
            seen.add(name)


def farm_delivered(record: FarmRecord) -> int:
    """Each message once for each subscriber."""
    return sum(len(_firsts(arrivals)) for arrivals in record.arrived.values())


def farm_waits(record: FarmRecord) -> Iterator[tuple[str, FarmArrival, float]]:
    """(subscriber, what arrived, seconds) of what waited for coverage, and was handed on."""
    for subscriber, arrivals in record.arrived.items():
        for arrival in _firsts(arrivals):
            sent_at = (record.sent.get(arrival.publisher) or record.datagrams[arrival.publisher])[
                arrival.number
            ]
            if arrival.at - sent_at > WAITED_S:
                yield subscriber, arrival, arrival.at - sent_at


def farm_heard(record: FarmRecord, subscriber: str) -> float | None:
    """Percent of the datagrams that arrived, of those that were sent while nothing was out of coverage and
    nobody had to catch up. The others may be lost, as datagrams and as QoS 0."""
    heard = {(arrival.publisher, arrival.number) for arrival in record.arrived.get(subscriber, ())}
    sent = [
        (sensor, number)
        for sensor, times in record.datagrams.items()
        for number, at in enumerate(times)
        if not any(each.began_at - IN_FLIGHT_S <= at <= each.caught_up_at for each in record.outages)
    ]
    return 100 * sum(each in heard for each in sent) / len(sent) if sent else None


def _firsts(arrivals: Sequence[FarmArrival]) -> list[FarmArrival]:
    firsts: dict[tuple[str, int], FarmArrival] = {}
    for arrival in arrivals:
        firsts.setdefault((arrival.publisher, arrival.number), arrival)
    return list(firsts.values())
