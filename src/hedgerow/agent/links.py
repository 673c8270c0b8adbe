"""Which pairs of living brokers cannot be linked at present, judged by how their bridges fare.

A bridge that was up and stays down for `grace_s`, or one that does not come up within `connect_s` after it
was made, makes its pair *cut*: the topology goes around it. So does one that is not made in twice that
time, in which its command was repeated a few times. What says "down" has looked by probes already, so the
grace only covers a quick reconnection. But first both ends have to answer once more: if one of them is
dying, ways around to it would be made in vain.

A cut pair is tried again after a while, and later each time that it fails, but never while the network is
being mended, which could then wait for one vain try after the other. If its bridge was left in place and is
up again, it has to stay up for a while, so that a link that comes and goes does not rearrange the network
each time. The table has a row for each pair of known brokers at most.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from hedgerow.agent.plan import BrokerLink

FIRST_RETRY_S = 10.0
MAX_RETRY_S = 300.0


class BrokerLinkState(Enum):
    UP = "up"
    DOWN = "down"
    ABSENT = "absent"
    """It should be there and is not, or not yet."""


@dataclass(slots=True)
class _Pair:
    state: BrokerLinkState | None = None
    since_at: float = 0.0
    patience_s: float = 0.0
    is_asked: bool = False
    failures: int = 0
    is_cut: bool = False
    retry_at: float = 0.0

    def next_at(self) -> list[float]:
        times = [self.retry_at] if self.is_cut else []
        if self.state is BrokerLinkState.UP and self.failures:
            times.append(self.since_at + MAX_RETRY_S)
        elif self.state in (BrokerLinkState.DOWN, BrokerLinkState.ABSENT):
            times.append(self.since_at + self.patience_s)
        return times


class LinkWatch:
    def __init__(self, grace_s: float, connect_s: float, stable_s: float) -> None:
        self._grace_s = grace_s
        self._connect_s = connect_s
        self._stable_s = stable_s
        self._pairs: dict[BrokerLink, _Pair] = {}

    def observe(
        self,
        is_up: Mapping[BrokerLink, bool],
        wanted: Collection[BrokerLink],
        heard_at: Mapping[str, float],
        now: float,
    ) -> set[str]:
        """The bridges that exist, those that should, and who lives, heard when. Returns whom to probe now."""
        suspects: set[str] = set()
        is_whole = all(is_up.get(link, False) for link in wanted)
        for link in [link for link in self._pairs if not heard_at.keys() >= set(link)]:
            del self._pairs[link]
        for link in {*is_up, *wanted, *self._pairs}:
            if heard_at.keys() >= set(link):
                pair = self._pairs.setdefault(link, _Pair())
                absent = BrokerLinkState.ABSENT if link in wanted else None
                self._enter(
                    pair,
                    {True: BrokerLinkState.UP, False: BrokerLinkState.DOWN, None: absent}[is_up.get(link)],
                    now,
                )
                if pair.state is not BrokerLinkState.DOWN and (is_whole or pair.state is BrokerLinkState.UP):
                    pair.is_cut = pair.is_cut and now < pair.retry_at
                if self._judge(pair, min(heard_at[link.lower], heard_at[link.higher]), now):
                    suspects |= set(link)
        return suspects

    @property
    def cut(self) -> frozenset[BrokerLink]:
        return frozenset(link for link, pair in self._pairs.items() if pair.is_cut)

    def deadline(self, now: float) -> float:
        """When something may change by itself."""
        times = (at for pair in self._pairs.values() for at in pair.next_at() if at > now)
        return min(times, default=float("inf"))

    def _enter(self, pair: _Pair, state: BrokerLinkState | None, now: float) -> None:
        before, pair.state = pair.state, state
        if state is before:
            return
        if before in (BrokerLinkState.DOWN, BrokerLinkState.ABSENT) and state in (
            BrokerLinkState.DOWN,
            BrokerLinkState.ABSENT,
        ):
            # One attempt, even if the bridge is made and lost over and over.
            made_s = now - pair.since_at
            pair.patience_s = (
                made_s + self._connect_s if state is BrokerLinkState.DOWN else 2 * self._connect_s
            )
            return
        pair.since_at = now
        pair.is_asked = False
        if state is BrokerLinkState.ABSENT:
            pair.patience_s = 2 * self._connect_s
        else:
            pair.patience_s = self._grace_s if before is BrokerLinkState.UP else self._connect_s
        if state is BrokerLinkState.UP and pair.is_cut:
            stable_s = min(self._stable_s * 2.0 ** (pair.failures - 1), MAX_RETRY_S)
            pair.retry_at = now + stable_s

    def _judge(self, pair: _Pair, ends_heard_at: float, now: float) -> bool:
        """Must its ends be asked first?"""
        if pair.state is BrokerLinkState.UP:
            if now >= pair.since_at + MAX_RETRY_S:
                pair.failures = 0
        elif pair.state is not None and now >= pair.since_at + pair.patience_s:
            if pair.is_cut and now < pair.retry_at:
                return False
            if ends_heard_at < pair.since_at + pair.patience_s:
                was_asked, pair.is_asked = pair.is_asked, True
                return not was_asked
            retry_s = min(FIRST_RETRY_S * 2.0**pair.failures, MAX_RETRY_S)
            pair.failures = min(pair.failures + 1, 16)  # a float overflows after a thousand of them
            pair.is_cut, pair.retry_at = True, now + retry_s
        return False
