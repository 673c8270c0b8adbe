"""Neighbours that are away, or have just come back, and what is kept for them.

The session of a neighbour that is gone keeps its filters, and what is published waits in it. It is as good as
a subscriber here: behind it may be those whom nobody else on this side of a cut knows of. So its filters are
this node's own interests, which the federation brings here, for as long as its session is kept. When it is
back, its mesh forms again and it is given what it needs now; the rest is taken back. One that left for other
neighbours has them: nothing is kept for it.
"""

from __future__ import annotations

from hedgerow.broker.broker import Broker
from hedgerow.broker.session import Session
from hedgerow.federation.lingering import LingeringMeshes
from hedgerow.federation.mesh.federator import Federator
from hedgerow.federation.neighbour_session import take_back
from hedgerow.federation.neighbours import NEIGHBOUR_PREFIX
from hedgerow.federation.overlay.limits import STATIC_AGAIN_S

LOOK_AGAIN_S = 5.0  # whether a session has expired; not more often, whatever its time is
# Filters that it was not given by then are of a mesh that it has left. Since it and this node have told each
# other all that they know: those behind it come back a moment later, at the latest with their next dial.
SETTLE_S = STATIC_AGAIN_S[-1] + 0.5
UNHEARD_S = 10.0  # if it never says so: its link may have much else to carry first


class Absences:
    def __init__(self, broker: Broker, federator: Federator, lingering: LingeringMeshes) -> None:
        self._broker = broker
        self._lingering = lingering
        self._federator = federator
        self._away_at: dict[str, float] = {}  # by neighbour that is gone: when its session has expired
        self._settle_at: dict[str, float] = {}  # by neighbour that is back
        self._kept: dict[str, list[str]] = {}  # by neighbour: its filters that are our interests

    def gone(self, node_id: str, now: float) -> None:
        """To be told before the federator is: who leaves a mesh and comes back in a moment misses what is
        published in between."""
        self._settle_at.pop(node_id, None)
        session = self._session(node_id)
        filters = list(session.subscriptions or ()) if session is not None else []
        for topic_filter in filters:
            self._broker.subscriptions.local.grow(topic_filter)
        self._forget(node_id)  # what was kept when it was away before
        self._kept[node_id] = filters
        self._look_at(node_id, now)

    def left(self, node_id: str) -> None:
        """It is a neighbour no more, by its own will or ours, or never was one."""
        self._settle_at.pop(node_id, None)
        self._away_at.pop(node_id, None)
        session = self._session(node_id)
        if session is not None:
            for topic_filter in list(session.subscriptions or ()):
                take_back(self._broker, session, topic_filter)
            if not session.waiting_count:
                self._broker.discard(session)
        self._forget(node_id)

    def back(self, node_id: str, now: float) -> None:
        self._away_at.pop(node_id, None)
        self._settle_at[node_id] = now + UNHEARD_S

    def heard(self, node_id: str, now: float) -> None:
        """It knows what this node has told it, and has told what it wants."""
        if node_id in self._settle_at:
            self._settle_at[node_id] = min(self._settle_at[node_id], now + SETTLE_S)

    @property
    def deadline(self) -> float:
        return min((*self._away_at.values(), *self._settle_at.values()), default=float("inf"))

    def handle_timer(self, now: float) -> None:
        for node_id in [node_id for node_id, at in self._settle_at.items() if at <= now]:
            if self._federator.is_hearing(node_id):
                self._settle_at[node_id] = now + SETTLE_S
            else:
                del self._settle_at[node_id]
                self._settle(node_id)
        for node_id in [node_id for node_id, at in self._away_at.items() if at <= now]:
            self._look_at(node_id, now)

    def _session(self, node_id: str) -> Session | None:
        return self._broker.sessions.get(NEIGHBOUR_PREFIX + node_id)

    def _look_at(self, node_id: str, now: float) -> None:
        session = self._session(node_id)
        if session is None:  # It has expired.
            self._away_at.pop(node_id, None)
            self._forget(node_id)
        else:
            self._away_at[node_id] = max(now + LOOK_AGAIN_S, session.expires_at or now)

    def _settle(self, node_id: str) -> None:
        session = self._session(node_id)
        if session is not None:
            for topic_filter in set(session.subscriptions or ()) - set(self._federator.filters_of(node_id)):
                if not self._lingering.holds(node_id, topic_filter):
                    take_back(self._broker, session, topic_filter)
        self._forget(node_id)

    def _forget(self, node_id: str) -> None:
        for topic_filter in self._kept.pop(node_id, ()):
            self._broker.subscriptions.local.shrink(topic_filter)
