"""Delta tables, through the package `deltalake`: no jars, and no row passes through the driver.

A commit names the files that a batch adds and removes, in one step, and carries the query and the number of
its batch (`txn`). Delta keeps the last number of each query in the table's state, through checkpoints, vacuum
and the commits of others, so a batch that comes again is known for as long as the table lives.

Each file has the least and the greatest value of its columns in the log, by which readers leave files out.
The log is bounded: Delta sums it up every `CHECKPOINT_EVERY` commits, and what is older than `LOG_KEPT` and
summed up is removed. Whoever commits also tends the table: small files become large ones (`COMPACT_EVERY`),
and files that are no part of it any more are removed.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

LOG = "_delta_log"
NULL = "__HIVE_DEFAULT_PARTITION__"  # what readers take for a null in the name of a directory
CHECKPOINT_EVERY = 100
LOG_KEPT = "interval 12 hours"
"""A stream that reads the table must not be further behind. Whoever opens the table lists these versions."""
COMPACT_EVERY = 256  # versions: so many small files become one
VACUUM_EVERY = 2_048
VACUUM_HOURS = 24  # Files that are no part of the table any more are kept for readers, longer than the log.
TARGET_BYTES = 64 * 1024 * 1024  # of a file that is not compacted again
MAX_STATISTIC = 32  # characters of a text: longer ones say little more, and the log is read whole
_PROPERTIES = {"delta.checkpointInterval": str(CHECKPOINT_EVERY), "delta.logRetentionDuration": LOG_KEPT}


class WrittenFile(NamedTuple):
    """What an executor has written, and nobody has committed yet."""

    path: str
    bytes: int
    rows: int
    partition: list[str | None]
    statistics: str
    """As Delta's log has them (`statistics_of`)."""


class Delta:
    keeps_partition_columns = False

    def __init__(self, place: Path, name: str, partition_by: tuple[str, ...] = ()) -> None:
        self.where = place / name
        self._partition_by = partition_by

    def create(self, schema: pa.Schema) -> Any:
        """Where there is none."""
        from deltalake import DeltaTable

        return DeltaTable.create(
            str(self.where),
            schema,
            mode="ignore",
            partition_by=list(self._partition_by),
            configuration=_PROPERTIES,
        )

    def files(self) -> list[str] | None:
        """As the table is now; None: there is no table."""
        table = self._open()
        return None if table is None else list(table.file_uris())

    def spark_schema(self) -> StructType:
        """Of a table that is there."""
        import pyarrow as pa
        from pyspark.sql.pandas.types import from_arrow_schema
        from pyspark.sql.types import StructType

        schema = from_arrow_schema(pa.schema(self._open().schema().to_arrow()))
        assert isinstance(schema, StructType)
        return schema

    def has(self, query: str, batch_id: int) -> bool:
        table = self._open()
        version = None if table is None else table.transaction_version(query)
        return version is not None and version >= batch_id

    def commit(
        self,
        written: Iterable[WrittenFile],
        schema: pa.Schema | None,
        query: str,
        batch_id: int,
        removed: Sequence[str] = (),
    ) -> None:
        """Add the files and leave out `removed`, in one step. What has been rewritten is no news to streams:
        where files are removed, those that are added hold what is left of them, and nothing else.

        deltalake's errors: nothing has changed.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import RemoveAction

        table = self._open() or self.create(schema)
        if schema is None:  # That of the table, which is there.
            schema = table.schema()
        now_ms = int(time.time() * 1000)
        actions: list[Any] = [RemoveAction(self._name(path), False, now_ms) for path in removed]
        actions += [self._add(file, now_ms, is_news=not removed) for file in written]
        table.create_write_transaction(
            actions,
            "append",
            schema,
            list(self._partition_by),
            commit_properties=CommitProperties(app_transactions=[Transaction(query, batch_id)]),
        )
        before = table.version()
        table.update_incremental()
        self._tend(table, before, table.version())

    def _tend(self, table: Any, before: int, version: int) -> None:
        """Now and then. What fails is done the next time: the rows are there."""
        try:
            if version // COMPACT_EVERY > before // COMPACT_EVERY:
                from deltalake import WriterProperties

                properties = WriterProperties(compression="ZSTD")
                table.optimize.compact(target_size=TARGET_BYTES, writer_properties=properties)
            if version // VACUUM_EVERY > before // VACUUM_EVERY:
                table.vacuum(VACUUM_HOURS, dry_run=False, enforce_retention_duration=False, full=True)
        except Exception as error:  # deltalake's have no common ancestor but this.
            logger.warning("%s could not be tended: %s", self.where, error)

    def _add(self, file: WrittenFile, now_ms: int, *, is_news: bool) -> Any:
        from deltalake.transaction import AddAction

        return AddAction(
            path=self._name(file.path),
            size=file.bytes,
            partition_values=dict(zip(self._partition_by, file.partition, strict=True)),
            modification_time=now_ms,
            data_change=is_news,
            stats=file.statistics,
        )

    def _name(self, path: str) -> str:
        return str(Path(path).relative_to(self.where))

    def _open(self) -> Any:
        return open_delta(self.where)


def open_delta(where: Path) -> Any:
    """The table as it is now; None: there is none."""
    if not is_delta(where):
        return None
    from deltalake import DeltaTable

    return DeltaTable(str(where)) if DeltaTable.is_deltatable(str(where)) else None


def statistics_of(metadata: Any) -> str:
    """Of a file of Parquet, from its footer."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for at in range(metadata.num_columns):
        groups = [metadata.row_group(number).column(at) for number in range(metadata.num_row_groups)]
        name = groups[0].path_in_schema if groups else ""
        found = [group.statistics for group in groups]
        if "." in name or not found or any(each is None for each in found):
            continue
        nulls[name] = sum(each.null_count or 0 for each in found)
        bounds = [(_bound(each.min), _bound(each.max, up=True)) for each in found if each.has_min_max]
        if len(bounds) == len(found) and None not in {value for pair in bounds for value in pair}:
            least[name] = min(low for low, _ in bounds)
            greatest[name] = max(high for _, high in bounds)
    statistics = {"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest}
    return json.dumps({**statistics, "nullCount": nulls})


def _bound(value: object, *, up: bool = False) -> Any:
    """None: it cannot be one. Times are in milliseconds there, and must not be cut below the greatest."""
    match value:
        case datetime():
            rest = timedelta(microseconds=value.microsecond % 1_000)
            whole = value - rest + timedelta(milliseconds=1 if up and rest else 0)
            return whole.strftime("%Y-%m-%dT%H:%M:%S.") + f"{whole.microsecond // 1_000:03}Z"
        case bool() | bytes():
            return None
        case str():
            return value if len(value) <= MAX_STATISTIC else None
        case int():
            return value
        case float():
            return value if isfinite(value) else None
    return None


def is_delta(where: Path) -> bool:
    return (where / LOG).is_dir()
