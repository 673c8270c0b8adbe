"""The short paths of a bridge's connection: which packets need no codec."""

from __future__ import annotations

from typing import Any

from hedgerow.bridges.foreign import ForeignLink
from hedgerow.broker.batch import Batch
from hedgerow.broker.core import BrokerCore
from hedgerow.broker.handle_publish import accept
from hedgerow.broker.identified import RUN_WORK
from hedgerow.broker.publishing import most_of_run, publish
from hedgerow.broker.short_path import (
    PUBLISH_AT_LEAST_ONCE,
    PUBLISH_AT_MOST_ONCE,
    SHORT_PATH,
    accept_batch,
    count_received,
    most_in_a_row,
    read_run,
)
from hedgerow.mqtt.packets import PUBLISH
from hedgerow.mqtt.scanner import packet_at

# What needs the codec comes the long way; acknowledgements are the same in all.
OTHER_SHORT_PATH: dict[int, Any] = {
    first: short for first, short in SHORT_PATH.items() if first >> 4 != PUBLISH
}


def publish_born(connection: ForeignLink, data: bytes, position: int, body: int, stop: int) -> int:
    """PUBLISH at QoS 0 from a broker that gives no ids, while this is the only bridge there, and all that
    follow to the same topic."""
    foreign = connection.foreign
    if foreign is None or not foreign.is_simple:
        return 0
    if stop - body < 3:
        return 0
    topic_end = body + 2 + (data[body] << 8 | data[body + 1])
    if topic_end >= stop or data[topic_end]:
        return 0
    return publish_born_row(connection, data, position, body, stop, topic_end, topic_end + 1)


def publish_born_row(
    connection: ForeignLink,
    data: bytes,
    position: int,
    body: int,
    stop: int,
    topic_end: int,
    payload_at: int,
) -> int:
    """PUBLISH packets at QoS 0 with one topic and the same properties, which end at `payload_at`."""
    broker, foreign = connection.broker, connection.foreign
    route = connection.route_for(data[body + 2 : topic_end])
    if route is None or foreign is None or not foreign.is_simple:
        return 0
    if route.topic in broker.undelivered:
        return 0
    most = most_of_run(broker, route)
    payloads, row_end = _read_row(connection, data, position, body, stop, data[body:payload_at], most)
    ids = foreign.stamps.next_run(len(payloads), broker.now)
    if ids is None:
        return 0
    _note_known(broker, *ids)
    count_received(connection, len(payloads), row_end - position)
    broker.work += RUN_WORK + len(payloads)
    if connection.inbound is not None:
        connection.inbound.published += len(payloads)
    publish(broker, Batch(route.topic, connection.session, 0, payloads, len(payloads), *ids), route)
    return row_end


def _note_known(broker: BrokerCore, origin: str, epoch: int, sequences: range) -> None:
    """What comes back by another link has been here."""
    broker.duplicates.life(origin, epoch).note_all(sequences)


def _read_row(
    connection: ForeignLink, data: bytes, position: int, body: int, stop: int, head: bytes, most: int
) -> tuple[list[bytes], int]:
    """So many packets in a row at most, whose bodies begin like this: their payloads, and the end."""
    end, limit = len(data), connection.broker.limits.packet_bytes
    # Those of one size first: none of them has to be looked for.
    size, payload_at = stop - position, body - position + len(head)
    alike = data[position:body] + head
    row_end = stop
    while row_end <= end - size and data.startswith(alike, row_end):
        row_end += size
    row_end = min(row_end, position + size * most)
    payloads = [data[start + payload_at : start + size] for start in range(position, row_end - size, size)]
    position, body, stop = row_end - size, body + row_end - size - position, row_end
    while True:
        payloads.append(data[body + len(head) : stop])
        position = stop
        found = packet_at(data, position, PUBLISH_AT_MOST_ONCE, limit) if len(payloads) < most else None
        if found is None:
            break
        body, stop = found
        if stop > end or stop - body < len(head) or not data.startswith(head, body):
            break
    return payloads, position


def publish_born_at_least_once(
    connection: ForeignLink, data: bytes, position: int, body: int, stop: int
) -> int:
    """The same at QoS 1, without DUP and RETAIN, and all that follow to the same topic."""
    if stop - body < 5:
        return 0
    topic_end = body + 2 + (data[body] << 8 | data[body + 1])
    if topic_end + 3 > stop or data[topic_end + 2]:
        return 0
    return publish_born_run(connection, data, position, body, stop, topic_end, b"\0")


def publish_born_run(
    connection: ForeignLink,
    data: bytes,
    position: int,
    body: int,
    stop: int,
    topic_end: int,
    properties: bytes,
) -> int:
    """PUBLISH packets at QoS 1 to one topic, which all have these properties, with their length."""
    broker, foreign = connection.broker, connection.foreign
    route = connection.route_for(data[body + 2 : topic_end])
    if route is None or foreign is None or not foreign.is_simple:
        return 0
    most = most_in_a_row(connection, route)
    name = data[body:topic_end]
    packet_ids, places = read_run(connection, data, body, stop, name, properties, max(most, 1))
    ids = foreign.stamps.next_run(len(packet_ids), broker.now) if packet_ids else None
    if ids is None:
        return 0
    origin, epoch, sequences = ids
    foreign.note_run(origin, epoch, sequences)
    run_end = places[-1][1]
    payloads = [data[start:after] for start, after in places]
    batch = Batch(route.topic, connection.session, 1, payloads, len(payloads), *ids)
    if most > 0:
        _note_known(broker, *ids)
        accept_batch(connection, route, batch, packet_ids, run_end - position)
    else:
        broker.stats.packets_received += 1
        broker.stats.publish_bytes_received += run_end - position
        accept(connection, batch.messages[0], route, int.from_bytes(packet_ids[0], "big"))
    return run_end


FOREIGN_SHORT_PATH = OTHER_SHORT_PATH | {
    PUBLISH_AT_MOST_ONCE: publish_born,
    PUBLISH_AT_LEAST_ONCE: publish_born_at_least_once,
}
