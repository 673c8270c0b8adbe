"""Passive views kept fresh: a sample of what a node knows walks to another, whose own comes back.

The answer takes the way of the question in reverse, so that it needs no link of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hedgerow.federation.overlay.limits import (
    MAX_WALKS,
    SHUFFLE_ACTIVE,
    SHUFFLE_PASSIVE,
    WALK_S,
    OverlaySettings,
)
from hedgerow.federation.overlay.links import OverlayLink
from hedgerow.federation.overlay.passive import pick, sample
from hedgerow.federation.overlay.wire import OverlayKind, OverlayPacket, Peer


@dataclass(slots=True)
class Shuffles:
    number: int = 0
    """Of our last one: only its answer counts,"""
    is_answered: bool = True
    """and only once, or a neighbour could fill the passive view at will."""
    walks: dict[tuple[str, int], tuple[str, float]] = field(default_factory=dict)
    """Others' shuffles that went through here: (whose, number) → (whence it came, until when)."""


class Shuffling(Protocol):
    """What a shuffle needs of the overlay."""

    me: Peer
    settings: OverlaySettings
    shuffles: Shuffles

    @property
    def links(self) -> Mapping[str, OverlayLink]: ...

    @property
    def passive(self) -> Sequence[Peer]: ...

    def random(self) -> float: ...

    def neighbours(self, *, besides: str | None = None) -> list[OverlayLink]: ...

    def remember(self, peers: Iterable[Peer]) -> None: ...

    def send(self, node_id: str, packet: OverlayPacket) -> None: ...


def begin(overlay: Shuffling, now: float) -> None:
    shuffles = overlay.shuffles
    shuffles.walks = {walk: it for walk, it in shuffles.walks.items() if it[1] > now}
    neighbours = overlay.neighbours()
    if neighbours:
        shuffles.number = (shuffles.number + 1) & 0xFFFF_FFFF
        shuffles.is_answered = False
        target = pick(neighbours, overlay.random).peer.node_id
        peers = (overlay.me, *_sample(overlay, target))
        overlay.send(
            target, OverlayPacket(OverlayKind.SHUFFLE, overlay.settings.forward_walk, shuffles.number, peers)
        )


def handle_shuffle(overlay: Shuffling, link: OverlayLink, packet: OverlayPacket, now: float) -> None:
    origin, walks = packet.peers[0], overlay.shuffles.walks
    steps = min(packet.value, overlay.settings.forward_walk) - 1
    node_id = link.peer.node_id
    onward = [it for it in overlay.neighbours(besides=node_id) if it.peer.node_id != origin.node_id]
    walk = (origin.node_id, packet.number)
    if steps > 0 and onward and walk not in walks and len(walks) < MAX_WALKS:
        walks[walk] = (node_id, now + WALK_S)
        overlay.send(pick(onward, overlay.random).peer.node_id, packet._replace(value=steps))
        return
    peers = (origin, *_sample(overlay, origin.node_id))
    overlay.send(node_id, OverlayPacket(OverlayKind.SHUFFLE_REPLY, 0, packet.number, peers))
    overlay.remember(packet.peers)


def handle_shuffle_reply(overlay: Shuffling, link: OverlayLink, packet: OverlayPacket, now: float) -> None:
    origin, *peers = packet.peers
    if origin.node_id == overlay.me.node_id:
        if packet.number == overlay.shuffles.number and not overlay.shuffles.is_answered:
            overlay.shuffles.is_answered = True
            overlay.remember(peers)
        return
    back, until = overlay.shuffles.walks.pop((origin.node_id, packet.number), ("", now))
    if until > now and back in overlay.links:
        overlay.send(back, packet)


def _sample(overlay: Shuffling, besides: str) -> list[Peer]:
    known = sample([it.peer for it in overlay.neighbours(besides=besides)], SHUFFLE_ACTIVE, overlay.random)
    known += sample(overlay.passive, SHUFFLE_PASSIVE, overlay.random)
    return [peer for peer in known if peer.addresses]
