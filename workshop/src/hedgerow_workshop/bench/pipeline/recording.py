"""The same messages as a journal and as Parquet files, for a race between the two."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from hedgerow.journal import JournalReader, Writer
from hedgerow.message import MessageId

TOPICS = 100
RUN = 20  # messages in a row to one topic, as a busy broker meets them
PAYLOAD_BYTES = 64
RATE = 5_000  # messages a second, by the times that they bear
ROWS_PER_FILE = 250_000
_STEP = RUN / RATE


@dataclass(frozen=True)
class Recording:
    journal: Path
    parquet: Path
    rows: int


def record(directory: Path, rows: int) -> Recording:
    journal, parquet = directory / "journal", directory / "parquet"
    _write_journal(journal, rows)
    _copy_to_parquet(journal, parquet)
    return Recording(journal, parquet, rows)


def _write_journal(journal: Path, rows: int) -> None:
    topics = [f"farm/field{number // 10}/sensor{number % 10}/soil" for number in range(TOPICS)]
    began_at = time.time() - rows / RATE
    with Writer(journal, "bench") as writer:
        for number in range(rows // RUN):
            first = number * RUN
            payloads = [b"%0*d" % (PAYLOAD_BYTES, first + offset) for offset in range(RUN)]
            writer.append_run(
                # Topics take turns unevenly, so that some are hot.
                topics[(number * number) % TOPICS],
                payloads,
                transport="tcp",
                received_at=began_at + number * _STEP,
                client=f"client-{number % 10}",
                qos=1,
                first_id=MessageId("bench", 1, first),
            )
            if number % 1_000 == 0:
                writer.flush()


def _copy_to_parquet(journal: Path, parquet: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    reader = JournalReader(journal)
    parquet.mkdir()
    name = pa.array([reader.journal_id])
    for start in range(0, reader.end_position, ROWS_PER_FILE):
        table = pa.Table.from_batches(list(reader.batches(start, start + ROWS_PER_FILE)))
        column = pa.repeat(name[0], table.num_rows)
        table = table.add_column(0, pa.field("journal", pa.string()), column)
        # Spark lists files by name; each is a micro-batch.
        pq.write_table(table, parquet / f"{start:012d}.parquet")
