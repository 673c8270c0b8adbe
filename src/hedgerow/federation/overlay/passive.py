"""The passive view: nodes that are no neighbours, known well enough to become some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from hedgerow.federation.overlay.wire import Peer

T = TypeVar("T")


def pick(items: Sequence[T], random: Callable[[], float]) -> T:
    return items[min(int(random() * len(items)), len(items) - 1)]


def sample(items: Sequence[T], count: int, random: Callable[[], float]) -> list[T]:
    rest = list(items)
    return [rest.pop(min(int(random() * len(rest)), len(rest) - 1)) for _ in range(min(count, len(rest)))]


class PassiveView:
    def __init__(self, at_most: int, random: Callable[[], float]) -> None:
        self._at_most = at_most
        self._random = random
        self._peers: dict[str, Peer] = {}
        self._rests_until: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._peers

    @property
    def peers(self) -> list[Peer]:
        return list(self._peers.values())

    def add(self, peer: Peer) -> None:
        """At the bound, a random one goes: whoever floods us cannot choose which."""
        if peer.node_id not in self._peers and len(self._peers) >= self._at_most:
            self.remove(pick(list(self._peers), self._random))
        self._peers[peer.node_id] = peer

    def remove(self, node_id: str) -> None:
        self._peers.pop(node_id, None)
        self._rests_until.pop(node_id, None)

    def rest(self, node_id: str, until: float) -> None:
        """It is not picked before then."""
        if node_id in self._peers:
            self._rests_until[node_id] = until

    def rests(self, node_id: str, now: float) -> bool:
        return self._rests_until.get(node_id, now) > now

    def pick(self, now: float) -> Peer | None:
        """A random one of those that do not rest."""
        ready = [peer for peer in self._peers.values() if not self.rests(peer.node_id, now)]
        return pick(ready, self._random) if ready else None
