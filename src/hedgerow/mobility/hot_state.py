"""What people see of hot topics: registries, scores, the plan and moves, as JSON under `$SYS/broker/hot/`.

    registry/in, registry/out   {"count": 3, "topics": [the first 200]}
    scores                      {"count": 3, "scores": {topic: score; the first 200}}
    plan                        {"version": 7, "expires_in_s": 60, "topics": 12}, or null
    uncounted                   events for which there was no room
    moves                       the last 50, the newest last: {"what", "which", "at" (Unix time), "fixed"}
    fixed                       the state of the link to the fixed broker

Each is retained, and told again when it has changed. As with all of the broker's `$SYS`, nothing is written
to the disk: a node that starts has decided nothing yet.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import ceil
from typing import TYPE_CHECKING

from hedgerow.broker.publishing import publish_message
from hedgerow.message import Message

if TYPE_CHECKING:
    from hedgerow.broker.broker import Broker
    from hedgerow.hot.monitor import Monitor
    from hedgerow.hot.plan import HotPlan

HOT_TOPIC = "$SYS/broker/hot/"
TELL_S = 0.25  # between two looks
MAX_TOPICS = 200
MAX_MOVES = 50
PLAN_S = 10.0  # How long a plan still lasts changes all the time; it is told anew this often.

# Ranks of tens of thousands of topics take tens of milliseconds to find: then it is told less often.
QUICK_TOPICS = 1_000


class HotState:
    """`look` whenever something may have changed, `handle_timer` at `deadline`."""

    def __init__(self, broker: Broker, monitor: Monitor, now: float) -> None:
        self.link: Mapping[str, object] | None = None
        """What there is to say of the link to the fixed broker. None: this node has none."""
        self.deadline = now
        self._broker = broker
        self._monitor = monitor
        self._moves: deque[Mapping[str, object]] | None = None
        self._told: dict[str, bytes] = {}
        self._pace_s = TELL_S
        self._told_at = float("-inf")
        self._plan: HotPlan | None = None
        self._plan_at = float("-inf")

    def look(self, now: float) -> None:
        self.deadline = min(self.deadline, max(now, self._told_at + self._pace_s))

    def note_move(self, move: Mapping[str, object], now: float) -> None:
        """A topic was delegated or recovered, a client sent or back, all taken over, a fixed broker left."""
        if self._moves is None:
            self._moves = deque(maxlen=MAX_MOVES)
        self._moves.append(move)
        self.look(now)

    def handle_timer(self, now: float) -> None:
        self.deadline = float("inf")
        self._told_at = now
        for name, value in self._describe(now):
            payload = json.dumps(value, separators=(",", ":")).encode()
            if payload != self._told.get(name):
                self._told[name] = payload
                self._tell(HOT_TOPIC + name, payload, now)

    def _describe(self, now: float) -> Iterator[tuple[str, object]]:
        monitor = self._monitor
        yield "registry/in", _list(monitor.in_registry)
        yield "registry/out", _list(monitor.out_registry)
        scores = monitor.scores
        self._pace_s = TELL_S * max(1.0, len(scores) / QUICK_TOPICS)
        yield "scores", {"count": len(scores), "scores": dict(islice(scores.items(), MAX_TOPICS))}
        yield "uncounted", monitor.uncounted
        yield from self._describe_plan(now)
        if self._moves is not None:
            yield "moves", list(self._moves)
        if self.link is not None:
            yield "fixed", self.link

    def _describe_plan(self, now: float) -> Iterator[tuple[str, object]]:
        plan = self._monitor.plan
        if plan is None:
            yield "plan", None
        elif plan is not self._plan or now >= self._plan_at + PLAN_S:
            self._plan_at = now
            expires_in_s = max(0, ceil(plan.expires_at - now))
            yield "plan", {"version": plan.version, "expires_in_s": expires_in_s, "topics": len(plan.keep)}
        self._plan = plan
        if plan is not None:
            self.deadline = self._plan_at + PLAN_S

    def _tell(self, topic: str, payload: bytes, now: float) -> None:
        broker = self._broker
        broker.now = now
        broker.retained.set(Message(topic, payload, 1, True))
        # By nobody, as the rest of $SYS: what people watch is no event that makes a topic hot.
        publish_message(broker, Message(topic, payload, 1), broker.subscriptions.route(topic), None)


def _list(topics: Sequence[str]) -> dict[str, object]:
    return {"count": len(topics), "topics": topics[:MAX_TOPICS]}
