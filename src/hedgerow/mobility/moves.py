"""The facts that people watch as they happen: topics and clients that changed sides, as `$SYS` tells them."""

from __future__ import annotations

from hedgerow.errors import counted
from hedgerow.mobility.delegation import addresses
from hedgerow.mobility.delegation.events import (
    ClientMoved,
    Delegated,
    DelegationEvent,
    Left,
    Recovered,
    TakenOver,
)
from hedgerow.mobility.delegation.uplink import Uplink
from hedgerow.mobility.events import ClientSent, NodeEvent


def describe_move(
    event: DelegationEvent | NodeEvent, fixed: str | None, now: float
) -> dict[str, object] | None:
    """None for what is no move."""
    match event:
        case Delegated():
            what, which, fixed = "delegated", event.topic_filter, event.fixed_broker
        case Recovered():
            what, which, fixed = "recovered", event.topic_filter, event.fixed_broker
        case TakenOver():
            what, which, fixed = "taken over", counted(event.topics, "topic"), event.fixed_broker
        case Left():
            what, which, fixed = "left", event.fixed_broker, event.fixed_broker
        case ClientSent():
            what, which = "client sent", event.client_id
        case ClientMoved():
            what = "client there" if event.is_at_fixed else "client back"
            which = addresses.client_id_of(event.callback) or event.callback
        case _:
            return None
    return {"what": what, "which": which, "at": round(now, 3), "fixed": fixed}


def describe_link(uplink: Uplink | None, url: str | None) -> dict[str, object]:
    """The state of the link to the fixed broker; no URL: there is none."""
    return {
        "broker": uplink.fixed_id if uplink is not None else None,
        "url": url,
        "linked": url is not None,
        "lost": uplink.is_lost if uplink is not None else False,
    }
