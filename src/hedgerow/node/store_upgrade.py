"""What waited in a store older than the log: its messages go to the log, and its deliveries become positions.

The log has them before the store's own transaction, so a crash at any moment leaves the older store as it
was.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from typing import NamedTuple

from hedgerow.broker.changes import Changes
from hedgerow.broker.stored import RETAIN_BIT, StoredQueue
from hedgerow.message import Message
from hedgerow.mqtt.outbox import Stage
from hedgerow.node.message_log import DiskLog
from hedgerow.node.store_rows import InFlight, in_flight, message

SEGMENT_BYTES = 8 * 1024 * 1024


class OldQueue(NamedTuple):
    messages: dict[int, Message]
    """By their keys, which grew as they came."""
    deliveries: list[InFlight]
    """In the order of keys, which are in the place of positions."""


def read(connection: sqlite3.Connection, session_keys: Collection[int]) -> OldQueue:
    """What some session waits for."""
    messages = {
        key: message(*columns) for key, *columns in connection.execute("SELECT * FROM messages ORDER BY key")
    }
    deliveries = [
        in_flight(session_key, key, *columns)
        for session_key, key, *columns in connection.execute("SELECT * FROM deliveries ORDER BY message_key")
        if session_key in session_keys and key in messages
    ]
    wanted = {each.position for each in deliveries}
    return OldQueue({key: each for key, each in messages.items() if key in wanted}, deliveries)


def move_to_log(waiting: OldQueue, log: DiskLog, at: float) -> tuple[Changes, list[InFlight]]:
    """When this returns, the messages are durable; what is to be stored then, and what of it is at QoS 2
    and on its way. Raises StoreError."""
    changes = Changes(messages=list(waiting.messages.values()), first_position=log.next_position, at=at)
    positions = dict(zip(waiting.messages, range(changes.first_position, 2**63), strict=False))
    _append(changes, log)
    queues: dict[int, StoredQueue] = {}
    under_way = []
    for each in waiting.deliveries:
        moved = each._replace(position=positions[each.position])
        flags = each.qos | (RETAIN_BIT if each.retain else 0)
        queue = queues.setdefault(each.session_key, StoredQueue())
        size = waiting.messages[each.position].size
        chunk = queue.add(moved.position, 1, flags, each.identifiers, None, size, at)
        changes.chunks[each.session_key, chunk.number] = chunk
        if each.stage != Stage.QUEUED:
            chunk.sent = moved.position
            if each.qos == 2:
                under_way.append(moved)
    return changes, under_way


def _append(changes: Changes, log: DiskLog) -> None:
    begin = size = 0
    messages = changes.messages
    for end, each in enumerate(messages, 1):
        size += each.size
        if size >= SEGMENT_BYTES or end == len(messages):
            log.write(messages[begin:end], changes.first_position + begin, changes.at, begins_segment=True)
            log.commit()
            log.confirm()
            begin, size = end, 0
