"""The tables of the store, and what makes those of an older format into them."""

from __future__ import annotations

# Strict tables, so that quick_check finds values of the wrong type in a damaged file. Deliveries
# live in their primary key: the rows of a session are neighbours and go by range.
TABLES = """
    CREATE TABLE node (
        id TEXT NOT NULL, epoch INTEGER NOT NULL, next_position INTEGER NOT NULL DEFAULT 1
    ) STRICT;
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
CHUNKS = """
    CREATE TABLE chunks (
        session_key INTEGER NOT NULL, number INTEGER NOT NULL, base INTEGER NOT NULL, flags INTEGER NOT NULL,
        identifiers BLOB NOT NULL, runs BLOB NOT NULL, bytes INTEGER NOT NULL, sent INTEGER NOT NULL,
        began_at REAL NOT NULL, at REAL NOT NULL, PRIMARY KEY (session_key, number)
    ) STRICT, WITHOUT ROWID;
"""
DELIVERIES = """
    CREATE TABLE deliveries (
        session_key INTEGER NOT NULL, position INTEGER NOT NULL, packet_id INTEGER NOT NULL,
        flags INTEGER NOT NULL, identifiers BLOB NOT NULL, PRIMARY KEY (session_key, position)
    ) STRICT, WITHOUT ROWID;
"""
SCHEMA = TABLES + SEEN + KEPT + CHUNKS + DELIVERIES
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

FORMAT = 8
IN_LOG = 8  # From this format on messages are in the log.
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
    7: (
        "ALTER TABLE node ADD COLUMN next_position INTEGER NOT NULL DEFAULT 1",
        "DROP TABLE messages",
        "DROP TABLE deliveries",
        CHUNKS,
        DELIVERIES,
    ),
}
"""By format: the statements that make the next one of it."""
