"""Delta and Iceberg tables, through packages without jars.

Executors write Parquet files with pyarrow, one for each task and partition of the table, and give back
their names; the driver commits the names. No row passes through the driver. A task that fails and runs again
leaves a file that nobody has committed, which no reader sees.

A commit carries the query and the number of its batch: in Delta as the transaction of an application
(`txn`), in Iceberg as a property of the table, which stays when snapshots expire. Whoever appends looks there
first.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hedgerow.errors import HedgerowError
from hedgerow.extras import install_command
from hedgerow.pipeline.delta import NULL, UPKEEP, Delta, Upkeep, WrittenFile, statistics_of
from hedgerow.pipeline.places import directory_of
from hedgerow.pipeline.stores import filesystem_of, make_room, sync_file

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

NAMESPACE = "hedgerow"
CATALOG = "catalog.db"
MAX_OPEN = 32  # Clocks that jump may spread one batch over thousands of hours: each open file has buffers.
_COMPRESSION = "zstd"
_BATCH = "hedgerow.batch."  # and the query: the number of its last batch
_OLD_QUERY, _OLD_BATCH = "hedgerow.query", "hedgerow.batch"  # of snapshots, which earlier versions wrote
_EXTRA = {"delta": "spark", "iceberg": "lake"}
_NEEDS = {"delta": ("deltalake",), "iceberg": ("pyiceberg", "sqlalchemy")}
WRITTEN = "path string, bytes long, rows long, partition array<string>, statistics string"


def check_installed(form: str) -> None:
    """HedgerowError: what is missing."""
    for package in _NEEDS[form]:
        try:
            import_module(package)
        except ImportError as error:
            raise HedgerowError(
                f"a table of the form {form} needs {package}; type: {install_command(_EXTRA[form])}"
            ) from error


def append(
    rows: DataFrame,
    batch_id: int,
    form: str,
    place: str,
    name: str,
    query: str,
    partition_by: tuple[str, ...],
    upkeep: Upkeep = UPKEEP,
) -> bool:
    """Commit the rows as this batch of this query; False: they are there already."""
    table = _table(form, place, name, partition_by, upkeep)
    if table.has(query, batch_id):
        return False
    schema = to_arrow(rows.schema)
    table.create(schema)  # Before its files: what has files and no log is a table of an earlier version.
    writing = Writing(table.where, partition_by, table.keeps_partition_columns, f"{batch_id:08}")
    table.commit(write_files(rows, writing), None, query, batch_id)
    return True


def write_files(rows: DataFrame, writing: Writing) -> list[WrittenFile]:
    """On the executors; nobody sees them before they are committed."""
    return [WrittenFile(*row) for row in rows.mapInArrow(writing.write, WRITTEN).collect()]


def files_of(form: str, place: str, name: str) -> list[str] | None:
    """The files of a table as it is now, as paths or URLs; None: there is no such table."""
    return _table(form, place, name).uris()


def _table(
    form: str, place: str, name: str, partition_by: tuple[str, ...] = (), upkeep: Upkeep = UPKEEP
) -> Delta | Iceberg:
    if form == "delta":
        return Delta(place, name, partition_by, upkeep)
    return Iceberg(directory_of(place), name, partition_by)


class Writing(NamedTuple):
    """What executors do."""

    where: str
    partition_by: tuple[str, ...]
    keeps_partition_columns: bool
    prefix: str

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All batches of a task into files; what was written, for the driver."""
        import pyarrow as pa

        files: dict[tuple[Any, ...], _File] = {}
        for batch in batches:
            for values, part in self._split(pa.Table.from_batches([batch])):
                file = files.pop(values, None)
                if file is None:
                    if len(files) == MAX_OPEN:
                        yield files.pop(next(iter(files))).close()
                    file = _File(self, values, part.schema)
                files[values] = file  # The one that was written longest ago stands first.
                file.writer.write_table(part)
        for file in files.values():
            yield file.close()

    def _split(self, rows: pa.Table) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
        """The rows of each partition of the table."""
        import pyarrow.compute as pc

        if not self.partition_by:
            yield (), rows
            return
        keys = rows.select(self.partition_by).group_by(list(self.partition_by)).aggregate([]).to_pylist()
        for key in keys:
            part = rows
            for name, value in key.items() if len(keys) > 1 else ():
                is_here = pc.is_null(part[name]) if value is None else pc.equal(part[name], value)
                part = part.filter(is_here)
            if not self.keeps_partition_columns:
                part = part.drop_columns(list(self.partition_by))
            yield tuple(key.values()), part


class _File:
    def __init__(self, writing: Writing, values: tuple[Any, ...], schema: pa.Schema) -> None:
        from pyarrow.parquet import ParquetWriter

        self._where = writing.where
        self._values = values
        pairs = zip(writing.partition_by, values, strict=True)
        parts = [f"{name}={NULL if value is None else value}" for name, value in pairs]
        # A task may run twice at the same time: never one name for both.
        self._name = "/".join([*parts, f"{writing.prefix}-{uuid.uuid4().hex}.parquet"])
        make_room(self._where, self._name)
        self._out = filesystem_of(self._where).open_output_stream(self._name)
        self._footers: list[Any] = []
        self.writer = ParquetWriter(
            self._out, schema, compression=_COMPRESSION, metadata_collector=self._footers
        )

    def close(self) -> pa.RecordBatch:
        import pyarrow as pa

        self.writer.close()
        size = self._out.tell()
        self._out.close()
        # The commit is durable, so what it names has to be before.
        sync_file(self._where, self._name)
        [metadata] = self._footers
        row = {
            "path": self._name,
            "bytes": size,
            "rows": metadata.num_rows,
            "partition": [None if value is None else str(value) for value in self._values],
            "statistics": statistics_of(metadata),
        }
        types = [pa.string(), pa.int64(), pa.int64(), pa.list_(pa.string()), pa.string()]
        return pa.RecordBatch.from_pylist([row], pa.schema(list(zip(row, types, strict=True))))


def to_arrow(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def has_iceberg(place: Path) -> bool:
    return (place / CATALOG).exists()


def open_catalog(place: Path) -> Any:
    """The catalog of the Iceberg tables below `place`: a file of SQLite beside them."""
    from pyiceberg.catalog.sql import SqlCatalog

    place.mkdir(parents=True, exist_ok=True)
    return SqlCatalog(NAMESPACE, uri=f"sqlite:///{place / CATALOG}", warehouse=_uri(place))


def _uri(path: str | Path) -> str:
    """As pyiceberg reads it: it takes `%3D` for three characters."""
    return f"file://{path}"


class Iceberg:
    keeps_partition_columns = True

    def __init__(self, place: Path, name: str, partition_by: tuple[str, ...]) -> None:
        self.where = str(place / name)
        self._partition_by = partition_by
        self._catalog = open_catalog(place)
        self._identifier = (NAMESPACE, name)

    def uris(self) -> list[str] | None:
        table = self._open()
        return None if table is None else [task.file.file_path for task in table.scan().plan_files()]

    def has(self, query: str, batch_id: int) -> bool:
        table = self._open()
        if table is None:
            return False
        last = table.metadata.properties.get(_BATCH + query)
        if last is not None:
            return int(last) >= batch_id
        found = (snapshot.summary.additional_properties for snapshot in reversed(table.metadata.snapshots))
        return any(each.get(_OLD_QUERY) == query and int(each[_OLD_BATCH]) >= batch_id for each in found)

    def create(self, schema: pa.Schema) -> None:
        """Where there is none; one that is there gets the columns that it lacks."""
        table = self._open()
        if table is None:
            self._create(schema)
            return
        with table.update_schema() as columns:
            columns.union_by_name(schema)

    def commit(self, written: list[WrittenFile], schema: None, query: str, batch_id: int) -> None:
        """Files and number in one step: a number in a snapshot would go with the snapshots that expire."""
        with self._open().transaction() as change:
            if written:
                paths = [_uri(f"{self.where}/{file.path}") for file in written]
                change.add_files(paths, check_duplicate_files=False)
            change.set_properties({_BATCH + query: str(batch_id)})

    def _open(self) -> Any:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return self._catalog.load_table(self._identifier)
        except NoSuchTableError:
            return None

    def _create(self, schema: pa.Schema) -> Any:
        self._catalog.create_namespace_if_not_exists(NAMESPACE)
        creation = self._catalog.create_table_transaction(self._identifier, schema, location=_uri(self.where))
        # In the same step: a table that was made without its partitions would stay so.
        with creation.update_spec() as spec:
            for name in self._partition_by:
                spec.add_identity(name)
        return creation.commit_transaction()
