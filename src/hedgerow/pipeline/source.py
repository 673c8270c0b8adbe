"""The data source `hedgerow`: journals as tables and as streams, and rows as publications.

    spark.read.format("hedgerow").option("journals", "/var/lib/hedgerow/journal").load()
    spark.readStream.format("hedgerow").options(journals="/data/*/journal", topics="farm/#").load()

Columns are `journal` (the id of the journal) and those of a journal, `hedgerow.journal.COLUMNS`. Options are
in `options.py`, offsets in `offsets.py`; for the sink see `sink.py`.

A stream reads each position once: offsets are positions, a batch has the same rows whenever it is read
again, and together with a sink that commits with the batch nothing is there twice. What cannot be read
(damage, or what retention has removed) is passed over, logged, and written to the directory `gaps`.

Spark makes these objects in several processes: nothing is opened when they are made. Offsets, partitions
and commits are asked for in one process beside the driver, `read` in the executors' workers.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from hedgerow.errors import ConfigError, HedgerowError, reason_of
from hedgerow.journal import Gap, JournalReader, store_committed
from hedgerow.pipeline import offsets
from hedgerow.pipeline.filters import TakesFilters
from hedgerow.pipeline.gaps import report_gap
from hedgerow.pipeline.offsets import Positions, Range
from hedgerow.pipeline.options import ALL_COLUMNS, LATEST, ReadOptions, read_options
from hedgerow.pipeline.wanted import EVERYTHING, Wanted, wanted_of

if TYPE_CHECKING:
    from pyarrow import RecordBatch

logger = logging.getLogger(__name__)

NAME = "hedgerow"

_TYPES: dict[str, DataType] = {
    "position": LongType(), "epoch": LongType(), "sequence": LongType(), "payload": BinaryType(),
    "qos": IntegerType(), "retain": BooleanType(), "published_at": TimestampType(),
    "received_at": TimestampType(),
}  # fmt: skip
_ALWAYS = ("journal", "position")


def columns_schema(columns: tuple[str, ...] = ALL_COLUMNS) -> StructType:
    """The schema of the source with these columns."""
    return StructType(
        [StructField(name, _TYPES.get(name, StringType()), name not in _ALWAYS) for name in columns]
    )


class HedgerowDataSource(DataSource):
    options: MutableMapping[str, str]

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return columns_schema(read_options(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        return SparkJournalReader(self._read_options(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = self._read_options(schema)
        if options.ending_time is not None or options.ending_position != LATEST:
            raise ConfigError("options endingPosition and endingTime are for read: a stream has no end")
        return SparkJournalStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from hedgerow.pipeline.sink import BatchPublisher

        return BatchPublisher(self.options, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from hedgerow.pipeline.sink import StreamPublisher

        return StreamPublisher(self.options, schema)

    def _read_options(self, schema: StructType) -> ReadOptions:
        options = read_options(self.options)
        if schema.fieldNames() != list(options.columns) or schema != columns_schema(options.columns):
            raise ConfigError(
                "this source has the columns of its journals: leave .schema(…) out, and choose columns with "
                f"the option columns, of {', '.join(ALL_COLUMNS)}"
            )
        return options


class SparkJournalReader(TakesFilters, DataSourceReader):
    """All that is there when the query is planned, between the positions and times that are asked for."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._wanted = Wanted(until=math.inf if options.ending_time is None else options.ending_time)

    def take_filters(self, filters: list[Filter]) -> list[Filter]:
        """What no journal, position, time or topic of can be wanted is not read; Spark looks at the rest."""
        self._wanted = wanted_of(filters, self._wanted, self._options.topics)
        return filters

    def partitions(self) -> list[InputPartition]:
        found = offsets.find(self._options.journals)
        if not found:
            raise HedgerowError(f"no journal in {', '.join(self._options.journals)}")
        starts = offsets.starting_positions(found, self._options)
        ends = offsets.read_until(found, self._options)
        wanted = self._wanted
        if wanted.journals is not None:
            starts = {journal: start for journal, start in starts.items() if journal in wanted.journals}
        starts = {journal: max(start, wanted.first) for journal, start in starts.items()}
        ends = {journal: min(end, wanted.end) for journal, end in ends.items()}
        return _parts(starts, ends, found, self._options)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        for batch in _read(partition, self._options, self._wanted):
            yield _before(batch, self._options.ending_time)


class SparkJournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._last: Positions | None = None  # With the trigger availableNow: where it ends.
        self._committed: Positions = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        found = offsets.find(self._options.journals)
        return offsets.encode(offsets.starting_positions(found, self._options))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._options.rows_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._last = offsets.end_positions(offsets.find(self._options.journals))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        taken = offsets.decode(start)
        found = offsets.find(self._options.journals)
        offsets.check(taken, found, self._options)
        ends = offsets.end_positions(found) if self._last is None else self._last
        firsts = {journal: found[journal].first_position for journal in taken if journal in found}
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        admitted = offsets.admit(taken, ends, firsts, max_rows)
        for journal in ends.keys() & found.keys() - taken.keys():
            admitted[journal] = offsets.joining_position(found[journal], self._options)
        return offsets.encode(admitted)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return offsets.encode(offsets.end_positions(offsets.find(self._options.journals)))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        found = offsets.find(self._options.journals)
        starts, ends = offsets.decode(start), offsets.decode(end)
        offsets.check(ends, found, self._options)
        return _parts(starts, ends, found, self._options)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return _read(partition, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        if self._options.reader is None:
            return
        found = offsets.find(self._options.journals)
        for journal, position in offsets.decode(end).items():
            if journal in found and self._committed.get(journal) != position:
                self._store(found[journal].directory, position)
                self._committed[journal] = position

    def _store(self, directory: Path, position: int) -> None:
        assert self._options.reader is not None
        try:
            store_committed(directory, self._options.reader, position)
        except OSError as error:
            # The rows are taken all the same; the journal keeps them for longer than it must.
            logger.warning("cannot tell the journal in %s what was taken: %s", directory, reason_of(error))


def _parts(
    starts: Positions, ends: Positions, found: Mapping[str, JournalReader], options: ReadOptions
) -> list[InputPartition]:
    """One for each task."""
    wholes: list[Range] = []
    for journal in sorted(starts.keys() & ends.keys()):
        start, end = starts[journal], ends[journal]
        if start >= end:
            continue
        reader = found.get(journal)
        if reader is None:
            report_gap(options.gaps, journal, Gap(start, end, "the journal is gone"))
            continue
        # What is gone is told once, not in a task for each part of what may be a billion positions.
        first = min(end, reader.first_position)
        if start < first:
            report_gap(options.gaps, journal, Gap(start, first, "removed by retention"))
        wholes.append(Range(journal, str(reader.directory), max(start, first), end))
    rows = options.rows_per_partition
    if rows is None:
        tasks = options.parallelism or os.cpu_count() or 1
        rows = offsets.rows_per_part(sum(whole.end - whole.start for whole in wholes), tasks)
    parts = [part for whole in wholes for part in offsets.split(whole, rows)]
    return [InputPartition(gathered) for gathered in offsets.gather(parts, rows)]


def _before(batch: RecordBatch, time: float | None) -> RecordBatch:
    """What was received then or later is left out."""
    if time is None:
        return batch
    import pyarrow as pa
    import pyarrow.compute as pc

    bound = pa.scalar(round(time * 1e6), pa.int64()).cast(batch.schema.field("received_at").type)
    return batch.filter(pc.less(batch["received_at"], bound))


def _read(
    partition: InputPartition, options: ReadOptions, wanted: Wanted = EVERYTHING
) -> Iterator[RecordBatch]:
    """`value` is None where there are no partitions at all: Spark then asks for one."""
    for part in partition.value or ():
        yield from _read_range(part, options, wanted)


def _read_range(part: Range, options: ReadOptions, wanted: Wanted) -> Iterator[RecordBatch]:
    reader = JournalReader(Path(part.directory))
    if reader.journal_id != part.journal or reader.end_position < part.end:
        # Planned a moment ago, beside the driver.
        raise HedgerowError(
            f"{part.directory} is not on this machine what it is where the query was planned: all executors "
            "must see the same journals, through a file system that they share"
        )

    def on_gap(gap: Gap) -> None:
        report_gap(options.gaps, part.journal, gap)

    columns = [name for name in options.columns if name != "journal"]
    batches = reader.batches(
        part.start,
        part.end,
        columns or ["position"],
        topic_filters=wanted.topics or options.topics,
        on_gap=on_gap,
        since=wanted.since,
        until=wanted.until,
    )
    if "journal" not in options.columns:
        yield from batches
        return
    place = options.columns.index("journal")
    for batch in batches:
        yield _with_journal(batch.select(columns), part.journal, place)


def _with_journal(batch: RecordBatch, journal: str, place: int) -> RecordBatch:
    import pyarrow as pa

    column = pa.repeat(pa.scalar(journal, pa.string()), batch.num_rows)
    return batch.add_column(place, pa.field("journal", pa.string(), nullable=False), column)
