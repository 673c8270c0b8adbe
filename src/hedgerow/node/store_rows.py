"""What the store keeps, as rows: the tables, `Changes` into them, and all of them into a `Snapshot`.

Changes are state, so every put replaces and every deletion may find nothing; putting first and
deleting last is right because keys of sessions and positions are never used twice. Messages are in the log
(`message_log.py`), and what waits is here as positions in it.

Rows of chunks and deliveries are the hot ones, and hold only exact int, float, str and bytearray:
Python's sqlite3 binds these at once, and takes every other value, None and bytes too, through its
adapter protocol, which costs 0.3 µs each. So absence has a value of its own in them, and small
fields share the integer `flags`: bits 0 and 1 QoS, bit 2 retain, from bit 3 the stage of a delivery, and of a
chunk what `broker/stored.py` says.
"""

from __future__ import annotations

import logging
import sqlite3
import struct
import sys
from array import array
from typing import NamedTuple

from hedgerow.broker.changes import Changes, SessionRecord, Snapshot, SubscriptionRecord
from hedgerow.broker.stored import MAX_SPAN, Chunk
from hedgerow.message import Message, MessageId
from hedgerow.mqtt import properties
from hedgerow.mqtt.outbox import Delivery, Stage
from hedgerow.mqtt.packets import PUBLISH, Subscription, Will
from hedgerow.node.store_schema import IN_LOG, OLD_SESSIONS, OLDEST_SESSIONS

logger = logging.getLogger(__name__)

IN_ORDER = "SELECT * FROM deliveries ORDER BY position"

RETAIN_BIT = 2
STAGE_BIT = 3
_NO_BYTES = bytearray()
_NO_ID = MessageId("", 0, 0)
_NEVER = float("inf")


def put(connection: sqlite3.Connection, changes: Changes) -> None:
    if changes.sessions:
        connection.executemany(
            "INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (_session_row(session) for session in changes.sessions.values() if session is not None),
        )
    if changes.subscriptions:
        connection.executemany(
            "INSERT OR REPLACE INTO subscriptions VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                _subscription_row(session_key, record)
                for (session_key, _), record in changes.subscriptions.items()
                if record is not None
            ),
        )
    if changes.chunks:
        connection.executemany(
            "INSERT OR REPLACE INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                _chunk_row(session_key, chunk)
                for (session_key, _), chunk in changes.chunks.items()
                if chunk.count
            ),
        )
    if changes.deliveries:
        connection.executemany(
            "INSERT OR REPLACE INTO deliveries VALUES (?, ?, ?, ?, ?)",
            (
                (
                    session_key,
                    position,
                    delivery.packet_id,
                    delivery.qos | delivery.retain << RETAIN_BIT | delivery.stage << STAGE_BIT,
                    _encode_identifiers(delivery.subscription_identifiers),
                )
                for (session_key, position), delivery in changes.deliveries.items()
                if delivery is not None
            ),
        )
    if changes.received:
        connection.executemany(
            "INSERT OR REPLACE INTO received VALUES (?, ?)",
            (key for key, present in changes.received.items() if present),
        )
    if changes.retained:
        connection.executemany(
            "INSERT OR REPLACE INTO retained VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (message_columns(message) for message in changes.retained.values() if message is not None),
        )
    if changes.seen:
        connection.executemany(
            "INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?)",
            ((*page, bits) for page, bits in changes.seen.items() if bits is not None),
        )
    if changes.kept:
        connection.executemany(
            "INSERT OR REPLACE INTO kept VALUES (?, ?, ?)",
            ((*key, text) for key, text in changes.kept.items() if text is not None),
        )


def remove(connection: sqlite3.Connection, changes: Changes) -> None:
    """Delete what is gone, after the puts: keys of sessions and messages are never used twice."""
    gone = [(key,) for key, session in changes.sessions.items() if session is None]
    if gone:
        connection.executemany("DELETE FROM sessions WHERE key = ?", gone)
        connection.executemany("DELETE FROM subscriptions WHERE session_key = ?", gone)
        connection.executemany("DELETE FROM chunks WHERE session_key = ?", gone)
        connection.executemany("DELETE FROM deliveries WHERE session_key = ?", gone)
        connection.executemany("DELETE FROM received WHERE session_key = ?", gone)
    if changes.subscriptions:
        connection.executemany(
            "DELETE FROM subscriptions WHERE session_key = ? AND topic_filter = ?",
            (key for key, record in changes.subscriptions.items() if record is None),
        )
    if changes.received:
        connection.executemany(
            "DELETE FROM received WHERE session_key = ? AND packet_id = ?",
            (key for key, present in changes.received.items() if not present),
        )
    if changes.retained:
        connection.executemany(
            "DELETE FROM retained WHERE topic = ?",
            ((topic,) for topic, message in changes.retained.items() if message is None),
        )
    if changes.seen:
        connection.executemany(
            "DELETE FROM seen WHERE origin = ? AND epoch = ? AND page = ?",
            (page for page, bits in changes.seen.items() if bits is None),
        )
    if changes.kept:
        connection.executemany(
            "DELETE FROM kept WHERE part = ? AND key = ?",
            (key for key, text in changes.kept.items() if text is None),
        )
    if changes.chunks:
        connection.executemany(
            "DELETE FROM chunks WHERE session_key = ? AND number = ?",
            (key for key, chunk in changes.chunks.items() if not chunk.count),
        )
    if changes.deliveries:
        connection.executemany(
            "DELETE FROM deliveries WHERE session_key = ? AND position = ?",
            (key for key, delivery in changes.deliveries.items() if delivery is None),
        )


def _session_row(session: SessionRecord) -> tuple[object, ...]:
    will = session.will
    return (
        session.key,
        session.client_id,
        session.username,
        session.protocol_version,
        session.session_expiry_s,
        session.expires_at,
        *(
            (None,) * 5
            if will is None
            else (
                will.topic,
                will.payload,
                will.qos,
                will.retain,
                properties.encode(will.properties, properties.WILL),
            )
        ),
        session.role,
        session.owner,
    )


def _subscription_row(session_key: int, record: SubscriptionRecord) -> tuple[object, ...]:
    subscription = record.subscription
    return (
        session_key,
        subscription.topic_filter,
        subscription.qos,
        subscription.no_local,
        subscription.retain_as_published,
        subscription.retain_handling,
        record.subscription_identifier,
    )


def message_columns(message: Message) -> tuple[object, ...]:
    return (
        message.topic,
        bytearray(message.payload),
        message.qos | message.retain << RETAIN_BIT,
        bytearray(properties.encode(message.properties, PUBLISH)) if message.properties else _NO_BYTES,
        *(message.id or _NO_ID),
        _NEVER if message.expires_at is None else message.expires_at,
        message.published_at or 0.0,
    )


def _chunk_row(session_key: int, chunk: Chunk) -> tuple[object, ...]:
    runs = chunk.runs
    if sys.byteorder == "big":
        runs = array("H", runs)
        runs.byteswap()
    return (
        session_key,
        chunk.number,
        chunk.base,
        chunk.flags,
        _encode_identifiers(chunk.identifiers),
        bytearray(runs),
        chunk.bytes,
        chunk.sent,
        chunk.began_at,
        chunk.at,
    )


def _encode_identifiers(identifiers: tuple[int, ...]) -> bytearray:
    return bytearray(struct.pack(f">{len(identifiers)}I", *identifiers)) if identifiers else _NO_BYTES


class InFlight(NamedTuple):
    """A row of deliveries: at QoS 2, on its way. Its message is in the log."""

    session_key: int
    position: int
    packet_id: int
    qos: int
    retain: bool
    stage: Stage
    identifiers: tuple[int, ...]

    def delivery(self, message: Message, queued_at: float) -> Delivery:
        return Delivery(
            message,
            self.qos,
            self.retain,
            self.identifiers,
            self.position,
            self.packet_id,
            self.stage,
            queued_at,
        )


class Loaded(NamedTuple):
    """What a file holds."""

    snapshot: Snapshot
    """Without what needs the log."""
    under_way: list[InFlight]
    loose: Changes
    """Removes what hangs on nothing."""


def read(connection: sqlite3.Connection, found_format: int) -> Loaded:
    """All that is stored, without what hangs on nothing."""
    snapshot, loose = Snapshot(), Changes()
    newest = "SELECT * FROM sessions ORDER BY key"
    sessions = newest if found_format > 5 else OLD_SESSIONS if found_format > 2 else OLDEST_SESSIONS
    snapshot.sessions = [_session(*row) for row in connection.execute(sessions)]
    session_keys = {session.key for session in snapshot.sessions}
    for session_key, *columns in connection.execute("SELECT * FROM subscriptions"):
        record = _subscription(*columns)
        if session_key in session_keys:
            snapshot.subscriptions.append((session_key, record))
        else:
            loose.subscriptions[session_key, record.subscription.topic_filter] = None
    for session_key, packet_id in connection.execute("SELECT * FROM received"):
        if session_key in session_keys:
            snapshot.received.append((session_key, packet_id))
        else:
            loose.received[session_key, packet_id] = False
    snapshot.retained = [message(*row) for row in connection.execute("SELECT * FROM retained")]
    if found_format > 2:
        kept = "kept" if found_format > 5 else "(SELECT 'bridges', name, section FROM bridges)"
        rows = connection.execute(f"SELECT * FROM {kept}")  # noqa: S608 (both are constants)
        snapshot.kept = {(part, key): text for part, key, text in rows}
    if found_format > 3:
        rows = connection.execute("SELECT * FROM seen")
        snapshot.seen = [((origin, epoch, page), bits) for origin, epoch, page, bits in rows]
    under_way: list[InFlight] = []
    if found_format >= IN_LOG:
        (snapshot.next_position,) = connection.execute("SELECT next_position FROM node").fetchone()
        for session_key, *columns in connection.execute("SELECT * FROM chunks ORDER BY session_key, number"):
            chunk = _chunk(*columns)
            if session_key in session_keys:
                snapshot.chunks.append((session_key, chunk))
            else:
                chunk.count = 0
                loose.chunks[session_key, chunk.number] = chunk
        for session_key, position, *columns in connection.execute(
            "SELECT * FROM deliveries ORDER BY position"
        ):
            if session_key in session_keys:
                under_way.append(in_flight(session_key, position, *columns))
            else:
                loose.deliveries[session_key, position] = None
    if loose.subscriptions or loose.received or loose.chunks or loose.deliveries:
        logger.warning(
            "the store held what belongs to no session; removed: "
            "%d subscriptions, %d received identifiers, %d chunks, %d deliveries",
            len(loose.subscriptions),
            len(loose.received),
            len(loose.chunks),
            len(loose.deliveries),
        )
    return Loaded(snapshot, under_way, loose)


def _chunk(
    number: int,
    base: int,
    flags: int,
    identifiers: bytes,
    runs: bytes,
    size: int,
    sent: int,
    began_at: float,
    at: float,
) -> Chunk:
    chunk = Chunk(number, base, flags, decode_identifiers(identifiers))
    chunk.runs.frombytes(runs)
    if sys.byteorder == "big":
        chunk.runs.byteswap()
    end = 0
    for first, count in zip(chunk.runs[::2], chunk.runs[1::2], strict=True):
        if first < end or not count or first + count > MAX_SPAN or base < 0:
            raise ValueError(f"chunk {number} has positions that are not in order")
        end = first + count
        chunk.count += count
    chunk.bytes = size
    chunk.sent = sent
    chunk.began_at = began_at
    chunk.at = at
    return chunk


def in_flight(session_key: int, position: int, packet_id: int, flags: int, identifiers: bytes) -> InFlight:
    retain = bool(flags >> RETAIN_BIT & 1)
    stage = Stage(flags >> STAGE_BIT)
    return InFlight(
        session_key, position, packet_id, flags & 3, retain, stage, decode_identifiers(identifiers)
    )


def _session(
    key: int,
    client_id: str,
    username: str | None,
    protocol_version: int,
    session_expiry_s: float,
    expires_at: float | None,
    will_topic: str | None,
    will_payload: bytes,
    will_qos: int,
    will_retain: int,
    will_properties: bytes,
    role: str,
    owner: str | None = None,
) -> SessionRecord:
    will = None
    if will_topic is not None:
        will = _will(will_topic, will_payload, will_qos, will_retain, will_properties)
    return SessionRecord(
        key, client_id, username, protocol_version, session_expiry_s, expires_at, will, role, owner
    )


def _will(topic: str, payload: bytes, qos: int, retain: int, encoded: bytes) -> Will:
    return Will(topic, payload, qos, bool(retain), properties.decode(encoded, 0, properties.WILL)[0])


def _subscription(
    topic_filter: str,
    qos: int,
    no_local: int,
    retain_as_published: int,
    retain_handling: int,
    subscription_identifier: int | None,
) -> SubscriptionRecord:
    subscription = Subscription(topic_filter, qos, bool(no_local), bool(retain_as_published), retain_handling)
    return SubscriptionRecord(subscription, subscription_identifier)


def message(
    topic: str,
    payload: bytes,
    flags: int,
    encoded: bytes,
    origin: str,
    epoch: int,
    sequence: int,
    expires_at: float,
    published_at: float | None = None,
) -> Message:
    return Message(
        topic,
        payload,
        flags & 3,
        bool(flags >> RETAIN_BIT & 1),
        properties.of_message(properties.decode(encoded, 0, PUBLISH)[0]) if encoded else {},
        MessageId(origin, epoch, sequence) if origin else None,
        None if expires_at == _NEVER else expires_at,
        published_at or None,
    )


def decode_identifiers(encoded: bytes) -> tuple[int, ...]:
    return struct.unpack(f">{len(encoded) // 4}I", encoded)
