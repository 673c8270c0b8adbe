"""What kind of peer a session belongs to.

Each session has one role, which answers everything that differs between kinds of peers: who may open the
session and with what proof, what it may read and write, what its packets mean here, what waits for it while
it is away, what happens when it connects, disconnects and ends, and under which name it is stored. `client`
is the default (`roles.py`). A feature defines its own role in its own folder and registers it
(`Broker.register`); the broker never asks what kind of session it has.

A role is one object for all sessions of its kind. It holds what it needs of its feature.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from hedgerow.broker.exchange import Authenticator
from hedgerow.errors import ProtocolError
from hedgerow.message import Properties
from hedgerow.mqtt.packets import Connack, Connect, Packet, Pubcallback, Publish, Subscription
from hedgerow.mqtt.reasons import Reason

if TYPE_CHECKING:
    from hedgerow.broker.access import Access
    from hedgerow.broker.changes import SubscriptionRecord
    from hedgerow.broker.session import Channel, Session

ShortPath = Mapping[int, Callable[[Any, bytes, int, int, int], int]]
"""By the first byte of a packet: (connection, chunk, where the packet, its body and the next one begin) →
where to go on, or 0 for a packet that goes through the codec."""


class Refusal(NamedTuple):
    """Why a CONNECT is refused."""

    reason_code: int
    reason: str
    properties: Properties | None = None
    is_expected: bool = False
    """It is in order, and no reason to complain."""


class Role:
    name = ""
    """By which the store knows it."""
    prefix = ""
    """Of the client ids that are for this role alone, whatever else a CONNECT asks for."""
    gives_ids = False
    """Its messages have ids of their own. What waits for it may go another way too."""
    is_link = False
    """People count it among the links to other brokers. All others are clients, with ids or not."""
    is_movable = False
    """It is a client without ids, which another broker may serve in the place of this one."""
    is_interest_here = True
    """What it subscribes to is wanted at this node, rather than behind it."""
    is_own = False
    """Its session belongs to a part of this node: no client may take it."""
    description = ""
    """Of such a part, for people."""
    listens = True
    """What it is subscribed to is delivered to it. Others only keep something for a part of this node."""
    keeps_will = True
    """Its will is for the clients of this broker."""
    hears_errors = True
    """What it sends is handled as it comes: a ProtocolError ends in its connection's `refuse`."""
    holds_receive_maximum = True
    """One that sends more at once than Receive Maximum allows is disconnected (MQTT-3.3.4-7)."""
    is_extended = False
    """Of the client role: it speaks protocol version 0xFF as well (`mqtt/extension.py`)."""
    takes_callbacks = False
    """It speaks MQTT 5 and the extension: PUBCALLBACK has a meaning here."""
    transport: str | None = None
    """By which way its publications come, as observers are told; None: that of its connection."""
    short_path: ShortPath = MappingProxyType({})
    maximum_qos = 2
    """Of what it may publish and is subscribed with."""
    takes_retained = True
    """May it publish retained messages?"""

    # CONNECT

    def claims(self, packet: Connect, username: str | None) -> bool:
        """Does this CONNECT ask for a session of this role?"""
        return bool(self.prefix) and packet.client_id.startswith(self.prefix)

    def authenticator(self, packet: Connect) -> Authenticator | Refusal:
        """By what a peer proves itself whose CONNECT names an authentication method; or why it cannot."""
        return Refusal(
            Reason.BAD_AUTHENTICATION_METHOD, "no authentication method is configured [MQTT-4.12.0-1]"
        )

    def not_proven(self, packet: Connect, reason: str) -> None:
        """The peer has not proved itself, and is refused."""

    def refusal(
        self, connection: Channel, packet: Connect, username: str | None, owner: Session | None
    ) -> Refusal | None:
        """Why this peer may not open the session, which `owner` is now if it exists; None: it may."""
        return None

    def inherits(self, session: Session, username: str | None) -> bool:
        """Is this user, which may open the session, the owner of what waits in it for another, or nobody?
        Else it gets a new one."""
        return False

    def answer(self, packet: Connect, properties: Properties) -> None:
        """Add to the properties of CONNACK."""

    def accept(self, connection: Channel, answer: Connack) -> Packet:
        """What is sent in answer to CONNECT."""
        return answer

    def expects(self, packet: Connect, username: str | None) -> bool:
        """Does the peer, which logged in as this user, bring its session from another broker? Asked where
        there is none."""
        return False

    def connected(self, connection: Channel) -> None:
        """The session has its connection, and CONNACK is on its way; what was in flight is sent next."""

    def resumed(self, connection: Channel, packet: Connect) -> None:
        """What was in flight is sent again; the first packet is next."""

    # Rights

    def may_read(self, session: Session, access: Access, topic: str) -> bool:
        return access.may_read(session.username, session.client_id, topic)

    def may_write(self, session: Session, topic: str) -> bool:
        """May it publish there?"""
        raise NotImplementedError

    def origin_of(self, connection: Channel, origin: str) -> str | None:
        """Under which origin the ids count that this peer gives under `origin`; None: they do not count.

        A peer that may speak for every origin, since it proved to be a node, has them count as they
        are. Asked once for each origin of a connection, not for each message.
        """
        return origin

    # Packets

    def receive(self, connection: Channel, packet: Publish) -> bool:
        """Was this PUBLISH meant for the feature, rather than for the clients of this broker?"""
        return False

    def receive_pubcallback(self, connection: Channel, packet: Pubcallback) -> None:
        """A publication with callbacks in its header, from a peer that `takes_callbacks`."""
        raise ProtocolError(Reason.MALFORMED_PACKET, "packet type 0 is not sent this way", "§2.1.2")

    def subscribing(self, connection: Channel, wanted: Subscription, is_shared: bool) -> int | None:
        """Adapt what it asks for; or answer with a reason code, and nothing is subscribed to."""
        return None

    def subscribes(self, session: Session, record: SubscriptionRecord) -> bool:
        """Was the subscription passed to a broker that keeps it? Then it is not for this one's table."""
        return False

    def unsubscribes(self, session: Session, topic_filter: str) -> bool:
        """Was that passed to a broker that keeps the subscription?"""
        return False

    # The end

    def disconnected(self, connection: Channel) -> None:
        """The session has no connection any more."""

    def keeps(self, session: Session) -> bool:
        """Is the peer leaving because it was sent elsewhere? Then its session stays, whatever its expiry.

        Asked while its connection ends, more than once.
        """
        return False

    def discarded(self, session: Session) -> None:
        """The session ends; it still has its subscriptions."""


class UnknownRole(Role):
    """Of a stored session whose feature does not run. It is kept as it is until the feature does."""

    is_link = True
    is_own = True
    description = "a part of this broker that does not run"
    listens = False

    def __init__(self, name: str) -> None:
        self.name = name

    def may_write(self, session: Session, topic: str) -> bool:
        return False


class EndedRole(Role):
    """Of a session that is over and being taken apart. It counts as what it was, and may do nothing."""

    listens = False

    def __init__(self, before: Role) -> None:
        self.name = before.name
        self.gives_ids = before.gives_ids
        self.is_link = before.is_link
        self.is_movable = before.is_movable
        self.is_interest_here = before.is_interest_here

    def may_read(self, session: Session, access: Access, topic: str) -> bool:
        return False

    def may_write(self, session: Session, topic: str) -> bool:
        return False
