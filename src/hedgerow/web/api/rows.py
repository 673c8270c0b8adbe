"""What a node knows, as JSON."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import asdict
from typing import Any

from hedgerow.broker.session import Session
from hedgerow.message import Message
from hedgerow.web.fabric import FabricNode
from hedgerow.web.local import PROTOCOLS

Row = dict[str, Any]


def node_row(node: FabricNode, now: float) -> Row:
    status = node.status
    return {
        "id": node.node_id,
        "kind": status.kind,
        "software": status.software,
        "urls": list(status.urls),
        "problem": status.problem,
        "is_silent": node.is_silent(now),
        "heard_at": node.heard_at,
        "uptime_s": status.uptime_s,
        "counts": dict(status.counts),
        "totals": dict(status.totals),
        "rates": None if node.rates is None else asdict(node.rates),
        "links": [
            {
                "kind": link.kind,
                "name": link.name,
                "to": link.to,
                "state": link.state,
                "round_trip_ms": link.round_trip_ms,
                "queued": link.queued,
                "out": dict(link.out_ledger),
                "in": dict(link.in_ledger),
            }
            for link in status.links
        ],
    }


def client_row(session: Session) -> Row:
    connection = session.connection
    assert connection is not None
    return {
        "client_id": session.client_id,
        "user": session.username,
        "address": connection.address,
        "protocol": PROTOCOLS.get(session.protocol_version, ""),
        "transport": connection.transport,
        "connected_at": connection.opened_at,
        "subscriptions": len(session.subscriptions or ()),
        "queued": session.waiting_count,
    }


def session_row(session: Session) -> Row:
    return {
        "client_id": session.client_id,
        "user": session.username,
        "is_connected": session.connection is not None,
        "protocol": PROTOCOLS.get(session.protocol_version, ""),
        "is_durable": session.durable,
        "expires_at": session.expires_at,
        "subscriptions": len(session.subscriptions or ()),
        "queued": session.waiting_count,
        "queued_bytes": session.queued_bytes,
        "dropped": session.dropped,
    }


def retained_row(message: Message, now: float) -> Row:
    age_s = None if message.published_at is None else round(max(now - message.published_at, 0.0), 3)
    row: Row = {"topic": message.topic, "qos": message.qos, "bytes": len(message.payload), "age_s": age_s}
    return row | payload_fields(message.payload)


def payload_fields(payload: bytes) -> Row:
    """As text, if it is; else in base64."""
    try:
        return {"payload": payload.decode(), "payload_base64": None}
    except UnicodeDecodeError:
        return {"payload": None, "payload_base64": b64encode(payload).decode()}
