"""A connection that this broker dialled: CONNECT and CONNACK go the other way round, the rest is the same.

Once the far broker has answered, a link between brokers is a connection like any other: what its session is
to get leaves with the outbox's packet identifiers and is sent again after a loss, and what comes is
acknowledged when it is stored. This class adds what only clients do: it says CONNECT, subscribes, and probes
whether the far broker lives (`probe.py`). A subclass says who dials, and what for.
"""

from __future__ import annotations

from hedgerow.broker.connection import Connection, Dialect, State
from hedgerow.broker.core import BrokerCore
from hedgerow.broker.events import PublicationRefused
from hedgerow.broker.exchange import AuthenticationError
from hedgerow.broker.handle_connect import attach, reason_of, set_wire_form
from hedgerow.broker.handle_publish import accept, handle_acknowledgement, has_too_many_pairs
from hedgerow.broker.ledger import Inbound
from hedgerow.broker.probe import Probe
from hedgerow.broker.retaining import retainer
from hedgerow.broker.routes import Route
from hedgerow.broker.session import Session, WireForm
from hedgerow.broker.suspects import blame
from hedgerow.compiling import mypyc_attr
from hedgerow.errors import ProtocolError, TopicError
from hedgerow.message import Message, Properties
from hedgerow.mqtt import codec
from hedgerow.mqtt.ids import node_of
from hedgerow.mqtt.outbox import Outbox
from hedgerow.mqtt.packets import (
    AUTH,
    CONNACK,
    DISCONNECT,
    MQTT_3_1_1,
    MQTT_5,
    PINGRESP,
    PUBACK,
    PUBCALLBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pubcallback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from hedgerow.mqtt.properties import of_message
from hedgerow.mqtt.reasons import Reason, describe
from hedgerow.mqtt.wire import PUBACK_HEAD, PUBREC_HEAD
from hedgerow.topics import validate_name

# MQTT 3 has no Receive Maximum. What goes beyond its own 20, Mosquitto (2.0.11) acknowledges, and loses some.
MQTT_3_IN_FLIGHT = 20
MAX_CACHED_NAMES = 16_384  # A publisher may use a new topic for every message.
CONNACK_S = 5.0  # A link that was cut before its first answer has no probes yet.


@mypyc_attr(allow_interpreted_subclasses=True)  # the rooms' connections
class DialledConnection(Connection):
    """`open` when all is set: it sends the CONNECT."""

    __slots__ = ("_subscribing", "far_node", "is_first", "probe")

    def __init__(
        self,
        broker: BrokerCore,
        now: float,
        address: str,
        transport: str,
        probe_interval_s: float,
        probe_misses: int,
    ) -> None:
        broker.now = now
        super().__init__(broker, now, address, False, None, transport, FROM_SERVERS)
        self.far_node: str | None = None  # the name of a broker that gives ids itself
        self.is_first = False  # The far broker knew nothing of this session.
        self.probe = Probe(self, now, probe_interval_s, probe_misses)
        self._subscribing: dict[int, list[Subscription]] = {}

    # What a subclass says

    def connect_packet(self) -> Connect:
        """Sets `exchange` too, where it names an authentication method."""
        raise NotImplementedError

    def handle_accepted(self, packet: Connack) -> None:
        """CONNACK came, and `far_node` is known: `bind` is next."""
        raise NotImplementedError

    def handle_refused(self, reason_code: int, reason: str) -> None:
        self.end(f"the far broker refused the connection: {reason}")

    def handle_not_proven(self, reason: str) -> None:
        """The far broker has not proved itself. Where it is an honest one, its log is to say so too."""
        self.send_packet(Disconnect(Reason.IMPLEMENTATION_SPECIFIC_ERROR, self.problem(reason)))
        self.end(reason)

    def handle_subscribed(self, answered: list[Subscription], codes: list[int]) -> None:
        raise NotImplementedError

    def handle_unsubscribed(self, packet_id: int) -> None:
        """UNSUBACK came."""

    def handle_round_trip(self, round_trip_s: float) -> None:
        """The far broker answered a probe."""

    def handle_control(self, packet: Publish) -> bool:
        """Whether it was meant for this end of the link rather than for the broker's clients."""
        return False

    def handle_pubcallback(self, packet: Pubcallback) -> None:
        """Of the extension, where this end has asked for it."""
        raise ProtocolError(Reason.MALFORMED_PACKET, "packet type 0, which was not asked for", "§2.1.2")

    def name_here(self, topic: str) -> str | None:
        """What this broker calls a topic of the far one; None when it is not to come in."""
        raise NotImplementedError

    def take_message(self, message: Message, route: Route, packet_id: int) -> None:
        """A message that may come in, under its name there."""
        message.topic = route.topic
        accept(self, message, route, packet_id)

    @property
    def compares_ages(self) -> bool:
        return self.far_node is not None

    # CONNECT and CONNACK

    def open(self) -> None:
        broker = self.broker
        broker.add_connection(self)
        broker.arm(broker.now + CONNACK_S, self)
        self.send_packet(self.connect_packet())

    def _handle(self, first: int, body: bytes) -> None:
        is_short = first >> 4 == CONNACK and len(body) == 2 and self.protocol_version == MQTT_5
        if is_short and self.state is State.NEW and body[1]:
            # A broker that knows no MQTT 5 refuses it in the words of 3.1.1 (3.1.1 §3.2).
            _handle_connack(self, codec.decode(first, body, MQTT_3_1_1))
            return
        super()._handle(first, body)

    def bind(self, session: Session, packet: Connack, maximum_packet_size: int = 0) -> None:
        """The far broker took the CONNECT: from now on this connection is the session's."""
        broker, found = self.broker, packet.properties
        set_wire_form(broker, session, WireForm.PEER if self.carries_ids else WireForm.OWN)
        session.protocol_version = self.protocol_version
        sizes = [size for size in (found.get("maximum_packet_size", 0), maximum_packet_size) if size]
        self.maximum_packet_size = min(sizes, default=0)
        default = 65_535 if self.protocol_version == MQTT_5 else MQTT_3_IN_FLIGHT
        limits = broker.limits
        in_flight = limits.in_flight if self.far_node is None else limits.peer_in_flight
        window = min(found.get("receive_maximum", default), in_flight)
        if session.outbox is None:
            session.outbox = Outbox(window)
        session.outbox.window = window
        session.connection = self
        self.session = session
        far = self.far_node
        session.far_origin = None if far is None else session.role.origin_of(self, far)
        self.is_first = not packet.session_present
        if self.is_first:
            self._forget_received(session)
        attach(self)
        broker.durability.store_session(session)
        self.probe.begin()

    def _forget_received(self, session: Session) -> None:
        """A far broker that begins anew uses packet identifiers that we know for other messages (§4.1)."""
        for packet_id in session.received or ():
            self.broker.durability.store_received(session, packet_id, False)
        session.received = None
        self.broker.owners.weigh(session)

    # Subscriptions there

    def subscribe_there(self, wanted: list[Subscription], identifier: int = 0) -> None:
        packet_id = self.take_packet_id()
        self._subscribing[packet_id] = wanted
        properties: Properties = {"subscription_identifier": (identifier,)} if identifier else {}
        self.send_packet(Subscribe(packet_id, wanted, properties))

    def unsubscribe_there(self, filters: list[str]) -> int:
        """The packet identifier, for `handle_unsubscribed`."""
        packet_id = self.take_packet_id()
        self.send_packet(Unsubscribe(packet_id, filters))
        return packet_id

    @property
    def is_hurried(self) -> bool:
        """Is the far broker to get TCP's acknowledgements at once?

        Mosquitto answers two SUBSCRIBEs with two small writes, and its kernel holds the second back until
        ours acknowledges the first, which ours delays by 40 ms. So for messages too, but then an
        acknowledgement of its own for each chunk is the price.
        """
        return not (self.is_connected and self.is_subscribed)

    @property
    def is_subscribed(self) -> bool:
        """Has every SUBSCRIBE been answered?"""
        return not self._subscribing

    def take_packet_id(self) -> int:
        outbox = self.connected_session().outbox
        assert outbox is not None
        return outbox.allocate_packet_id()

    def take_subscribing(self, packet_id: int) -> list[Subscription]:
        return self._subscribing.pop(packet_id, [])

    # Messages from the far broker

    def route_for(self, topic_bytes: bytes) -> Route | None:
        topics = self.topics
        if topics is None:
            topics = self.topics = {}
        route = topics.get(topic_bytes)
        if route is not None and not route.stale:
            return route
        try:
            topic = self.name_here(validate_name(topic_bytes.decode()))
        except (UnicodeDecodeError, TopicError):
            return None
        if topic is None:
            return None
        route = self.broker.find_route(topic)
        if len(topics) >= MAX_CACHED_NAMES:
            topics.clear()
        if not route.stale:
            topics[topic_bytes] = route
        return route

    def receive_message(self, message: Message, topic_bytes: bytes, packet_id: int) -> None:
        """A PUBLISH, with the topic's name there."""
        inbound = self.inbound
        assert inbound is not None
        route = self.route_for(topic_bytes)
        if route is None:
            self._refuse_message(inbound, message, packet_id)
        elif message.retain and not self._has_room_to_retain(message):
            reason = "no room for more retained messages of this link, or in all"
            client_id = self.connected_session().client_id
            event = PublicationRefused(self.address, client_id, route.topic, reason)
            self.broker.events.append(event)
            self._refuse_message(inbound, message, packet_id)
        else:
            self.take_message(message, route, packet_id)

    def _has_room_to_retain(self, message: Message) -> bool:
        return self.broker.retained.has_room_for(message, retainer(self.connected_session()))

    def _refuse_message(self, inbound: Inbound, message: Message, packet_id: int) -> None:
        inbound.published += 1
        inbound.refused += 1
        self.acknowledge(message.qos, packet_id)

    # Messages of this end itself, which no session gets

    def publish_there(self, message: Message) -> None:
        # At QoS 0 whatever it asks for: at QoS 1 it is overtaken at Mosquitto by the messages that it is
        # about, where these are at QoS 0 and 20 others are in flight.
        self.send_packet(Publish(message.topic, message.payload, 0, message.retain))

    def acknowledge(self, qos: int, packet_id: int) -> None:
        """What needs no more than that."""
        if qos and packet_id:
            head = PUBACK_HEAD if qos == 1 else PUBREC_HEAD
            self.broker.durability.acknowledge(self, head + packet_id.to_bytes(2, "big"), must_wait=False)

    # Time

    def check_time(self) -> None:
        if self.state is State.NEW:
            self.end(f"no CONNACK in {CONNACK_S:g} s")
        elif self.state is State.CONNECTED:
            self.probe.check()

    def take_output(self) -> bytes:
        data = super().take_output()
        self.probe.written += len(data)
        return data

    # The end

    def lost(self, now: float, was_closed: bool = False) -> None:
        if was_closed and self.far_node is None and self.is_connected:
            self.far_reason = Reason.SUCCESS
        super().lost(now, was_closed)

    def refuse(self, error: ProtocolError) -> None:
        if error.reason_code == Reason.SERVER_BUSY:  # It is we who cannot.
            self.disconnect(error.reason_code, error.reason)
            return
        if self.is_connected and self.protocol_version == MQTT_5:
            self.send_packet(Disconnect(error.reason_code))
        self.broker.stats.protocol_errors += 1
        self.end(f"the far broker broke a rule: {error}")

    def disconnect(self, reason_code: int, reason: str, server_reference: str | None = None) -> None:
        self.leave(reason or describe(reason_code), is_for_good=False)

    def leave(self, reason: str, is_for_good: bool) -> None:
        """End from this side. For good: the far broker need keep nothing for us."""
        if self.is_connected:
            properties: Properties = {}
            if is_for_good and self.protocol_version == MQTT_5:
                properties["session_expiry_interval"] = 0
            self.send_packet(Disconnect(Reason.SUCCESS, properties))
        self.end(reason)

    def report_end(self, reason: str) -> None:
        """Whoever dialled tells of it, in its own words."""


# What only servers send


def _handle_connack(connection: DialledConnection, packet: Packet) -> None:
    assert isinstance(packet, Connack)
    connection.far_node = node_of(packet.properties)
    if packet.reason_code:
        connection.handle_refused(packet.reason_code, reason_of(packet))
        return
    connection.handle_accepted(packet)


def _handle_auth(connection: DialledConnection, packet: Packet) -> None:
    exchange = connection.exchange
    if exchange is None:
        raise ProtocolError(Reason.PROTOCOL_ERROR, "AUTH, which was not asked for", "MQTT-4.12.0-6")
    try:
        answer = exchange.authenticator.step(exchange.read(packet))
    except AuthenticationError as error:
        connection.handle_not_proven(str(error))
        return
    connection.send_packet(exchange.write(answer))
    if exchange.proven_name is not None:
        connection.seal_with(exchange.authenticator.seal)


def _handle_publish(connection: DialledConnection, packet: Packet) -> None:
    assert isinstance(packet, Publish)
    broker = connection.broker
    if not packet.topic or "topic_alias" in packet.properties:
        raise ProtocolError(
            Reason.TOPIC_ALIAS_INVALID, "a topic alias, of which we allow none", "MQTT-3.1.2-27"
        )
    if connection.handle_control(packet):
        connection.acknowledge(packet.qos, packet.packet_id)
        return
    message = Message(packet.topic, packet.payload, packet.qos, packet.retain, of_message(packet.properties))
    if connection.carries_ids:
        connection.identify(message)
    if has_too_many_pairs(message):
        raise ProtocolError(Reason.QUOTA_EXCEEDED, "more user properties than we take", "§4.13.2")
    message.expire_from(broker.now)
    connection.receive_message(message, packet.topic.encode(), packet.packet_id)


def _handle_pubcallback(connection: DialledConnection, packet: Packet) -> None:
    assert isinstance(packet, Pubcallback)
    connection.handle_pubcallback(packet)


def _handle_suback(connection: DialledConnection, packet: Packet) -> None:
    assert isinstance(packet, Suback)
    wanted = connection.take_subscribing(packet.packet_id)
    connection.handle_subscribed(wanted, packet.reason_codes)


def _handle_unsuback(connection: DialledConnection, packet: Packet) -> None:
    assert isinstance(packet, Unsuback)
    connection.handle_unsubscribed(packet.packet_id)


def _handle_pingresp(connection: DialledConnection, packet: Packet) -> None:
    """That it came is all but for how long it took: `heard_at` is set for any packet."""
    round_trip_s = connection.probe.answered()
    if round_trip_s is not None:
        connection.handle_round_trip(round_trip_s)


def _handle_disconnect(connection: DialledConnection, packet: Packet) -> None:
    assert isinstance(packet, Disconnect)
    if connection.protocol_version < MQTT_5:
        raise ProtocolError(Reason.PROTOCOL_ERROR, "DISCONNECT from a server", "§3.14")
    connection.far_reason = blame(packet.reason_code)
    connection.end(f"the far broker disconnected: {reason_of(packet)}")


FROM_SERVERS = Dialect(
    CONNACK,
    "CONNACK",
    {
        CONNACK: (_handle_connack, State.NEW),
        AUTH: (_handle_auth, State.NEW),
        PUBLISH: (_handle_publish, State.CONNECTED),
        PUBCALLBACK: (_handle_pubcallback, State.CONNECTED),
        PUBACK: (handle_acknowledgement, State.CONNECTED),
        PUBREC: (handle_acknowledgement, State.CONNECTED),
        PUBREL: (handle_acknowledgement, State.CONNECTED),
        PUBCOMP: (handle_acknowledgement, State.CONNECTED),
        SUBACK: (_handle_suback, State.CONNECTED),
        UNSUBACK: (_handle_unsuback, State.CONNECTED),
        PINGRESP: (_handle_pingresp, State.CONNECTED),
        DISCONNECT: (_handle_disconnect, State.CONNECTED),
    },
)
