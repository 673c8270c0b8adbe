"""What waits for a session in the log, read as deliveries: a page at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hedgerow.broker.core import BrokerCore
from hedgerow.broker.needed import MAX_POSITION
from hedgerow.broker.session import Session
from hedgerow.broker.stored import AGAIN_BIT, QOS_BITS, RETAIN_BIT, Chunk, Run
from hedgerow.mqtt.outbox import Delivery, Stage

PAGE_MESSAGES = 512
PAGE_BYTES = 256 * 1024
MAX_RECENT = 4_096


def read_page(broker: BrokerCore, parts: Sequence[tuple[Chunk, Run]]) -> tuple[list[Delivery], int]:
    """What waits at these positions, as far as a page goes, and up to where that is."""
    assert broker.log is not None
    durability = broker.durability
    found, end = broker.log.read([run for _, run in parts], PAGE_BYTES)
    deliveries: list[Delivery] = []
    number = 0
    for chunk, (first, count) in parts:
        flags, after = chunk.flags, first + count
        qos, retain, is_again = flags & QOS_BITS, bool(flags & RETAIN_BIT), bool(flags & AGAIN_BIT)
        while number < len(found) and found[number].position < after:
            position, message, at = found[number]
            number += 1
            if position < durability.restored_position:
                at = durability.restored_at
            delivery = Delivery(message, qos, retain, chunk.identifiers, position, 0, Stage.QUEUED, at)
            # An earlier life of the node may have sent it. At QoS 2 that would be known.
            delivery.is_again = is_again or (qos == 1 and position <= chunk.sent)
            delivery.group = chunk.group
            deliveries.append(delivery)
    return deliveries, end


def waiting(broker: BrokerCore, session: Session) -> Iterator[Delivery]:
    """All that the client has yet to acknowledge, in order; what is in the log alone a page at a time, as
    deliveries that are in no outbox."""
    yield from session.loaded()
    yield from unloaded(broker, session)
    yield from broker.durability.unwritten(session)


def unloaded(broker: BrokerCore, session: Session, cursor: int = 0) -> Iterator[Delivery]:
    """Of this, what is in the log alone, from a position on."""
    stored = session.stored
    if stored is None or not stored.unloaded:
        return
    cursor = max(cursor, stored.cursor)
    while parts := stored.runs_after(cursor, broker.durability.written_position, PAGE_MESSAGES):
        ahead = stored.ahead
        begin, (deliveries, cursor) = cursor, read_page(broker, parts)
        if cursor <= max(begin, parts[0][1][0]):
            return  # It cannot be read now.
        yield from (each for each in deliveries if each.position not in ahead)


def newest_waiting(broker: BrokerCore, session: Session, most: int = MAX_RECENT) -> Iterator[Delivery]:
    """The same, of what is in the log alone only about so many: what came last."""
    yield from session.loaded()
    stored = session.stored
    if stored is not None and stored.unloaded:
        cursor, left = MAX_POSITION, min(most, stored.unloaded)
        for chunk in reversed(stored.chunks):
            cursor = chunk.base
            left -= chunk.count
            if left <= 0:
                break
        yield from unloaded(broker, session, cursor)
    yield from broker.durability.unwritten(session)


def load_until(broker: BrokerCore, session: Session, end: int) -> list[Delivery]:
    """What waits for a session below a position, into memory."""
    stored = session.stored
    assert stored is not None
    taken: list[Delivery] = []
    cursor = stored.cursor
    while parts := stored.runs_after(cursor, end, PAGE_MESSAGES):
        deliveries, after = read_page(broker, parts)
        if after == parts[0][1][0]:
            break  # It cannot be read now; what is in flight does without.
        cursor = after
        taken += deliveries
    found = {each.position for each in taken}
    runs = [run for _, run in stored.runs_after(stored.cursor, cursor, MAX_POSITION)]
    stored.unloaded -= sum(count for _, count in runs)
    stored.cursor = cursor
    for first, count in runs:
        for position in range(first, first + count):
            if position not in found:  # It is damaged.
                broker.stats.publish_dropped += 1
                broker.durability.give_up(session, position, position + 1)
    ahead, stored.ahead = stored.ahead, {each for each in stored.ahead if each >= cursor}
    return [each for each in taken if each.position not in ahead] if ahead else taken


def load_all(broker: BrokerCore, session: Session) -> list[Delivery]:
    """What waits for a session that a part of this node has for itself, into memory."""
    loaded = session.loaded()
    read = load_until(broker, session, MAX_POSITION) if session.stored is not None else []
    return [*loaded, *read, *broker.durability.unwritten(session)]


def drop_all(broker: BrokerCore, session: Session) -> int:
    """Let go of all that waits; how much it was."""
    count = session.waiting_count
    durability = broker.durability
    for delivery in [*session.loaded(), *durability.unwritten(session)]:
        durability.finish_delivery(session, delivery)
    durability.give_up(session, 0, MAX_POSITION)
    session.outbox = None
    return count
