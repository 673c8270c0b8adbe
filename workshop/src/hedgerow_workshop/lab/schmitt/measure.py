"""What records say: losses, doubled messages, how long it took to heal, and the document's α, β, γ and λ.

    α       from the moment that a broker goes until the agent knows
    β       from the moment that a broker takes connections again until a ghost link to it is up
    γ       from that moment until a subscriber there hears the publisher again: α + β in the document
    λ       from the command to create a bridge until it is up, and to delete one until it is gone

Functions of records alone. Times are in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hedgerow_workshop.lab.harness.measure import count_doubled, count_lost, first_heard
from hedgerow_workshop.lab.harness.record import Hearing
from hedgerow_workshop.lab.schmitt.record import BridgeState, Departure, SchmittRecord, StepTaken
from hedgerow_workshop.lab.schmitt.timeline import GOES, RETURNS

UP = "up"

Bridge = frozenset[str]
"""Its two ends, whichever carries it."""


def loss_percent(record: SchmittRecord, qos: int, broker: str | None = None) -> float:
    """Of the messages that were published, how many never reached the subscriber at a broker."""
    return 100 * count_lost(_heard(record, qos, broker)) / len(record.sent)


def doubled(record: SchmittRecord, qos: int, broker: str | None = None) -> int:
    """Deliveries beyond the first of each message."""
    return count_doubled(_heard(record, qos, broker))


def _heard(record: SchmittRecord, qos: int, broker: str | None) -> list[Hearing]:
    return [each for each in record.heard(broker or record.measured) if each.qos == qos]


def detections(record: SchmittRecord) -> Iterator[float]:
    """α, for each departure that the agent noticed."""
    for step, until in _steps(record, GOES):
        lost_at = _agent_event(record, "broker_lost", step, until)
        if lost_at is not None:
            yield lost_at - step.at


def heals(record: SchmittRecord) -> Iterator[float]:
    """How long the measured subscriber heard nothing new, for each departure.

    After a kill, from the moment that the agent knew; otherwise from the departure itself, as nobody can know
    at once. A departure after which nothing came any more has no time here: its messages count as lost.
    """
    for step, until in _steps(record, GOES):
        since = step.at
        if record.spec.departure is Departure.KILL:
            since = _agent_event(record, "broker_lost", step, until) or since
        heard_at = first_heard(record.heard(record.measured), since)
        if heard_at is not None:
            yield heard_at - since


class Transition(NamedTuple):
    """From one stage to the next, as the agent made it."""

    name: str
    broker: str
    does: str
    alpha: float | None
    """Until the agent knew."""
    gamma: float | None
    """Of one that returned: until its subscriber heard the publisher."""
    created: set[Bridge]
    deleted: set[Bridge]


def transitions(record: SchmittRecord) -> Iterator[Transition]:
    ends = [*(step.at for step in record.happened[1:]), float("inf")]
    for step, end_at in zip(record.happened, ends, strict=True):
        word = "broker_lost" if step.does == GOES else "broker_found"
        known_at = _agent_event(record, word, step, end_at)
        heard_at = first_heard(record.heard(step.broker), step.at) if step.does == RETURNS else None
        commands = [
            (event["action"], frozenset((event["broker"], event["far"])))
            for event in record.agent
            if event["event"] == "command_sent" and step.at <= event["time"] < end_at
        ]
        yield Transition(
            step.name,
            step.broker,
            step.does,
            None if known_at is None else known_at - step.at,
            None if heard_at is None else heard_at - step.at,
            {bridge for action, bridge in commands if action == "create"},
            {bridge for action, bridge in commands if action == "delete"},
        )


def ghost_reconnections(record: SchmittRecord) -> Iterator[float]:
    """β, for each bridge that waited for a broker that returned."""
    for step, until in _steps(record, RETURNS):
        for states in _by_bridge(record).values():
            if states[0].far != step.broker or states[0].broker in _away(record, step.at):
                continue
            before = [each.state for each in states if each.at <= step.at]
            up_at = [each.at for each in states if step.at < each.at < until and each.state == UP]
            if before and before[-1] not in ("", UP) and up_at:
                yield up_at[0] - step.at


def returns(record: SchmittRecord) -> Iterator[float]:
    """γ, for each broker that returned."""
    for step, _ in _steps(record, RETURNS):
        heard_at = first_heard(record.heard(step.broker), step.at)
        if heard_at is not None:
            yield heard_at - step.at


def away_percent(record: SchmittRecord, broker: str) -> float:
    """Of the run, how long a broker was away."""
    away_s = 0.0
    for step, until in _steps(record, GOES):
        if step.broker == broker:
            away_s += min(until, record.ended_at) - step.at
    return 100 * away_s / (record.ended_at - record.began_at)


def never_heard_again(record: SchmittRecord) -> list[str]:
    """Brokers that returned, and whose subscribers received nothing that was published afterwards."""
    return [
        step.broker
        for step, _ in _steps(record, RETURNS)
        if first_heard(record.heard(step.broker), step.at) is None and record.sent[-1] > step.at
    ]


def commands(record: SchmittRecord, action: str) -> Iterator[float]:
    """λ: from the first command of the agent to the event that says that it was done."""
    done = {"create": "bridge_up", "delete": "bridge_gone"}[action]
    waiting: dict[frozenset[str], float] = {}
    for event in record.agent:
        if not {"broker", "far"} <= event.keys():
            continue
        bridge = frozenset((event["broker"], event["far"]))
        if event["event"] == "command_sent" and event["action"] == action:
            waiting.setdefault(bridge, event["time"])
        elif event["event"] == "command_sent":
            waiting.pop(bridge, None)
        elif event["event"] == done and bridge in waiting:
            yield event["time"] - waiting.pop(bridge)


def live_bridges(record: SchmittRecord, at: float) -> set[tuple[str, str]]:
    """(near, far) of the bridges that were up at a moment, as far as living brokers said so."""
    away = _away(record, at)
    found = set()
    for (near, far), states in _by_bridge(record).items():
        said = [each.state for each in states if each.at <= at]
        if said and said[-1] == UP and not {near, far} & away:
            found.add((near, far))
    return found


def ghost_bridges(record: SchmittRecord, at: float) -> set[tuple[str, str]]:
    """(near, far) of those that were there and not up."""
    live = live_bridges(record, at)
    found = set()
    for bridge, states in _by_bridge(record).items():
        said = [each.state for each in states if each.at <= at]
        if said and said[-1] and bridge not in live:
            found.add(bridge)
    return found


def _away(record: SchmittRecord, at: float) -> set[str]:
    """The brokers that are away at a moment."""
    away: set[str] = set()
    for step in record.happened:
        if step.at <= at:
            (away.add if step.does == GOES else away.discard)(step.broker)
    return away


def _by_bridge(record: SchmittRecord) -> dict[tuple[str, str], list[BridgeState]]:
    found: dict[tuple[str, str], list[BridgeState]] = {}
    for state in record.bridges:
        found.setdefault((state.broker, state.far), []).append(state)
    return found


def _steps(record: SchmittRecord, does: str) -> Iterator[tuple[StepTaken, float]]:
    """Steps of one kind, with the time of whatever happened next to the same broker."""
    for index, step in enumerate(record.happened):
        if step.does == does:
            later = [each.at for each in record.happened[index + 1 :] if each.broker == step.broker]
            yield step, later[0] if later else float("inf")


def _agent_event(record: SchmittRecord, name: str, step: StepTaken, until: float) -> float | None:
    times = [
        float(event["time"])
        for event in record.agent
        if event["event"] == name and event["broker"] == step.broker and step.at <= event["time"] < until
    ]
    return min(times, default=None)
