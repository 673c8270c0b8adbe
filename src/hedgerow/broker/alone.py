"""A packet at QoS 1 that comes alone, and like the last of its connection: what a device sends, or answers.

Hundreds of devices with one publication each are the load that counts, and what a message costs there is how
much code it touches. So what the short path found out of the first packet is remembered with the connection
(`Connection.repeated`), and the next goes straight to its recipients. Whatever is unusual, about the packet,
its topic or its publisher, goes the long way, which finds out what it is; and so does what is unusual about
one recipient, for that one.
"""

from __future__ import annotations

from hedgerow.broker.connection import Connection
from hedgerow.broker.core import BrokerCore
from hedgerow.broker.deliveries import DELIVERY_WORK, PUBLICATION_WORK, pump
from hedgerow.broker.publishing import deliver, deliver_to_one, is_divided
from hedgerow.broker.recipients import Recipient, SharedGroup
from hedgerow.broker.routes import Route
from hedgerow.broker.session import DELIVERY_BYTES, Session, WireForm
from hedgerow.message import NO_PROPERTIES, Message
from hedgerow.mqtt.outbox import Delivery
from hedgerow.mqtt.packets import MQTT_5
from hedgerow.mqtt.wire import PUBACK_HEAD

MAX_ALONE_BYTES = 16_000  # The length of a longer packet takes more than two bytes.
MAX_ALONE_RECIPIENTS = 100  # More of them are looked at as a part of the client's turn.
NO_PACKET_ID = b"\0\0"
PUBLISH_AT_LEAST_ONCE = 0x32
ACKNOWLEDGEMENT_WORK = 2


def remember(connection: Connection, route: Route, name: bytes) -> None:
    """The chunk was one PUBLISH, which is published. `name`: its topic on the wire, with its length."""
    session = connection.connected_session()
    recipients = len(route.recipients) + len(route.groups)
    if (
        0 < recipients <= MAX_ALONE_RECIPIENTS
        and not (route.peers or route.ports or route.elsewhere or route.observers)
        and not is_divided(connection.broker, route, route.recipients)
        and not (connection.inbound or connection.attachment or connection.carries_ids)
        and session.role.holds_receive_maximum
        and not session.gives_ids
    ):
        connection.repeated = Repeated(route, name, connection.protocol_version == MQTT_5).publish


Place = tuple[Recipient, bool, SharedGroup | None]
"""Whether it gets the packet as it came, with an identifier of ours; by which shared subscription."""


class Repeated:
    """Where a client's last publication went, and what it called the topic."""

    __slots__ = ("form", "is_mqtt_5", "name", "recipients", "route")

    def __init__(self, route: Route, name: bytes, is_mqtt_5: bool) -> None:
        self.route = route
        self.name = name
        self.is_mqtt_5 = is_mqtt_5
        self.form = WireForm.MQTT_5 if is_mqtt_5 else WireForm.MQTT_3
        self.recipients: list[Place] = [(each, _is_plain(each, self.form), None) for each in route.recipients]

    def publish(self, connection: Connection, data: bytes) -> bool:
        """Publish a chunk that is one PUBLISH at QoS 1 to the same topic. False: it is something else."""
        name, route = self.name, self.route
        broker, session = connection.broker, connection.session
        size = len(data)
        if route.stale or session is None or broker.undelivered or session.received:
            return False
        if connection.held_acknowledgements or connection.congested:
            return False
        if not 4 <= size <= MAX_ALONE_BYTES or data[0] != PUBLISH_AT_LEAST_ONCE:
            return False
        body = 2
        if size >= 0x82:
            body = 3
            if data[1] < 0x80 or not data[2] or (data[1] & 0x7F | data[2] << 7) != size - 3:
                return False
        elif data[1] != size - 2:
            return False
        id_at = body + len(name)
        payload_at = id_at + 2
        packet_id = data[id_at:payload_at]
        if self.is_mqtt_5:
            payload_at += 1
        if payload_at > size or packet_id == NO_PACKET_ID or not data.startswith(name, body):
            return False
        if self.is_mqtt_5 and data[payload_at - 1]:
            return False  # It has properties.

        stats, durability = broker.stats, broker.durability
        change_count = durability.change_count
        broker.sequence += 1
        stats.packets_received += 1
        stats.publish_received += 1
        stats.publish_bytes_received += size
        message = Message(route.topic, data[payload_at:], 1, False, NO_PROPERTIES)
        count = len(route.recipients)
        broker.work += PUBLICATION_WORK + DELIVERY_WORK * count
        before, after = data[:id_at], data[id_at + 2 :]
        most_bytes = broker.limits.queue_bytes
        recipients = self.recipients
        chosen: list[Place | None] = []
        if route.groups:
            chosen = [self._choose(broker, group, message) for group in route.groups]
            recipients = recipients + [each for each in chosen if each is not None]
        for recipient, is_plain, group in recipients:
            receiver = recipient.session
            channel, outbox = receiver.connection, receiver.outbox
            if (
                not is_plain
                or channel is None
                or outbox is None
                or receiver.durable
                or receiver.ledger is not None
                or receiver.queue_limits is not None
                or channel.congested
                or channel.resending
                or outbox.queue
                or outbox.is_full
            ):
                _deliver(broker, recipient, message, session, group)
                continue
            waiting = outbox.bytes + size
            if waiting > most_bytes or (
                waiting + DELIVERY_BYTES * (len(outbox.in_flight) + 1) > receiver.queue_share
            ):
                _deliver(broker, recipient, message, session, group)
                continue
            delivery = Delivery(message, 1)
            delivery.group = group
            outbox.start(delivery)
            stats.publish_sent += 1
            stats.packets_sent += 1
            stats.publish_bytes_sent += size
            if not channel.out:
                broker.dirty.append(channel)
            channel.out.append(before + delivery.packet_id.to_bytes(2, "big") + after)
        for group, place in zip(route.groups, chosen, strict=True):
            count += place is not None or deliver_to_one(broker, group, message, session)
        if count or not self.is_mqtt_5:
            acknowledgement = PUBACK_HEAD + packet_id
        else:
            acknowledgement = b"\x40\x03" + packet_id + b"\x10"  # No matching subscribers
        if durability.change_count == change_count:
            stats.packets_sent += 1
            if not connection.out:
                broker.dirty.append(connection)
            connection.out.append(acknowledgement)
        else:
            durability.acknowledge(connection, acknowledgement, must_wait=True)
        return True

    def _choose(self, broker: BrokerCore, group: SharedGroup, message: Message) -> Place | None:
        """The member whose turn it is; None: it cannot take the message, and another has to be looked for."""
        chosen = group.next_if_ready()
        if chosen is None or not chosen.session.may_read(broker.access, message.topic):
            return None
        broker.work += DELIVERY_WORK
        return chosen, _is_plain(chosen, self.form), group


def _deliver(
    broker: BrokerCore, recipient: Recipient, message: Message, publisher: Session, group: SharedGroup | None
) -> None:
    """The long way to one recipient."""
    if group is not None:
        broker.durability.store_separately()
    deliver(broker, recipient, message, publisher, group)


def _is_plain(recipient: Recipient, form: WireForm) -> bool:
    session = recipient.session
    if recipient.no_local or recipient.identifiers or session.gives_ids:
        return False
    return recipient.qos > 0 and session.wire_form == form


def finish(connection: Connection, data: bytes) -> bool:
    """Take a chunk that is one PUBACK. False: it is something else."""
    session = connection.session
    if len(data) != 4 or not data.startswith(PUBACK_HEAD) or session is None:
        return False
    outbox = session.outbox
    packet_id = data[2] << 8 | data[3]
    if outbox is None or not packet_id or session.durable or session.ledger is not None:
        return False
    broker = connection.broker
    broker.stats.packets_received += 1
    broker.work += ACKNOWLEDGEMENT_WORK
    if outbox.acknowledged(packet_id) is not None and (connection.resending or outbox.queue):
        pump(broker, connection)
    return True
