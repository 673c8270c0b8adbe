"""What a node tells of itself: `$hedgerow/status/NODE`, JSON, each second, while somebody subscribes to it.

It federates, and a mobile broker's link carries it, so that whoever subscribes to `$hedgerow/status/#` at any
node hears of the whole fabric. The meshes of topics are many and change seldom: they are told beside it, when
they have changed. Nobody pays when nobody listens.

A mobile broker tells its fixed one at a slower pace: its link is small, and it cannot know who listens there.
"""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from hedgerow.broker.publishing import publish_message
from hedgerow.federation.state import describe_filters, ledgers_of
from hedgerow.message import Message
from hedgerow.node.deadline import DeadlineTimer
from hedgerow.node.status_limits import MAX_EVENTS, MAX_FILTERS, MAX_HOT, MAX_JOBS, MAX_LINKS, STATUS_VERSION
from hedgerow.node.version import VERSION
from hedgerow.topics import STATUS_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hedgerow.federation.mesh.meshes import FilterState
    from hedgerow.node.server import Server

TELL_S = 1.0
MOBILE_TELL_S = 2.0
MESHES_S = 2.0  # at most so often, when they have changed
MESHES_AGAIN_S = 10.0  # for those who came meanwhile
MAX_FILTER = 1_000  # characters
MAX_FILTERS_BYTES = 256 * 1024  # of all of them, as JSON
MAX_NOT_REACHED = 20
MAX_PROGRESS_BYTES = 4_096
PROGRESS_FILTER = "$hedgerow/pipeline/+"  # what a pipeline tells of its jobs at this broker

# Name here → counter of the broker's `Stats`.
TOTALS = {
    "received": "publish_received",
    "sent": "publish_sent",
    "dropped": "publish_dropped",
    "expired": "publish_expired",
    "refused": "publish_refused",
    "bytes_received": "bytes_received",
    "bytes_sent": "bytes_sent",
    "connections_refused": "connections_refused",
}


def status_topic(node_id: str) -> str:
    return STATUS_PREFIX + node_id


def meshes_topic(node_id: str) -> str:
    return f"{STATUS_PREFIX}{node_id}/meshes"


class StatusTeller:
    """`start` needs the server's broker."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._timer = DeadlineTimer(server.clock, self._handle_timer)
        self._number = 0
        self._meshes = b""
        self._meshes_at = float("-inf")

    def start(self) -> None:
        self._topic = status_topic(self._server.node_id)
        self._meshes_topic = meshes_topic(self._server.node_id)
        self._timer.set(self._server.clock() + TELL_S)

    def stop(self) -> None:
        self._timer.cancel()

    def _handle_timer(self) -> None:
        server, now = self._server, self._server.clock()
        is_mobile = server.config.mobility.is_mobile
        self._timer.set(now + (MOBILE_TELL_S if is_mobile else TELL_S))
        if self._is_wanted(self._topic):
            self._number += 1
            self._tell(self._topic, encode(describe(server, self._number)), now)
        if server.federation is not None and now >= self._meshes_at + MESHES_S:
            self._tell_meshes(now)
        server.flush()

    def _tell_meshes(self, now: float) -> None:
        if not self._is_wanted(self._meshes_topic):
            self._meshes_at = float("-inf")
            return
        payload = encode(describe_meshes(self._server))
        if payload != self._meshes or now >= self._meshes_at + MESHES_AGAIN_S:
            self._meshes, self._meshes_at = payload, now
            self._tell(self._meshes_topic, payload, now)

    def _is_wanted(self, topic: str) -> bool:
        route = self._server.broker.subscriptions.route(topic)
        is_connected = any(each.session.connection is not None for each in route.recipients)
        return bool(is_connected or route.ports or route.groups)

    def _tell(self, topic: str, payload: bytes, now: float) -> None:
        broker = self._server.broker
        broker.now = now
        # By nobody, as $SYS: what people watch is no event that makes a topic hot.
        publish_message(broker, Message(topic, payload), broker.subscriptions.route(topic), None)


def encode(told: dict[str, Any]) -> bytes:
    return json.dumps(told, separators=(",", ":")).encode()


def describe(server: Server, number: int = 0) -> dict[str, Any]:
    """`number` counts a node's statuses, so that one that is missing is noticed; 0: asked for here."""
    broker, now = server.broker, server.clock()
    stats = broker.stats
    return {
        "version": STATUS_VERSION,
        "node": server.node_id,
        "number": number,
        "at": round(now, 3),
        "uptime_s": round(now - server.started_at, 1),
        "software": VERSION,
        "kind": _kind(server),
        "beside": str(server.config.federation.home) if server.config.federation.home is not None else None,
        "urls": server.urls,
        "problem": server.problem,
        "counts": {
            "clients": broker.client_count,
            "links": broker.link_count,
            "sessions": len(broker.sessions),
            "subscriptions": len(broker.subscriptions),
            "retained": len(broker.retained),
            "stored": len(broker.durability.references),
        },
        "totals": {name: getattr(stats, counter) for name, counter in TOTALS.items()},
        "links": list(islice(chain(_neighbours(server), _bridges(server), _mobility(server)), MAX_LINKS)),
        "hot": _hot(server),
        "events": [
            {"number": past.number, "at": round(past.at, 3), "kind": past.kind, "text": past.text}
            for past in server.event_log.history.newest(now, MAX_EVENTS, with_clients=False)
        ],
        "journal": server.journal.figures() if server.journal is not None else None,
        "pipeline": _pipeline(server, now),
    }


def describe_meshes(server: Server) -> dict[str, Any]:
    federator = server.federation.machine.federator if server.federation is not None else None
    told = describe_filters(_that_fit(federator.describe(MAX_FILTERS))) if federator is not None else {}
    return {
        "version": STATUS_VERSION,
        "node": server.node_id,
        "filters": told,
        "more_filters": federator.filter_count - len(told) if federator is not None else 0,
    }


def _that_fit(filters: list[FilterState]) -> Iterator[FilterState]:
    """A client may subscribe to a thousand filters of 60 kB: who shows meshes would take none of it."""
    room = MAX_FILTERS_BYTES
    for each in filters:
        if len(each.topic_filter) <= MAX_FILTER:
            room -= len(json.dumps(each.topic_filter))
            if room < 0:
                return
            yield each


def _kind(server: Server) -> str:
    config = server.config
    if config.federation.home is not None:
        return "sidecar"
    if config.mobility.role is not None:
        return config.mobility.role
    return "node" if config.takes_clients else "dashboard"


def _link(
    kind: str, name: str, to: str, state: str, queued: int = 0, round_trip_s: float | None = None
) -> dict[str, Any]:
    round_trip_ms = None if round_trip_s is None else round(round_trip_s * 1_000, 3)
    return {
        "kind": kind,
        "name": name,
        "to": to,
        "state": state,
        "round_trip_ms": round_trip_ms,
        "queued": queued,
        "out": {},
        "in": {},
    }


def _neighbours(server: Server) -> Iterator[dict[str, Any]]:
    if server.federation is None:
        return
    federation = server.federation.machine
    round_trips = federation.overlay.round_trips
    for name, session in federation.neighbour_sessions():
        state = "up" if federation.is_linked(name) else "down"
        queued = len(session.outbox or ())
        yield _link("neighbour", name, name, state, queued, round_trips.get(name)) | ledgers_of(session)
    for address in islice(federation.not_reached, MAX_NOT_REACHED):
        yield _link("neighbour", address, address, "down")


def _bridges(server: Server) -> Iterator[dict[str, Any]]:
    if server.bridges is None:
        return
    for bridge in server.bridges.bridges.kept:
        far_node = bridge.connection.far_node if bridge.connection is not None else None
        to = far_node or str(bridge.address or bridge.section.addresses[0])
        state, queued = bridge.state.value, len(bridge.session.outbox or ())
        yield _link("bridge", bridge.section.name, to, state, queued) | bridge.ledgers()


def _mobility(server: Server) -> Iterator[dict[str, Any]]:
    if server.mobility is None:
        return
    mobile, fixed = server.mobility.mobile_node, server.mobility.fixed_node
    if mobile is not None:
        link = mobile.state.link
        if link is not None and link["broker"]:
            fixed_id = str(link["broker"])
            yield _link("fixed", fixed_id, fixed_id, "up" if link["linked"] else "down")
    if fixed is not None:
        for mobile_id, _, _ in fixed.describe():
            yield _link("mobile", mobile_id, mobile_id, "up" if fixed.is_linked(mobile_id) else "down")


def _hot(server: Server) -> list[list[Any]] | None:
    """Topic, score, and where it is matched."""
    mobile = server.mobility.mobile_node if server.mobility is not None else None
    if mobile is not None:
        scores, delegated = mobile.monitor.scores, set(mobile.monitor.out_registry)
        fixed = str((mobile.state.link or {}).get("broker") or "")
    elif server.monitoring is not None:
        scores, delegated, fixed = server.monitoring.monitor.scores, set(), ""
    else:
        return None
    public = ((topic, score) for topic, score in scores.items() if topic[:1] != "$")
    return [
        [topic, score, fixed if fixed and topic in delegated else "here"]
        for topic, score in islice(public, MAX_HOT)
    ]


def _pipeline(server: Server, now: float) -> dict[str, Any]:
    """What a pipeline has told here; it is a client like any other, so it may be anything."""
    told: dict[str, Any] = {}
    for message in islice(server.broker.retained.match(PROGRESS_FILTER, now), MAX_JOBS):
        if len(message.payload) <= MAX_PROGRESS_BYTES:
            with suppress(ValueError, RecursionError):
                told[message.topic.rpartition("/")[2]] = _flat(json.loads(message.payload))
    return told


def _flat(progress: object) -> dict[str, Any]:
    """What is nested could be so deep that it can be read and not be written again."""
    items = progress.items() if isinstance(progress, dict) else ()
    return {name: value for name, value in items if not isinstance(value, (dict, list))}
