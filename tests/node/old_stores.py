"""Stores as older versions of Hedgerow have left them, with messages and deliveries as rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from hedgerow.message import Message
from hedgerow.node.store import FILE_NAME
from hedgerow.node.store_rows import message_columns

_TABLES = """
    DROP TABLE chunks; DROP TABLE deliveries; ALTER TABLE node DROP COLUMN next_position;
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
    PRAGMA user_version = 7;
"""


def make_older(
    directory: Path, messages: dict[int, Message], deliveries: Iterable[tuple[int, int, int, int, bytes]]
) -> None:
    """Turn a store into one of format 7. Deliveries are (session key, message key, packet identifier, flags,
    subscription identifiers)."""
    with closing(sqlite3.connect(directory / FILE_NAME, isolation_level=None)) as connection:
        connection.executescript(_TABLES)
        connection.executemany(
            "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(key, *message_columns(each)) for key, each in messages.items()],
        )
        connection.executemany("INSERT INTO deliveries VALUES (?, ?, ?, ?, ?)", list(deliveries))


def make_oldest(directory: Path) -> None:
    """And that into one of format 2, which had no bridges, no duplicate log and no times of what waits."""
    with closing(sqlite3.connect(directory / FILE_NAME, isolation_level=None)) as connection:
        connection.execute("DROP TABLE kept")
        connection.execute("DROP TABLE seen")
        connection.execute("ALTER TABLE sessions DROP COLUMN role")
        connection.execute("ALTER TABLE sessions DROP COLUMN owner")
        connection.execute("ALTER TABLE messages DROP COLUMN published_at")
        connection.execute("PRAGMA user_version = 2")
