"""Messages at QoS 1 or 2 that leave for one recipient in one piece: of a batch, or the first of a queue.

They have one topic, and nothing unusual is about any of them, so that all of the packets have one form. What
a recipient needs otherwise is sent message by message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice, repeat
from typing import Final

from hedgerow.broker.batch import Batch
from hedgerow.broker.core import BrokerCore
from hedgerow.broker.session import Channel, Session, WireForm
from hedgerow.message import Message
from hedgerow.mqtt.codec import encode_publish_run
from hedgerow.mqtt.outbox import Delivery, Outbox

PLAIN_FORMS: Final = (WireForm.MQTT_3, WireForm.MQTT_5)
HEADER_BYTES: Final = 9  # of a PUBLISH beside topic, properties and payload, at most
FEW: Final = 4  # Fewer are as quickly sent one by one.
MOST: Final = 512


def name_for(connection: Channel, form: WireForm, batch: Batch) -> bytes | None:
    """The topic as the recipient knows it; None where not every packet can be as all the others are."""
    if form in PLAIN_FORMS:
        return batch.topic.encode()
    name = connection.name_on_wire(batch.topic) if form != WireForm.OWN else None
    if name is None:
        return None
    size = connection.maximum_packet_size
    if (
        size
        and HEADER_BYTES + len(name) + max(map(len, connection.id_blocks(batch, name))) + batch.largest > size
    ):
        return None
    return name if connection.takes_run(batch.messages) else None


def send_run(
    broker: BrokerCore,
    connection: Channel,
    form: WireForm,
    batch: Batch,
    topic: bytes,
    deliveries: Sequence[Delivery],
) -> int:
    """Send what is in flight since now, under the name that `name_for` gave; how many bytes it took."""
    blocks: Iterable[bytes] = repeat(b"\0" if form == WireForm.MQTT_5 else b"")
    if form == WireForm.PEER:
        blocks = connection.id_blocks(batch, topic)
    packet_ids = [delivery.packet_id.to_bytes(2, "big") for delivery in deliveries]
    data = encode_publish_run(topic, deliveries[0].qos, packet_ids, blocks, batch.messages)
    stats = broker.stats
    stats.publish_sent += len(deliveries)
    stats.packets_sent += len(deliveries)
    stats.publish_bytes_sent += len(data)
    connection.send(data)
    return len(data)


def pump_run(
    broker: BrokerCore,
    connection: Channel,
    session: Session,
    outbox: Outbox,
    most_bytes: int,
    queued_since: float,
) -> tuple[int, int]:
    """Send the first of the queue in one piece: how many, and their bytes. 0: the first has to go alone.

    `queued_since`: what waits for longer tells its age.
    """
    form = session.wire_form
    room = outbox.window - len(outbox.in_flight)
    if form == WireForm.OWN or room < FEW or len(outbox.queue) < FEW or connection.told:
        return 0, 0
    messages = _alike(outbox, form == WireForm.PEER, min(room, MOST), most_bytes, queued_since)
    if len(messages) < FEW:
        return 0, 0
    batch = Batch.of_messages(None, messages)
    topic = name_for(connection, form, batch)
    if topic is None:
        return 0, 0
    deliveries: list[Delivery] = []
    for _ in messages:
        delivery = outbox.take()
        assert delivery is not None
        broker.durability.store_delivery(session, delivery)
        deliveries.append(delivery)
    return len(deliveries), send_run(broker, connection, form, batch, topic, deliveries)


def _alike(outbox: Outbox, with_ids: bool, most: int, most_bytes: int, queued_since: float) -> list[Message]:
    """The first of a queue that may leave together."""
    messages: list[Message] = []
    first = outbox.queue[0].message
    topic, qos, first_id = first.topic, first.qos, first.id
    if with_ids and first_id is None:
        return messages
    for delivery in islice(outbox.queue, most):
        message = delivery.message
        if (
            delivery.qos != 1
            or delivery.retain
            or delivery.is_again
            or delivery.subscription_identifiers
            or message.properties
            or message.retain
            or message.expires_at is not None
            or message.first_at is not None
            or message.topic != topic
            or message.qos != qos
            or (delivery.queued_at and delivery.queued_at < queued_since)
        ):
            break
        if with_ids:
            message_id = message.id
            if message_id is None or first_id is None or message_id[:2] != first_id[:2]:
                break
        messages.append(message)
        most_bytes -= delivery.size
        if most_bytes <= 0:
            break
    return messages
