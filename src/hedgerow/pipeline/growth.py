"""What is added to a Delta table, as a stream: the data source `hedgerow-table`.

    spark.readStream.format("hedgerow-table").option("path", "/srv/tables/readings").load()

An offset is a version of the table. The first batch is the table as it is then, each further one the files
that versions since have added. Files that were only rewritten (compaction, a replay of quarantine) are no
news. Versions are read from the table's log, which keeps them for a time (`delta.LOG_KEPT`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from hedgerow.errors import ConfigError, HedgerowError
from hedgerow.pipeline.delta import LOG, NULL, Delta, open_delta
from hedgerow.pipeline.places import directory_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import RecordBatch

NAME = "hedgerow-table"
MAX_FILES = 1_000  # of a batch; the first, and a version, are not divided
FILES_PER_PART = 50
_NOTHING = -1  # The offset of a stream that has not begun.


class TableSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        where = _place(self.options)
        _table(where)
        return Delta(where.parent, where.name).spark_schema()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return TableStreamReader(_place(self.options), schema)


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, where: Path, schema: StructType) -> None:
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
            paths = list(_table(self._where, last).file_uris())
        else:
            paths = []
            for version in range(first + 1, last + 1):
                added = self._added(version)
                if added is None:
                    raise self._gone(version)
                paths += added
        return [
            InputPartition(paths[at : at + FILES_PER_PART]) for at in range(0, len(paths), FILES_PER_PART)
        ]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        from pyarrow.parquet import ParquetFile
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(self._schema, timezone="UTC")
        for path in partition.value or ():
            values = _partition_values(Path(path).relative_to(self._where))
            # Opened by hand: given a path, pyarrow would add what its directories say on its own terms.
            with Path(path).open("rb") as opened, ParquetFile(opened) as file:
                for batch in file.iter_batches():
                    yield _with_values(batch, values, schema)

    def _added(self, version: int) -> list[str] | None:
        """The files that this version brought; None: there is none of that number."""
        try:
            text = (self._where / LOG / f"{version:020d}.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        actions = [action["add"] for line in text.splitlines() if "add" in (action := json.loads(line))]
        return [str(self._where / unquote(add["path"])) for add in actions if add["dataChange"]]

    def _check(self, version: int) -> None:
        if _table(self._where).version() >= version and self._added(version) is None:
            raise self._gone(version)

    def _gone(self, version: int) -> HedgerowError:
        return HedgerowError(
            f"the log of {self._where} no longer has version {version}: this query was away for too long. "
            "Move its checkpoint away to begin with the table as it is now"
        )


def _partition_values(path: Path) -> dict[str, str | None]:
    """Of what partitions the table, which Delta leaves out of the files."""
    pairs = (part.partition("=") for part in path.parts[:-1])
    return {name: None if value == NULL else unquote(value) for name, _, value in pairs}


def _with_values(batch: RecordBatch, values: dict[str, str | None], schema: pa.Schema) -> RecordBatch:
    import pyarrow as pa

    columns = []
    for field in schema:
        if field.name in values:
            value = pa.scalar(values[field.name], pa.string()).cast(field.type)
            columns.append(pa.repeat(value, batch.num_rows))
        else:
            columns.append(batch.column(field.name).cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _place(options: Any) -> Path:
    if not options.get("path"):
        raise ConfigError(f"the source {NAME} needs the option path: the directory of a Delta table")
    return directory_of(options["path"])


def _table(where: Path, version: int | None = None) -> Any:
    table = open_delta(where)
    if table is None:
        raise HedgerowError(f"there is no Delta table in {where}")
    if version is not None:
        table.load_as_version(version)
    return table
