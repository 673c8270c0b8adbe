"""The roles that mobility brings: clients that may move, mobile brokers, and sessions of this node's own.

A mobile broker connects to a fixed one under the client id `hedgerow-mobile-NODE`. On that connection every
publication is from one of the two to the other: it goes to `MobileSupport.receive`, and to no subscriber. The
clients that a mobile broker sends here are guests: their sessions come from there, their subscriptions are
kept there, and what this broker has for them is told by the broker that matched it (`publishing.deliver_to`).
"""

from __future__ import annotations

from typing import Protocol

from hedgerow.broker.access import Access
from hedgerow.broker.broker import Broker
from hedgerow.broker.changes import SubscriptionRecord
from hedgerow.broker.connection import Connection
from hedgerow.broker.role import Refusal, Role, ShortPath
from hedgerow.broker.roles import ClientRole, own_name
from hedgerow.broker.session import Channel, Session
from hedgerow.broker.short_path import acknowledgements
from hedgerow.errors import ProtocolError
from hedgerow.message import Message, Properties
from hedgerow.mobility.renewals import move_of
from hedgerow.mqtt.extension import Renewal, parse_address
from hedgerow.mqtt.ids import RIGHT_TOPIC, node_of
from hedgerow.mqtt.packets import (
    MQTT_EXTENDED,
    Connack,
    Connect,
    Packet,
    Pubcallback,
    Publish,
    Renew,
    Subscription,
)
from hedgerow.mqtt.reasons import Reason
from hedgerow.mqtt.wire import PUBACK_HEAD

MOBILE_PREFIX = "hedgerow-mobile-"  # of the client ids of mobile brokers
FIXED_PREFIX = "hedgerow-fixed-"  # of the client id under which a mobile broker knows the link's session
KEPT_PREFIX = "hedgerow-kept-"  # of sessions without clients, for what such a broker has yet to do
DOMAIN_PROPERTY = "hedgerow-domain"  # a user property of CONNACK: the domain of the fixed broker
ADDRESS_PROPERTY = "hedgerow-address"  # a user property of CONNECT: HOST:PORT where its clients reach it
TAKES_SESSIONS = ("hedgerow-sessions", "1")
"""A user property of CONNACK: sessions of clients are given and taken (`roaming.py`)."""
PUBLICATION_WORK = 5  # beside what comes of it


class ClientMobility(Protocol):
    """What the role of clients asks of a mobile or fixed broker."""

    supporter: str
    """HOST:PORT of the broker that supports this one, as clients of the extension are told; or ""."""

    def expects(self, client_id: str, username: str | None) -> bool:
        """Does a client of this name, logged in as this user, bring its session from another broker? Not
        asked at a clean start."""

    def arriving(self, client_id: str, is_clean: bool) -> None:
        """A client connects. `is_clean`: it wants to begin anew. If it may, it is `connected` next."""

    def disconnected(self, connection: Channel) -> None:
        """A client's session has no connection any more."""

    def connected(self, connection: Channel) -> None:
        """A client's session has its connection, and the CONNACK is on its way.

        What was in flight before is sent again after this: what is delivered here is in front of it.
        """

    def keeps(self, session: Session) -> bool:
        """Is the client leaving because it was told to? Its session then stays, whatever its expiry."""

    def discarded(self, session: Session) -> None:
        """A client's session ends; it still has its subscriptions."""

    def subscribes(self, session: Session, record: SubscriptionRecord) -> bool:
        """Is it a guest's, and has been passed to its owner? Then it is not for this broker's table."""

    def unsubscribes(self, session: Session, topic_filter: str) -> bool:
        """Is it a guest's, and has been passed to its owner?"""


class MobileClientRole(ClientRole):
    """A client of a mobile or a fixed broker, which may be sent to the other."""

    is_extended = True

    def __init__(self, broker: Broker, mobility: ClientMobility) -> None:
        super().__init__(broker)
        self.mobility = mobility

    def accept(self, connection: Channel, answer: Connack) -> Packet:
        supporter = self.mobility.supporter
        if connection.protocol_version != MQTT_EXTENDED or not supporter:
            return answer
        assert isinstance(connection, Connection)
        move_of(connection).supporter = supporter
        return Renew(Renewal.CONNECTION, supporter, session_present=answer.session_present)

    def refusal(
        self, connection: Channel, packet: Connect, username: str | None, owner: Session | None
    ) -> Refusal | None:
        if packet.username is not None and username is None:
            # Nobody verified the name, so it proves nothing; and a password may have come with it, which the
            # client would show wherever it is sent.
            assert isinstance(connection, Connection)
            move_of(connection).is_name_unverified = True
        self.mobility.arriving(packet.client_id, packet.clean_start)
        return super().refusal(connection, packet, username, owner)

    def expects(self, packet: Connect, username: str | None) -> bool:
        if packet.username is not None and username is None:
            return False
        return self.mobility.expects(packet.client_id, username)

    def connected(self, connection: Channel) -> None:
        self.mobility.connected(connection)

    def disconnected(self, connection: Channel) -> None:
        super().disconnected(connection)
        self.mobility.disconnected(connection)

    def keeps(self, session: Session) -> bool:
        return self.mobility.keeps(session)

    def discarded(self, session: Session) -> None:
        self.mobility.discarded(session)

    def subscribes(self, session: Session, record: SubscriptionRecord) -> bool:
        return self.mobility.subscribes(session, record)

    def unsubscribes(self, session: Session, topic_filter: str) -> bool:
        return self.mobility.unsubscribes(session, topic_filter)


class MobileSupport(Protocol):
    """What the role of mobile brokers asks of a fixed broker."""

    domain: str
    """Under which both write."""

    def refusal(self, broker_id: str, username: str | None) -> str | None:
        """Why this mobile broker may not connect here; None: it may."""

    def accepted(self, connection: Channel, address: str, is_extended: bool) -> None:
        """A mobile broker is connected, and has been told so. `address` is "" or HOST:PORT; `is_extended`: it
        reads PUBCALLBACK."""

    def ended(self, connection: Channel) -> None:
        """The connection of a mobile broker is over."""

    def receive(self, connection: Channel, publication: Message) -> None:
        """A publication on the connection of a mobile broker."""


class MobileBrokerRole(Role):
    """Without a fixed broker's support it refuses whoever connects as a mobile broker."""

    name = "mobile broker"
    prefix = MOBILE_PREFIX
    gives_ids = True
    is_link = True
    takes_callbacks = True
    keeps_will = False

    def __init__(self, broker: Broker, support: MobileSupport | None = None, reason: str = "") -> None:
        """`reason`: why there is none."""
        self._broker = broker
        self._support = support
        self._reason = reason or "this broker supports no mobile brokers"
        self.short_path: ShortPath = {
            0x40: acknowledgements,
            0x50: acknowledgements,
            0x62: acknowledgements,
            0x70: acknowledgements,
        }

    def refusal(
        self, connection: Channel, packet: Connect, username: str | None, owner: Session | None
    ) -> Refusal | None:
        broker = self._broker
        refusal = broker.client_role.refusal(connection, packet, username, owner)
        if refusal is None:
            reason = self._refusal(packet, username)
            refusal = None if reason is None else Refusal(Reason.NOT_AUTHORIZED, reason)
        return refusal

    def _refusal(self, packet: Connect, username: str | None) -> str | None:
        """A session of this name is that of a mobile broker, and of the one that it names."""
        broker_id = packet.client_id.removeprefix(MOBILE_PREFIX)
        if self._support is None:
            return self._reason
        if node_of(packet.properties) is None:
            return f"client ids that begin with {MOBILE_PREFIX} are those of mobile brokers"
        if not self._broker.identified_role.claims(packet, username):
            return f"no mobile broker without the right to write {RIGHT_TOPIC}"
        if node_of(packet.properties) != broker_id or not _is_address(_address_of(packet.properties)):
            return "not as a mobile broker connects"
        return self._support.refusal(broker_id, username)

    def answer(self, packet: Connect, properties: Properties) -> None:
        assert self._support is not None
        properties["receive_maximum"] = self._broker.limits.peer_receive_maximum
        properties["user_property"] = (
            *own_name(self._broker),
            (DOMAIN_PROPERTY, self._support.domain),
            TAKES_SESSIONS,
        )

    def resumed(self, connection: Channel, packet: Connect) -> None:
        assert self._support is not None
        self._support.accepted(connection, _address_of(packet.properties), packet.is_extended)

    def may_write(self, session: Session, topic: str) -> bool:
        return False  # What it publishes is for this broker itself.

    def subscribing(self, connection: Channel, wanted: Subscription, is_shared: bool) -> int | None:
        """It is sent what this broker writes to it. What others publish under such a name, retained before it
        came perhaps, would be taken for this broker's word."""
        return wanted.qos

    def receive(self, connection: Channel, packet: Publish) -> bool:
        if packet.qos == 2:
            raise ProtocolError(Reason.QOS_NOT_SUPPORTED, "QoS 2 from a mobile broker")
        broker = self._broker
        change_count = broker.durability.change_count
        from hedgerow.mobility.delegation import codec  # A node that refuses mobile brokers never needs it.

        self._receive(connection, codec.publication_of(packet))
        if packet.qos:
            data = PUBACK_HEAD + packet.packet_id.to_bytes(2, "big")
            must_wait = broker.durability.change_count != change_count
            broker.durability.acknowledge(connection, data, must_wait)
        return True

    def receive_pubcallback(self, connection: Channel, packet: Pubcallback) -> None:
        if packet.qos:
            raise ProtocolError(Reason.QOS_NOT_SUPPORTED, "PUBCALLBACK at QoS 1 or 2 from a mobile broker")
        from hedgerow.mobility.delegation import codec

        self._receive(connection, codec.from_pubcallback(packet))

    def _receive(self, connection: Channel, publication: Message) -> None:
        broker = self._broker
        broker.stats.publish_received += 1
        broker.work += PUBLICATION_WORK
        if self._support is not None:
            self._support.receive(connection, publication)

    def disconnected(self, connection: Channel) -> None:
        if self._support is not None:
            self._support.ended(connection)


class _OwnRole(Role):
    """A session of this node's own: no client may take it, and no right is asked of it."""

    is_link = True
    is_own = True
    hears_errors = False
    holds_receive_maximum = False

    def may_read(self, session: Session, access: Access, topic: str) -> bool:
        return True

    def may_write(self, session: Session, topic: str) -> bool:
        return False


class FixedBrokerRole(_OwnRole):
    """The link of this mobile broker to a fixed one."""

    name = "fixed broker"
    takes_callbacks = True
    description = "the link to a fixed broker"


class KeptRole(_OwnRole):
    """What a mobile or fixed broker has acknowledged and not yet done, over a crash (`kept.py`)."""

    name = "kept"
    description = "a part of this broker"
    listens = False


def register_own_roles(broker: Broker) -> None:
    for role in (FixedBrokerRole(), KeptRole()):
        if role.name not in broker.roles:
            broker.register(role)


def takes_sessions(properties: Properties) -> bool:
    return TAKES_SESSIONS in properties.get("user_property", ())


def _address_of(properties: Properties) -> str:
    pairs = properties.get("user_property", ())
    return next((value for name, value in pairs if name == ADDRESS_PROPERTY), "")


def _is_address(text: str) -> bool:
    """Clients are sent there."""
    try:
        return not text or bool(parse_address(text))
    except ValueError:
        return False
