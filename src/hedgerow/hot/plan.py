"""A plan for the whole network, as far as it concerns one broker: the topics that it is to keep."""

from __future__ import annotations

from dataclasses import dataclass

MAX_PLAN_TOPICS = 16_384  # Someone who may publish a plan could fill the memory with one.


@dataclass(frozen=True, slots=True)
class HotPlan:
    keep: frozenset[str]
    """All other topics are to be delegated."""
    version: int
    """Of two plans the one with the larger version is followed, in whichever order they come."""
    expires_at: float
