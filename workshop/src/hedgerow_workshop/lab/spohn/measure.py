"""What records say: delays, what was lost or doubled, how long it took to heal, and which mesh there was.

Functions of records alone. Delays are in milliseconds, other times in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import mean, pstdev
from typing import Any, NamedTuple

from hedgerow_workshop.lab.spohn import grid
from hedgerow_workshop.lab.spohn.record import Misfortune, Record, State


class Delay(NamedTuple):
    mean: float
    deviation: float


def delays(record: Record, subscriber: str, of: str | None = None) -> Iterator[tuple[float, float]]:
    """(when it was published, ms until it first arrived), as they arrived; of one publisher or all."""
    seen = set()
    for publisher, number, at in record.arrived[subscriber]:
        if (publisher, number) not in seen and of in (None, publisher):
            seen.add((publisher, number))
            sent_at = record.sent[publisher][number]
            yield sent_at, 1_000 * (at - sent_at)


def delay(record: Record, subscriber: str) -> Delay | None:
    """None where nothing arrived."""
    found = [ms for _, ms in delays(record, subscriber)]
    return Delay(mean(found), pstdev(found)) if found else None


def count_lost(record: Record) -> int:
    """Publications that a subscriber never received, over all subscribers."""
    published = sum(map(len, record.sent.values()))
    return sum(published - len(set(_ids(record, subscriber))) for subscriber in record.arrived)


def count_doubled(record: Record) -> int:
    """Deliveries beyond the first of each publication at each subscriber."""
    doubled = 0
    for subscriber, arrivals in record.arrived.items():
        doubled += len(arrivals) - len(set(_ids(record, subscriber)))
    return doubled


def heals(record: Record, misfortune: Misfortune) -> Iterator[tuple[str, float]]:
    """For each node or link that failed: how long until every subscriber had received something from every
    publisher that was published after it. Where that never came, until the end of the run."""
    for happened in record.happened:
        if happened.misfortune is misfortune:
            worst = max(
                _first_heard(record, publisher, subscriber, happened.at)
                for publisher in record.sent
                for subscriber in record.arrived
            )
            yield happened.what, worst - happened.at


def _first_heard(record: Record, publisher: str, subscriber: str, since: float) -> float:
    sent = record.sent[publisher]
    times = [
        arrival.at
        for arrival in record.arrived[subscriber]
        if arrival.publisher == publisher and sent[arrival.number] > since
    ]
    return min(times, default=record.ended_at)


def _ids(record: Record, subscriber: str) -> Iterator[tuple[str, int]]:
    for arrival in record.arrived[subscriber]:
        yield arrival.publisher, arrival.number


def link_differences(states: Mapping[str, State]) -> list[str]:
    """Where nodes are linked to others than the grid has it; nothing when all is as it should be."""
    return [f"node {node} {said}" for node in grid.NODES for said in _wrong_links(node, states.get(node))]


def mesh_differences(states: Mapping[str, State], topic_filter: str) -> list[str]:
    """These, and what of the mesh is not as in the document's figure 5."""
    found = link_differences(states)
    for node, state in sorted(states.items()):
        found += [f"node {node} {said}" for said in _wrong_mesh(node, state["filters"].get(topic_filter))]
    return found


def _wrong_links(node: str, state: State | None) -> Iterator[str]:
    if state is None:
        yield "has said nothing"
    elif (neighbours := sorted(state["neighbours"])) != grid.neighbours(node):
        yield f"has the neighbours {_names(neighbours)}, not {_names(grid.neighbours(node))}"


def _wrong_mesh(node: str, mesh: Mapping[str, Any] | None) -> Iterator[str]:
    if mesh is None:
        yield "knows no mesh"
        return
    if mesh["core"] != grid.CORE:
        yield f"takes {mesh['core']} for the core, not {grid.CORE}"
    if bool(mesh["member"]) != (node in grid.PARENTS):
        yield "is a member" if mesh["member"] else "is no member"
    elif node in grid.PARENTS and set(mesh["parents"]) != grid.PARENTS[node]:
        yield f"has the parents {_names(mesh['parents'])}, not {_names(sorted(grid.PARENTS[node]))}"


def _names(nodes: list[str]) -> str:
    return ", ".join(nodes) or "none"
