"""A packet at QoS 1 that comes alone, and like the last of its connection: what a device sends, or answers.

Hundreds of devices with one publication each are the load that counts, and what a message costs there is how
much code it touches. So what the short path found out of the first packet is remembered with the connection
(`Connection.repeated`), and the next goes straight to its recipients. Whatever is unusual, about the packet,
its topic or its publisher, goes the long way, which finds out what it is; and so does what is unusual about
one recipient, for that one.
"""

from __future__ import annotations

from typing import Final

from hedgerow.broker.connection import Connection
from hedgerow.broker.core import BrokerCore
from hedgerow.broker.deliveries import DELIVERY_WORK, PUBLICATION_WORK, pump
from hedgerow.broker.publishing import deliver, deliver_to_one, is_divided
from hedgerow.broker.recipients import Recipient, SharedGroup
from hedgerow.broker.retaining import retain, retainer
from hedgerow.broker.routes import Route
from hedgerow.broker.session import DELIVERY_BYTES, Session, WireForm
from hedgerow.message import NO_PROPERTIES, Message
from hedgerow.mqtt.codec import encode_remaining_length
from hedgerow.mqtt.outbox import Delivery
from hedgerow.mqtt.packets import MQTT_5
from hedgerow.mqtt.wire import PUBACK_HEAD

MAX_ALONE_BYTES: Final = 16_000  # The length of a longer packet takes more than two bytes.
MAX_ALONE_RECIPIENTS: Final = 100  # More of them are looked at as a part of the client's turn.
NO_PACKET_ID: Final = b"\0\0"
PUBLISH_AT_LEAST_ONCE: Final = 0x32
RETAINED_AT_LEAST_ONCE: Final = 0x33
PUBLISH_FIRST: Final = bytes((PUBLISH_AT_LEAST_ONCE,))
ACKNOWLEDGEMENT_WORK: Final = 2
_MQTT_3, _MQTT_5 = WireForm.MQTT_3, WireForm.MQTT_5  # A member is looked up in ten times the time.


def remember(connection: Connection, route: Route, name: bytes) -> None:
    """The chunk was one PUBLISH, which is published. `name`: its topic on the wire, with its length."""
    recipients = len(route.recipients) + len(route.groups)
    if not 0 < recipients <= MAX_ALONE_RECIPIENTS:
        return
    session = connection.connected_session()
    if (
        not (route.peers or route.ports or route.elsewhere or route.inactive or route.observers)
        and not is_divided(connection.broker, route, route.recipients)
        and not (connection.inbound or connection.attachment or connection.carries_ids)
        and session.role.holds_receive_maximum
        and not session.gives_ids
    ):
        most_bytes = connection.broker.limits.queue_bytes_in_memory
        connection.repeated = RepeatedAlone(
            route, name, connection.protocol_version == MQTT_5, most_bytes
        ).publish


Place = tuple[Recipient, WireForm | None, SharedGroup | None]
"""In which form it takes the packet, or None: one of its own; by which shared subscription."""


class RepeatedAlone:
    """Where a client's last publication went, and what it called the topic."""

    __slots__ = ("form", "is_mqtt_5", "most_bytes", "name", "recipients", "route")

    def __init__(self, route: Route, name: bytes, is_mqtt_5: bool, most_bytes: int) -> None:
        self.route = route
        self.name = name
        self.is_mqtt_5 = is_mqtt_5
        self.most_bytes = most_bytes  # that may wait for a session
        self.form = WireForm.MQTT_5 if is_mqtt_5 else WireForm.MQTT_3
        self.recipients: list[Place] = [(each, _plain_form(each), None) for each in route.recipients]

    def publish(self, connection: Connection, data: bytes) -> bool:
        """Publish a chunk that is one PUBLISH at QoS 1 to the same topic. False: it is something else."""
        route, broker, session = self.route, connection.broker, connection.session
        if route.stale or session is None or broker.undelivered or session.received:
            return False
        id_at = self._place_of_id(data)
        if not id_at or connection.held_acknowledgements or connection.congested:
            return False
        packet_id = data[id_at : id_at + 2]
        durability = broker.durability
        publisher = session.owner or session.share or ""
        if durability.enabled and not durability.takes_publications(broker.now):
            return False
        if durability.lines.bytes and not durability.takes_from(publisher):
            return False
        retains = data[0] == RETAINED_AT_LEAST_ONCE
        message = Message(route.topic, data[id_at + 2 + self.is_mqtt_5 :], 1, retains, NO_PROPERTIES)
        if retains and not broker.retained.has_room_for(message, retainer(session)):
            return False

        stats = broker.stats
        change_count = durability.change_count
        durability.publisher = publisher
        size = len(data)
        broker.sequence += 1
        stats.packets_received += 1
        stats.publish_received += 1
        stats.publish_bytes_received += size
        if retains:
            retain(broker, message, route, session)
        count = len(route.recipients)
        broker.work += PUBLICATION_WORK + DELIVERY_WORK * count
        same = PUBLISH_FIRST + data[1:id_at], data[id_at + 2 :]  # before and after the packet identifier
        other: tuple[bytes, bytes] | None = None
        limits = broker.limits
        recipients = self.recipients
        if route.groups:
            recipients = list(recipients)
            for shared in route.groups:
                place = self._choose(broker, shared, message)
                if place is not None:
                    recipients.append(place)
                    count += 1
                else:
                    count += deliver_to_one(broker, shared, message, session)
        for recipient, form, group in recipients:
            receiver = recipient.session
            channel, outbox = receiver.connection, receiver.outbox
            if (
                form is None
                or (retains and recipient.retain_as_published)
                or channel is None
                or outbox is None
                or receiver.ledger is not None
                or receiver.queue_limits is not None
                or channel.congested
                or channel.resending
                or outbox.queue
            ):
                _deliver(broker, recipient, message, session, group)
                continue
            in_flight, stored = len(outbox.in_flight), receiver.stored
            if in_flight >= outbox.window:
                has_room = False
            elif stored is None:
                waiting = outbox.bytes + size
                wanted = waiting + DELIVERY_BYTES * (in_flight + 1)
                has_room = waiting <= self.most_bytes and wanted <= receiver.queue_share
            else:
                is_bounded = limits.queue_bytes is not None or limits.queue_messages is not None
                has_room = not (is_bounded or stored.is_behind)
            if not has_room:
                _deliver(broker, recipient, message, session, group)
                continue
            delivery = Delivery(message, 1)
            delivery.group = group
            outbox.start(delivery)
            if stored is not None:
                if group is not None:
                    durability.store_separately()
                durability.store_delivery(receiver, delivery)
            if form is self.form:
                before, after = same
            else:
                before, after = other = other or self._translate(message)
            packet = before + delivery.packet_id.to_bytes(2, "big") + after
            stats.publish_sent += 1
            stats.packets_sent += 1
            stats.publish_bytes_sent += len(packet)
            if not channel.out:
                broker.dirty.append(channel)
            channel.out.append(packet)
        if count or not self.is_mqtt_5:
            acknowledgement = PUBACK_HEAD + packet_id
        else:
            acknowledgement = b"\x40\x03" + packet_id + b"\x10"  # No matching subscribers
        durability.publisher = ""
        if durability.change_count == change_count:
            stats.packets_sent += 1
            if not connection.out:
                broker.dirty.append(connection)
            connection.out.append(acknowledgement)
        else:
            durability.hold(connection, acknowledgement)
        return True

    def _place_of_id(self, data: bytes) -> int:
        """Where the packet identifier of such a packet stands; 0: it is another."""
        size, name = len(data), self.name
        if not 4 <= size <= MAX_ALONE_BYTES or data[0] | 1 != RETAINED_AT_LEAST_ONCE:
            return 0
        body = 2
        if size >= 0x82:
            body = 3
            if data[1] < 0x80 or not data[2] or (data[1] & 0x7F | data[2] << 7) != size - 3:
                return 0
        elif data[1] != size - 2:
            return 0
        id_at = body + len(name)
        payload_at = id_at + 2 + self.is_mqtt_5
        if payload_at > size or not data.startswith(name, body) or data.startswith(NO_PACKET_ID, id_at):
            return 0
        if self.is_mqtt_5 and data[payload_at - 1]:
            return 0  # It has properties.
        return id_at

    def _choose(self, broker: BrokerCore, group: SharedGroup, message: Message) -> Place | None:
        """The member whose turn it is; None: it cannot take the message, and another has to be looked for."""
        chosen = group.next_if_ready()
        if chosen is None:
            return None
        session = chosen.session
        if not session.role.may_read(session, broker.access, message.topic):
            return None
        broker.work += DELIVERY_WORK
        return chosen, _plain_form(chosen), group

    def _translate(self, message: Message) -> tuple[bytes, bytes]:
        """The packet in the other wire form, before and after its identifier."""
        after = message.payload if self.is_mqtt_5 else b"\0" + message.payload
        length = len(self.name) + 2 + len(after)
        return PUBLISH_FIRST + encode_remaining_length(length) + self.name, after


def _deliver(
    broker: BrokerCore, recipient: Recipient, message: Message, publisher: Session, group: SharedGroup | None
) -> None:
    """The long way to one recipient."""
    if group is not None:
        broker.durability.store_separately()
    deliver(broker, recipient, message, publisher, group)


def _plain_form(recipient: Recipient) -> WireForm | None:
    session = recipient.session
    form = session.wire_form
    if recipient.no_local or recipient.identifiers or not recipient.qos or session.role.gives_ids:
        return None
    return form if form is _MQTT_3 or form is _MQTT_5 else None


def finish(connection: Connection, data: bytes) -> bool:
    """Take a chunk that is one PUBACK. False: it is something else."""
    session = connection.session
    if len(data) != 4 or not data.startswith(PUBACK_HEAD) or session is None:
        return False
    outbox = session.outbox
    packet_id = data[2] << 8 | data[3]
    if outbox is None or not packet_id or session.ledger is not None:
        return False
    broker = connection.broker
    delivery = outbox.acknowledged(packet_id)
    if delivery is None and packet_id in outbox.in_flight:
        return False  # It is a protocol error.
    broker.stats.packets_received += 1
    broker.work += ACKNOWLEDGEMENT_WORK
    if delivery is not None:
        broker.durability.finish_delivery(session, delivery, is_acknowledged=True)
        if connection.resending or session.has_queue:
            pump(broker, connection)
    return True
