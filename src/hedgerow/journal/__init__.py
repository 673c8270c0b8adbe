"""The journal: a durable, segmented log of messages that outages and Spark read back.

One directory is one journal and has one `Writer`; several journals are several partitions. A position is
the number of a message in its journal. `JournalReader` gives Arrow record batches from any position, `retain`
removes old segments, `check` says what is damaged. Writing needs nothing beside Python; reading needs
pyarrow and numpy, which come with an extra.
"""

from hedgerow.journal.columns import COLUMNS, schema
from hedgerow.journal.io.check import Report, check
from hedgerow.journal.io.files import committed_positions, store_committed
from hedgerow.journal.io.reader import JournalReader
from hedgerow.journal.io.retention import Removed, retain
from hedgerow.journal.io.scan import Gap
from hedgerow.journal.io.writer import BufferFullError, Writer

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
