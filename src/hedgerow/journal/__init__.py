"""The journal: a durable, segmented log of messages that outages and Spark read back.

One directory is one journal and has one `Writer`; several journals are several partitions. A position is
the number of a message in its journal. `JournalReader` gives Arrow record batches from any position, `retain`
removes old segments, `check` says what is damaged. Writing needs nothing beside Python; reading needs
pyarrow and numpy, which come with an extra.

Each is imported when it is first used: a node that has no journal reads its configuration all the same.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hedgerow.journal.columns import COLUMNS, schema
    from hedgerow.journal.io.check import Report, check
    from hedgerow.journal.io.files import committed_positions, store_committed
    from hedgerow.journal.io.reader import JournalReader
    from hedgerow.journal.io.retention import Removed, retain
    from hedgerow.journal.io.writer import BufferFullError, Writer
    from hedgerow.log.scan import Gap

__all__ = [
    "COLUMNS",
    "BufferFullError",
    "Gap",
    "JournalReader",
    "Removed",
    "Report",
    "Writer",
    "check",
    "committed_positions",
    "retain",
    "schema",
    "store_committed",
]

_LAZY = {
    "COLUMNS": "hedgerow.journal.columns",
    "schema": "hedgerow.journal.columns",
    "Report": "hedgerow.journal.io.check",
    "check": "hedgerow.journal.io.check",
    "committed_positions": "hedgerow.journal.io.files",
    "store_committed": "hedgerow.journal.io.files",
    "JournalReader": "hedgerow.journal.io.reader",
    "Removed": "hedgerow.journal.io.retention",
    "retain": "hedgerow.journal.io.retention",
    "Gap": "hedgerow.log.scan",
    "BufferFullError": "hedgerow.journal.io.writer",
    "Writer": "hedgerow.journal.io.writer",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value
