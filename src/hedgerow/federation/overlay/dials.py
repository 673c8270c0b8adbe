"""Links that were asked for and are not open yet, and the static neighbours, asked for again and again."""

from __future__ import annotations

from dataclasses import dataclass

from hedgerow.federation.overlay.limits import DIAL_S, MAX_STATIC, STATIC_AGAIN_S
from hedgerow.federation.overlay.links import Purpose
from hedgerow.federation.overlay.wire import Peer, check_peer


@dataclass(slots=True)
class Dial:
    peer: Peer
    purpose: Purpose
    until: float


class Dials:
    def __init__(self) -> None:
        self._dials: dict[str, Dial] = {}  # by node id, or by address while that is all we know

    def __len__(self) -> int:
        return len(self._dials)

    def __contains__(self, peer: Peer) -> bool:
        return _key(peer) in self._dials

    @property
    def deadline(self) -> float:
        return min((dial.until for dial in self._dials.values()), default=float("inf"))

    def add(self, peer: Peer, purpose: Purpose, now: float) -> None:
        self._dials[_key(peer)] = Dial(peer, purpose, now + DIAL_S)

    def take(self, peer: Peer) -> Dial | None:
        """The dial that led to this peer, or failed to."""
        for key in (peer.node_id, *peer.addresses):
            if (dial := self._dials.pop(key, None)) is not None:
                return dial
        return None

    def overdue(self, now: float) -> list[Peer]:
        return [dial.peer for dial in self._dials.values() if dial.until <= now]


@dataclass(slots=True)
class Static:
    peer: Peer
    again_at: float
    """When to try it, unless it is a neighbour."""
    tries: int = 0


class Statics:
    def __init__(self) -> None:
        self._statics: list[Static] = []

    def __contains__(self, node_id: str) -> bool:
        return any(static.peer.node_id == node_id for static in self._statics)

    def is_at(self, address: str) -> bool:
        return any(address in static.peer.addresses for static in self._statics)

    @property
    def deadline(self) -> float:
        return min((static.again_at for static in self._statics), default=float("inf"))

    def add(self, peer: Peer, now: float) -> None:
        if len(self._statics) >= MAX_STATIC:
            raise ValueError(f"more than {MAX_STATIC} static neighbours")
        if not peer.addresses:
            raise ValueError("a static neighbour needs an address")
        self._statics.append(Static(check_peer(peer), now))

    def remove(self, peer: Peer) -> Peer:
        """Gives it back with the id of the node that answered there, if one did."""
        for static in self._statics:
            if static.peer.addresses == peer.addresses:
                self._statics.remove(static)
                return static.peer
        return peer

    def learn(self, dialled: Peer, node_id: str) -> None:
        """Who answered there. An address that a packet claims to have says nothing."""
        for static in self._statics:
            if static.peer == dialled and not dialled.node_id:
                static.peer = dialled._replace(node_id=node_id)

    def gained(self, node_id: str) -> None:
        for static in self._statics:
            if static.peer.node_id == node_id:
                static.again_at, static.tries = float("inf"), 0

    def lost(self, node_id: str, now: float) -> None:
        for static in self._statics:
            if static.peer.node_id == node_id and static.again_at == float("inf"):
                static.again_at = now + STATIC_AGAIN_S[0]

    def take_due(self, now: float) -> list[Peer]:
        due = [static for static in self._statics if static.again_at <= now]
        for static in due:
            static.again_at = now + STATIC_AGAIN_S[min(static.tries, len(STATIC_AGAIN_S) - 1)]
            static.tries += 1
        return [static.peer for static in due]


def _key(peer: Peer) -> str:
    return peer.node_id or peer.addresses[0]
