"""What people see of a federation: its state as JSON, retained, told again when it has changed.

A node says it at its own broker, `$SYS/broker/federation/state`; a sidecar at the broker that it stands
beside, `hedgerow/federation/state/NODE`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Protocol

from hedgerow.broker.broker import Broker
from hedgerow.broker.ledger import Inbound, Outbound
from hedgerow.broker.port import Port
from hedgerow.broker.session import Session
from hedgerow.federation.mesh.federator import Federator
from hedgerow.federation.mesh.meshes import FilterState
from hedgerow.federation.neighbours import NEIGHBOUR_PREFIX
from hedgerow.federation.overlay.overlay import Overlay
from hedgerow.federation.tunnel.frames import quote_node_id
from hedgerow.message import Message

STATE_TOPIC = "$SYS/broker/federation/state"
HOME_STATE_TOPIC = "hedgerow/federation/state/"
TELL_S = 0.25
MAX_FILTERS = 200


class HomeState(Protocol):
    @property
    def is_connected(self) -> bool: ...

    def publish(self, message: Message) -> bool: ...


class DescribedFederation(Protocol):
    """What is told of a federation."""

    @property
    def broker(self) -> Broker: ...

    @property
    def overlay(self) -> Overlay: ...

    @property
    def federator(self) -> Federator: ...

    @property
    def home(self) -> HomeState | None: ...


class StateTeller:
    """`look` whenever something may have changed, `handle_timer` at `deadline`."""

    def __init__(self, federation: DescribedFederation) -> None:
        self._federation = federation
        self._port = Port(federation.broker, "the federation", lambda message: None)
        self._told = b""
        self._told_at = float("-inf")
        self.deadline = float("inf")

    def look(self, now: float) -> None:
        self.deadline = min(self.deadline, max(now, self._told_at + TELL_S))

    def tell_again(self, now: float) -> None:
        """The broker beside may have forgotten what was told, or be a new one."""
        self._told = b""
        self.look(now)

    def handle_timer(self, now: float) -> None:
        self.deadline = float("inf")
        self._told_at = now
        payload = json.dumps(describe(self._federation), separators=(",", ":")).encode()
        if payload == self._told:
            return
        home = self._federation.home
        if home is None:
            self._port.publish(Message(STATE_TOPIC, payload, 1, True), now)
        elif not home.publish(
            Message(HOME_STATE_TOPIC + quote_node_id(self._federation.broker.node_id), payload, 0, True)
        ):
            if home.is_connected:  # and not up yet, or behind with its reading
                self.look(now)
            return
        self._told = payload


def ledgers_of(session: Session) -> dict[str, dict[str, int]]:
    """What became of messages for this neighbour, and of those from it since it was linked; by direction."""
    outward = asdict(session.ledger or Outbound())
    inward = asdict((session.connection and session.connection.inbound) or Inbound())
    inward["relayed"] = inward["published"] - inward["duplicates"] - inward["outdated"] - inward["refused"]
    return {"out": outward, "in": inward}


def describe(federation: DescribedFederation) -> dict[str, object]:
    filters = federation.federator.describe(MAX_FILTERS)
    sessions = federation.broker.sessions
    return {
        "node": federation.broker.node_id,
        "neighbours": {
            name: {
                "round_trip_ms": round(round_trip_s * 1000, 3),
                "queued": sessions[NEIGHBOUR_PREFIX + name].waiting_count,
            }
            for name, round_trip_s in federation.overlay.round_trips.items()
            if NEIGHBOUR_PREFIX + name in sessions
        },
        "filters": describe_filters(filters),
        "more_filters": federation.federator.filter_count - len(filters),
        "ignored": dict(federation.federator.stats.ignored),
    }


def describe_filters(filters: Iterable[FilterState]) -> dict[str, dict[str, object]]:
    return {
        each.topic_filter: {
            "core": each.core,
            "distance": each.distance,
            "parents": each.parents,
            "children": each.children,
            "member": each.is_member,
            "local": each.is_local,
        }
        for each in filters
    }
