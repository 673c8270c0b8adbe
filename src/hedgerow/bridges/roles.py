"""The roles that bridges bring: a bridge of this node, a bridge of another node, and a foreign broker's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hedgerow.bridges.fabric_key import (
    NO_PROOF,
    NONCE_PROPERTY,
    FabricKey,
    make_nonce,
    nonce_of,
    proof_of,
    same,
    with_proof,
)
from hedgerow.broker.access import Access
from hedgerow.broker.core import BrokerCore
from hedgerow.broker.ids import alias_of_link
from hedgerow.broker.role import Role
from hedgerow.broker.roles import ClientRole, IdentifiedRole
from hedgerow.broker.session import Channel, Session
from hedgerow.broker.told import tell_recent
from hedgerow.message import Properties
from hedgerow.mqtt.ids import is_of_bridge
from hedgerow.mqtt.packets import Connack, Connect, Packet, Subscription
from hedgerow.origins import OF_LINK_THERE, OF_USERS_LINK

if TYPE_CHECKING:
    from hedgerow.broker.seal import RecordSeal


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

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id

    def origin_of(self, connection: Channel, origin: str) -> str | None:
        """That this node dialled it proves nothing: a foreign broker may say that it is a node."""
        if connection.is_proven:
            return origin
        return alias_of_link(connection.connected_session().client_id, self._node_id, origin, OF_LINK_THERE)

    def may_read(self, session: Session, access: Access, topic: str) -> bool:
        """Rights are asked of a bridge that has a user; one without is a part of the node."""
        return session.username is None or super().may_read(session, access, topic)

    def may_write(self, session: Session, topic: str) -> bool:
        return False  # Its connection asks for each name that comes in.


class FarBridgeRole(IdentifiedRole):
    """A bridge of another node, which has connected to this one.

    It may pass on ids of every origin if it proved that it has this node's key, or if its user is an
    administrator or may read and write `RIGHT_TOPIC` by the ACL. Otherwise its ids count as those of its
    user, or of this very bridge: what comes by it twice is still dropped, and nothing that comes by other
    ways.
    """

    name = "far bridge"
    is_link = True

    def __init__(self, broker: BrokerCore, key: Callable[[], FabricKey], token: Callable[[], int]) -> None:
        super().__init__(broker)
        self._key = key
        self._token = token
        self._proven: Connect | None = None  # the CONNECT that is being answered, of one that has the key
        self._seal: RecordSeal | None = None

    def answer(self, packet: Connect, properties: Properties) -> None:
        super().answer(packet, properties)
        self._proven = self._seal = None
        asked, proof = nonce_of(packet.properties), proof_of(packet.properties)
        if asked and proof and same(proof, self._key().prove_bridge(packet)):
            now = self.broker.now
            told = tell_recent(self.broker.recent, now, self.broker.durability.stored_until(now))
            properties["user_property"] += (*told, (NONCE_PROPERTY, make_nonce(self._token)), NO_PROOF)
            self._proven = packet

    def accept(self, connection: Channel, answer: Connack) -> Packet:
        connect, key = self._proven, self._key
        if connect is not None:
            answer = with_proof(answer, key().prove_node(connect, answer))
            self._seal = key().link_seal(connect, answer, is_bridge=False)
        return super().accept(connection, answer)

    def connected(self, connection: Channel) -> None:
        if self._seal is not None:
            connection.seal_with(self._seal)  # Only who has the key can say anything from here on.
            connection.is_proven = True
            connection.connected_session().far_origin = connection.peer_name
            self._proven = self._seal = None
        super().connected(connection)

    def origin_of(self, connection: Channel, origin: str) -> str | None:
        session = connection.connected_session()
        if connection.is_proven or self._is_granted(session):
            return origin
        if session.username is None:
            return alias_of_link(session.client_id, self.broker.node_id, origin)
        return alias_of_link(session.username, self.broker.node_id, origin, OF_USERS_LINK)

    def _is_granted(self, session: Session) -> bool:
        """That there is no ACL grants nothing."""
        broker = self.broker
        if session.username is None:
            return False
        has_right = not broker.access.is_open and self.may_relay(session.username, session.client_id)
        return session.username in broker.administrators or has_right

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
