"""The short path: common packets, handled in place in the received chunk, with no object per packet.

Each function looks at the packet at `position` (its body from `body` to `stop`), handles it and
whatever follows of the same kind, and returns the position behind, or 0 to send the packet the long
way through the codec: whatever is unusual, and whatever is wrong, since only the codec knows how to
refuse. QoS 0 packets that go to the same recipients are forwarded together as the very bytes received,
whatever their topics; those of one topic and size are recognised by their first bytes alone. QoS 1 packets of
one topic are handled together too, and QoS 2 packets where there is no store: `most_in_a_row` says whether,
and how far.
"""

from __future__ import annotations

from struct import unpack
from typing import Final

from hedgerow.broker import alone
from hedgerow.broker.batch import Batch
from hedgerow.broker.connection import Connection
from hedgerow.broker.deliveries import DELIVERY_WORK, PUBLICATION_WORK
from hedgerow.broker.handle_publish import ACKNOWLEDGEMENT_RUNS, accept, is_taken, room_to_receive
from hedgerow.broker.publishing import fan_out, forward, is_divided, may_leave, most_of_run, observe, publish
from hedgerow.broker.retaining import retainer
from hedgerow.broker.role import ShortPath
from hedgerow.broker.routes import Route
from hedgerow.broker.session import Session, WireForm
from hedgerow.broker.unreleased import FEW, MAX_BEFORE_MQTT_5, Unreleased
from hedgerow.message import NO_PROPERTIES, Message
from hedgerow.mqtt.codec import encode_remaining_length
from hedgerow.mqtt.packets import MQTT_5, PUBACK
from hedgerow.mqtt.scanner import packet_at
from hedgerow.mqtt.wire import PUBACK_HEAD, PUBREC_HEAD

PUBLISH_AT_MOST_ONCE: Final = 0x30
MAX_RUNS: Final = 4_096  # Topics in a row before the turn is looked at.
PUBLISH_AT_LEAST_ONCE: Final = 0x32
PUBLISH_EXACTLY_ONCE: Final = 0x34
SENDS_PER_WORK: Final = 4  # Recipients that a unit of work puts the same bytes before.
NO_PACKET_ID: Final = b"\0\0"
FEW_ALIKE: Final = 4  # Fewer packets of one size are read one by one.


def publish_at_most_once(connection: Connection, data: bytes, position: int, body: int, stop: int) -> int:
    """PUBLISH at QoS 0 without RETAIN, and all that follow of the kind and go to the same sessions."""
    is_mqtt_5 = connection.protocol_version == MQTT_5
    topics = connection.topics
    broker = connection.broker
    limit = broker.limits.packet_bytes
    end = len(data)
    begin = position
    count = 0
    recipients: tuple[Session, ...] = ()
    for _ in range(MAX_RUNS):
        if stop > end or stop - body < 3:
            break
        topic_end = body + 2 + (data[body] << 8 | data[body + 1])
        payload = topic_end + is_mqtt_5  # the property length: only "none" is common
        if payload > stop or (is_mqtt_5 and data[topic_end]):
            break
        route = topics.get(data[body + 2 : topic_end]) if topics is not None else None
        if route is None or route.stale:
            route = connection.find_route(data[body + 2 : topic_end])
            if route is None:
                break
            topics = connection.topics
        if broker.undelivered and route.topic in broker.undelivered:
            break
        verbatim = route.verbatim_5 if is_mqtt_5 else route.verbatim_3
        if not count and verbatim is not None:
            recipients = verbatim
        elif verbatim is not recipients and count:
            break

        # Packets of one size to one topic begin with the same bytes: find where that ends.
        head = data[position:payload]
        size = stop - position
        run_end = stop
        last = end - size
        while run_end <= last and data.startswith(head, run_end):
            run_end += size
        if verbatim is None:
            run_end = min(run_end, position + size * most_of_run(broker, route))
            run = (position, body, topic_end, payload, run_end)
            return _forward_run(connection, route, data, run, size)
        if route.observers:
            first = broker.sequence + count + 1
            batch = _own_batch(connection, route, data[position:run_end], size, payload - position, first)
            observe(broker, batch, route)
        count += (run_end - position) // size
        position = run_end
        if position == end:
            connection.repeated = Repeated(head, size, route, recipients).publish
            break
        if end - position > 2 and data[position] == PUBLISH_AT_MOST_ONCE and data[position + 1] < 0x80:
            body = position + 2  # Most are short: without the call a packet takes 7 % less.
            stop = body + data[position + 1]
        elif (found := packet_at(data, position, PUBLISH_AT_MOST_ONCE, limit)) is not None:
            body, stop = found
        else:
            break
    if not count:
        return 0
    count_received(connection, count, position - begin)
    if recipients:
        broker.work += len(recipients) // SENDS_PER_WORK
        fan_out(broker, recipients, data[begin:position], count)
    return position


class Repeated:
    """The last QoS 0 packet of a chunk that ended with it: its first bytes, size, and way."""

    __slots__ = ("head", "recipients", "route", "size", "work")

    def __init__(self, head: bytes, size: int, route: Route, recipients: tuple[Session, ...]) -> None:
        self.head = head
        self.size = size
        self.route = route
        self.recipients = recipients
        self.work = 1 + len(recipients) // SENDS_PER_WORK

    def publish(self, connection: Connection, data: bytes) -> bool:
        """A chunk that is one packet to the same topic, of the same size as the last: what a sensor sends.

        Between two such messages the caches go cold, and what counts is how little code a message touches.
        Without this, latency at 1,000 messages a second was 1.18 times Mosquitto's; with it, 1.09.
        """
        size, route = self.size, self.route
        broker = connection.broker
        if len(data) != size or route.stale or not data.startswith(self.head) or broker.undelivered:
            return False
        stats = broker.stats
        broker.sequence += 1
        broker.work += self.work
        stats.packets_received += 1
        stats.publish_received += 1
        stats.publish_bytes_received += size
        if route.observers:
            observe(broker, _own_batch(connection, route, data, size, len(self.head), broker.sequence), route)
        fan_out(broker, self.recipients, data, 1)
        return True


def _own_batch(
    connection: Connection, route: Route, packets: bytes, size: int, head: int, sequence: int
) -> Batch:
    """Packets whose ids begin here."""
    broker = connection.broker
    return Batch.of_packets(
        route.topic, connection.session, packets, size, head, broker.node_id, broker.epoch, sequence
    )


def _forward_run(
    connection: Connection, route: Route, data: bytes, run: tuple[int, int, int, int, int], size: int
) -> int:
    """Packets of one size to one topic, some of whose recipients need another form than the received."""
    position, body, topic_end, payload, run_end = run
    count = (run_end - position) // size
    count_received(connection, count, run_end - position)
    broker = connection.broker
    same, other = route.mqtt_3, route.mqtt_5
    if connection.protocol_version == MQTT_5:
        same, other = other, same
    first = broker.sequence - count + 1
    batch = _own_batch(connection, route, data[position:run_end], size, payload - position, first)
    translated = _translate(data, position, body, topic_end, payload, size, run_end) if other else b""
    broker.work += (len(same) + len(other)) // SENDS_PER_WORK
    forward(broker, route, batch, same, other, translated)
    return run_end


def count_received(connection: Connection, count: int, size: int) -> None:
    broker = connection.broker
    broker.sequence += count
    broker.work += 1 + count // 8
    stats = broker.stats
    stats.packets_received += count
    stats.publish_received += count
    stats.publish_bytes_received += size


def _translate(
    data: bytes, position: int, body: int, topic_end: int, payload: int, size: int, run_end: int
) -> bytes:
    """The same run in the other wire form: with a property length of 0, or without one."""
    property_length = b"\0" if payload == topic_end else b""
    remaining_length = position + size - body + len(property_length) - (payload - topic_end)
    head = b"\x30" + encode_remaining_length(remaining_length) + data[body:topic_end] + property_length
    offset = payload - position
    return b"".join([head + data[start + offset : start + size] for start in range(position, run_end, size)])


def publish_at_least_once(connection: Connection, data: bytes, position: int, body: int, stop: int) -> int:
    """PUBLISH at QoS 1 without DUP and RETAIN, and all that follow of the kind and to the same topic."""
    if len(data) == stop or data[stop] != PUBLISH_AT_LEAST_ONCE:
        return publish_acknowledged(connection, data, position, body, stop)
    if stop - body < 5:
        return (
            0  # Its body may be as short as the chunk: 32 00 32 has no byte where a topic's length would be.
        )
    topic_end = body + 2 + (data[body] << 8 | data[body + 1])
    route = connection.route_for(data[body + 2 : topic_end]) if topic_end <= stop else None
    if route is None:
        return 0
    most = most_in_a_row(connection, route)
    if most <= 0:
        return publish_acknowledged(connection, data, position, body, stop)
    no_properties = b"\0" if connection.protocol_version == MQTT_5 else b""
    name = data[body:topic_end]
    packet_ids, places = read_run(connection, data, body, stop, name, no_properties, most)
    if not packet_ids:
        return 0
    payloads = [data[start:after] for start, after in places]
    run_end = places[-1][1]
    batch = Batch(route.topic, connection.session, 1, payloads, len(payloads))
    accept_batch(connection, route, batch, packet_ids, run_end - position)
    return run_end


def publish_exactly_once(connection: Connection, data: bytes, position: int, body: int, stop: int) -> int:
    """PUBLISH at QoS 2 of a client, without DUP and RETAIN, and all that follow of the kind and to the same
    topic."""
    if len(data) == stop or data[stop] != PUBLISH_EXACTLY_ONCE or stop - body < 5:
        return publish_acknowledged(connection, data, position, body, stop)
    topic_end = body + 2 + (data[body] << 8 | data[body + 1])
    route = connection.route_for(data[body + 2 : topic_end]) if topic_end <= stop else None
    if route is None:
        return 0
    most = _most_exactly_once(connection, route)
    if most <= 0:
        return publish_acknowledged(connection, data, position, body, stop)
    no_properties = b"\0" if connection.protocol_version == MQTT_5 else b""
    packet_ids, places = read_run(
        connection, data, body, stop, data[body:topic_end], no_properties, most, PUBLISH_EXACTLY_ONCE
    )
    if not packet_ids:
        return 0
    session = connection.connected_session()
    received = session.received
    if received is None:
        received = session.received = Unreleased()
    if route.observers and not is_taken(connection, route, places[-1][1] - position):
        return len(data)
    count = 0
    for packet_id in packet_ids:
        number = packet_id[0] << 8 | packet_id[1]
        if number in received:
            break  # Sent again.
        received.add(number)
        count += 1
    if not count:
        return publish_acknowledged(connection, data, position, body, stop)
    payloads = [data[start:after] for start, after in places[:count]]
    run_end = places[count - 1][1]
    broker = connection.broker
    stats = broker.stats
    stats.packets_received += count
    stats.publish_received += count
    stats.publish_bytes_received += run_end - position
    publish(broker, Batch(route.topic, session, 2, payloads, count), route)
    broker.durability.acknowledge(connection, PUBREC_HEAD.join((b"", *packet_ids[:count])), False, count)
    return run_end


def _most_exactly_once(connection: Connection, route: Route) -> int:
    """The same at QoS 2: as many as are remembered without one more look at what their owner may have."""
    broker, session = connection.broker, connection.connected_session()
    if broker.durability.enabled or broker.undelivered or connection.inbound is not None:
        return 0
    if not session.role.holds_receive_maximum:
        return 0
    most = most_in_a_row(connection, route)
    received = session.received
    room = FEW if received is None else received.room
    if connection.protocol_version != MQTT_5:
        room = min(room, MAX_BEFORE_MQTT_5 - (0 if received is None else len(received)))
    return min(most, room)


def most_in_a_row(connection: Connection, route: Route) -> int:
    """How many publications to this topic may be handled together; 0: each has to be looked at."""
    broker = connection.broker
    recipients = len(route.recipients)
    if not recipients or route.groups or route.ports or connection.congested:
        return 0
    if is_divided(broker, route, route.recipients):
        return 0
    session = connection.connected_session()
    work = DELIVERY_WORK * recipients  # for each publication
    left = broker.turn_ends_at - broker.work
    if broker.durability.enabled:
        leaving = [may_leave(broker, each) for each in route.recipients]
        if recipients > 1 and not all(leaving) and _is_stored_for_several(route, session):
            return 0
        work_once = DELIVERY_WORK * sum(leaving)
        work, left = work - work_once, left - work_once
    most = 1 + max(0, left) // (PUBLICATION_WORK + work)
    if connection.protocol_version == MQTT_5 and session.role.holds_receive_maximum:
        return min(most, room_to_receive(connection, session))
    return most


def _is_stored_for_several(route: Route, publisher: Session) -> bool:
    """A message is stored once for all who get it one after the other: that is, message by message. Those who
    read it from the log may be left a run."""
    stored = [each.session for each in route.recipients if each.session.durable]
    return len(stored) - (publisher in stored and publisher.wire_form == WireForm.PEER) > 1


def read_run(
    connection: Connection,
    data: bytes,
    body: int,
    stop: int,
    name: bytes,
    after: bytes,
    most: int,
    first: int = PUBLISH_AT_LEAST_ONCE,
) -> tuple[list[bytes], list[tuple[int, int]]]:
    """Packets in a row that begin with `first`, have this topic, and `after` behind their packet identifiers.

    Their packet identifiers, and for each where the rest begins and ends.
    """
    end = len(data)
    limit = connection.broker.limits.packet_bytes
    packet_id_at = len(name)
    after_at = packet_id_at + 2
    rest_at = after_at + len(after)
    packet_ids, rests = _read_alike(data, body, stop, name, after, most, first)
    if packet_ids:
        if len(packet_ids) >= most:
            return packet_ids, rests
        found = packet_at(data, rests[-1][1], first, limit)
        if found is None:
            return packet_ids, rests
        body, stop = found
    while body + rest_at <= stop <= end and data.startswith(name, body):
        packet_id = data[body + packet_id_at : body + after_at]
        if packet_id == NO_PACKET_ID or not data.startswith(after, body + after_at):
            break
        packet_ids.append(packet_id)
        rests.append((body + rest_at, stop))
        if len(rests) >= most:
            break
        if end - stop > 2 and data[stop] == first and data[stop + 1] < 0x80:
            body = stop + 2  # as above
            stop = body + data[stop + 1]
        elif (found := packet_at(data, stop, first, limit)) is not None:
            body, stop = found
        else:
            break
    return packet_ids, rests


def _read_alike(
    data: bytes, body: int, stop: int, name: bytes, after: bytes, most: int, first: int
) -> tuple[list[bytes], list[tuple[int, int]]]:
    """As many of them as have the size of the first, so that none has to be looked for. Nothing: they are few
    or long, or something is wrong with one of them."""
    position = body - (2 if stop - body < 0x80 else 3)
    size = stop - position
    id_at = body - position + len(name)
    rest_at = id_at + 2 + len(after)
    if (
        rest_at > size
        or stop - body >= 0x4000
        or len(data) - position < FEW_ALIKE * size
        or data[position] != first
    ):
        return [], []
    head = data[position:body] + name
    end, last = position, len(data) - size
    while end <= last and data.startswith(head, end):
        end += size
    count = min(most, (end - position) // size)
    if count < FEW_ALIKE:
        return [], []
    starts = range(position, position + count * size, size)
    packet_ids = [data[start + id_at : start + id_at + 2] for start in starts]
    if NO_PACKET_ID in packet_ids:
        return [], []
    for start in starts if after else ():
        if not data.startswith(after, start + id_at + 2):
            return [], []
    return packet_ids, [(start + rest_at, start + size) for start in starts]


def accept_batch(
    connection: Connection, route: Route, batch: Batch | None, packet_ids: list[bytes], size: int
) -> None:
    """Take publications at QoS 1, pass on those that are new (`batch`), and acknowledge all of them."""
    broker = connection.broker
    count = len(packet_ids)
    stats = broker.stats
    stats.packets_received += count
    stats.publish_received += count
    stats.publish_bytes_received += size
    size = sum(map(len, batch.payloads)) if route.observers and batch is not None else 0
    if batch is not None and not is_taken(connection, route, size):
        return
    must_wait = batch is not None and publish(broker, batch, route)[1]
    duplicates = count - (batch.count if batch is not None else 0)
    if connection.inbound is not None:
        connection.inbound.published += count
        connection.inbound.duplicates += duplicates
    if duplicates:
        # The first may not be stored yet, and whoever hears that this was taken forgets it.
        must_wait = must_wait or broker.durability.is_behind
    acknowledgements = PUBACK_HEAD.join((b"", *packet_ids))
    broker.durability.acknowledge(connection, acknowledgements, must_wait, count)


def publish_acknowledged(connection: Connection, data: bytes, position: int, body: int, stop: int) -> int:
    """One PUBLISH at QoS 1 or 2 without DUP and RETAIN."""
    if stop - body < 5:
        return 0
    topic_end = body + 2 + (data[body] << 8 | data[body + 1])
    payload = topic_end + 2
    if connection.protocol_version == MQTT_5:
        payload += 1
        if payload > stop or data[payload - 1]:
            return 0
    if payload > stop:
        return 0
    packet_id = data[topic_end] << 8 | data[topic_end + 1]
    if not packet_id:
        return 0
    topics = connection.topics
    route = topics.get(data[body + 2 : topic_end]) if topics is not None else None
    if route is None or route.stale:
        route = connection.find_route(data[body + 2 : topic_end])
        if route is None:
            return 0
    stats = connection.broker.stats
    stats.packets_received += 1
    stats.publish_bytes_received += stop - position
    qos = data[position] >> 1 & 3
    accept(connection, Message(route.topic, data[payload:stop], qos, False, NO_PROPERTIES), route, packet_id)
    if qos == 1 and position == 0 and stop == len(data):
        alone.remember(connection, route, data[body:topic_end])
    return stop


def publish_retained(connection: Connection, data: bytes, position: int, body: int, stop: int) -> int:
    """One PUBLISH of a client with RETAIN, at QoS 0 or 1, without DUP."""
    qos = data[position] >> 1 & 1
    topic_end = body + 2 + (data[body] << 8 | data[body + 1]) if stop - body >= 3 else stop
    payload = topic_end + 2 * qos
    if connection.protocol_version == MQTT_5:
        payload += 1
        if payload > stop or data[payload - 1]:
            return 0
    packet_id = data[topic_end] << 8 | data[topic_end + 1] if qos and payload <= stop else 0
    if payload > stop or topic_end == stop or packet_id == 0 < qos:
        return 0
    name = data[body + 2 : topic_end]
    route = connection.topics.get(name) if connection.topics is not None else None
    if route is None or route.stale:
        # Thousands of devices say once what they are: what is known of their topics would take more room than
        # what they say.
        route = connection.find_route(name, even_nobody=False)
    broker, session = connection.broker, connection.connected_session()
    if route is None or route.topic in broker.commands:
        return 0
    message = Message(route.topic, data[payload:stop], qos, True, NO_PROPERTIES)
    if not broker.retained.has_room_for(message, retainer(session)):
        return 0
    broker.stats.packets_received += 1
    broker.stats.publish_bytes_received += stop - position
    accept(connection, message, route, packet_id)
    if qos and position == 0 and stop == len(data):
        alone.remember(connection, route, data[body:topic_end])
    return stop


def acknowledgements(connection: Connection, data: bytes, position: int, body: int, stop: int) -> int:
    """A run of PUBACK, PUBREC, PUBREL or PUBCOMP in the form of four bytes, which means success."""
    first = data[position]
    most = min(len(data) - position >> 2, MAX_RUNS)
    end = position + 4 * most
    # From the first that is another packet, or has a reason code.
    after = max(
        len(data[position:end:4].lstrip(data[position : position + 1])),
        len(data[position + 1 : end : 4].lstrip(b"\2")),
    )
    packet_ids = _read_packet_ids(data, position, most - after)
    if not packet_ids:
        return 0
    connection.broker.stats.packets_received += len(packet_ids)
    connection.broker.work += 2 * len(packet_ids)
    ACKNOWLEDGEMENT_RUNS[first >> 4](connection, packet_ids)
    if len(data) == 4 and first >> 4 == PUBACK:
        connection.repeated = alone.finish
    return position + 4 * len(packet_ids)


def _read_packet_ids(data: bytes, position: int, count: int) -> list[int]:
    """Of so many acknowledgements in a row, or as many as have one that may be (MQTT-2.2.1-2)."""
    end = position + 4 * count
    written = bytearray(2 * count)
    written[0::2] = data[position + 2 : end : 4]
    written[1::2] = data[position + 3 : end : 4]
    packet_ids = list(unpack(f"!{count}H", written))
    return packet_ids[: packet_ids.index(0)] if 0 in packet_ids else packet_ids


# By first byte: packet type and flags.
SHORT_PATH: ShortPath = {
    PUBLISH_AT_MOST_ONCE: publish_at_most_once,
    PUBLISH_AT_LEAST_ONCE: publish_at_least_once,
    PUBLISH_EXACTLY_ONCE: publish_exactly_once,
    0x40: acknowledgements,
    0x50: acknowledgements,
    0x62: acknowledgements,
    0x70: acknowledgements,
}
CLIENT_SHORT_PATH: ShortPath = {**SHORT_PATH, 0x31: publish_retained, 0x33: publish_retained}
