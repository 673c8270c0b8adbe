"""What a broker asks of the part of its node that moves subscriptions and clients between brokers.

A mobile broker connects to a fixed one under the client id `hedgerow-mobile-NODE`. On that connection every
publication is from one of the two to the other: it goes to `Mobility.receive`, and to no subscriber. The
clients that a mobile broker sends here are guests: their sessions come from there, their subscriptions are
kept there, and what this broker has for them is told by who matched it (`Broker.deliver_to`).

Without a `Mobility` a broker has no such connections and no guests, and each question here has one answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from hedgerow.errors import ProtocolError
from hedgerow.message import Properties
from hedgerow.mqtt.packets import Connect, Publish
from hedgerow.mqtt.reasons import Reason
from hedgerow.mqtt.wire import PUBACK_HEAD

if TYPE_CHECKING:
    from hedgerow.broker.broker import Broker
    from hedgerow.broker.changes import SubscriptionRecord
    from hedgerow.broker.connection import Connection
    from hedgerow.broker.session import Session

MOBILE_PREFIX = "hedgerow-mobile-"  # of the client ids of mobile brokers
KEPT_PREFIX = "hedgerow-kept-"  # of sessions without clients, for what such a broker has yet to do
ADDRESS_PROPERTY = "hedgerow-address"  # a user property of CONNECT: HOST:PORT where its clients reach it


class Mobility(Protocol):
    def refusal(self, broker_id: str, username: str | None) -> str | None:
        """Why this mobile broker may not connect here; None: it may."""

    def accepted(self, connection: Connection, address: str) -> None:
        """A mobile broker is connected, and has been told so. `address` is "" or HOST:PORT."""

    def ended(self, connection: Connection) -> None:
        """The connection of a mobile broker is over."""

    def receive(self, connection: Connection, topic: str, payload: bytes) -> None:
        """A publication on the connection of a mobile broker."""

    def reserves(self, topic: str) -> bool:
        """Is it one on which brokers write to each other? Then no client publishes there."""

    def expects(self, client_id: str) -> bool:
        """Does a client of this name bring its session from another broker? Not asked at a clean start."""

    def connected(self, connection: Connection) -> None:
        """A client's session has its connection, and the CONNACK is on its way.

        What was in flight before is sent again after this: what is delivered here is in front of it.
        """

    def keeps(self, session: Session) -> bool:
        """Is the client leaving because it was told to? Its session then stays, whatever its expiry.

        Asked while its connection ends, more than once.
        """

    def discarded(self, session: Session) -> None:
        """A client's session ends; it still has its subscriptions."""

    def subscribes(self, session: Session, record: SubscriptionRecord) -> bool:
        """Is it a guest's, and has been passed to its owner? Then it is not for this broker's table."""

    def unsubscribes(self, session: Session, topic_filter: str) -> bool:
        """Is it a guest's, and has been passed to its owner?"""


class TopicMonitor(Protocol):
    """Is told of each publication that had a client to go to, here or at another broker."""

    def note(self, topic: str, now: float) -> None: ...

    def note_many(self, topic: str, count: int, now: float) -> None: ...


def address_of(properties: Properties) -> str:
    pairs = properties.get("user_property", ())
    return next((value for name, value in pairs if name == ADDRESS_PROPERTY), "")


def is_reserved(broker: Broker, topic: str) -> bool:
    return broker.mobility is not None and broker.mobility.reserves(topic)


def is_expected(broker: Broker, packet: Connect, client_id: str) -> bool:
    return broker.mobility is not None and not packet.clean_start and broker.mobility.expects(client_id)


def is_kept(broker: Broker, session: Session | None) -> bool:
    if broker.mobility is None or session is None or not session.is_client:
        return False
    return broker.mobility.keeps(session)


def pass_subscription(broker: Broker, session: Session, record: SubscriptionRecord) -> bool:
    """To the broker that keeps this client's subscriptions; False: this one does."""
    return broker.mobility is not None and broker.mobility.subscribes(session, record)


def pass_unsubscription(broker: Broker, session: Session, topic_filter: str) -> bool:
    return broker.mobility is not None and broker.mobility.unsubscribes(session, topic_filter)


def handle_mobile_publish(connection: Connection, packet: Publish) -> None:
    """A PUBLISH of a mobile broker that came the long way."""
    broker = connection.broker
    if packet.qos == 2:
        raise ProtocolError(Reason.QOS_NOT_SUPPORTED, "QoS 2 from a mobile broker")
    broker.stats.publish_received += 1
    change_count = broker.durability.change_count
    if broker.mobility is not None:
        broker.mobility.receive(connection, packet.topic, packet.payload)
    if packet.qos:
        data = PUBACK_HEAD + packet.packet_id.to_bytes(2, "big")
        must_wait = broker.durability.change_count != change_count
        broker.durability.acknowledge(connection, data, must_wait)
