"""What each packet does. `nearer.py` and `shuffle.py` have theirs themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hedgerow.federation.overlay import nearer, shuffle
from hedgerow.federation.overlay.links import OverlayLink, OverlayLinkState, Purpose
from hedgerow.federation.overlay.passive import pick
from hedgerow.federation.overlay.wire import OverlayKind, OverlayPacket

if TYPE_CHECKING:
    from hedgerow.federation.overlay.overlay import Overlay


def handle_join(overlay: Overlay, link: OverlayLink, packet: OverlayPacket, now: float) -> None:
    node_id = link.peer.node_id
    is_new = link.state is not OverlayLinkState.ACTIVE
    if is_new:
        overlay.make_room(link, now)
        overlay.activate(link, now)
    else:
        overlay.asked_again.add(node_id)
    overlay.send(node_id, OverlayPacket(OverlayKind.NEIGHBOUR_REPLY, 1))
    if is_new:
        nearer.tell_neighbours(overlay, link)  # Until the walks end it knows nobody but us.
        for other in overlay.neighbours(besides=node_id):
            walk = OverlayPacket(OverlayKind.FORWARD_JOIN, overlay.settings.forward_walk, peers=(link.peer,))
            overlay.send(other.peer.node_id, walk)


def handle_forward_join(overlay: Overlay, link: OverlayLink, packet: OverlayPacket, now: float) -> None:
    (newcomer,) = packet.peers
    known = overlay.links.get(newcomer.node_id)
    if newcomer.node_id == overlay.me.node_id or (
        known is not None and known.state is OverlayLinkState.ACTIVE
    ):
        return
    steps = min(packet.value, overlay.settings.forward_walk)
    if steps == overlay.settings.passive_walk:
        overlay.remember([newcomer])
    onward = overlay.neighbours(besides=link.peer.node_id)
    if steps > 0 and onward:
        overlay.send(pick(onward, overlay.random).peer.node_id, packet._replace(value=steps - 1))
        return
    # One more than it needs, for the newcomer's sake; to fill the view would leave no room for nearer ones.
    has_place = len(overlay.neighbours()) <= overlay.settings.active_target
    if not has_place or not overlay.want(newcomer, Purpose.NEIGHBOUR, now):
        overlay.remember([newcomer])


def handle_neighbour(overlay: Overlay, link: OverlayLink, packet: OverlayPacket, now: float) -> None:
    if link.state is not OverlayLinkState.ACTIVE:
        if packet.value == 1:
            overlay.make_room(link, now)
        elif overlay.room <= 0 and not link.is_static:
            overlay.send(link.peer.node_id, OverlayPacket(OverlayKind.NEIGHBOUR_REPLY, 0))
            return
        overlay.activate(link, now)
    else:
        overlay.asked_again.add(link.peer.node_id)
    overlay.send(link.peer.node_id, OverlayPacket(OverlayKind.NEIGHBOUR_REPLY, 1))


def handle_neighbour_reply(overlay: Overlay, link: OverlayLink, packet: OverlayPacket, now: float) -> None:
    if link.state is OverlayLinkState.ACTIVE:
        return  # Both asked.
    if packet.value != 1:
        if link.state is OverlayLinkState.ASKED:
            link.state = OverlayLinkState.IDLE
            overlay.close(link, now)
    elif link.state is OverlayLinkState.ASKED and (overlay.room > 0 or link.is_static):
        overlay.activate(link, now)
    else:
        overlay.send(link.peer.node_id, OverlayPacket(OverlayKind.DISCONNECT))


def handle_disconnect(overlay: Overlay, link: OverlayLink, packet: OverlayPacket, now: float) -> None:
    if link.state is OverlayLinkState.ACTIVE:
        overlay.drop(link, "it left", now)
    else:
        link.state = OverlayLinkState.IDLE
        overlay.close(link, now)
    for peer in packet.peers:
        overlay.want(peer, Purpose.NEIGHBOUR, now)


NAMES_ITS_SENDER = {OverlayKind.JOIN, OverlayKind.NEIGHBOUR}
FOR_NEIGHBOURS = {
    OverlayKind.FORWARD_JOIN,
    OverlayKind.SHUFFLE,
    OverlayKind.SHUFFLE_REPLY,
    OverlayKind.NEIGHBOURS,
    OverlayKind.RELEASE,
}
HANDLERS: dict[OverlayKind, Callable[[Overlay, OverlayLink, OverlayPacket, float], None]] = {
    OverlayKind.JOIN: handle_join,
    OverlayKind.FORWARD_JOIN: handle_forward_join,
    OverlayKind.NEIGHBOUR: handle_neighbour,
    OverlayKind.NEIGHBOUR_REPLY: handle_neighbour_reply,
    OverlayKind.DISCONNECT: handle_disconnect,
    OverlayKind.SHUFFLE: shuffle.handle_shuffle,
    OverlayKind.SHUFFLE_REPLY: shuffle.handle_shuffle_reply,
    OverlayKind.NEIGHBOURS: nearer.handle_neighbours,
    OverlayKind.RELEASE: nearer.handle_release,
    OverlayKind.RELEASE_REPLY: nearer.handle_release_reply,
}
