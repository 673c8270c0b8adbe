"""Delta tables, through the package `deltalake`: no jars, and no row passes through the driver.

A commit names the files that a batch adds and removes, in one step, and carries the query and the number of
its batch (`txn`). Delta keeps the last number of each query in the table's state, through checkpoints, vacuum
and the commits of others, so a batch that comes again is known for as long as the table lives.

Each file has the least and the greatest value of its columns in the log, by which readers leave files out.
The log is bounded: Delta sums it up every so many commits, and what is older than a time and summed up is
removed. Whoever commits also tends the table (`Upkeep`): small files become large ones, files that are no
part of it any more are removed, and, where it is asked for, so are rows that are too old.

A table may be in a directory or in an object store (`places`); the names of its files are those in its log.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hedgerow.errors import HedgerowError
from hedgerow.pipeline.places import is_in_store, location_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

LOG = "_delta_log"
NULL = "__HIVE_DEFAULT_PARTITION__"  # what readers take for a null in the name of a directory
MAX_STATISTIC = 32  # characters of a text: longer ones say little more, and the log is read whole
TIMES = ("received_at", "calculation_at", "at")
"""By the first of these that a table has, rows are too old."""


@dataclass(frozen=True)
class Upkeep:
    """When whoever commits tends the table. Counts are of versions."""

    checkpoint_every: int = 100
    log_kept: timedelta = timedelta(hours=12)
    """A stream must not be further behind. Whoever opens the table lists these versions."""
    compact_every: int = 256
    """So many small files become one."""
    vacuum_every: int = 2_048
    vacuum_after: timedelta = timedelta(hours=24)
    """Files that are no part of the table any more are kept for readers, longer than the log."""
    target_bytes: int = 64 * 1024 * 1024
    """Of a file that is not compacted again."""
    rows_kept: timedelta | None = None
    """None: for ever."""

    def properties(self) -> dict[str, str]:
        return {
            "delta.checkpointInterval": str(self.checkpoint_every),
            "delta.logRetentionDuration": _interval(self.log_kept),
            # What is in no version that is still there need not be in the sums.
            "delta.deletedFileRetentionDuration": _interval(self.log_kept),
        }


def _interval(time: timedelta) -> str:
    return f"interval {time.total_seconds():.0f} seconds"


UPKEEP = Upkeep()


class WrittenFile(NamedTuple):
    """What an executor has written, and nobody has committed yet."""

    path: str
    """Below the table."""
    bytes: int
    rows: int
    partition: list[str | None]
    statistics: str
    """As Delta's log has them (`statistics_of`)."""


class Delta:
    keeps_partition_columns = False

    def __init__(
        self,
        place: str | Path,
        name: str,
        partition_by: tuple[str, ...] = (),
        upkeep: Upkeep = UPKEEP,
    ) -> None:
        self.name = name
        self.where = f"{location_of(place)}/{name}"
        self._partition_by = partition_by
        self._upkeep = upkeep
        self._seen: Any = None
        """The table as `has` saw it: to open one whose log is long costs more than to write ten rows."""

    def create(self, schema: pa.Schema) -> Any:
        """Where there is none; one that is there gets the columns that it lacks. HedgerowError: a column has
        another type there."""
        from deltalake import DeltaTable

        table = self._seen or self._open()
        if table is not None:
            self._evolve(table, schema)
            return table
        return DeltaTable.create(
            self.where,
            schema,
            mode="ignore",
            partition_by=list(self._partition_by),
            configuration=self._upkeep.properties(),
        )

    def _evolve(self, table: Any, schema: pa.Schema) -> None:
        from deltalake import Schema

        there = {column.name: column.type for column in table.schema().fields}
        wanted = Schema.from_arrow(schema).fields
        for column in wanted:
            if column.name in there and there[column.name] != column.type:
                raise HedgerowError(
                    f"{self.where}: the column {column.name} is {there[column.name]} there, and not "
                    f"{column.type}. Move the table away, and what else its job writes"
                )
        missing = [column for column in wanted if column.name not in there]
        if missing:
            table.alter.add_columns(missing)
            table.update_incremental()

    def files(self) -> list[str] | None:
        """As the table is now, by their names below it; None: there is no table."""
        table = self._open()
        return None if table is None else [self._name(uri) for uri in table.file_uris()]

    def uris(self) -> list[str] | None:
        """The same, as paths or URLs."""
        table = self._open()
        return None if table is None else list(table.file_uris())

    def small_files(self, most: int) -> list[str]:
        """Those of fewer bytes, by their names below it."""
        import pyarrow as pa

        found = pa.table(self._open().get_add_actions(flatten=True)).to_pylist()
        return [row["path"] for row in found if row["size_bytes"] < most]

    def spark_schema(self) -> StructType:
        """Of a table that is there."""
        import pyarrow as pa
        from pyspark.sql.pandas.types import from_arrow_schema
        from pyspark.sql.types import StructType

        schema = from_arrow_schema(pa.schema(self._open().schema().to_arrow()))
        assert isinstance(schema, StructType)
        return schema

    def has(self, query: str, batch_id: int) -> bool:
        table = self._seen = self._open()
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
        from deltalake import CommitProperties, PostCommitHookProperties, Transaction

        table = self.create(schema) if schema is not None else self._seen or self._open()
        self._seen = None
        table.create_write_transaction(
            self._actions(written, removed),
            "append",
            table.schema(),
            list(self._partition_by),
            commit_properties=CommitProperties(app_transactions=[Transaction(query, batch_id)]),
            # It would list the whole log after each commit: `_tend` has it done now and then.
            post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
        )
        self._tend(table, table.version() + 1)

    def _actions(self, written: Iterable[WrittenFile], removed: Sequence[str]) -> list[Any]:
        from deltalake.transaction import AddAction, RemoveAction

        now_ms = int(time.time() * 1000)
        actions: list[Any] = [RemoveAction(self._name(path), False, now_ms) for path in removed]
        return actions + [
            AddAction(
                path=self._name(file.path),
                size=file.bytes,
                partition_values=dict(zip(self._partition_by, file.partition, strict=True)),
                modification_time=now_ms,
                data_change=not removed,
                stats=file.statistics,
            )
            for file in written
        ]

    def _tend(self, table: Any, version: int) -> None:
        """Now and then. What fails is done the next time: the rows are there."""
        upkeep = self._upkeep
        try:
            # Where another has taken the very number, the next of ours will do.
            if version % upkeep.compact_every <= 1:
                from deltalake import WriterProperties

                table.update_incremental()
                properties = WriterProperties(compression="ZSTD")
                table.optimize.compact(target_size=upkeep.target_bytes, writer_properties=properties)
                if upkeep.rows_kept is not None:
                    self._forget(table, datetime.now(UTC) - upkeep.rows_kept)
                table.cleanup_metadata()
            if version % upkeep.vacuum_every <= 1:
                hours = int(upkeep.vacuum_after / timedelta(hours=1))
                table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)
        except Exception as error:  # deltalake's have no common ancestor but this.
            logger.warning("%s could not be tended: %s", self.where, error)

    def _forget(self, table: Any, before: datetime) -> None:
        """Files all of whose rows are older, as their statistics say; no file is written anew for it."""
        import pyarrow as pa

        found = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        newest = next((f"max.{name}" for name in TIMES if found and f"max.{name}" in found[0]), None)
        if newest is None:
            return
        old = [row["path"] for row in found if row[newest] is not None and _aware(row[newest]) < before]
        if old:
            table.create_write_transaction(
                self._actions((), old), "append", table.schema(), list(self._partition_by)
            )
            table.update_incremental()

    def _name(self, path: str) -> str:
        return path.removeprefix(f"{self.where}/")

    def _open(self) -> Any:
        return open_delta(self.where)


def _aware(time: datetime) -> datetime:
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def open_delta(where: str | Path) -> Any:
    """The table as it is now; None: there is none."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    if not is_in_store(where) and not is_delta(where):
        return None
    try:
        return DeltaTable(str(where))
    except TableNotFoundError:
        return None


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


def is_delta(where: str | Path) -> bool:
    if is_in_store(where):
        return open_delta(where) is not None
    return Path(where, LOG).is_dir()
