"""A dialled broker that is not ours, and the tunnel through it to the federator that stands beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hedgerow.broker.connection import Connection
from hedgerow.federation.presence import GONE, PRESENCE_TOPIC, filters_of
from hedgerow.federation.tunnel.frames import MAX_FRAME_BYTES, NODE_TOPIC, quote_node_id, unquote_node_id
from hedgerow.federation.tunnel.tunnel import Tunnel
from hedgerow.federation.tunnel.tunnels import MIN_FRAME_BYTES, Tunnels
from hedgerow.federation.tunnel_links import TunnelSet
from hedgerow.mqtt.packets import Connack, Publish, Subscription
from hedgerow.mqtt.reasons import FAILURE, describe

if TYPE_CHECKING:
    from hedgerow.federation.neighbour_connection import NeighbourConnection

# Federators say here, retained and as their will, whether they are at this broker.
AROUND_A_PAYLOAD = 200  # topic and header of a frame's PUBLISH


class ForeignNeighbour:
    """`connection` is the one to that broker, which has answered."""

    def __init__(self, connection: NeighbourConnection, tunnels: Tunnels) -> None:
        self._connection = connection
        self._topic = NODE_TOPIC + quote_node_id(connection.broker.node_id)
        self.tunnels = TunnelSet(tunnels, connection.publish_there, self._open_inside, self._closed)
        self._is_leaving = False
        connection.federation.serve_tunnels(self.tunnels, is_open=True)

    def begin(self, packet: Connack) -> None:
        largest = packet.properties.get("maximum_packet_size", 0) - AROUND_A_PAYLOAD
        if largest > 0:
            if largest < MIN_FRAME_BYTES:
                self._connection.end("the broker there takes no packets large enough for a tunnel")
                return
            self.tunnels.tunnels.max_frame_bytes = min(largest, MAX_FRAME_BYTES)
        self._connection.subscribe_there([*map(Subscription, filters_of(self._connection.broker.node_id))])

    def handle_subscribed(self, answered: list[Subscription], codes: list[int]) -> None:
        for wanted, code in zip(answered, codes, strict=False):
            if code >= FAILURE:
                self._connection.end(
                    f"the broker there does not let us read {wanted.topic_filter} ({describe(code)}): a "
                    "federator's user needs topic readwrite hedgerow/federation/# there"
                )
                return
        self.tunnels.tunnels.open(self._connection.tunnel_id, self._connection.broker.now)
        self.tunnels.flush()
        self._connection.federation.has_work = True  # of the next deadline

    def receive(self, packet: Publish) -> None:
        if packet.topic == self._topic:
            self.tunnels.receive(packet.payload, self._connection.broker.now)
            self._connection.federation.has_work = True  # of the next deadline
        elif packet.topic.startswith(PRESENCE_TOPIC) and packet.payload == GONE and not packet.retain:
            self._receive_absence(packet.topic.removeprefix(PRESENCE_TOPIC))

    def _receive_absence(self, level: str) -> None:
        try:
            node_id = unquote_node_id(level)
        except ValueError:
            self._connection.federation.ignored_frames["presence"] += 1
        else:
            self.tunnels.peer_gone(node_id)

    def _open_inside(self, tunnel: Tunnel) -> Connection:
        return self._connection.open_inside()

    def _closed(self, tunnel: Tunnel, reason: str) -> None:
        if not self._is_leaving:
            self._is_leaving = True
            if not tunnel.is_open:
                self._connection.federation.dial_failed(self._connection.peer, reason)
            self._connection.leave(reason, is_for_good=True)

    def lost(self, reason: str) -> None:
        """The connection to the broker has ended."""
        self._is_leaving = True
        self.tunnels.close_all(reason)
        self._connection.federation.serve_tunnels(self.tunnels, is_open=False)
