"""QoS 1 in runs: publications to one topic, one behind the other in a chunk, handled together.

For all of a run `accept_run` does what `handle_publish.accept` does for one: topic, limits and ledgers are
looked at once, a recipient whose window is open gets its packets in one piece, and one piece acknowledges
them all. `most_in_a_row` says whether, and how far. A recipient about which anything is unusual gets the
messages of the run one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import TYPE_CHECKING

from hedgerow.broker.deliveries import DELIVERY_BYTES, DELIVERY_WORK, PUBLICATION_WORK
from hedgerow.broker.handle_publish import room_to_receive
from hedgerow.broker.journalling import is_refused
from hedgerow.broker.routes import WireForm
from hedgerow.message import Message
from hedgerow.mqtt.codec import encode_publish_run, encode_remaining_length
from hedgerow.mqtt.ids import ID_HEAD
from hedgerow.mqtt.packets import MQTT_5
from hedgerow.mqtt.wire import PUBACK_HEAD

if TYPE_CHECKING:
    from hedgerow.broker.broker import Broker
    from hedgerow.broker.connection import Connection
    from hedgerow.broker.routes import Recipient, Route
    from hedgerow.broker.session import Session

PUBLISH_AT_LEAST_ONCE = 0x32
HEADER_BYTES = 9  # of a PUBLISH beside topic, properties and payload, at most
NO_PACKET_ID = b"\0\0"


class Run:
    """Messages of one topic and publisher at QoS 1, without properties and RETAIN. All have ids, or none."""

    __slots__ = ("_id_blocks", "bytes", "largest", "messages")

    def __init__(self, messages: list[Message], id_blocks: list[bytes] | None = None) -> None:
        sizes = [len(message.payload) for message in messages]
        topic_size = len(messages[0].topic)
        self.messages = messages
        self.bytes = sum(sizes) + topic_size * len(sizes)
        self.largest = max(sizes)
        self._id_blocks = id_blocks or None

    @property
    def origin(self) -> str | None:
        message_id = self.messages[0].id
        return None if message_id is None else message_id.origin

    def id_blocks(self) -> list[bytes]:
        """The properties of each, for those who get ids: encoded once for all of them."""
        if self._id_blocks is None:
            self._id_blocks = _encode_id_blocks(self.messages)
        return self._id_blocks


def _encode_id_blocks(messages: list[Message]) -> list[bytes]:
    assert messages[0].id is not None
    origin, epoch, _ = messages[0].id
    prefix = f"{origin}/{epoch}/".encode()
    heads: dict[int, bytes] = {}
    blocks = []
    for message in messages:
        assert message.id is not None
        digits = b"%d" % message.id.sequence
        head = heads.get(len(digits))
        if head is None:
            head = heads[len(digits)] = id_block_head(prefix, len(digits))
        blocks.append(head + digits)
    return blocks


def id_block_head(prefix: bytes, digits_size: int) -> bytes:
    """The properties of a PUBLISH that has nothing but its id, up to the digits of the sequence."""
    value_size = len(prefix) + digits_size
    # A property length is written as a remaining length is.
    length = encode_remaining_length(len(ID_HEAD) + 2 + value_size)
    return length + ID_HEAD + value_size.to_bytes(2, "big") + prefix


# Packets in


def most_in_a_row(connection: Connection, route: Route) -> int:
    """How many publications to this topic may be handled together; 0: each has to be looked at."""
    broker = connection.broker
    recipients = len(route.recipients)
    if not recipients or route.groups or route.ports or connection.congested:
        return 0
    session = connection.connected_session()
    if broker.durability.enabled and recipients > 1 and _is_stored_for_several(route, session):
        return 0
    most = 1 + (broker.turn_ends_at - broker.work) // (PUBLICATION_WORK + DELIVERY_WORK * recipients)
    if connection.protocol_version == MQTT_5 and not session.is_bridge:
        return min(most, room_to_receive(connection, session))
    return most


def _is_stored_for_several(route: Route, publisher: Session) -> bool:
    """A message is stored once for all who get it one after the other: that is, message by message."""
    stored = [each.session for each in route.recipients if each.session.durable]
    return len(stored) - (publisher in stored and publisher.wire_form == WireForm.PEER) > 1


def read_run(
    connection: Connection, data: bytes, body: int, stop: int, name: bytes, after: bytes, most: int
) -> tuple[list[bytes], list[tuple[int, int]]]:
    """Packets in a row that have this topic, and `after` behind their packet identifiers.

    Their packet identifiers, and for each where the rest begins and ends.
    """
    end = len(data)
    limit = connection.broker.limits.packet_bytes
    packet_id_at = len(name)
    after_at = packet_id_at + 2
    rest_at = after_at + len(after)
    packet_ids: list[bytes] = []
    rests: list[tuple[int, int]] = []
    while body + rest_at <= stop <= end and data.startswith(name, body):
        packet_id = data[body + packet_id_at : body + after_at]
        if packet_id == NO_PACKET_ID or not data.startswith(after, body + after_at):
            break
        packet_ids.append(packet_id)
        rests.append((body + rest_at, stop))
        if len(rests) >= most or end - stop < 3 or data[stop] != PUBLISH_AT_LEAST_ONCE:
            break
        position = stop
        length = data[position + 1]
        body = position + 2
        if length >= 0x80:
            if not 0 < data[position + 2] < 0x80:
                break  # three bytes, or more than needed (MQTT-1.5.5-1)
            length = length & 0x7F | data[position + 2] << 7
            body += 1
        stop = body + length
        if stop - position > limit:
            break
    return packet_ids, rests


def accept_run(
    connection: Connection,
    route: Route,
    messages: list[Message],
    packet_ids: list[bytes],
    size: int,
    id_blocks: list[bytes] | None = None,
) -> None:
    """Take publications, pass on those that are new (`messages`), and acknowledge all of them.

    `id_blocks`: their properties as they came, where these are what other brokers are to get.
    """
    broker = connection.broker
    durability = broker.durability
    count = len(packet_ids)
    stats = broker.stats
    stats.packets_received += count
    stats.publish_received += count
    stats.publish_bytes_received += size
    change_count = durability.change_count
    if route.is_journalled and is_refused(connection, sum([len(message.payload) for message in messages])):
        return
    if messages:
        broker.publish_run(Run(messages, id_blocks), route, connection.connected_session())
    duplicates = count - len(messages)
    if connection.inbound is not None:
        connection.inbound.published += count
        connection.inbound.duplicates += duplicates
    if duplicates:
        # The first may not be stored yet, and whoever hears that this was taken forgets it.
        durability.change_count += durability.is_behind
    acknowledgements = PUBACK_HEAD.join((b"", *packet_ids))
    must_wait = durability.change_count != change_count
    durability.acknowledge(connection, acknowledgements, must_wait, count)


# Packets out


def deliver_run(broker: Broker, recipient: Recipient, run: Run, publisher: Session) -> bool:
    """To one recipient, in one piece. False: one by one, since something about it is unusual."""
    session = recipient.session
    form = session.wire_form
    if form == WireForm.PEER and (session is publisher or session.far_origin == run.origin):
        return True  # The other broker has it.
    connection, outbox = session.connection, session.outbox
    if connection is None or outbox is None or not recipient.qos or recipient.identifiers:
        return False
    if recipient.no_local and session is publisher:
        return False
    count = len(run.messages)
    if connection.congested or connection.resending or not outbox.has_room_for(count):
        return False
    limits = session.queue_limits
    most_bytes = broker.limits.queue_bytes if limits is None else limits.bytes
    if outbox.bytes + run.bytes + DELIVERY_BYTES * (len(outbox) + count) > most_bytes:
        return False
    topic = _name_for(connection, form, run)
    if topic is None:
        return False
    deliveries = outbox.start_run(run.messages, broker.now if session.is_peer else 0.0)
    packet_ids = [delivery.packet_id.to_bytes(2, "big") for delivery in deliveries]
    if session.durable:
        for delivery in deliveries:
            broker.durability.store_delivery(session, delivery)
    if session.ledger is not None:
        session.ledger.published += count
    data = encode_publish_run(topic, packet_ids, _property_blocks(form, run), run.messages)
    stats = broker.stats
    stats.publish_sent += count
    stats.packets_sent += count
    stats.publish_bytes_sent += len(data)
    connection.send(data)
    return True


def _name_for(connection: Connection, form: WireForm, run: Run) -> bytes | None:
    """The topic as the recipient knows it; None where not every packet can be as all the others are."""
    topic = run.messages[0].topic
    if form in (WireForm.MQTT_3, WireForm.MQTT_5):
        return topic.encode()
    name = connection.name_on_wire(topic) if form != WireForm.OWN else None
    if name is None:
        return None
    size = connection.maximum_packet_size
    if size and HEADER_BYTES + len(name) + max(map(len, run.id_blocks())) + run.largest > size:
        return None
    return name if connection.takes_run(run.messages) else None


def _property_blocks(form: WireForm, run: Run) -> Iterable[bytes]:
    if form == WireForm.PEER:
        return run.id_blocks()
    return repeat(b"\0" if form == WireForm.MQTT_5 else b"")
