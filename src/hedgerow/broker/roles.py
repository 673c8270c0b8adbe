"""The roles that are MQTT's own: the client, and the publisher that gives its messages ids itself."""

from __future__ import annotations

import re
from urllib.parse import quote

from hedgerow.broker.access import Access
from hedgerow.broker.core import BrokerCore
from hedgerow.broker.identified import IDENTIFIED_SHORT_PATH
from hedgerow.broker.ids import alias_of, is_own_origin
from hedgerow.broker.owners import is_idle
from hedgerow.broker.role import Refusal, Role
from hedgerow.broker.session import Channel, Session
from hedgerow.broker.short_path import CLIENT_SHORT_PATH
from hedgerow.message import Properties
from hedgerow.mqtt.ids import CLIENT_RIGHT, NODE_PROPERTY, RIGHT_TOPIC, node_of
from hedgerow.mqtt.packets import MQTT_5, PUBLISH, Connect
from hedgerow.mqtt.reasons import Reason
from hedgerow.rates import is_loopback
from hedgerow.topics import is_between_nodes

# Mosquitto's links to other brokers publish and leave as their will, retained, whether they are connected.
_LINK_STATE = re.compile(r"\$SYS/broker/connection/[^/]+/state")


class ClientRole(Role):
    name = "client"
    is_movable = True
    short_path = CLIENT_SHORT_PATH

    def __init__(self, broker: BrokerCore) -> None:
        self.broker = broker

    def offer(self, maximum_qos: int, takes_retained: bool) -> None:
        """To clients that connect from now on. What is not offered leaves the short path, and is refused."""
        self.maximum_qos, self.takes_retained = maximum_qos, takes_retained
        self.short_path = {
            first: take
            for first, take in CLIENT_SHORT_PATH.items()
            if first >> 4 != PUBLISH
            or ((first >> 1 & 3) <= maximum_qos and (takes_retained or not first & 1))
        }

    def answer(self, packet: Connect, properties: Properties) -> None:
        if packet.protocol_version != MQTT_5:
            return
        if self.maximum_qos < 2:
            properties["maximum_qos"] = self.maximum_qos  # MQTT-3.2.2-9
        if not self.takes_retained:
            properties["retain_available"] = 0

    def refusal(
        self, connection: Channel, packet: Connect, username: str | None, owner: Session | None
    ) -> Refusal | None:
        will = packet.will
        if will is not None and will.qos > self.maximum_qos:
            return Refusal(Reason.QOS_NOT_SUPPORTED, f"a will of QoS {will.qos} [MQTT-3.2.2-12]")
        if will is not None and will.retain and not self.takes_retained:
            return Refusal(Reason.RETAIN_NOT_SUPPORTED, "a will that is to be retained [MQTT-3.2.2-13]")
        client_id = packet.client_id
        if client_id.startswith("local.") and client_id.startswith(f"local.{self.broker.node_id}."):
            reason = f"{client_id!r} is kept for a link of this broker"
            return Refusal(Reason.CLIENT_IDENTIFIER_NOT_VALID, reason)
        if owner is not None and owner.username is not None and owner.username != username:
            # Nobody ends, or reads, the session of another user by guessing its client identifier. But who
            # came first does not keep it from a user that it was given to, and what is empty is no loss.
            has_better_claim = self._is_entitled(username, packet.client_id) and not self._is_entitled(
                owner.username, packet.client_id
            )
            if not has_better_claim and not is_idle(owner):
                reason = f"the session of {packet.client_id!r} belongs to another user"
                return Refusal(Reason.NOT_AUTHORIZED, reason)
        return None

    def _is_entitled(self, username: str | None, client_id: str) -> bool:
        """Did people say that this client id is this user's? Its own name is."""
        access, right = self.broker.access, CLIENT_RIGHT + quote(client_id, safe="")
        return username is not None and (
            username == client_id or (not access.is_open and access.may_write(username, client_id, right))
        )

    def may_read(self, session: Session, access: Access, topic: str) -> bool:
        if access.may_read(session.username, session.client_id, topic):
            return True
        # Whoever commands the node, whatever the ACL says, hears what came of it, and how the node is.
        return topic.startswith("$SYS/") and session.username in self.broker.administrators

    def may_write(self, session: Session, topic: str) -> bool:
        broker = self.broker
        if topic in broker.commands:
            return self._may_command(session, topic)
        if topic[:1] == "$":
            if topic.startswith("$SYS/") and not _LINK_STATE.fullmatch(topic):
                return False  # The broker alone speaks there, except that links say whether they are up.
            if is_between_nodes(topic):
                return False
        if broker.is_reserved(topic):
            return False
        return broker.access.may_write(session.username, session.client_id, topic)

    def _may_command(self, session: Session, topic: str) -> bool:
        """A command makes this node connect to others, so it needs more than that nothing forbids it."""
        broker = self.broker
        if session.connection is None:
            return False  # A will: who left it is not there to be asked, nor to hear what came of it.
        if session.username in broker.administrators:
            return True  # A session has a user name only if it was verified.
        if broker.access.is_open:
            # Where people named administrators, others on this machine are none: a proxy's clients, say.
            return not broker.administrators and is_loopback(session.connection.address)
        return broker.access.may_write(session.username, session.client_id, topic)


class IdentifiedRole(ClientRole):
    """A client that says `hedgerow-node` in CONNECT, and has the right: it gives ids itself.

    They count as its user's alone (`ids.alias_of`): a client can suppress nothing but what its own user has
    published.
    """

    name = "identified"
    gives_ids = True
    is_movable = False
    short_path = IDENTIFIED_SHORT_PATH

    def claims(self, packet: Connect, username: str | None) -> bool:
        return (
            bool(packet.client_id)
            and packet.protocol_version == MQTT_5
            and node_of(packet.properties) is not None
            and self.broker.access.may_write(username, packet.client_id, RIGHT_TOPIC)
        )

    def may_relay(self, username: str | None, client_id: str) -> bool:
        """May it pass on ids that others gave? Whoever may can have messages of others dropped, so it takes
        more than the right to write `RIGHT_TOPIC`, which each publisher with ids has."""
        access = self.broker.access
        return access.may_write(username, client_id, RIGHT_TOPIC) and access.may_read(
            username, client_id, RIGHT_TOPIC
        )

    def answer(self, packet: Connect, properties: Properties) -> None:
        limits = self.broker.limits
        properties["receive_maximum"] = limits.peer_receive_maximum
        properties["maximum_packet_size"] = limits.peer_packet_bytes
        properties["user_property"] = own_name(self.broker)

    def origin_of(self, connection: Channel, origin: str) -> str | None:
        # Anonymous clients are one user: nothing tells them from each other but what they say.
        alias = alias_of(connection.connected_session().username or "", origin)
        return None if alias is None or is_own_origin(self.broker, alias) else alias


def own_name(broker: BrokerCore) -> tuple[tuple[str, str], ...]:
    """The user property by which a node says who it is."""
    return ((NODE_PROPERTY, broker.node_id),)
