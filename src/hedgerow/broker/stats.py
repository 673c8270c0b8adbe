"""Counters of one broker since its start, behind `$SYS` and the metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Stats:
    bytes_received: int = 0
    bytes_sent: int = 0
    packets_received: int = 0
    packets_sent: int = 0
    publish_received: int = 0
    publish_sent: int = 0
    publish_dropped: int = 0
    """Deliveries given up: a slow reader, a full queue, a packet larger than the client takes."""
    publish_set_aside: int = 0
    """Deliveries of links given up because the far end cannot take them, or refuses them."""
    publish_expired: int = 0
    publish_refused: int = 0
    """Publications that the ACL or a limit refused."""
    publish_bytes_received: int = 0
    publish_bytes_sent: int = 0
    connections_opened: int = 0
    connections_refused: int = 0
    protocol_errors: int = 0
    connections_failed: int = 0
    """Connections ended by an error of this broker's own code."""
    sessions_expired: int = 0
    clients_maximum: int = 0
