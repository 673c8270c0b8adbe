"""Delta tables for Spark, without jars: the data source `hedgerow-table`.

    spark.read.format("hedgerow-table").load("s3a://bucket/lake/readings").where("value > 30")
    spark.readStream.format("hedgerow-table").load("/srv/tables/readings")

`read` is the table as it is when the query is planned. Files that the filters of the query cannot mean are
left out, by what the table's log says of each. `readStream` is what is added: an offset is a version of the
table. The first batch is the table as it is then, each further one the files that versions since have added.
Files that were only rewritten (compaction, a replay of quarantine) are no news. Versions are read from the
table's log, which keeps them for a time (`Upkeep.log_kept`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StringType, StructField, StructType

from hedgerow.errors import ConfigError, HedgerowError
from hedgerow.pipeline.delta import LOG, NULL, Delta, open_delta
from hedgerow.pipeline.filters import TakesFilters
from hedgerow.pipeline.places import location_of
from hedgerow.pipeline.stores import filesystem_of, read_text

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import RecordBatch

NAME = "hedgerow-table"
FILE = "_file"
"""The column that says in which file a row is, where the option `withFile` asks for it."""
MAX_FILES = 1_000  # of a batch; the first, and a version, are not divided
FILES_PER_PART = 50
BYTES_PER_PART = 64 * 1024 * 1024
_NOTHING = -1  # The offset of a stream that has not begun.
_COMPARISONS: dict[type[Filter], str] = {
    EqualTo: "=", GreaterThan: ">", GreaterThanOrEqual: ">=", LessThan: "<", LessThanOrEqual: "<=", In: "in",
}  # fmt: skip


class TableOptions(NamedTuple):
    where: str
    files: tuple[str, ...] | None
    """Only these, by their names below the table."""
    has_file: bool


class TableSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        options = _read(self.options)
        _table(options.where)
        place, _, name = options.where.rpartition("/")
        schema = Delta(place, name).spark_schema()
        return StructType([*schema.fields, StructField(FILE, StringType())]) if options.has_file else schema

    def reader(self, schema: StructType) -> DataSourceReader:
        return TableReader(_read(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return TableStreamReader(_read(self.options).where, schema)


class TableReader(TakesFilters, DataSourceReader):
    """The table as it is when the query is planned."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._bounds: list[tuple[str, str, Any]] = []

    def take_filters(self, filters: list[Filter]) -> Iterable[Filter]:
        """They leave files out, and Spark looks at the rows of the others."""
        for each in filters:
            sign = _COMPARISONS.get(type(each))
            if sign is not None and len(each.attribute) == 1 and each.attribute[0] != FILE:  # type: ignore[attr-defined]
                self._bounds.append((each.attribute[0], sign, each.value))  # type: ignore[attr-defined]
        return filters

    def partitions(self) -> list[InputPartition]:
        where, asked, _ = self._options
        table = _table(where)
        if asked is not None:
            return _parts(asked, _sizes(table))
        found = table.file_uris(file_pruning_predicate=self._bounds or None)
        return _parts((_name(where, uri) for uri in found), _sizes(table))

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return _read_files(self._options.where, self._schema, partition)


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, where: str, schema: StructType) -> None:
        self._where = where
        self._schema = schema
        self._last: int | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"version": _NOTHING}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._last = _table(self._where).version()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        version = int(start["version"])
        if version == _NOTHING:
            return {"version": _table(self._where).version() if self._last is None else self._last}
        files = 0
        while (self._last is None or version < self._last) and files < MAX_FILES:
            added = self._added(version + 1)
            if added is None:
                self._check(version + 1)
                break
            files += len(added)
            version += 1
        return {"version": version}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        first, last = int(start["version"]), int(end["version"])
        if first == _NOTHING:
            table = _table(self._where, last)
            return _parts((_name(self._where, uri) for uri in table.file_uris()), _sizes(table))
        sizes: dict[str, int] = {}
        for version in range(first + 1, last + 1):
            added = self._added(version)
            if added is None:
                raise self._gone(version)
            sizes |= added
        return _parts(sizes, sizes)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return _read_files(self._where, self._schema, partition)

    def _added(self, version: int) -> dict[str, int] | None:
        """The files that this version brought, with their sizes; None: there is none of that number."""
        try:
            text = read_text(self._where, f"{LOG}/{version:020d}.json")
        except FileNotFoundError:
            return None
        actions = [action["add"] for line in text.splitlines() if "add" in (action := json.loads(line))]
        return {unquote(add["path"]): add["size"] for add in actions if add["dataChange"]}

    def _check(self, version: int) -> None:
        if _table(self._where).version() >= version and self._added(version) is None:
            raise self._gone(version)

    def _gone(self, version: int) -> HedgerowError:
        return HedgerowError(
            f"the log of {self._where} no longer has version {version}: this query was away for too long. "
            "Move its checkpoint away to begin with the table as it is now"
        )


def _parts(names: Iterable[str], sizes: Mapping[str, int]) -> list[InputPartition]:
    """One for each task: many small files, or few large ones."""
    parts: list[list[str]] = []
    room = 0
    for name in names:
        size = sizes.get(name, 0)
        if not parts or len(parts[-1]) == FILES_PER_PART or size > room:
            parts.append([])
            room = BYTES_PER_PART
        parts[-1].append(name)
        room -= size
    return [InputPartition(part) for part in parts]


def _sizes(table: Any) -> dict[str, int]:
    import pyarrow as pa

    found = pa.table(table.get_add_actions(flatten=True).select(["path", "size_bytes"])).to_pydict()
    return dict(zip(found["path"], found["size_bytes"], strict=True))


def _read_files(where: str, schema: StructType, partition: InputPartition) -> Iterator[RecordBatch]:
    from pyarrow.parquet import ParquetFile
    from pyspark.sql.pandas.types import to_arrow_schema

    columns = to_arrow_schema(schema, timezone="UTC")
    filesystem = filesystem_of(where)
    for name in partition.value or ():
        values = {**_partition_values(name), FILE: name}
        # Opened by hand: given a path, pyarrow would add what its directories say on its own terms.
        with filesystem.open_input_file(name) as opened, ParquetFile(opened) as file:
            there = [column for column in columns.names if column in file.schema_arrow.names]
            for batch in file.iter_batches(columns=there):
                yield _with_values(batch, values, columns)


def _partition_values(name: str) -> dict[str, str | None]:
    """Of what partitions the table, which Delta leaves out of the files."""
    pairs = (part.partition("=") for part in name.split("/")[:-1])
    return {name: None if value == NULL else unquote(value) for name, _, value in pairs}


def _with_values(batch: RecordBatch, values: Mapping[str, str | None], schema: pa.Schema) -> RecordBatch:
    """A column that the file has not was added to the table later: null."""
    import pyarrow as pa

    columns = []
    for field in schema:
        if field.name in batch.schema.names:
            columns.append(batch.column(field.name).cast(field.type))
        else:
            value = pa.scalar(values.get(field.name), pa.string()).cast(field.type)
            columns.append(pa.repeat(value, batch.num_rows))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _read(options: Mapping[str, str]) -> TableOptions:
    given = {name.lower(): value for name, value in options.items()}
    if not given.get("path"):
        raise ConfigError(f"the source {NAME} needs the option path: the directory or URL of a Delta table")
    files = tuple(json.loads(given["files"])) if "files" in given else None
    return TableOptions(location_of(given["path"]), files, given.get("withfile") == "true")


def _name(where: str, uri: str) -> str:
    return uri.removeprefix(f"{where}/")


def _table(where: str, version: int | None = None) -> Any:
    table = open_delta(where)
    if table is None:
        raise HedgerowError(f"there is no Delta table in {where}")
    if version is not None:
        table.load_as_version(version)
    return table
