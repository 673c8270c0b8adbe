"""Trading far neighbours for near ones, one at a time, in the manner of X-BOT.

A node links to a neighbour's neighbour, or to one of its passive view, and sees how far it is. If that is
clearly less than to its furthest neighbour, and both have room, they become neighbours. A node with more
neighbours than it needs asks the furthest that it can do without to be released: one to which it has a way
of two links, because neighbours tell each other who theirs are (NEIGHBOURS). The other end agrees only if
it sees such a way too, and has enough neighbours left. While a release is under way neither end takes part
in another, so the two links of that way, each of which has one of them as an end, cannot be released at
the same time. Swaps therefore never split the overlay.

The end that dialled measures again and again how far its neighbour is, and tells it. In the first moment of
a link, when both ends have much else to do, one is easily taken for a hundred times as far as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hedgerow.federation.overlay.limits import ANSWER_S, NEARER, REST_S, SAME_ROUND_TRIP, SAME_ROUND_TRIP_S
from hedgerow.federation.overlay.links import OverlayLink, OverlayLinkState, Purpose
from hedgerow.federation.overlay.passive import pick
from hedgerow.federation.overlay.wire import MAX_NUMBER, MAX_PEERS, OverlayKind, OverlayPacket, Peer

if TYPE_CHECKING:
    from hedgerow.federation.overlay.overlay import Overlay


@dataclass(slots=True)
class Release:
    """We asked this neighbour whether the link may end."""

    node_id: str
    until: float


def optimise(overlay: Overlay, now: float) -> None:
    for link in overlay.neighbours():
        tell_neighbours(overlay, link)
    surplus = len(overlay.neighbours()) - overlay.settings.active_target
    if overlay.release is not None or surplus < 0:
        return
    if surplus > 0:
        _ask_for_release(overlay, 0.0, now)
    if overlay.room > 0 and (candidate := _candidate(overlay, now)) is not None:
        overlay.remember([candidate])
        overlay.passive_view.rest(candidate.node_id, now + REST_S)
        overlay.want(candidate, Purpose.PROBE, now)


def probed(overlay: Overlay, link: OverlayLink, now: float) -> None:
    """A candidate's distance is known. It is asked if one that is further can go for it."""
    longer_than_s = link.round_trip_s / NEARER
    if overlay.room > 0 and _spare(overlay, longer_than_s, link.peer.node_id):
        overlay.ask(link, Purpose.PROBE, now)
    else:
        overlay.close(link, now)


def gained(overlay: Overlay, link: OverlayLink, now: float) -> None:
    """A nearer neighbour has come."""
    if overlay.release is None and len(overlay.neighbours()) > overlay.settings.active_target:
        _ask_for_release(overlay, link.round_trip_s, now)


def measured(overlay: Overlay, link: OverlayLink, round_trip_s: float) -> bool:
    is_first = not link.round_trips
    link.round_trips.append(round_trip_s)
    least_s, known_s = min(link.round_trips), link.round_trip_s
    if not is_first and abs(least_s - known_s) <= max(SAME_ROUND_TRIP * known_s, SAME_ROUND_TRIP_S):
        return False
    link.round_trip_s = least_s
    if link.state is OverlayLinkState.ACTIVE:
        tell_neighbours(overlay, link)
    return True


def lost(overlay: Overlay, node_id: str) -> None:
    if overlay.release is not None and overlay.release.node_id == node_id:
        overlay.release = None


def handle_neighbours(overlay: Overlay, link: OverlayLink, packet: OverlayPacket, now: float) -> None:
    link.others = {peer.node_id: peer for peer in packet.peers}
    if packet.number and not link.round_trips:
        link.round_trip_s = packet.number / 1e6
    if len(overlay.neighbours()) < overlay.settings.active_target:
        overlay.remember(packet.peers)


def handle_release(overlay: Overlay, link: OverlayLink, packet: OverlayPacket, now: float) -> None:
    node_id = link.peer.node_id
    others = {it.peer.node_id for it in overlay.neighbours(besides=node_id)}
    has_enough = len(others) >= overlay.settings.active_target
    has_a_way = any(peer.node_id in others for peer in packet.peers)
    agrees = has_enough and has_a_way and overlay.release is None and not link.is_static
    overlay.send(node_id, OverlayPacket(OverlayKind.RELEASE_REPLY, int(agrees)))
    if agrees:
        overlay.drop(link, "both have nearer ones", now)


def handle_release_reply(overlay: Overlay, link: OverlayLink, packet: OverlayPacket, now: float) -> None:
    lost(overlay, link.peer.node_id)
    if packet.value == 1 and link.state is OverlayLinkState.ACTIVE:
        overlay.stats.swapped += 1
        overlay.drop(link, "both have nearer ones", now)


def tell_neighbours(overlay: Overlay, link: OverlayLink) -> None:
    """Unless it was told so before: when nothing changes nothing is sent."""
    peers = [it.peer for it in overlay.neighbours(besides=link.peer.node_id)][:MAX_PEERS]
    told = frozenset(peer.node_id for peer in peers)
    told_us = min(max(round(link.round_trip_s * 1e6), 1), MAX_NUMBER) if link.round_trips else 0
    if (told, told_us) != (link.told, link.told_us):
        link.told, link.told_us = told, told_us
        overlay.send(
            link.peer.node_id, OverlayPacket(OverlayKind.NEIGHBOURS, number=told_us, peers=tuple(peers))
        )


def _candidate(overlay: Overlay, now: float) -> Peer | None:
    """Half of the time a neighbour's neighbour: it closes a triangle, in which the longest link can go.
    Otherwise anyone, or each node would never see further than its own corner."""
    if overlay.random() < 0.5:
        return overlay.passive_view.pick(now)
    near = {name: peer for link in overlay.neighbours() for name, peer in link.others.items()}
    candidates = [
        peer
        for name, peer in near.items()
        if name not in overlay.links
        and name != overlay.me.node_id
        and peer.addresses
        and not overlay.passive_view.rests(name, now)
    ]
    return pick(candidates, overlay.random) if candidates else overlay.passive_view.pick(now)


def _ask_for_release(overlay: Overlay, longer_than_s: float, now: float) -> None:
    spare = _spare(overlay, longer_than_s)
    if spare:
        node_id = max(spare, key=lambda link: link.round_trip_s).peer.node_id
        peers = [it.peer for it in overlay.neighbours(besides=node_id)][:MAX_PEERS]
        overlay.release = Release(node_id, now + ANSWER_S)
        overlay.send(node_id, OverlayPacket(OverlayKind.RELEASE, peers=tuple(peers)))


def _spare(overlay: Overlay, longer_than_s: float, candidate: str | None = None) -> list[OverlayLink]:
    """Neighbours further away than that, to which there is a way over another neighbour or the candidate."""
    neighbours = overlay.neighbours()
    return [
        link
        for link in neighbours
        if not link.is_static
        and link.round_trip_s > longer_than_s
        and (
            candidate in link.others or any(_are_neighbours(link, it) for it in neighbours if it is not link)
        )
    ]


def _are_neighbours(one: OverlayLink, other: OverlayLink) -> bool:
    return one.peer.node_id in other.others or other.peer.node_id in one.others
