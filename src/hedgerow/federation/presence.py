"""Topics at a foreign broker by which a federator beside it says whether it is there, and is reached."""

from __future__ import annotations

from hedgerow.federation.tunnel.frames import NODE_TOPIC, quote_node_id

PRESENCE_TOPIC = "hedgerow/federation/home/"
GONE = b"0"


def filters_of(node_id: str) -> list[str]:
    """What a node that dialled such a broker is subscribed to there."""
    return [NODE_TOPIC + quote_node_id(node_id), PRESENCE_TOPIC + "+"]
