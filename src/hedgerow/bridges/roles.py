"""The roles that bridges bring: a bridge of this node, a bridge of another node, and a foreign broker's."""

from __future__ import annotations

from hedgerow.broker.access import Access
from hedgerow.broker.role import Role
from hedgerow.broker.roles import ClientRole, IdentifiedRole
from hedgerow.broker.session import Channel, Session
from hedgerow.mqtt.ids import is_of_bridge
from hedgerow.mqtt.packets import Connect, Subscription


class BridgeRole(Role):
    """A bridge of this node: it dials, and its session is here."""

    name = "bridge"
    gives_ids = True
    is_link = True
    is_own = True
    description = "a bridge of this broker"
    # It may be a timer that passes on what a foreign broker sent.
    hears_errors = False
    # Mosquitto (2.0) with max_inflight_messages 0 goes beyond it: a far broker is slowed down, not refused.
    holds_receive_maximum = False
    transport = "bridge"

    def may_read(self, session: Session, access: Access, topic: str) -> bool:
        """Rights are asked of a bridge that has a user; one without is a part of the node."""
        return session.username is None or super().may_read(session, access, topic)

    def may_write(self, session: Session, topic: str) -> bool:
        return False  # Its connection asks for each name that comes in.


class FarBridgeRole(IdentifiedRole):
    """A bridge of another node, which has connected to this one."""

    name = "far bridge"
    is_link = True

    def claims(self, packet: Connect, username: str | None) -> bool:
        return is_of_bridge(packet.properties) and super().claims(packet, username)


class ForeignBrokerRole(ClientRole):
    """A bridge of a broker that is not ours, which says so by a bit of its protocol version."""

    name = "foreign broker"

    def claims(self, packet: Connect, username: str | None) -> bool:
        return packet.is_bridge

    def subscribing(self, connection: Channel, wanted: Subscription, is_shared: bool) -> int | None:
        """What Mosquitto gives a bridge that cannot ask for it: nothing comes back to the broker that it came
        from, and what was retained here is retained there."""
        wanted.no_local = not is_shared
        wanted.retain_as_published = True
        return None
