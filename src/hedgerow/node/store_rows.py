"""What the store keeps, as rows: the tables, `Changes` into them, and all of them into a `Snapshot`.

Changes are state, so every put replaces and every deletion may find nothing; putting first and
deleting last is right because keys of sessions and messages are never used twice.

Rows of messages and deliveries are the hot ones, and hold only exact int, float, str and bytearray:
Python's sqlite3 binds these at once, and takes every other value, None and bytes too, through its
adapter protocol, which costs 0.3 µs each. So absence has a value of its own in them, and small
fields share the integer `flags`: bits 0 and 1 QoS, bit 2 retain, from bit 3 the stage of a delivery.
"""

from __future__ import annotations

import logging
import sqlite3
import struct
from collections.abc import Iterator

from hedgerow.broker.changes import Changes, SessionRecord, Snapshot, SubscriptionRecord
from hedgerow.message import Message, MessageId
from hedgerow.mqtt import properties
from hedgerow.mqtt.outbox import Delivery, Stage
from hedgerow.mqtt.packets import PUBLISH, Subscription, Will

logger = logging.getLogger(__name__)

# Strict tables, so that quick_check finds values of the wrong type in a damaged file. Deliveries
# live in their primary key: the rows of a session are neighbours and go by range.
TABLES = """
    CREATE TABLE node (id TEXT NOT NULL, epoch INTEGER NOT NULL) STRICT;
    CREATE TABLE sessions (
        key INTEGER PRIMARY KEY, client_id TEXT NOT NULL, username TEXT,
        protocol_version INTEGER NOT NULL, session_expiry_s REAL NOT NULL, expires_at REAL,
        will_topic TEXT, will_payload BLOB, will_qos INTEGER, will_retain INTEGER, will_properties BLOB,
        role TEXT NOT NULL DEFAULT 'client', owner TEXT
    ) STRICT;
    CREATE TABLE subscriptions (
        session_key INTEGER NOT NULL, topic_filter TEXT NOT NULL, qos INTEGER NOT NULL,
        no_local INTEGER NOT NULL, retain_as_published INTEGER NOT NULL,
        retain_handling INTEGER NOT NULL, subscription_identifier INTEGER,
        PRIMARY KEY (session_key, topic_filter)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE received (
        session_key INTEGER NOT NULL, packet_id INTEGER NOT NULL, PRIMARY KEY (session_key, packet_id)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE messages (
        key INTEGER PRIMARY KEY, topic TEXT NOT NULL, payload BLOB NOT NULL, flags INTEGER NOT NULL,
        properties BLOB NOT NULL, origin TEXT NOT NULL, epoch INTEGER NOT NULL,
        sequence INTEGER NOT NULL, expires_at REAL NOT NULL, published_at REAL NOT NULL DEFAULT 0
    ) STRICT;
    CREATE TABLE deliveries (
        session_key INTEGER NOT NULL, message_key INTEGER NOT NULL, packet_id INTEGER NOT NULL,
        flags INTEGER NOT NULL, subscription_identifiers BLOB NOT NULL,
        PRIMARY KEY (session_key, message_key)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE retained (
        topic TEXT PRIMARY KEY, payload BLOB NOT NULL, flags INTEGER NOT NULL,
        properties BLOB NOT NULL, origin TEXT NOT NULL, epoch INTEGER NOT NULL,
        sequence INTEGER NOT NULL, expires_at REAL NOT NULL, published_at REAL
    ) STRICT;
"""
BRIDGES = "CREATE TABLE bridges (name TEXT PRIMARY KEY, section TEXT NOT NULL) STRICT;"
SEEN = """
    CREATE TABLE seen (
        origin TEXT NOT NULL, epoch INTEGER NOT NULL, page INTEGER NOT NULL, bits BLOB NOT NULL,
        PRIMARY KEY (origin, epoch, page)
    ) STRICT, WITHOUT ROWID;
"""
KEPT = """
    CREATE TABLE kept (
        part TEXT NOT NULL, key TEXT NOT NULL, text TEXT NOT NULL, PRIMARY KEY (part, key)
    ) STRICT, WITHOUT ROWID;
"""
SCHEMA = TABLES + SEEN + KEPT
MESSAGE_TIMES = "ALTER TABLE messages ADD COLUMN published_at REAL NOT NULL DEFAULT 0"

# Up to format 5 a session's role was some bits of its protocol version, and the beginning of its client id
# (by GLOB: LIKE takes HEDGEROW- for the same). A bridge of a section may have any client id.
IS_OF_SECTION = """
    EXISTS (SELECT 1 FROM bridges WHERE
        instr(char(10) || section || char(10), char(10) || 'local_clientid ' || client_id || char(10)))
"""
OLD_ROLE = f"""
    CASE
        WHEN protocol_version & 64 AND {IS_OF_SECTION} THEN 'bridge'
        WHEN protocol_version & 64 AND client_id GLOB 'hedgerow-kept-*' THEN 'kept'
        WHEN protocol_version & 64 AND client_id GLOB 'hedgerow-fixed-*' THEN 'fixed broker'
        WHEN protocol_version & 64 THEN 'bridge'
        WHEN client_id GLOB 'hedgerow-federation-*' THEN 'neighbour'
        WHEN client_id GLOB 'hedgerow-mobile-*' THEN 'mobile broker'
        WHEN protocol_version & 32 THEN 'far bridge'
        WHEN protocol_version & 128 THEN 'identified'
        ELSE 'client'
    END
"""
OLD_SESSIONS = f"""
    SELECT key, client_id, username, protocol_version & 31, session_expiry_s, expires_at, will_topic,
        will_payload, will_qos, will_retain, will_properties, {OLD_ROLE} FROM sessions ORDER BY key
"""  # noqa: S608 (of constants)
OLDEST_SESSIONS = OLD_SESSIONS.replace(IS_OF_SECTION, "0")  # Format 2 had no table of bridges.

FORMAT = 7
UPGRADES: dict[int, tuple[str, ...]] = {
    2: (BRIDGES,),
    3: (SEEN,),
    4: (MESSAGE_TIMES,),
    5: (
        "ALTER TABLE sessions ADD COLUMN role TEXT NOT NULL DEFAULT 'client'",
        f"UPDATE sessions SET role = {OLD_ROLE}, protocol_version = protocol_version & 31",  # noqa: S608
        KEPT,
        "INSERT INTO kept SELECT 'bridges', name, section FROM bridges",
        "DROP TABLE bridges",
    ),
    6: ("ALTER TABLE sessions ADD COLUMN owner TEXT",),
}
"""By format: the statements that make the next one of it."""

_RETAIN_BIT = 2
_STAGE_BIT = 3
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
    if changes.messages:
        connection.executemany(
            "INSERT OR REPLACE INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                (key, *_message_columns(message))
                for key, message in changes.messages.items()
                if message is not None
            ),
        )
    if changes.deliveries:
        connection.executemany(
            "INSERT OR REPLACE INTO deliveries VALUES (?, ?, ?, ?, ?)",
            (
                (
                    session_key,
                    message_key,
                    delivery.packet_id,
                    delivery.qos | delivery.retain << _RETAIN_BIT | delivery.stage << _STAGE_BIT,
                    _encode_identifiers(delivery.subscription_identifiers),
                )
                for (session_key, message_key), delivery in changes.deliveries.items()
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
            (_message_columns(message) for message in changes.retained.values() if message is not None),
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
    if changes.deliveries:
        completed: dict[int, list[int]] = {}
        for (session_key, message_key), delivery in changes.deliveries.items():
            if delivery is None:
                completed.setdefault(session_key, []).append(message_key)
        connection.executemany(
            "DELETE FROM deliveries WHERE session_key = ? AND message_key BETWEEN ? AND ?",
            (
                (session_key, first, last)
                for session_key, keys in completed.items()
                for first, last in _runs(keys)
            ),
        )
    if changes.messages:
        connection.executemany(
            "DELETE FROM messages WHERE key BETWEEN ? AND ?",
            _runs([key for key, message in changes.messages.items() if message is None]),
        )


def _runs(keys: list[int]) -> Iterator[tuple[int, int]]:
    """(first, last) of each run of consecutive keys.

    A subscriber acknowledges in order, so a batch usually deletes one run: 0.4 µs a message for the
    delivery and the message together, where a statement for each key takes 1.3 µs.
    """
    if not keys:
        return
    keys.sort()
    first = last = keys[0]
    for key in keys:
        if key > last + 1:
            yield first, last
            first = key
        last = key
    yield first, last


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


def _message_columns(message: Message) -> tuple[object, ...]:
    return (
        message.topic,
        bytearray(message.payload),
        message.qos | message.retain << _RETAIN_BIT,
        bytearray(properties.encode(message.properties, PUBLISH)) if message.properties else _NO_BYTES,
        *(message.id or _NO_ID),
        _NEVER if message.expires_at is None else message.expires_at,
        message.published_at or 0.0,
    )


def _encode_identifiers(identifiers: tuple[int, ...]) -> bytearray:
    return bytearray(struct.pack(f">{len(identifiers)}I", *identifiers)) if identifiers else _NO_BYTES


def read(connection: sqlite3.Connection, found_format: int) -> tuple[Snapshot, Changes]:
    """All that is stored, without what hangs on nothing; and the changes that remove the latter.

    Messages that no delivery refers to are ordinary: those of a session that was removed whole.
    """
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
    messages = {key: _message(*columns) for key, *columns in connection.execute("SELECT * FROM messages")}
    for session_key, key, *columns in connection.execute("SELECT * FROM deliveries ORDER BY message_key"):
        message = messages.get(key)
        if message is not None and session_key in session_keys:
            snapshot.deliveries.append((session_key, _delivery(message, key, *columns)))
            snapshot.messages[key] = message
        else:
            loose.deliveries[session_key, key] = None
    loose.messages = dict.fromkeys(messages.keys() - snapshot.messages.keys())
    snapshot.retained = [_message(*row) for row in connection.execute("SELECT * FROM retained")]
    if found_format > 2:
        kept = "kept" if found_format > 5 else "(SELECT 'bridges', name, section FROM bridges)"
        rows = connection.execute(f"SELECT * FROM {kept}")  # noqa: S608 (both are constants)
        snapshot.kept = {(part, key): text for part, key, text in rows}
    if found_format > 3:
        rows = connection.execute("SELECT * FROM seen")
        snapshot.seen = [((origin, epoch, page), bits) for origin, epoch, page, bits in rows]
    if loose.subscriptions or loose.received or loose.deliveries:
        logger.warning(
            "the store held what belongs to no session or message; removed: "
            "%d subscriptions, %d received identifiers, %d deliveries",
            len(loose.subscriptions),
            len(loose.received),
            len(loose.deliveries),
        )
    return snapshot, loose


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


def _message(
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
        bool(flags >> _RETAIN_BIT & 1),
        properties.of_message(properties.decode(encoded, 0, PUBLISH)[0]) if encoded else {},
        MessageId(origin, epoch, sequence) if origin else None,
        None if expires_at == _NEVER else expires_at,
        published_at or None,
    )


def _delivery(message: Message, key: int, packet_id: int, flags: int, encoded: bytes) -> Delivery:
    return Delivery(
        message,
        flags & 3,
        bool(flags >> _RETAIN_BIT & 1),
        struct.unpack(f">{len(encoded) // 4}I", encoded),
        key,
        packet_id,
        Stage(flags >> _STAGE_BIT),
    )
