"""The connection of a bridge to its far broker, handled by this node's broker as one more connection.

After CONNECT and CONNACK, which go the other way round here, a link between brokers is like any other: what
the bridge's session is to get leaves with the outbox's packet identifiers and is sent again after a loss, and
what comes is acknowledged when it is stored. This class adds what is different: the names of topics on the
other side (the section's topic lines), the subscriptions there, the ids of messages, and the probes
(`probe.py`). What each packet of the far broker means is in `far_packets.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from hedgerow.errors import ProtocolError, TopicError
from hedgerow.fabric.bridges.far_packets import (
    FAR_HANDLERS,
    FOREIGN_SHORT_PATH,
    OTHER_SHORT_PATH,
    handle_connack,
)
from hedgerow.fabric.bridges.foreign import Foreign
from hedgerow.fabric.bridges.probe import Probe
from hedgerow.fabric.bridges.stamps import CONTROL_FILTER, is_control
from hedgerow.message import Message, Properties
from hedgerow.mqtt import codec
from hedgerow.mqtt.broker.connection import Connection, State
from hedgerow.mqtt.broker.handle_connect import become_peer, set_wire_form
from hedgerow.mqtt.broker.handle_publish import accept
from hedgerow.mqtt.broker.ids import NODE_PROPERTY, Inbound
from hedgerow.mqtt.broker.routes import Route, WireForm
from hedgerow.mqtt.outbox import Outbox
from hedgerow.mqtt.packets import (
    CONNACK,
    MQTT_3_1_1,
    MQTT_5,
    NEVER_EXPIRES,
    Connack,
    Connect,
    Disconnect,
    Publish,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from hedgerow.mqtt.reasons import Reason, describe
from hedgerow.mqtt.wire import PUBACK_HEAD, PUBREC_HEAD
from hedgerow.topics import validate_name

if TYPE_CHECKING:
    from hedgerow.fabric.bridges.bridge import Bridge

# MQTT 3 has no Receive Maximum. What goes beyond its own 20, Mosquitto (2.0.11) acknowledges, and loses some.
MQTT_3_IN_FLIGHT = 20
MAX_CACHED_NAMES = 16_384  # A publisher may use a new topic for every message.
CONNACK_S = 5.0  # A link that was cut before its first answer has no probes yet.
LOCAL_ONLY = ("$SYS/", "$hedgerow/")  # No far broker speaks there.


class FarConnection(Connection):
    __slots__ = (
        "_subscribing",
        "bridge",
        "far_node",
        "foreign",
        "is_first",
        "probe",
        "retains",
    )

    opening_packet = CONNACK
    opening_name = "CONNACK"
    handlers = FAR_HANDLERS

    def __init__(self, bridge: Bridge, now: float, address: str) -> None:
        broker = bridge.broker
        broker.now = now
        super().__init__(broker, now, address, False, None, "bridge")
        self.bridge = bridge
        self.protocol_version = bridge.version
        self.far_node: str | None = None  # the name of a broker that gives ids itself
        self.is_first = False  # The far broker knew nothing of this bridge.
        self.retains = bridge.section.bridge_outgoing_retain
        self.foreign: Foreign | None = None  # where the far broker gives no ids
        self.probe = Probe(self, now)
        self._subscribing: dict[int, list[Subscription]] = {}
        broker.add(self)
        broker.arm(now + CONNACK_S, self)
        self.send_packet(self._connect_packet())

    # CONNECT and CONNACK

    def _connect_packet(self) -> Connect:
        section, node_id = self.bridge.section, self.broker.node_id
        limits = self.broker.limits
        properties: Properties = {}
        if self.protocol_version == MQTT_5:
            properties = {
                "maximum_packet_size": limits.packet_bytes,
                "user_property": ((NODE_PROPERTY, node_id),),
            }
            if not section.cleansession:
                age_s = int(section.queue_age_s)
                properties["session_expiry_interval"] = age_s if 0 < age_s < NEVER_EXPIRES else NEVER_EXPIRES
        will = None
        if section.notifications and not section.notifications_local_only:
            will = Will(section.notification_topic_on(node_id), b"0", 1, True)
        password = section.remote_password
        return Connect(
            section.remote_clientid_on(node_id),
            self.protocol_version,
            section.cleansession,
            section.keepalive_interval_s,
            section.remote_username,
            password.encode() if password is not None else None,
            will,
            properties,
            is_bridge=section.try_private and self.protocol_version < MQTT_5,
        )

    def _handle(self, first: int, body: bytes) -> None:
        is_short = first >> 4 == CONNACK and len(body) == 2 and self.protocol_version == MQTT_5
        if is_short and self.state is State.NEW and body[1]:
            # A broker that knows no MQTT 5 refuses it in the words of 3.1.1 (3.1.1 §3.2).
            packet = codec.decode(first, body, MQTT_3_1_1)
            handle_connack(self, packet)
        else:
            super()._handle(first, body)

    def establish(self, packet: Connack) -> None:
        """The far broker took the CONNECT: bind this connection to the bridge's session."""
        broker, session, found = self.broker, self.bridge.session, packet.properties
        section = self.bridge.section
        if self.protocol_version == MQTT_5:
            become_peer(self)
            if self.far_node is None:
                self.short_path = FOREIGN_SHORT_PATH
        else:
            self.inbound = Inbound()
            self.short_path = OTHER_SHORT_PATH
        self.foreign = self.bridge.find_foreign(self.carries_ids) if self.far_node is None else None
        set_wire_form(broker, session, WireForm.PEER if self.carries_ids else WireForm.OWN)
        session.protocol_version = self.protocol_version
        session.far_origin = self.far_node
        sizes = [
            size for size in (found.get("maximum_packet_size", 0), section.bridge_max_packet_size) if size
        ]
        self.maximum_packet_size = min(sizes, default=0)
        self.retains = self.retains and bool(found.get("retain_available", 1))
        default = 65_535 if self.protocol_version == MQTT_5 else MQTT_3_IN_FLIGHT
        window = min(found.get("receive_maximum", default), broker.limits.in_flight)
        if session.outbox is None:
            session.outbox = Outbox(window)
        session.outbox.window = window
        session.connection = self
        self.session = session
        self.is_first = not packet.session_present
        if self.is_first:
            self._forget_received()
        broker.attach(self)
        broker.durability.store_session(session)
        self.probe.begin()

    def _forget_received(self) -> None:
        """A far broker that begins anew uses packet identifiers that we know for other messages (§4.1)."""
        session = self.bridge.session
        for packet_id in session.received or ():
            self.broker.durability.store_received(session, packet_id, False)
        session.received = None

    def subscribe(self) -> None:
        """What is to come in, and by the way what is no longer to."""
        if self.foreign is not None:
            # First, and with a word of ours behind it: the others stamp for us what comes from here on.
            self.foreign.connected(self)
            is_mqtt_5 = self.protocol_version == MQTT_5
            self._subscribe([Subscription(CONTROL_FILTER, 1, retain_as_published=is_mqtt_5)])
            self.foreign.serve()
        lines = self.bridge.section.topics
        wanted = [self._subscription(line.remote_filter, line.qos) for line in lines if line.is_in]
        filters = {each.topic_filter for each in wanted}
        unwanted = [line.remote_filter for line in lines if line.remote_filter not in filters]
        if unwanted and not self.is_first and self.bridge.section.bridge_attempt_unsubscribe:
            self.send_packet(Unsubscribe(self._take_packet_id(), unwanted))
        if wanted:
            self._subscribe(wanted)

    def _subscribe(self, wanted: list[Subscription]) -> None:
        packet_id = self._take_packet_id()
        self._subscribing[packet_id] = wanted
        self.send_packet(Subscribe(packet_id, wanted))

    @property
    def is_subscribed(self) -> bool:
        """Has every SUBSCRIBE been answered?"""
        return not self._subscribing

    def unsubscribe(self, kept: Collection[str] = ()) -> None:
        """Nothing more is to come in but what is kept: the bridge is about to end."""
        filters = [line.remote_filter for line in self.bridge.section.topics if line.is_in]
        unwanted = [each for each in filters if each not in kept]
        if unwanted and self.is_connected:
            self.send_packet(Unsubscribe(self._take_packet_id(), unwanted))

    def _subscription(self, topic_filter: str, qos: int) -> Subscription:
        if self.protocol_version < MQTT_5:
            return Subscription(topic_filter, qos)
        # A broker that gives ids may repeat what it retains, which is how missed changes are made up for.
        # From others it would be new each time, so that only a new subscription gets it (§3.8.3.1).
        retain_handling = 0 if self.far_node is not None else 1
        return Subscription(topic_filter, qos, True, True, retain_handling)

    def _take_packet_id(self) -> int:
        outbox = self.bridge.session.outbox
        assert outbox is not None
        return outbox.allocate_packet_id()

    def take_subscribing(self, packet_id: int) -> list[Subscription]:
        return self._subscribing.pop(packet_id, [])

    # Topics and messages

    @property
    def takes_runs(self) -> bool:
        return self.foreign is None  # Which is asked about each message.

    def name_on_wire(self, topic: str) -> bytes | None:
        if self.foreign is not None and not self.foreign.is_simple:
            return None  # Each message has to be asked about.
        name = self.bridge.name_there(topic)
        return name.encode() if name is not None else None

    def has_name_for(self, topic: str) -> bool:
        return self.bridge.name_there(topic) is not None

    def note_run(self, origin: str, epoch: int, sequences: Sequence[int]) -> None:
        if self.foreign is not None:
            self.foreign.note_run(origin, epoch, sequences)

    def route_for(self, topic_bytes: bytes) -> Route | None:
        topics = self.topics
        if topics is None:
            topics = self.topics = {}
        route = topics.get(topic_bytes)
        if route is not None and not route.stale:
            return route
        try:
            topic = self.bridge.name_here(validate_name(topic_bytes.decode()))
        except (UnicodeDecodeError, TopicError):
            return None
        if topic is None or topic.startswith(LOCAL_ONLY):
            return None
        if self.foreign is not None and is_control(topic):
            return None
        username = self.bridge.section.local_username
        if username is not None and not self.broker.access.may_write(
            username, self.bridge.session.client_id, topic
        ):
            return None
        route = self.broker.find_route(topic)
        if len(topics) >= MAX_CACHED_NAMES:
            topics.clear()
        if not route.stale:
            topics[topic_bytes] = route
        return route

    def encode_publish(
        self,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        packet_id: int = 0,
        dup: bool = False,
        may_alias: bool = True,
    ) -> bytes | None:
        """`HELD`: it counts as sent, and leaves later (`send_later`) if the far broker needs it."""
        topic = self.bridge.name_there(message.topic)
        if topic is None:
            return None
        retain = retain and self.retains
        if self.carries_ids:
            data = self._encode_identified(message, qos, retain, (), packet_id, dup, topic)
        else:
            data = codec.encode_plain_publish(message, qos, retain, packet_id, dup, b"", topic)
        if not self.has_room_for(data):
            return None
        if self.foreign is not None:
            return self.foreign.send(message, topic, data, qos, packet_id)
        return data

    def send_later(self, data: bytes, qos: int) -> None:
        """A packet that was held, whose delivery is in flight since it was encoded."""
        if qos == 2 and self.session is not None:
            self.broker.durability.send_exactly_once(self, self.session, data)
        else:
            self.send(data)

    def publish_there(self, message: Message) -> None:
        """A message of the bridge itself, which no session gets."""
        # At QoS 0 whatever it asks for: at QoS 1 it is overtaken at Mosquitto by the messages that it is
        # about, where these are at QoS 0 and 20 others are in flight.
        self.send_packet(Publish(message.topic, message.payload, 0, message.retain))

    def receive_message(self, message: Message, topic_bytes: bytes, packet_id: int) -> None:
        """A PUBLISH from the far broker, with the topic's name there."""
        inbound = self.inbound
        assert inbound is not None
        route = self.route_for(topic_bytes)
        if route is None or (message.retain and not self.broker.retained.has_room_for(message)):
            inbound.published += 1
            inbound.refused += 1
            self._acknowledge(message.qos, packet_id)
            return
        if self.foreign is not None:
            self.foreign.receive_message(message, route, packet_id)
        else:
            message.topic = route.topic
            accept(self, message, route, packet_id)

    def receive_control(self, packet: Publish) -> None:
        """What bridges at this broker tell each other."""
        assert self.foreign is not None
        self._acknowledge(packet.qos, packet.packet_id)
        self.foreign.receive_control(packet.topic, packet.payload)

    def _acknowledge(self, qos: int, packet_id: int) -> None:
        if qos:
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

    def refuse(self, error: ProtocolError) -> None:
        if self.is_connected and self.protocol_version == MQTT_5:
            self.send_packet(Disconnect(error.reason_code))
        self.broker.stats.protocol_errors += 1
        self.end(f"the far broker broke a rule: {error}")

    def disconnect(self, reason_code: int, reason: str, server_reference: str | None = None) -> None:
        self.leave(reason or describe(reason_code), is_for_good=False)

    def leave(self, reason: str, is_for_good: bool) -> None:
        """End from this side. For good: the far broker need keep nothing for us."""
        if self.is_connected:
            self.bridge.notify_there(b"0")
            if self.foreign is not None:
                self.publish_there(self.foreign.stamps.attendance.will)
            properties: Properties = {}
            if is_for_good and self.protocol_version == MQTT_5 and not self.bridge.section.cleansession:
                properties["session_expiry_interval"] = 0
            self.send_packet(Disconnect(Reason.SUCCESS, properties))
        self.end(reason)

    def end(self, reason: str, with_will: bool = True) -> None:
        was_closed = self.state is State.CLOSED
        super().end(reason, with_will)
        if not was_closed:
            self.bridge.handle_end(self, reason)

    def report_end(self, reason: str) -> None:
        """The bridge tells of it, with its own name."""
