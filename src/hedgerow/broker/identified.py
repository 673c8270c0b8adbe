"""Packets whose messages have ids of their own: many at a time, and duplicates dropped.

As on the short path, packets in a row are handled together: those of one topic and origin whose only property
is their id become one batch. Whatever is unusual returns 0, and goes the long way through the codec.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from hedgerow.broker.batch import Batch
from hedgerow.broker.connection import Connection, OwnLife
from hedgerow.broker.handle_publish import accept, is_taken
from hedgerow.broker.ids import has_been_here
from hedgerow.broker.publishing import most_of_run, publish
from hedgerow.broker.role import ShortPath
from hedgerow.broker.routes import Route
from hedgerow.broker.short_path import (
    FEW_ALIKE,
    PUBLISH_AT_LEAST_ONCE,
    PUBLISH_AT_MOST_ONCE,
    SHORT_PATH,
    accept_batch,
    count_received,
    most_in_a_row,
    read_run,
)
from hedgerow.duplicates import Life
from hedgerow.message import NO_PROPERTIES, Message, MessageId
from hedgerow.mqtt.ids import ID_HEAD, parse_id
from hedgerow.mqtt.scanner import packet_at

MAX_CACHED_LIVES = 1_024  # Per connection; a peer that invents origins starts its cache anew.
RUN_WORK = 12  # of one packet; a peer may use another topic for each,
LIFE_WORK = 10  # and another origin.
MAX_SEQUENCE_DIGITS = 18  # All numbers of so many fit where ids are stored; the long way asks about others.


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
    if life is None or route is None or route.topic in connection.broker.undelivered:
        return 0
    sequences: list[int] = []
    payloads: list[bytes] = []
    count = 0
    limit = connection.broker.limits.packet_bytes
    most = most_of_run(connection.broker, route)
    digits_at = head_size + len(ID_HEAD) + 2 + len(prefix)
    payload_at = head_size + data[topic_end]
    row_end = _publish_alike(
        connection, route, life, data, (position, body, stop), digits_at, payload_at, most
    )
    if row_end:
        return row_end
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
        position = stop
        found_next = packet_at(data, position, PUBLISH_AT_MOST_ONCE, limit) if count < most else None
        if found_next is None:
            break
        body, stop = found_next
        if stop > end or body + payload_at > stop or not data.startswith(expected, body):
            break
    if not count:
        return 0
    _pass_on(connection, route, life, (count, position - begin), payloads, sequences)
    return position


def _publish_alike(
    connection: Connection,
    route: Route,
    life: Life | OwnLife,
    data: bytes,
    packet: tuple[int, int, int],
    digits_at: int,
    payload_at: int,
    most: int,
) -> int:
    """The same of packets that have one size, so that none has to be looked for. 0: there are few, or their
    numbers are not all written as they should be."""
    position, body, stop = packet
    size = stop - position
    head = data[position : body + digits_at]
    digits_at += body - position
    payload_at += body - position
    row_end, last = stop, len(data) - size
    while row_end <= last and data.startswith(head, row_end):
        row_end += size
    count = min(most, (row_end - position) // size)
    if count < FEW_ALIKE:
        return 0
    row_end = position + count * size
    starts = range(position, row_end, size)
    digits = [data[start + digits_at : start + payload_at] for start in starts]
    together, width = b"".join(digits), payload_at - digits_at
    if not together.isdigit() or (width > 1 and b"0" in together[::width]):
        return 0
    payloads = [data[start + payload_at : start + size] for start in starts]
    sequences: Sequence[int] = list(map(int, digits))
    counted = range(sequences[0], sequences[0] + count)
    if sequences[-1] != counted[-1] or sequences != list(counted) or not life.note_run(counted[0], count):
        is_new = [not life.seen(sequence) for sequence in sequences]
        payloads, sequences = list(compress(payloads, is_new)), list(compress(sequences, is_new))
    _pass_on(connection, route, life, (count, row_end - position), payloads, sequences)
    return row_end


def _pass_on(
    connection: Connection,
    route: Route,
    life: Life | OwnLife,
    received: tuple[int, int],
    payloads: list[bytes],
    sequences: Sequence[int],
) -> None:
    """Of so many packets, and bytes, those that are new."""
    count, size = received
    count_received(connection, count, size)
    connection.broker.work += RUN_WORK + count
    if connection.inbound is not None:
        connection.inbound.published += count
        connection.inbound.duplicates += count - len(sequences)
    if sequences:
        batch = Batch(route.topic, connection.session, 0, payloads, len(payloads), *life.key, sequences)
        publish(connection.broker, batch, route)


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


def _life_of(connection: Connection, prefix: bytes) -> Life | OwnLife | None:
    """What is known of the node that an id names.

    None for what is no id, or none that this peer may give: the long way takes the message as a new one.
    """
    lives = connection.lives
    life = lives.get(prefix)
    if life is None or life.is_forgotten:
        try:
            origin, epoch, _ = parse_id(prefix.decode() + "0")
        except ValueError:
            return None
        broker = connection.broker
        broker.work += LIFE_WORK
        counted = connection.connected_session().role.origin_of(connection, origin)
        if counted is None:
            return None
        was_here = has_been_here(broker, counted)
        life = OwnLife(counted) if was_here else broker.duplicates.life(counted, epoch)
        if len(lives) >= MAX_CACHED_LIVES:
            lives.clear()
        lives[prefix] = life
    return life


def _find_way(
    connection: Connection, data: bytes, body: int, stop: int
) -> tuple[Life | OwnLife, Route, int, int] | None:
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
    if route.observers and rests and not is_taken(connection, route, rests[-1][1] - position):
        return len(data)  # before they count as seen: they come again
    digits_size = topic_end + 3 + data[topic_end + 2] - digits_at
    # Peers get the properties as they came, unless the ids count under another origin here.
    passes_blocks = bool(route.peers) and id_head.endswith(b"%b/%d/" % (life.key[0].encode(), life.key[1]))
    sequences: list[int] = []
    payloads: list[bytes] = []
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
            sequences.append(sequence)
            payloads.append(data[payload_at:after])
            if passes_blocks:
                id_blocks.append(id_head + digits)
    if count:
        batch = None
        if sequences:
            batch = Batch(route.topic, connection.session, 1, payloads, len(payloads), *life.key, sequences)
            if passes_blocks:
                batch.set_id_blocks(id_blocks)
        accept_batch(connection, route, batch, packet_ids[:count], run_end - position)
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
    qos = data[position] >> 1 & 3
    message = Message(route.topic, data[payload_at:stop], qos, False, NO_PROPERTIES, message_id)
    accept(connection, message, route, packet_id)
    return stop


IDENTIFIED_SHORT_PATH: ShortPath = {
    **SHORT_PATH,
    PUBLISH_AT_MOST_ONCE: publish_identified,
    PUBLISH_AT_LEAST_ONCE: publish_identified_at_least_once,
    0x34: publish_identified_acknowledged,
}
