"""The role of a neighbour: another node that connected here, or that this node dialled.

Either way its session at this broker has the client id `hedgerow-federation-NODE`, is durable, and is not
subscribed to by the other side: which filters it has is decided here (`federation.py`). On its connection,
publications under `$hedgerow/federation/` are from federation to federation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from hedgerow.broker.access import Access
from hedgerow.broker.broker import Broker
from hedgerow.broker.filter_rights import FilterRights
from hedgerow.broker.identified import IDENTIFIED_SHORT_PATH
from hedgerow.broker.role import Refusal, Role
from hedgerow.broker.roles import own_name
from hedgerow.broker.session import Channel, Session
from hedgerow.message import Properties
from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.ids import RIGHT_TOPIC, node_of
from hedgerow.mqtt.packets import Connect, Publish
from hedgerow.mqtt.reasons import Reason
from hedgerow.topics import CONTROL_PREFIX, STATUS_PREFIX, status_node

if TYPE_CHECKING:  # Most nodes are in no federation, and have no use for it.
    from hedgerow.federation.key_proof import ProvingAcceptor

METHOD = "hedgerow-key-1"  # of authentication, by which neighbours prove that they have the key
NEIGHBOUR_PREFIX = "hedgerow-federation-"  # of the client ids of their sessions
ALREADY_LINKED = "there is a link already"  # Both dialled. No reason to complain.
SIDECAR_SUFFIX = "-home"  # of the client id with which a sidecar connects to the broker that it stands beside
NO_SIDECAR = "a federator beside a node, which federates itself"
NO_FEDERATION = "this node is in no federation; start it with --federation"
_ONE_KEY = "has a federation key; give both the same one: --federation-key FILE"
NO_RIGHT_TO_RELAY = f"no neighbour without a federation key or the right to read {RIGHT_TOPIC} too"
KEY_THERE = f"only the node that dials {_ONE_KEY}"
KEY_HERE = f"only the node that was dialled {_ONE_KEY}"


class Neighbourhood(Protocol):
    """What the role asks of the federation."""

    @property
    def has_key(self) -> bool:
        """Has every neighbour proved that it is a member?"""

    def acceptor(self, node_id: str, connect: bytes) -> ProvingAcceptor | None:
        """By what this node, which sent that CONNECT, proves that it has the key; None: there is none."""

    def claim_refusal(self, node_id: str, username: str | None, address: str) -> str | None:
        """Why whoever logged in as this user is not taken for this node; None: it is."""

    def inherits(self, node_id: str) -> bool:
        """Does that user get the session that the node has?"""

    def forgotten(self, node_id: str) -> None:
        """Its session has ended."""

    def refusal(self, node_id: str, proven_name: str | None) -> str | None:
        """Why this node, which proved to be that one, may not connect now; None: it may."""

    def refuse(self, node_id: str, reason: str) -> None:
        """It was refused, which people are to know."""

    def accepted(self, connection: Channel) -> None:
        """It is connected, and has been told so."""

    def ended(self, connection: Channel) -> None:
        """A connection of a neighbour's session is over, whoever dialled."""

    def receive_control(self, connection: Channel, topic: str, payload: bytes) -> None:
        """Something that its federation says to this one."""


class NeighbourRole(Role):
    """Without a federation it refuses whoever connects as a neighbour, and keeps what is stored for one."""

    name = "neighbour"
    prefix = NEIGHBOUR_PREFIX
    gives_ids = True
    is_link = True
    is_interest_here = False  # What neighbours are to get is not wanted here.
    keeps_will = False  # It is for a broker that is not ours.
    transport = "neighbour"
    short_path = IDENTIFIED_SHORT_PATH
    kept_here: tuple[str, ...] = ()
    """Beginnings of topics that this broker keeps for itself."""

    def __init__(self, broker: Broker, neighbourhood: Neighbourhood | None = None) -> None:
        self._broker = broker
        self._neighbourhood = neighbourhood

    def authenticator(self, packet: Connect) -> ProvingAcceptor | Refusal:
        node_id = _node_id(packet.client_id)
        method, acceptor = packet.properties.get("authentication_method"), None
        if self._neighbourhood is None:
            reason = NO_FEDERATION
        elif method != METHOD:
            reason = f"{METHOD} is the one authentication method here"
        else:
            acceptor = self._neighbourhood.acceptor(node_id, encode(packet, packet.protocol_version))
            reason = KEY_THERE
        if acceptor is not None:
            return acceptor
        self.not_proven(packet, reason)
        # Only a broker that is not ours refuses the method namelessly: it is dialled again without.
        return Refusal(Reason.BAD_AUTHENTICATION_METHOD, reason, {"user_property": own_name(self._broker)})

    def not_proven(self, packet: Connect, reason: str) -> None:
        if self._neighbourhood is not None:
            self._neighbourhood.refuse(_node_id(packet.client_id), reason)

    def refusal(
        self, connection: Channel, packet: Connect, username: str | None, owner: Session | None
    ) -> Refusal | None:
        exchange = connection.exchange
        reason = self._refusal(
            connection, packet, username, exchange.proven_name if exchange is not None else None
        )
        if reason is None:
            return None
        named: Properties = {"user_property": own_name(self._broker)}
        if reason == ALREADY_LINKED:
            return Refusal(Reason.USE_ANOTHER_SERVER, reason, named, is_expected=True)
        # A sidecar is to know that it will be refused for ever, a node with a key that it is to prove that.
        return Refusal(Reason.NOT_AUTHORIZED, reason, named if reason in (NO_SIDECAR, KEY_HERE) else None)

    def _refusal(
        self, connection: Channel, packet: Connect, username: str | None, proven_name: str | None
    ) -> str | None:
        """A session of this name is that of a federated node, and of the one that it names."""
        node_id, said = _node_id(packet.client_id), node_of(packet.properties)
        if said is not None and node_id == said + SIDECAR_SUFFIX:
            return NO_SIDECAR
        if self._neighbourhood is None:
            return NO_FEDERATION
        if not self._broker.identified_role.claims(packet, username):
            return f"no neighbour without the right to write {RIGHT_TOPIC}"
        if said != node_id or packet.clean_start:
            return "not as a federated node connects"
        claimed = self._neighbourhood.claim_refusal(node_id, username, connection.address)
        reason = claimed or self._neighbourhood.refusal(node_id, proven_name)
        may_relay = proven_name is not None or self._broker.identified_role.may_relay(
            username, packet.client_id
        )
        return reason if reason is not None or may_relay else NO_RIGHT_TO_RELAY

    def inherits(self, session: Session, username: str | None) -> bool:
        return self._neighbourhood is not None and self._neighbourhood.inherits(_node_id(session.client_id))

    def answer(self, packet: Connect, properties: Properties) -> None:
        limits = self._broker.limits
        properties["receive_maximum"] = limits.peer_receive_maximum
        properties["maximum_packet_size"] = limits.peer_packet_bytes
        properties["user_property"] = own_name(self._broker)

    def resumed(self, connection: Channel, packet: Connect) -> None:
        assert self._neighbourhood is not None
        self._neighbourhood.accepted(connection)

    def may_read(self, session: Session, access: Access, topic: str) -> bool:
        """Rights are asked of a neighbour that has a user, and of an anonymous one. One that proved to have
        the key, or that this node dialled, is a part of the fabric."""
        if topic.startswith(self.kept_here) and self.kept_here:
            return False
        return self._is_member(session) or super().may_read(session, access, topic)

    def filter_rights(self, session: Session) -> FilterRights | None:
        """Of which filters it may know that somebody wants them; None: of all."""
        if self._is_member(session):
            return None
        return self._broker.access.filter_rights(session.username, session.client_id)

    def _is_member(self, session: Session) -> bool:
        has_key = self._neighbourhood is None or self._neighbourhood.has_key
        return session.username is None and (has_key or session.owner is None)

    def may_write(self, session: Session, topic: str) -> bool:
        if topic.startswith("$"):
            # Nodes alone tell of themselves, this one too; the rest is each broker's own.
            return topic.startswith(STATUS_PREFIX) and status_node(topic) != self._broker.node_id
        broker = self._broker
        return not broker.is_reserved(topic) and broker.access.may_write(
            session.username, session.client_id, topic
        )

    def receive(self, connection: Channel, packet: Publish) -> bool:
        """From one federation to another: for no client, and worth no acknowledgement."""
        if packet.qos or not packet.topic.startswith(CONTROL_PREFIX) or self._neighbourhood is None:
            return False
        self._neighbourhood.receive_control(connection, packet.topic, packet.payload)
        return True

    def disconnected(self, connection: Channel) -> None:
        if self._neighbourhood is not None:
            self._neighbourhood.ended(connection)

    def discarded(self, session: Session) -> None:
        if self._neighbourhood is not None:
            self._neighbourhood.forgotten(_node_id(session.client_id))


def _node_id(client_id: str) -> str:
    return client_id.removeprefix(NEIGHBOUR_PREFIX)
