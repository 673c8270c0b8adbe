"""The broker that a sidecar stands beside: what its clients want, what they publish, and the tunnels there.

To the node's own broker the home is a bridge that follows (`bridges/following.py`). Out of the node go
the filters of the home's clients, which `Interests` learns; with that they are subscribed to at the node's
broker, and so the federator announces them. Into the node come the filters that any neighbour is to get.
Beside its messages the same connection carries the tunnels of those who dialled the home. That this federator
is there is its notification, retained and left as its will.

A second, short connection shows at once whether the broker's log tells of clients that leave
(`log_probe.py`); `dial_probe` opens it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hedgerow.bridges.following import FollowingBridge
from hedgerow.broker.broker import Broker
from hedgerow.broker.connection import Connection
from hedgerow.federation.events import RightMissing
from hedgerow.federation.interests.events import InterestEvent
from hedgerow.federation.interests.interests import Interests
from hedgerow.federation.neighbours import NEIGHBOUR_PREFIX
from hedgerow.federation.presence import filters_of
from hedgerow.federation.rights import RightsCheck
from hedgerow.federation.state import StateTeller
from hedgerow.federation.tunnel.frames import FEDERATOR_TOPIC
from hedgerow.federation.tunnel.tunnel import Tunnel
from hedgerow.federation.tunnel.tunnels import Tunnels
from hedgerow.federation.tunnel_links import TunnelSet
from hedgerow.message import Message
from hedgerow.mqtt.reasons import FAILURE, describe

# A filter that moves from one neighbour to another stays: to unsubscribe and subscribe anew would miss
# what is published in between.
LINGER_S = 5.0


class HomeFederation(Protocol):
    """What a home asks of its federation."""

    has_work: bool
    home: Home | None

    @property
    def broker(self) -> Broker: ...

    @property
    def state(self) -> StateTeller: ...

    def make_tunnels(self, *, is_federator: bool) -> Tunnels: ...

    def serve_tunnels(self, tunnels: TunnelSet, is_open: bool) -> None: ...

    def refuse(self, node_id: str, reason: str) -> None: ...


class Home:
    """`bridge` is not up yet."""

    def __init__(self, federation: HomeFederation, bridge: FollowingBridge, interests: Interests) -> None:
        self._federation = federation
        self._broker = federation.broker
        self._bridge = bridge
        self._interests = interests
        self.dial_probe: Callable[[], None] = lambda: self.probed(has_left=False)
        self.is_connected = False
        self._leave_at: dict[str, float] = {}  # filters that no neighbour has now, the first to go first
        self._tunnels = TunnelSet(
            federation.make_tunnels(is_federator=True),
            bridge.publish_there,
            self._open_inside,
            refused=federation.refuse,
        )
        federation.home = self
        federation.serve_tunnels(self._tunnels, is_open=True)
        for topic_filter in interests.topics:
            bridge.watch(topic_filter, self._hear)
        bridge.watch(FEDERATOR_TOPIC, self._receive_frame)
        self._rights = RightsCheck(bridge, federation.broker.node_id)
        bridge.on_connected = self._connected
        bridge.on_subscribed = self._subscribed
        bridge.on_disconnected = self._disconnected
        # Those too of neighbours that are away: what is published meanwhile waits for them.
        federation.broker.subscriptions.beyond.watch(self._set_asked)

    def publish(self, message: Message) -> bool:
        """Something of this federator's own."""
        return self._bridge.publish_there(message)

    def _set_asked(self, topic_filter: str, is_asked: bool) -> None:
        """Whether what is published at home is to come here."""
        if not is_asked:
            self._leave_at[topic_filter] = self._broker.now + LINGER_S
            self._federation.has_work = True  # of the next deadline
        elif self._leave_at.pop(topic_filter, None) is None:
            self._bridge.ask_for(topic_filter)

    # What the bridge tells

    def _connected(self, is_new_session: bool) -> None:
        self.is_connected = True
        self._interests.connected(self._broker.now, is_new_session)
        self._federation.state.tell_again(self._broker.now)

    def _subscribed(self, topic_filter: str, reason_code: int) -> None:
        self._interests.subscribed(topic_filter, reason_code < FAILURE, describe(reason_code))
        if topic_filter == self._rights.topic:
            self._rights.begin(self._broker.now)
        self._federation.has_work = True

    def _disconnected(self) -> None:
        self.is_connected = False
        self._interests.disconnected(self._broker.now)
        self._rights.connection_lost()
        self._tunnels.close_all("the connection to the broker beside was lost")
        self._federation.has_work = True

    def _hear(self, topic: str, payload: bytes, retain: bool) -> None:
        self._interests.receive(topic, payload, retain, self._broker.now)
        self._federation.has_work = True

    def _receive_frame(self, topic: str, payload: bytes, retain: bool) -> None:
        self._tunnels.receive(payload, self._broker.now)
        self._federation.has_work = True  # of the next deadline

    def _open_inside(self, tunnel: Tunnel) -> Connection:
        # Its subscriptions may be older than ours to the log, and are nothing that people need to know of.
        self._interests.log.note(NEIGHBOUR_PREFIX + tunnel.peer, filters_of(tunnel.peer))
        return self._broker.open(self._broker.now, f"tunnel of {tunnel.peer}", True, None, "tunnel")

    def probed(self, has_left: bool) -> None:
        """The short connection is over, or never came to be."""
        self._interests.probed(has_left, self._broker.now)
        self._federation.has_work = True  # of the next deadline

    # What follows

    def serve(self) -> list[InterestEvent | RightMissing]:
        for topic_filter, is_wanted in self._interests.take_changes():
            if is_wanted:
                self._bridge.listen(topic_filter, since=self._interests.since(topic_filter))
            else:
                self._bridge.stop_listening_to(topic_filter)
        if self._interests.take_probe():
            self.dial_probe()
        return [*self._interests.take_events(), *self._rights.take_events()]

    @property
    def deadline(self) -> float:
        leave_at = next(iter(self._leave_at.values()), float("inf"))
        return min(self._interests.deadline, self._rights.deadline, leave_at)

    def handle_timer(self, now: float) -> None:
        if self._interests.deadline <= now:
            self._interests.handle_timer(now)
        if self._rights.deadline <= now:
            self._rights.handle_timer(now)
        while next(iter(self._leave_at.values()), float("inf")) <= now:
            topic_filter = next(iter(self._leave_at))
            del self._leave_at[topic_filter]
            self._bridge.no_longer_ask_for(topic_filter)
