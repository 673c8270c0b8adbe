"""Records of runs that never were, with what the tests want to read from them."""

from __future__ import annotations

from hedgerow_workshop.lab.harness.record import Received
from hedgerow_workshop.lab.spohn import grid
from hedgerow_workshop.lab.spohn.record import Failure, Misfortune, Setting, SpohnRecord, SpohnSpec, State

BEGAN_AT = 1_000.0
INTERVAL_S = 0.05


def make_states(topic: str) -> dict[str, State]:
    """As all nodes would say it of the document's mesh."""
    return {
        node: {
            "node": node,
            "neighbours": {other: {"round_trip_ms": 10.0, "queued": 0} for other in grid.neighbours(node)},
            "filters": {
                topic: {
                    "core": grid.CORE,
                    "distance": len(grid.path(node, grid.CORE)) - 1,
                    "parents": sorted(grid.PARENTS.get(node, ["1"])),
                    "children": [],
                    "member": node in grid.PARENTS,
                    "local": node in grid.SUBSCRIBERS,
                }
            },
            "ignored": {},
        }
        for node in grid.NODES
    }


def make_delays(kind: str, count: int, delays_s: dict[str, float], node: str = "") -> SpohnRecord:
    """Every publication takes so long to each subscriber. `node`: the broker's, of a centralised run."""
    record = SpohnRecord(SpohnSpec(kind, Setting.CENTRALISED if node else Setting.FEDERATED, count, node))
    record.sent = {"6": [BEGAN_AT + number * INTERVAL_S for number in range(count)]}
    for subscriber, delay_s in delays_s.items():
        record.arrived[subscriber] = [
            Received("6", number, at + delay_s) for number, at in enumerate(record.sent["6"])
        ]
    if not node:
        record.states = [make_states(record.topic) for _ in range(2)]
    record.ended_at = BEGAN_AT + count * INTERVAL_S + 1
    return record


def make_failures(kind: str) -> SpohnRecord:
    """Node 4 is killed at 1 s, link 4-5 cut at 3 s; node 2 then hears nothing of 0 for 0.2 s and 1.5 s."""
    record = SpohnRecord(SpohnSpec(kind, Setting.FAILURES))
    times = [BEGAN_AT + number * INTERVAL_S for number in range(100)]
    record.sent = {"6": times, "0": times}
    silences = ((BEGAN_AT + 1, BEGAN_AT + 1.2), (BEGAN_AT + 3, BEGAN_AT + 4.5))
    for subscriber in ("7", "2"):
        for publisher in record.sent:
            for number, at in enumerate(times):
                for begin, end in silences if (publisher, subscriber) == ("0", "2") else ():
                    at = end if begin < at < end else at
                record.arrived.setdefault(subscriber, []).append(Received(publisher, number, at + 0.02))
    record.happened = [
        Failure(Misfortune.KILL, "4", BEGAN_AT + 1, BEGAN_AT + 2.5),
        Failure(Misfortune.CUT, "4-5", BEGAN_AT + 3),
    ]
    record.states = [make_states(record.topic) for _ in range(2)]
    record.ended_at = BEGAN_AT + 7
    return record
