"""Packets between brokers: publications with their ids, many at a time, and duplicates dropped.

As on the short path, packets in a row are handled together: those of one topic and origin whose only property
is their id become one chunk for all recipients who take the same bytes. Whatever is unusual returns 0, and
goes the long way through the codec.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hedgerow.broker.deliveries import send_counted
from hedgerow.broker.handle_publish import accept
from hedgerow.broker.journalling import is_refused, record_identified
from hedgerow.broker.routes import WireForm
from hedgerow.broker.runs import (
    PUBLISH_AT_LEAST_ONCE,
    accept_run,
    id_block_head,
    most_in_a_row,
    read_run,
)
from hedgerow.broker.short_path import SHORT_PATH, count_received, fan_out
from hedgerow.message import Message, MessageId
from hedgerow.mqtt.codec import encode_remaining_length
from hedgerow.mqtt.ids import ID_HEAD, parse_id

if TYPE_CHECKING:
    from hedgerow.broker.connection import Connection
    from hedgerow.broker.routes import Route
    from hedgerow.broker.session import Session
    from hedgerow.duplicates import Life

MAX_ID_BYTES = 400  # of an id and what stands around it, at most: the name of a node is not long
MAX_RUN = 4_096  # Packets in a row before the turn is looked at.
MAX_CACHED_LIVES = 1_024  # Per connection; a peer that invents origins starts its cache anew.
RUN_WORK = 12  # of one packet; a peer may use another topic for each,
LIFE_WORK = 10  # and another origin.
MAX_SEQUENCE_DIGITS = 18  # All numbers of so many fit where ids are stored; the long way asks about others.


# Packets out


class IdentifiedRun:
    """Messages of one topic and one origin, as packets with their ids. Encoded once for all who get them."""

    def __init__(
        self, origin: str, epoch: int, sequences: Sequence[int], payloads: Sequence[bytes], packet_bytes: int
    ) -> None:
        """`packet_bytes` is what the largest packet takes at most, beside its topic."""
        self.origin = origin
        self.epoch = epoch
        self.prefix = f"{origin}/{epoch}/".encode()
        self.sequences = sequences
        self.payloads = payloads
        self.packet_bytes = packet_bytes
        self._encoded: dict[bytes, bytes] = {}  # by topic: a bridge may use another name

    def encode(self, topic: bytes) -> bytes:
        chunk = self._encoded.get(topic)
        if chunk is None:
            heads: dict[tuple[int, int], bytes] = {}
            packets = []
            for sequence, payload in zip(self.sequences, self.payloads, strict=True):
                digits = b"%d" % sequence
                sizes = len(digits), len(payload)
                head = heads.get(sizes)
                if head is None:
                    head = heads[sizes] = _head(topic, self.prefix, *sizes)
                packets.append(head + digits + payload)
            chunk = self._encoded[topic] = b"".join(packets)
        return chunk


def _head(topic: bytes, prefix: bytes, digits_size: int, payload_size: int) -> bytes:
    """A QoS 0 PUBLISH up to the digits of its sequence."""
    name = len(topic).to_bytes(2, "big") + topic
    block = id_block_head(prefix, digits_size)
    remaining = len(name) + len(block) + digits_size + payload_size
    return b"\x30" + encode_remaining_length(remaining) + name + block


def send_run(route: Route, run: IdentifiedRun, publisher: Session | None) -> None:
    """To every peer of the route but the one that it came from."""
    count = len(run.sequences)
    for session in route.peers:
        if session is publisher or run.origin == session.far_origin:
            continue
        ledger, connection = session.ledger, session.connection
        if connection is None:
            if ledger is not None:
                ledger.published += count
                ledger.away += count
            continue
        topic = connection.name_on_wire(route.topic)
        size = connection.maximum_packet_size
        if topic is None or (size and run.packet_bytes + len(topic) > size):
            _send_one_by_one(route, run, session, connection)
            continue
        is_sent = connection.send_at_most_once(run.encode(topic), count)
        connection.note_run(run.origin, run.epoch, run.sequences)
        if ledger is not None:
            ledger.published += count
            if is_sent:
                ledger.relayed += count
            else:
                ledger.overflowed += count


def _send_one_by_one(route: Route, run: IdentifiedRun, session: Session, connection: Connection) -> None:
    """Where some of the packets may be larger than the peer takes."""
    for sequence, payload in zip(run.sequences, run.payloads, strict=True):
        message = Message(route.topic, payload, id=MessageId(run.origin, run.epoch, sequence))
        if session.ledger is not None:
            send_counted(session, message, False)
        else:
            connection.send_message(message, False, ())


# Packets in


def publish_identified(connection: Connection, data: bytes, position: int, body: int, stop: int) -> int:
    """PUBLISH at QoS 0 whose only property is its id, and all that follow of the kind, topic and origin."""
    if stop - body < 3:
        return 0
    begin = position
    end = len(data)
    topic_end = body + 2 + (data[body] << 8 | data[body + 1])
    if topic_end + 1 > stop or data[topic_end] >= 0x80:
        return 0
    head_size = topic_end + 1 - body  # of topic and property length
    found = _read_id(data, topic_end, stop)
    if found is None:
        return 0
    prefix, _ = found
    life = _life_of(connection, prefix)
    route = connection.route_for(data[body + 2 : topic_end])
    if life is None or route is None:
        return 0
    sequences: list[int] = []
    payloads: list[bytes] = []
    count = 0
    largest = 0
    limit = connection.broker.limits.packet_bytes
    digits_at = head_size + len(ID_HEAD) + 2 + len(prefix)
    payload_at = head_size + data[topic_end]
    expected = data[body : body + digits_at]
    while True:
        digits = data[body + digits_at : body + payload_at]
        if not digits.isdigit() or (digits[0] == 48 and len(digits) > 1):
            break  # another way to write a number, or another origin: one by one
        sequence = int(digits)
        count += 1
        if not life.seen(sequence):
            sequences.append(sequence)
            payloads.append(data[body + payload_at : stop])
            largest = max(largest, stop - position)
        position = stop
        if count >= MAX_RUN or end - position < 3 or data[position] != 0x30:
            break
        length = data[position + 1]
        body = position + 2
        if length >= 0x80:
            if not 0 < data[position + 2] < 0x80:
                break  # three bytes, or more than needed (MQTT-1.5.5-1)
            length = length & 0x7F | data[position + 2] << 7
            body += 1
        stop = body + length
        if stop > end or stop - position > limit or body + payload_at > stop:
            break
        if not data.startswith(expected, body):
            break
    if not count:
        return 0
    count_received(connection, count, position - begin)
    connection.broker.work += RUN_WORK + count
    if connection.inbound is not None:
        connection.inbound.published += count
        connection.inbound.duplicates += count - len(sequences)
    if sequences:
        run = IdentifiedRun(*life.key, sequences, payloads, largest - head_size)
        pass_on_run(connection, route, run)
    return position


class Own:
    """In the place of a `Life`: whatever began at this node has been here."""

    is_forgotten = False

    def __init__(self, origin: str) -> None:
        self.key = (origin, 0)

    def seen(self, sequence: int) -> bool:
        return True


def _read_id(data: bytes, topic_end: int, stop: int) -> tuple[bytes, int] | None:
    """The id's prefix and where its digits begin, if it is the only property of this PUBLISH."""
    block = topic_end + 1
    block_end = block + data[topic_end]
    value = block + len(ID_HEAD) + 2
    if value >= block_end or block_end > stop or not data.startswith(ID_HEAD, block):
        return None
    if block_end - value != (data[value - 2] << 8 | data[value - 1]):
        return None
    digits = data.rfind(b"/", value, block_end) + 1
    if not digits or block_end - digits > MAX_SEQUENCE_DIGITS:
        return None
    return data[value:digits], digits


def _life_of(connection: Connection, prefix: bytes) -> Life | Own | None:
    """What is known of the node that an id names. None for what is no id: the long way takes it as it is."""
    lives = connection.lives
    life = lives.get(prefix)
    if life is None or life.is_forgotten:
        try:
            origin, epoch, _ = parse_id(prefix.decode() + "0")
        except ValueError:
            return None
        broker = connection.broker
        broker.work += LIFE_WORK
        life = Own(origin) if origin == broker.node_id else broker.duplicates.life(origin, epoch)
        if len(lives) >= MAX_CACHED_LIVES:
            lives.clear()
        lives[prefix] = life
    return life


def pass_on_run(connection: Connection, route: Route, run: IdentifiedRun) -> None:
    """To those who take plain packets, in one chunk for each wire form; to peers; to each of the others."""
    count = len(run.payloads)
    broker = connection.broker
    if broker.monitor is not None and route.has_clients:
        broker.monitor.note_many(route.topic, count, broker.now)
    if route.is_journalled:
        record_identified(connection, route, run)
    for sessions, form in ((route.mqtt_3, WireForm.MQTT_3), (route.mqtt_5, WireForm.MQTT_5)):
        if sessions:
            fan_out(sessions, _encode_plain(route.topic, run.payloads, form), count)
    if route.peers:
        send_run(route, run, connection.session)
    if route.others or route.groups or route.ports:
        for sequence, payload in zip(run.sequences, run.payloads, strict=True):
            message = Message(route.topic, payload, id=MessageId(run.origin, run.epoch, sequence))
            broker.deliver_individually(message, route, connection.session)


def _encode_plain(topic_name: str, payloads: Sequence[bytes], form: WireForm) -> bytes:
    topic = topic_name.encode()
    after = b"\0" if form == WireForm.MQTT_5 else b""
    name = len(topic).to_bytes(2, "big") + topic + after
    heads: dict[int, bytes] = {}
    packets = []
    for payload in payloads:
        size = len(payload)
        head = heads.get(size)
        if head is None:
            head = heads[size] = b"\x30" + encode_remaining_length(len(name) + size) + name
        packets.append(head + payload)
    return b"".join(packets)


def _find_way(
    connection: Connection, data: bytes, body: int, stop: int
) -> tuple[Life | Own, Route, int, int] | None:
    """For a PUBLISH at QoS 1 or 2 whose only property is its id.

    Life, route, and where the packet identifier and the digits of the sequence begin.
    """
    if stop - body < 6:
        return None
    topic_end = body + 2 + (data[body] << 8 | data[body + 1])
    block = topic_end + 2
    if block + 1 > stop or data[block] >= 0x80:
        return None
    found = _read_id(data, block, stop)
    if found is None:
        return None
    prefix, digits_at = found
    life = _life_of(connection, prefix)
    route = connection.route_for(data[body + 2 : topic_end])
    if life is None or route is None:
        return None
    return life, route, topic_end, digits_at


def publish_identified_at_least_once(
    connection: Connection, data: bytes, position: int, body: int, stop: int
) -> int:
    """PUBLISH at QoS 1, without DUP and RETAIN, whose only property is its id, and all that follow."""
    if len(data) == stop or data[stop] != PUBLISH_AT_LEAST_ONCE:
        return publish_identified_acknowledged(connection, data, position, body, stop)
    found = _find_way(connection, data, body, stop)
    if found is None:
        return 0
    life, route, topic_end, digits_at = found
    most = most_in_a_row(connection, route)
    if most <= 0:
        return publish_identified_acknowledged(connection, data, position, body, stop)
    name, id_head = data[body:topic_end], data[topic_end + 2 : digits_at]
    packet_ids, rests = read_run(connection, data, body, stop, name, id_head, most)
    if route.is_journalled and rests and is_refused(connection, rests[-1][1] - position):
        return len(data)  # before they count as seen: they come again
    digits_size = topic_end + 3 + data[topic_end + 2] - digits_at
    topic = route.topic
    has_peers = bool(route.peers)
    messages: list[Message] = []
    id_blocks: list[bytes] = []
    count = 0
    run_end = 0
    for start, after in rests:
        payload_at = start + digits_size
        digits = data[start:payload_at]
        if payload_at > after or not digits.isdigit() or (digits[0] == 48 and digits_size > 1):
            break  # another way to write a number, or another origin
        count += 1
        run_end = after
        sequence = int(digits)
        if not life.seen(sequence):
            message_id = MessageId(*life.key, sequence)
            messages.append(Message(topic, data[payload_at:after], 1, id=message_id))
            if has_peers:
                id_blocks.append(id_head + digits)
    if count:
        accept_run(connection, route, messages, packet_ids[:count], run_end - position, id_blocks)
    return run_end


def publish_identified_acknowledged(
    connection: Connection, data: bytes, position: int, body: int, stop: int
) -> int:
    """One PUBLISH at QoS 1 or 2, without DUP and RETAIN, whose only property is its id."""
    found = _find_way(connection, data, body, stop)
    if found is None:
        return 0
    life, route, topic_end, digits_at = found
    packet_id = data[topic_end] << 8 | data[topic_end + 1]
    payload_at = topic_end + 3 + data[topic_end + 2]
    digits = data[digits_at:payload_at]
    if not packet_id or not digits.isdigit() or (digits[0] == 48 and len(digits) > 1):
        return 0
    message_id = MessageId(*life.key, int(digits))
    stats = connection.broker.stats
    stats.packets_received += 1
    stats.publish_bytes_received += stop - position
    message = Message(route.topic, data[payload_at:stop], data[position] >> 1 & 3, id=message_id)
    accept(connection, message, route, packet_id)
    return stop


PEER_SHORT_PATH = SHORT_PATH | {
    0x30: publish_identified,
    PUBLISH_AT_LEAST_ONCE: publish_identified_at_least_once,
    0x34: publish_identified_acknowledged,
}
