"""Figures of a run: what was lost, what came twice, and which links were dropped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from hedgerow_workshop.lab.harness.measure import firsts, further, lost
from hedgerow_workshop.lab.harness.record import Arrival, Hearing
from hedgerow_workshop.lab.overload.record import OverloadRecord

# A node that is killed takes its links along, and the old ones may be found out when it is back.
RETURN_S = 1.5
# A commit takes no longer, under whatever load.
UNSTORED_S = 2.0

_LEFT_OUT = re.compile(r"(\d+) more of NeighbourLost")


def count_lost(record: OverloadRecord, *, multicast: bool) -> int:
    return sum(len(lost(hearing)) for hearing in _hearings(record, multicast))


def _hearings(record: OverloadRecord, multicast: bool) -> Iterator[Hearing]:
    for hearing in record.hearings():
        if (hearing.stream.publisher in record.multicast) is multicast:
            yield hearing


def count_doubled(record: OverloadRecord, *, repeated: bool = False) -> int:
    """What came beyond the first time, but for what QoS 1 lets a broker send again (`repeated`)."""
    return sum(len(doubled(record, hearing, repeated=repeated)) for hearing in record.hearings())


def doubled(record: OverloadRecord, hearing: Hearing, *, repeated: bool = False) -> list[Arrival]:
    """A broker sends again, with DUP, what it does not know to have been read. One that was killed may not
    know that it had sent something, as it sends while it stores: so what a reader got just before it lost its
    connection may come once more, as new."""
    losses = record.losses.get(hearing.subscriber, ())
    first_at = {arrival.number: arrival.at for arrival in firsts(hearing)}

    def is_repeated(arrival: Arrival) -> bool:
        at = first_at[arrival.number]
        return arrival.is_repeated or any(
            at <= lost_at <= min(at + UNSTORED_S, arrival.at) for lost_at in losses
        )

    return [arrival for arrival in further(hearing) if is_repeated(arrival) is repeated]


def lost_links(node: str, log: Iterable[str]) -> Iterator[tuple[float, str, str]]:
    """(when, by the calendar; the neighbour; what the node told), of each link that was lost."""
    for line in log:
        try:
            told = json.loads(line)
        except ValueError:
            continue
        at = datetime.fromisoformat(told["ts"]).timestamp()
        if told["event"] == "neighbour_lost":
            yield at, told["fields"]["node_id"], f"{node}: {told['message']}"
        elif found := _LEFT_OUT.match(told["message"]):
            for _ in range(int(found[1])):
                yield at, "", f"{node}: {told['message']}"


def flaps(
    node: str,
    links: Iterable[tuple[float, str, str]],
    killed: str,
    absences: Sequence[tuple[float, float]],
    began_at: float,
) -> Iterator[tuple[float, str]]:
    """Those that were lost while both ends lived. `absences`: from when to when `killed` was away."""
    for at, neighbour, text in links:
        was_away = any(since <= at <= until + RETURN_S for since, until in absences)
        if at >= began_at and not (was_away and killed in (node, neighbour)):
            yield at, text


def incidents(record: OverloadRecord) -> Iterator[str]:
    """Who lost what, and what came twice."""
    for hearing in record.hearings():
        missing = lost(hearing)
        publisher, subscriber = hearing.stream.publisher, hearing.subscriber
        if missing:
            times = [hearing.stream.sent[number] - record.began_at for number in missing]
            yield (
                f"{subscriber} lost {len(missing)} of {publisher}, published from {min(times):.2f} to "
                f"{max(times):.2f} s"
            )
        again = doubled(record, hearing)
        if again:
            times = [arrival.at - record.began_at for arrival in again]
            yield (
                f"{subscriber} got {len(again)} of {publisher} again, from {min(times):.2f} to "
                f"{max(times):.2f} s"
            )
