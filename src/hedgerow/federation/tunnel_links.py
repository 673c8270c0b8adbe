"""Connections of the broker whose bytes travel in tunnels, over one connection to a broker that is not ours.

To the broker a tunnel is one more transport, as TCP or a WebSocket is: a `TunnelLink` has the part that a
`Link` of the shell has otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hedgerow.broker.connection import Connection
from hedgerow.federation.tunnel.frames import FEDERATOR_TOPIC, NODE_TOPIC, quote_node_id
from hedgerow.federation.tunnel.tunnel import Tunnel
from hedgerow.federation.tunnel.tunnels import (
    Closed,
    DiallerRefused,
    Drained,
    Opened,
    TunnelReceived,
    Tunnels,
)
from hedgerow.message import Message


class TunnelLink:
    """What the shell calls when its connection has something to say."""

    __slots__ = ("_connection", "_is_paused", "_set", "tunnel")

    def __init__(self, tunnels: TunnelSet, tunnel: Tunnel, connection: Connection) -> None:
        self.tunnel = tunnel
        self._set = tunnels
        self._connection = connection
        self._is_paused = False
        connection.link = self

    def transmit(self) -> None:
        connection, tunnel = self._connection, self.tunnel
        data = connection.take_output()
        if data:
            tunnel.write(data)
            if tunnel.is_congested:
                connection.set_congested(True, connection.broker.now)
        if connection.closing:
            connection.link = None
            self._set.close(tunnel, "the connection inside has ended")
        elif connection.paused is not self._is_paused:
            self._is_paused = connection.paused
            if self._is_paused:
                tunnel.pause_reading()
            else:
                self.receive(tunnel.resume_reading())
        self._set.flush()

    def receive(self, data: bytes) -> None:
        self._connection.receive_data(data, self._connection.broker.now)

    def drained(self) -> None:
        self._connection.set_congested(False, self._connection.broker.now)

    def lost(self) -> None:
        self._connection.link = None
        self._connection.lost(self._connection.broker.now)

    def unacknowledged_bytes(self) -> int:
        return self.tunnel.unacknowledged_bytes

    def silent_s(self) -> float:
        return math.inf  # What has come through a tunnel is read at once.

    @property
    def transport(self) -> TunnelLink:
        return self

    def abort(self) -> None:
        self._set.close(self.tunnel, "aborted")
        self.lost()


class TunnelSet:
    """All tunnels over one connection. `open_inside` makes the connection in a tunnel that is open now;
    `closed` is told of one that ended, or never came to be; `refused` of nodes that were not let in."""

    def __init__(
        self,
        tunnels: Tunnels,
        publish: Callable[[Message], object],
        open_inside: Callable[[Tunnel], Connection],
        closed: Callable[[Tunnel, str], None] = lambda tunnel, reason: None,
        refused: Callable[[str, str], None] = lambda node_id, reason: None,
    ) -> None:
        self.tunnels = tunnels
        self._publish = publish
        self._open_inside = open_inside
        self._closed = closed
        self._refused = refused
        self._links: dict[Tunnel, TunnelLink] = {}

    def receive(self, payload: bytes, now: float) -> None:
        self.tunnels.receive(payload, now)
        self._follow()

    def handle_timer(self, now: float) -> None:
        self.tunnels.handle_timer(now)
        self._follow()

    def peer_gone(self, node_id: str) -> None:
        self.tunnels.peer_gone(node_id)
        self._follow()

    def close_all(self, reason: str) -> None:
        """The connection that carries them is lost."""
        self.tunnels.close_all(reason)
        self._follow()

    def close(self, tunnel: Tunnel, reason: str) -> None:
        tunnel.close(reason)
        self._links.pop(tunnel, None)
        self.flush()
        self._closed(tunnel, reason)

    def _follow(self) -> None:
        for event in self.tunnels.take_events():
            match event:
                case TunnelReceived(tunnel, data):
                    if tunnel in self._links:
                        self._links[tunnel].receive(data)
                case Opened(tunnel):
                    self._links[tunnel] = TunnelLink(self, tunnel, self._open_inside(tunnel))
                case Drained(tunnel):
                    if tunnel in self._links:
                        self._links[tunnel].drained()
                case Closed(tunnel, reason):
                    link = self._links.pop(tunnel, None)
                    if link is not None:
                        link.lost()
                    self._closed(tunnel, reason)
                case DiallerRefused(node_id, reason):
                    self._refused(node_id, reason)
        self.flush()

    def flush(self) -> None:
        for node_id, payload in self.tunnels.take_frames():
            topic = FEDERATOR_TOPIC if node_id is None else NODE_TOPIC + quote_node_id(node_id)
            self._publish(Message(topic, payload))
