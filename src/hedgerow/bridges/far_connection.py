"""The connection of a bridge to its far broker, handled by this node's broker as one more connection.

To what any dialled connection is (`broker/dialled.py`) this class adds what a bridge is: the names of
topics on the other side (the section's topic lines), the subscriptions there, and its dealings with a foreign
broker, which gives no ids.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from hedgerow.bridges.fabric_key import (
    NO_PROOF,
    NONCE_PROPERTY,
    SEAL_BYTES,
    encode_carried,
    make_nonce,
    proof_of,
    same,
    with_proof,
)
from hedgerow.bridges.far_filters import CONTROL_IDENTIFIER
from hedgerow.bridges.foreign import ForeignLink
from hedgerow.bridges.sealed_ids import encode_expiry, encode_topic, encode_via, may_go_on, read_sealed
from hedgerow.bridges.short_paths import FOREIGN_SHORT_PATH, OTHER_SHORT_PATH
from hedgerow.bridges.stamps import CONTROL_FILTER, is_control
from hedgerow.broker.batch import Batch
from hedgerow.broker.connection import State
from hedgerow.broker.handle_connect import carry_ids
from hedgerow.broker.identified import IDENTIFIED_SHORT_PATH
from hedgerow.broker.ledger import Inbound
from hedgerow.broker.limits import MAX_WINDOW
from hedgerow.broker.publishing import deliver_to
from hedgerow.broker.routes import Route
from hedgerow.broker.session import Pause
from hedgerow.broker.told import read_told
from hedgerow.message import Message, Properties
from hedgerow.mqtt import codec
from hedgerow.mqtt.codec import encode_remaining_length
from hedgerow.mqtt.dropped_there import DROPPED_TOPIC
from hedgerow.mqtt.ids import BRIDGE_PROPERTY, ID_HEAD, NODE_PROPERTY
from hedgerow.mqtt.packets import (
    MQTT_5,
    NEVER_EXPIRES,
    Connack,
    Connect,
    Publish,
    Subscription,
    Will,
)
from hedgerow.mqtt.reasons import FAILURE

if TYPE_CHECKING:
    from hedgerow.bridges.bridge import Bridge

# At a foreign broker: what bridges there tell each other, and what it says of itself.
OWN_FILTERS = (CONTROL_FILTER, DROPPED_TOPIC)
LOCAL_ONLY = ("$SYS/", "$hedgerow/")  # No far broker speaks there.
MAX_TOPIC_IN_RUN = 100  # characters that are said twice: there is room for them in `MAX_ID_BYTES`


class FarConnection(ForeignLink):
    __slots__ = (
        "_connect",
        "_is_weakened",
        "_unstored_bytes",
        "bridge",
        "has_identifiers",
        "may_be_told",
        "retains",
    )

    def __init__(self, bridge: Bridge, now: float, address: str) -> None:
        section = bridge.section
        super().__init__(
            bridge.broker, now, address, "bridge", section.probe_interval_s, section.probe_misses
        )
        self.bridge = bridge
        self.protocol_version = bridge.version
        self.retains = section.bridge_outgoing_retain
        self.foreign = None
        self._unstored_bytes = 0  # read since everything was stored
        self.has_identifiers = False  # of subscriptions
        self.may_be_told = True  # what comes next, if it has RETAIN (`stamps.py`)
        self._is_weakened = False  # what comes next: the foreign broker has less than what was sent
        self.open()

    # CONNECT and CONNACK

    def connect_packet(self) -> Connect:
        section, node_id = self.bridge.section, self.broker.node_id
        limits = self.broker.limits
        properties: Properties = {}
        if self.protocol_version == MQTT_5:
            properties = {
                # Said, though it is the default: Mosquitto (2.0.11) has only 20 in flight to who says
                # nothing. Behind what is in flight it keeps 1,000 messages, and drops the rest.
                "receive_maximum": MAX_WINDOW,
                "maximum_packet_size": limits.peer_packet_bytes,
                "user_property": (
                    (NODE_PROPERTY, node_id),
                    (BRIDGE_PROPERTY, section.name),
                    (NONCE_PROPERTY, make_nonce(self.bridge.token)),
                    NO_PROOF,
                ),
            }
            if not section.cleansession:
                age_s = int(section.queue_age_s)
                properties["session_expiry_interval"] = age_s if 0 < age_s < NEVER_EXPIRES else NEVER_EXPIRES
        will = None
        if section.notifications and not section.notifications_local_only:
            will = Will(section.notification_topic_on(node_id), b"0", 1, True)
        password = section.remote_password
        connect = Connect(
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
        if self.protocol_version == MQTT_5:
            connect = with_proof(connect, self.bridge.key.prove_bridge(connect))
        self._connect = connect
        return connect

    def handle_accepted(self, packet: Connack) -> None:
        if self.far_node == self.broker.node_id:
            self.bridge.handle_self(self)
            return
        if self.far_node is not None and proof_of(packet.properties):
            connect, key = self._connect, self.bridge.key
            if not same(key.prove_node(connect, packet), proof_of(packet.properties)):
                self.end("the far node's proof is wrong: someone changes what is said on the way")
                return
            self.is_proven = True
            self.told = read_told(packet.properties)
            self.seal_with(key.link_seal(connect, packet, is_bridge=True))
        self.bridge.take_recent(self.told)
        self._establish(packet)
        self.subscribe()
        self.bridge.handle_connected(self)

    def handle_refused(self, reason_code: int, reason: str) -> None:
        self.bridge.handle_refused(self, reason_code, reason)

    def _establish(self, packet: Connack) -> None:
        section = self.bridge.section
        if self.protocol_version == MQTT_5:
            carry_ids(self)
            self.short_path = FOREIGN_SHORT_PATH if self.far_node is None else IDENTIFIED_SHORT_PATH
        else:
            self.inbound = Inbound()
            self.short_path = OTHER_SHORT_PATH
        self.foreign = self.bridge.find_foreign(self.carries_ids) if self.far_node is None else None
        self.retains = self.retains and bool(packet.properties.get("retain_available", 1))
        available = packet.properties.get("subscription_identifier_available", 1)
        self.has_identifiers = (
            self.protocol_version == MQTT_5 and self.foreign is not None and bool(available)
        )
        self.bind(self.bridge.session, packet, section.bridge_max_packet_size)

    def subscribe(self) -> None:
        """What is to come in, and by the way what is no longer to."""
        if self.foreign is not None:
            # First, and with a word of ours behind it: the others stamp for us what comes from here on.
            self.foreign.connected(self)
            is_mqtt_5 = self.protocol_version == MQTT_5
            control = Subscription(CONTROL_FILTER, 1, retain_as_published=is_mqtt_5)
            dropped = Subscription(DROPPED_TOPIC, 0, retain_as_published=is_mqtt_5)
            self.subscribe_there([control, dropped], CONTROL_IDENTIFIER if self.has_identifiers else 0)
            self.foreign.serve()
        lines = self.bridge.section.topics
        wanted = [self._subscription(line.remote_filter, line.qos) for line in lines if line.is_in]
        filters = {each.topic_filter for each in wanted}
        unwanted = [line.remote_filter for line in lines if line.remote_filter not in filters]
        if unwanted and not self.is_first and self.bridge.section.bridge_attempt_unsubscribe:
            self.unsubscribe_there(unwanted)
        if wanted:
            self.subscribe_there(wanted)

    def handle_subscribed(self, answered: list[Subscription], codes: list[int]) -> None:
        answers = zip(answered, codes, strict=False)
        refused = [
            each.topic_filter
            for each, code in answers
            if code >= FAILURE and each.topic_filter != DROPPED_TOPIC  # Without it nothing is known of that.
        ]
        self.bridge.handle_subscribed(self, answered, refused)

    def unsubscribe(self, kept: Collection[str] = ()) -> None:
        """Nothing more is to come in but what is kept: the bridge is about to end."""
        unwanted = [each for each in self.bridge.filters_there() if each not in kept]
        if unwanted and self.is_connected:
            self.unsubscribe_there(unwanted)

    def _subscription(self, topic_filter: str, qos: int) -> Subscription:
        if self.protocol_version < MQTT_5:
            return Subscription(topic_filter, qos)
        # A broker that gives ids may repeat what it retains, which is how missed changes are made up for.
        # From others it would be new each time, so that only a new subscription gets it (§3.8.3.1).
        retain_handling = 0 if self.far_node is not None else 1
        return Subscription(topic_filter, qos, True, True, retain_handling)

    # Topics and messages

    def takes_run(self, messages: Sequence[Message]) -> bool:
        return self.foreign is None or self.foreign.enter_run(messages)

    def name_on_wire(self, topic: str) -> bytes | None:
        if self.foreign is not None and not self.foreign.is_simple:
            return None  # Each message has to be asked about.
        name = self.bridge.name_there(topic)
        if name is None or (self.foreign is not None and name != topic and len(topic) > MAX_TOPIC_IN_RUN):
            return None
        return name.encode()

    def has_name_for(self, topic: str) -> bool:
        return self.bridge.name_there(topic) is not None

    def note_run(self, origin: str, epoch: int, sequences: Sequence[int]) -> None:
        if self.foreign is not None:
            self.foreign.note_run(origin, epoch, sequences)

    def name_here(self, topic: str) -> str | None:
        name = self.bridge.name_here(topic)
        if name is None or name.startswith(LOCAL_ONLY):
            return None
        if self.foreign is not None and is_control(name):
            return None
        username, session = self.bridge.section.local_username, self.bridge.session
        if username is not None and not self.broker.access.may_write(username, session.client_id, name):
            return None
        return name

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
        if topic is None or (self.foreign is not None and not may_go_on(message, self.broker.node_id)):
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

    # Ids at a foreign broker, where anyone may say one

    def encode_id(self, message: Message, qos: int, retain: bool, topic: str | None) -> bytes:
        block = super().encode_id(message, qos, retain, topic)
        if self.foreign is None or topic is None:
            return block
        block += encode_expiry(message, self.broker.now) + encode_via(message, self.broker.node_id)
        block += encode_topic(message.topic, topic)
        carried = encode_carried(message.properties, message.properties.get("user_property", ()))
        # The QoS that it has here: a line of the section lowers that of the packet, and not of the message.
        return block + self.bridge.key.seal(
            topic.encode(), message.qos, retain, block, carried, message.payload
        )

    def id_blocks(self, batch: Batch, topic: bytes) -> list[bytes]:
        if self.foreign is None:
            return super().id_blocks(batch, topic)
        return self._seal(batch, topic, lambda block, payload: encode_remaining_length(block))

    def encode_run(self, batch: Batch, topic: bytes) -> bytes:
        if self.foreign is None:
            return super().encode_run(batch, topic)
        name = len(topic).to_bytes(2, "big") + topic

        def begin(block: int, payload: int) -> bytes:
            length = encode_remaining_length(block)
            return (
                b"\x30" + encode_remaining_length(len(name) + len(length) + block + payload) + name + length
            )

        packets = [b""] * (2 * batch.count)
        packets[::2] = self._seal(batch, topic, begin)
        packets[1::2] = batch.payloads
        return b"".join(packets)

    def _seal(self, batch: Batch, topic: bytes, begin: Callable[[int, int], bytes]) -> list[bytes]:
        """The properties of each message, behind what `begin` makes of their size and that of its payload."""
        rest = encode_via(None, self.broker.node_id) + encode_topic(batch.topic, topic.decode())
        prefix = f"{batch.origin or ''}/{batch.epoch}/".encode()
        payloads = batch.payloads
        digits = [b"%d" % sequence for sequence in batch.sequences]
        sealed: list[bytes] = []
        for (width, size), row in groupby(zip(map(len, digits), map(len, payloads), strict=True)):
            at = len(sealed)
            end = at + len(list(row))
            value = len(prefix) + width
            head = b"%b%c%c%b" % (ID_HEAD, value >> 8, value & 0xFF, prefix)
            before = begin(len(head) + width + len(rest) + SEAL_BYTES, size)
            sealed += self.bridge.key.seal_run(
                topic, batch.qos, head, digits[at:end], rest, payloads[at:end], before
            )
        return sealed

    def identify(self, message: Message) -> None:
        self._is_weakened = False
        if self.foreign is None:
            super().identify(message)
        elif "user_property" in message.properties:
            route = self.route_for(message.topic.encode())
            topic = message.topic if route is None else route.topic
            is_whole = read_sealed(message, topic, self.bridge.key, self.broker.now, self.foreign)
            if message.id is not None:
                self._is_weakened = not is_whole
                if is_whole:
                    self.foreign.admission.note_heard(message.id)

    def note_change(self) -> None:
        self.bridge.on_change()

    def take_message(self, message: Message, route: Route, packet_id: int) -> None:
        if self.foreign is not None and not may_go_on(message, self.broker.node_id):
            # It was here, under an id that nobody on its way could prove.
            assert self.inbound is not None
            self.inbound.published += 1
            self.inbound.duplicates += 1
            self.acknowledge(message.qos, packet_id)
        elif self.foreign is not None and self._is_weakened:
            self._take_weakened(message, route, packet_id)
        elif self.foreign is not None:
            self.foreign.receive_message(message, route, packet_id, self.may_be_told)
        else:
            super().take_message(message, route, packet_id)

    def _take_weakened(self, message: Message, route: Route, packet_id: int) -> None:
        """What came is not all that was sent, and who would have brought that may find that it was here."""
        inbound, session = self.inbound, self.session
        assert self.foreign is not None
        assert inbound is not None
        assert session is not None
        assert message.id is not None
        before = inbound.duplicates + inbound.outdated
        self.foreign.receive_message(message, route, packet_id, self.may_be_told)
        recipient = route.recipient(session)
        is_new = inbound.duplicates + inbound.outdated == before
        began_there = message.id.origin == session.far_origin
        if is_new and not began_there and message.qos and recipient is not None and recipient.qos:
            deliver_to(self.broker, session, message, route, recipient.qos)

    def handle_control(self, packet: Publish) -> bool:
        """What bridges at this broker tell each other, and what it says of itself."""
        if self.foreign is None:
            return False
        if packet.topic == DROPPED_TOPIC:
            self.bridge.hear_dropped(packet.payload)
            return self.bridge.name_here(packet.topic) is None
        if not is_control(packet.topic):
            return False
        # Mosquitto sends it again for each other filter that matches, such as "#". A stamp that came twice
        # would wait for the next message that is alike, and give it the id of the first.
        identifiers = packet.properties.get("subscription_identifier", ())
        if not self.has_identifiers or CONTROL_IDENTIFIER in identifiers:
            self.foreign.receive_control(packet.topic, packet.payload)
        return True

    def check_time(self) -> None:
        if self.pauses & Pause.HELD:
            self.heard_at = self.broker.now  # It is we who do not listen.
        super().check_time()

    def handle_round_trip(self, round_trip_s: float) -> None:
        self.bridge.round_trip_s = round_trip_s

    # Reading goes on while the disk is slow: what we do not read the far broker drops

    def receive_data(self, data: bytes, now: float) -> None:
        self._unstored_bytes = self._unstored_bytes + len(data) if self.held_acknowledgements else 0
        super().receive_data(data, now)

    def pause(self, reason: int) -> None:
        may_go_on = (
            reason == Pause.HELD
            and self.foreign is not None
            and self.held_acknowledgements < MAX_WINDOW
            and self._unstored_bytes < self.broker.limits.queue_bytes_in_memory
        )
        if not may_go_on:
            super().pause(reason)

    # The end

    def leave(self, reason: str, is_for_good: bool) -> None:
        if self.is_connected:
            self.bridge.notify_there(b"0")
            if self.foreign is not None:
                self.foreign.tell(self, self.foreign.stamps.attendance.will)
        super().leave(reason, is_for_good and not self.bridge.section.cleansession)

    def end(self, reason: str, with_will: bool = True) -> None:
        was_closed = self.state is State.CLOSED
        super().end(reason, with_will)
        if not was_closed:
            self.bridge.handle_end(self, reason)
