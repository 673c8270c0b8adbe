"""What a node tells of itself: `$hedgerow/status/NODE`, JSON, each second, while somebody subscribes to it.

It federates, and a mobile broker's link carries it, so that whoever subscribes to `$hedgerow/status/#` at any
node hears of the whole fabric. Each part adds what it has. What is large and changes seldom, such as the
meshes of topics, is told beside it, when it has changed. Nobody pays when nobody listens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from hedgerow.broker.publishing import publish_message
from hedgerow.message import Message
from hedgerow.node.part import NEVER, NodeContext, Part
from hedgerow.node.status_format import MAX_EVENTS, MAX_JOBS, MAX_LINKS, STATUS_VERSION
from hedgerow.node.version import VERSION
from hedgerow.topics import STATUS_PREFIX

if TYPE_CHECKING:
    from hedgerow.node.config import Config

TELL_S = 1.0
BESIDE_S = 2.0  # at most so often, when it has changed
BESIDE_AGAIN_S = 10.0  # for those who came meanwhile
MAX_PROGRESS_BYTES = 4_096
MAX_LOOKS = 10 * MAX_JOBS  # Clients may publish as many topics as they like where pipelines tell of jobs.
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


def status_topic(node_id: str, beside: str = "") -> str:
    """Where a node tells its status, or something beside it."""
    return f"{STATUS_PREFIX}{node_id}/{beside}" if beside else STATUS_PREFIX + node_id


class StatusTeller(Part):
    def __init__(self, node: NodeContext) -> None:
        super().__init__(node)
        self._tell_at = NEVER
        self._number = 0
        self._told: dict[str, tuple[bytes, float]] = {}  # beside the status: what, and when

    async def start(self) -> None:
        self._tell_at = self.node.clock() + TELL_S

    @property
    def deadline(self) -> float:
        return self._tell_at

    def handle_timer(self, now: float) -> None:
        node = self.node
        self._tell_at = now + max(TELL_S, *(part.tell_status_s for part in node.parts))
        topic = status_topic(node.node_id)
        if self._is_wanted(topic):
            self._number += 1
            self._tell(topic, encode(describe(node, self._number)), now)
        for part in node.parts:
            for beside in part.tells_beside:
                self._tell_beside(part, beside, now)

    def _tell_beside(self, part: Part, beside: str, now: float) -> None:
        topic = status_topic(self.node.node_id, beside)
        before, told_at = self._told.get(beside, (b"", -NEVER))
        if now < told_at + BESIDE_S:
            return
        if not self._is_wanted(topic):
            self._told.pop(beside, None)
            return
        payload = encode(describe_beside(self.node, part, beside))
        if payload != before or now >= told_at + BESIDE_AGAIN_S:
            self._told[beside] = payload, now
            self._tell(topic, payload, now)

    def _is_wanted(self, topic: str) -> bool:
        route = self.node.broker.subscriptions.route(topic)
        is_connected = any(each.session.connection is not None for each in route.recipients)
        return bool(is_connected or route.ports or route.groups)

    def _tell(self, topic: str, payload: bytes, now: float) -> None:
        broker = self.node.broker
        broker.now = now
        # By nobody, as $SYS: what people watch is no event that makes a topic hot.
        publish_message(broker, Message(topic, payload), broker.subscriptions.route(topic), None)


def encode(told: Mapping[str, Any]) -> bytes:
    return json.dumps(told, separators=(",", ":")).encode()


def all_statuses(node: NodeContext) -> dict[str, bytes]:
    """By topic, what the node tells if it is asked now."""
    statuses = {status_topic(node.node_id): encode(describe(node))}
    for part in node.parts:
        for beside in part.tells_beside:
            payload = encode(describe_beside(node, part, beside))
            statuses[status_topic(node.node_id, beside)] = payload
    return statuses


def describe(node: NodeContext, number: int = 0, *, max_links: int = MAX_LINKS) -> dict[str, Any]:
    """`number` counts a node's statuses, so that one that is missing is noticed; 0: asked for here."""
    broker, now = node.broker, node.clock()
    stats = broker.stats
    links: list[Mapping[str, Any]] = []
    of_parts: dict[str, Any] = {}
    for part in node.parts:
        told: dict[str, Any] = node.ask(part, _read_status, dict[str, Any]())
        links += told.pop("links", ())
        of_parts |= told
    return {
        "version": STATUS_VERSION,
        "node": node.node_id,
        "number": number,
        "at": round(now, 3),
        "uptime_s": round(now - node.started_at, 1),
        "software": VERSION,
        "kind": _kind(node.config),
        "beside": None,
        "urls": node.urls,
        "problem": node.problem,
        "counts": {
            "clients": broker.client_count,
            "links": broker.link_count,
            "sessions": len(broker.sessions),
            "subscriptions": len(broker.subscriptions),
            "retained": len(broker.retained),
            "stored": broker.durability.references,
        },
        "totals": {name: getattr(stats, counter) for name, counter in TOTALS.items()},
        "links": links[:max_links],
        "hot": None,
        "events": [
            {"number": past.number, "at": round(past.at, 3), "kind": past.kind, "text": past.text}
            for past in node.event_log.history.newest(now, MAX_EVENTS, with_clients=False)
        ],
        "journal": None,
        "pipeline": _pipeline(node, now),
        **of_parts,
    }


def _read_status(part: Part) -> dict[str, Any]:
    return dict(part.status())


def describe_beside(node: NodeContext, part: Part, beside: str) -> dict[str, Any]:
    return {"version": STATUS_VERSION, "node": node.node_id, **part.status_beside(beside)}


def _kind(config: Config) -> str:
    return "node" if config.takes_clients else "dashboard"


def _pipeline(node: NodeContext, now: float) -> dict[str, Any]:
    """What a pipeline has told here; it is a client like any other, so it may be anything."""
    told: dict[str, Any] = {}
    for message in islice(node.broker.retained.match(PROGRESS_FILTER, now, MAX_LOOKS), MAX_JOBS):
        if len(message.payload) <= MAX_PROGRESS_BYTES:
            with suppress(ValueError, RecursionError):
                told[message.topic.rpartition("/")[2]] = _flat(json.loads(message.payload))
    return told


def _flat(progress: object) -> dict[str, Any]:
    """What is nested could be so deep that it can be read and not be written again."""
    items = progress.items() if isinstance(progress, dict) else ()
    return {name: value for name, value in items if not isinstance(value, (dict, list))}
