"""Filters that a neighbour has lost while it is linked: they are used for a while yet.

A mesh changes its ways when an announcement or its answer is late, and changes them back when they come: on
links that are full, or between nodes that have too much to do, that takes seconds. In between a node might
have no way for what it publishes, or not the one that leads to everybody. So the last ways stay beside the
new ones until others are sure to be there. Whoever gets a message by both knows it by its id.

What nobody wants any more, as far as this node knows, is taken back at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from hedgerow.broker.broker import Broker
from hedgerow.federation.neighbour_session import take_back
from hedgerow.federation.neighbours import NEIGHBOUR_PREFIX

LINGER_INTERVALS = 2  # between announcements: a mesh that was not whole is made anew by the next one


class LingeringMeshes:
    def __init__(self, broker: Broker, linger_s: float) -> None:
        self._broker = broker
        self._linger_s = linger_s
        self._ends_at: dict[tuple[str, str], float] = {}  # by neighbour and filter; the first ends first

    @property
    def deadline(self) -> float:
        return next(iter(self._ends_at.values()), float("inf"))

    def keep(self, node_id: str, topic_filter: str) -> None:
        self._ends_at[node_id, topic_filter] = self._broker.now + self._linger_s

    def holds(self, node_id: str, topic_filter: str) -> bool:
        return (node_id, topic_filter) in self._ends_at

    def resume(self, node_id: str, topic_filter: str) -> bool:
        """It is wanted again. False: it does not linger, so that something may have been missed."""
        return self._ends_at.pop((node_id, topic_filter), None) is not None

    def forget(self, node_id: str) -> None:
        """Its link is gone: what becomes of its session's filters is seen to elsewhere (`absences.py`)."""
        for key in [key for key in self._ends_at if key[0] == node_id]:
            del self._ends_at[key]

    def end(self, node_ids: Collection[str], topic_filters: Iterable[str]) -> None:
        """Of filters that nobody wants any more, as far as this node knows."""
        for topic_filter in topic_filters if self._ends_at else ():
            for node_id in node_ids:
                if (node_id, topic_filter) in self._ends_at:
                    self._take_back(node_id, topic_filter)

    def handle_timer(self, now: float) -> None:
        while self._ends_at and self.deadline <= now:
            self._take_back(*next(iter(self._ends_at)))

    def _take_back(self, node_id: str, topic_filter: str) -> None:
        del self._ends_at[node_id, topic_filter]
        session = self._broker.sessions.get(NEIGHBOUR_PREFIX + node_id)
        if session is not None:
            take_back(self._broker, session, topic_filter)
