"""The short path: common packets, handled in place in the received chunk, with no object per packet.

Each function looks at the packet at `position` (its body from `body` to `stop`), handles it and
whatever follows of the same kind, and returns the position behind, or 0 to send the packet the long
way through the codec: whatever is unusual, and whatever is wrong, since only the codec knows how to
refuse. QoS 0 packets that go to the same recipients are forwarded together as the very bytes received,
whatever their topics; those of one topic and size are recognised by their first bytes alone. QoS 1 packets of
one topic are handled together too (`runs.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from struct import unpack
from typing import TYPE_CHECKING, NamedTuple

from hedgerow.broker.handle_publish import ACKNOWLEDGEMENTS, accept, finish_run, may_publish
from hedgerow.broker.journalling import record_packets
from hedgerow.broker.runs import PUBLISH_AT_LEAST_ONCE, accept_run, most_in_a_row, read_run
from hedgerow.errors import TopicError
from hedgerow.message import Message, MessageId
from hedgerow.mqtt.codec import encode_remaining_length
from hedgerow.mqtt.packets import MQTT_5, PUBACK
from hedgerow.topics import validate_name

if TYPE_CHECKING:
    from hedgerow.broker.connection import Connection
    from hedgerow.broker.routes import Route
    from hedgerow.broker.session import Session

PUBLISH_AT_MOST_ONCE = 0x30
MAX_RUNS = 4_096  # Topics in a row before the turn is looked at.
MAX_CACHED_TOPICS = 1_024  # Per publisher; one that invents topics starts its cache anew.


def publish_at_most_once(connection: Connection, data: bytes, position: int, body: int, stop: int) -> int:
    """PUBLISH at QoS 0 without RETAIN, and all that follow of the kind and go to the same sessions."""
    is_mqtt_5 = connection.protocol_version == MQTT_5
    topics = connection.topics
    monitor = connection.broker.monitor
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
            route = find_route(connection, data[body + 2 : topic_end])
            if route is None:
                break
            topics = connection.topics
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
            run = (position, body, topic_end, payload, run_end)
            return _publish_run(connection, route, data, run, size)
        if monitor is not None and route.has_clients:
            monitor.note_many(route.topic, (run_end - position) // size, connection.broker.now)
        if route.is_journalled:
            sequence = connection.broker.sequence + count + 1
            packets = data[position:run_end]
            record_packets(connection, route, packets, size, payload - position, sequence)
        count += (run_end - position) // size
        position = run_end
        if position == end:
            connection.repeated = Repeated(head, size, route, recipients)
            break
        if end - position < 3 or data[position] != PUBLISH_AT_MOST_ONCE:
            break
        length = data[position + 1]
        body = position + 2
        if length >= 0x80:
            if not 0 < data[position + 2] < 0x80:
                break  # three bytes, or more than needed (MQTT-1.5.5-1)
            length = length & 0x7F | data[position + 2] << 7
            body += 1
        stop = body + length
        if stop - position > connection.broker.limits.packet_bytes:
            break
    if not count:
        return 0
    count_received(connection, count, position - begin)
    if recipients:
        fan_out(recipients, data[begin:position], count)
    return position


class Repeated(NamedTuple):
    """The last QoS 0 packet of a chunk that ended with it: its first bytes, size, and way."""

    head: bytes
    size: int
    route: Route
    recipients: tuple[Session, ...]


def publish_again(connection: Connection, repeated: Repeated, data: bytes) -> bool:
    """A chunk that is one packet to the same topic, of the same size as the last: what a sensor sends.

    Between two such messages the caches go cold, and what counts is how little code a message touches.
    Without this, latency at 1,000 messages a second was 1.18 times Mosquitto's; with it, 1.09.
    """
    head, size, route, recipients = repeated
    if len(data) != size or route.stale or not data.startswith(head):
        return False
    count_received(connection, 1, size)
    broker = connection.broker
    if route.is_journalled:
        record_packets(connection, route, data, size, len(head), broker.sequence)
    fan_out(recipients, data, 1)
    if broker.monitor is not None and route.has_clients:
        broker.monitor.note(route.topic, broker.now)
    return True


def _publish_run(
    connection: Connection, route: Route, data: bytes, run: tuple[int, int, int, int, int], size: int
) -> int:
    """Packets of one size to one topic, some of whose recipients need another form than the received."""
    position, body, topic_end, payload, run_end = run
    count = (run_end - position) // size
    count_received(connection, count, run_end - position)
    broker = connection.broker
    if broker.monitor is not None and route.has_clients:
        broker.monitor.note_many(route.topic, count, broker.now)
    if route.is_journalled:
        packets = data[position:run_end]
        record_packets(connection, route, packets, size, payload - position, broker.sequence - count + 1)
    same, other = route.mqtt_3, route.mqtt_5
    if connection.protocol_version == MQTT_5:
        same, other = other, same
    if same:
        fan_out(same, data[position:run_end], count)
    if other:
        fan_out(other, _translate(data, position, body, topic_end, payload, size, run_end), count)
    sequence = broker.sequence - count  # Read now: a port that publishes in turn counts on.
    if route.peers:
        offset = payload - position
        payloads = [data[start + offset : start + size] for start in range(position, run_end, size)]
        broker.send_to_peers(route, sequence + 1, payloads, size - offset, connection.session)
    if route.others or route.groups or route.ports:
        for start in range(position, run_end, size):
            message = Message(route.topic, data[start + payload - position : start + size])
            if route.ports or route.peers:  # a bridge without ids on the wire tells of them too
                sequence += 1
                message.id = MessageId(broker.node_id, broker.epoch, sequence)
            broker.deliver_individually(message, route, connection.session)
    return run_end


def count_received(connection: Connection, count: int, size: int) -> None:
    broker = connection.broker
    broker.sequence += count
    broker.work += 1 + count // 8
    stats = broker.stats
    stats.packets_received += count
    stats.publish_received += count
    stats.publish_bytes_received += size


def fan_out(sessions: tuple[Session, ...], chunk: bytes, count: int) -> None:
    for session in sessions:
        connection = session.connection
        if connection is None:
            continue
        if connection.congested:
            connection.send_at_most_once(chunk, count)
            continue
        broker = connection.broker
        stats = broker.stats
        stats.publish_sent += count
        stats.packets_sent += count
        stats.publish_bytes_sent += len(chunk)
        if not connection.out:
            broker.dirty.append(connection)
        connection.out.append(chunk)


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
    topic_end = body + 2 + (data[body] << 8 | data[body + 1])
    route = connection.route_for(data[body + 2 : topic_end]) if topic_end <= stop else None
    if route is None:
        return 0
    most = most_in_a_row(connection, route)
    if most <= 0:
        return publish_acknowledged(connection, data, position, body, stop)
    no_properties = b"\0" if connection.protocol_version == MQTT_5 else b""
    name = data[body:topic_end]
    packet_ids, payloads = read_run(connection, data, body, stop, name, no_properties, most)
    if not packet_ids:
        return 0
    topic = route.topic
    messages = [Message(topic, data[start:after], 1) for start, after in payloads]
    run_end = payloads[-1][1]
    accept_run(connection, route, messages, packet_ids, run_end - position)
    return run_end


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
        route = find_route(connection, data[body + 2 : topic_end])
        if route is None:
            return 0
    stats = connection.broker.stats
    stats.packets_received += 1
    stats.publish_bytes_received += stop - position
    accept(connection, Message(route.topic, data[payload:stop], data[position] >> 1 & 3), route, packet_id)
    return stop


def find_route(connection: Connection, topic_bytes: bytes) -> Route | None:
    """The route of a topic that this client may publish to, remembered with the connection.

    None for a topic that is wrong or forbidden: the long way refuses it. And None when the turn is over:
    `Connection` postpones what is left.
    """
    try:
        topic = validate_name(topic_bytes.decode())
    except (UnicodeDecodeError, TopicError):
        return None
    if not may_publish(connection.broker, connection.connected_session(), topic):
        return None
    if connection.broker.turn_is_over:
        return None
    route = connection.broker.find_route(topic)
    if route.stale:
        return route
    topics = connection.topics
    if topics is None:
        topics = connection.topics = {}
    elif len(topics) >= MAX_CACHED_TOPICS:
        topics.clear()
    topics[topic_bytes] = route
    return route


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
    if first >> 4 == PUBACK:
        finish_run(connection, packet_ids)
    else:
        acknowledge = ACKNOWLEDGEMENTS[first >> 4]
        for packet_id in packet_ids:
            acknowledge(connection, packet_id, 0)
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
SHORT_PATH: dict[int, Callable[[Connection, bytes, int, int, int], int]] = {
    PUBLISH_AT_MOST_ONCE: publish_at_most_once,
    PUBLISH_AT_LEAST_ONCE: publish_at_least_once,
    0x34: publish_acknowledged,
    0x40: acknowledgements,
    0x50: acknowledgements,
    0x62: acknowledgements,
    0x70: acknowledgements,
}
