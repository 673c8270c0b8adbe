"""Whether a sidecar may write and read its own topics at the broker that it stands beside.

Mosquitto's acl_file refuses neither a subscription nor a publication at QoS 0: what it forbids is withheld.
So the sidecar says something to itself after each connection, and people are told when it does not hear it.
Mosquitto 2.0.11 with `topic deny` closes the connection instead, each time.
"""

from __future__ import annotations

from hedgerow.bridges.following import FollowingBridge
from hedgerow.federation.events import RightMissing
from hedgerow.federation.tunnel.frames import quote_node_id
from hedgerow.message import Message

ECHO_TOPIC = "hedgerow/federation/echo/"
SAY_AGAIN_S = 0.2  # when the bridge is not up yet
HEAR_S = 5.0
MANY_LOST = 3  # connections in a row, each before the sidecar heard itself
NEVER = float("inf")


class RightsCheck:
    """`begin` when the broker has answered the subscription to `topic`; `handle_timer` at `deadline`."""

    def __init__(self, bridge: FollowingBridge, node_id: str) -> None:
        self.topic = ECHO_TOPIC + quote_node_id(node_id)
        self.deadline = NEVER
        self._bridge = bridge
        self._is_said = self._is_heard = False
        self._lost = 0
        self._events: list[RightMissing] = []
        bridge.watch(self.topic, self._heard, with_own=True)

    def begin(self, now: float) -> None:
        self._is_said = False
        self.deadline = now

    def connection_lost(self) -> None:
        self.deadline = NEVER
        self._lost = 0 if self._is_heard else self._lost + 1
        self._is_heard = False
        if self._lost == MANY_LOST:
            self._tell()

    def handle_timer(self, now: float) -> None:
        if self._is_said:
            self.deadline = NEVER
            self._tell()
        else:
            self._is_said = self._bridge.publish_there(Message(self.topic, b""))
            self.deadline = now + (HEAR_S if self._is_said else SAY_AGAIN_S)

    def _heard(self, topic: str, payload: bytes, retain: bool) -> None:
        self.deadline = NEVER
        self._is_heard = True

    def _tell(self) -> None:
        section = self._bridge.section
        self._events.append(RightMissing(str(section.addresses[0]), section.remote_username))

    def take_events(self) -> list[RightMissing]:
        events, self._events = self._events, []
        return events
