"""Tables below one place, as Delta, Parquet or Iceberg; a batch that is run again is in them once. The place
is a directory, or for Delta a URL of an object store.

Parquet goes through Spark's own streaming file sink, which lists the files of each batch in
`_spark_metadata`; who reads the table through Spark sees only what is listed. For Delta and Iceberg the
executors write Parquet files and the driver commits their names in one step (`lake`), together with the
query's id and the number of the batch: a batch whose number is there already is not committed again. Files
without a commit are never read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from hedgerow.errors import HedgerowError
from hedgerow.pipeline import lake
from hedgerow.pipeline.delta import UPKEEP, Delta, Upkeep, is_delta
from hedgerow.pipeline.places import directory_of, is_in_store, location_of, state_of
from hedgerow.pipeline.session import parallelism

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

FORMS = ("parquet", "delta", "iceberg")
CHECKPOINTS = "_checkpoints"
COMPRESSION = "zstd"
MANY_FILES = 100
"""Spark's own reader has a task look at each file before it reads any: 1,700 files took it 20 s. With more
files than these the source `hedgerow-table` reads, which leaves out what the log says is not wanted."""
MAX_FILES = 1_000  # of a table, in one batch of who reads it as a stream
REPLACED = "replaced"  # of tables that are calculated anew each time
_METADATA = "_spark_metadata"


def read_table(
    spark: SparkSession, place: str, name: str, form: str | None = None, schema: StructType | None = None
) -> DataFrame:
    """The table as it is now; without a form, of that which it has. Without a schema, Spark guesses the types
    of the columns that partition it.

    HedgerowError: there is no such table.
    """
    where = table_place(place, name)
    form = form or form_of(place, name) or "parquet"
    check_form(form)
    reader = spark.read if schema is None else spark.read.schema(schema)
    if form == "parquet":
        if not has_sink_list(Path(where)):
            raise _no_table(place, name)
        return _in_order(reader.parquet(where), schema)
    files = lake.files_of(form, place, name)
    if files is None:
        raise _no_table(place, name)
    if is_in_store(place) or (form == "delta" and len(files) > MANY_FILES):
        rows = spark.read.format("hedgerow-table").load(where)
        return rows if schema is None else rows.select(*schema.names)
    if schema is None and form == "delta":
        schema = Delta(place, name).spark_schema()
    if not files and schema is None:
        raise HedgerowError(f"the table {name} below {place} is empty: reading it needs a schema")
    if not files:
        return spark.createDataFrame([], schema)
    # Delta leaves what partitions a table to the names of the directories, Iceberg has it in the files.
    found = (reader.option("basePath", where) if form == "delta" else reader).parquet(*files)
    return _in_order(found, schema)


def read_table_stream(
    spark: SparkSession, place: str, name: str, schema: StructType, partition_by: Sequence[str] = ()
) -> DataFrame:
    """What is added to a table of Parquet, as a stream; the table may be made later. `partition_by` is what
    its writer is told."""
    from pyspark.sql.types import StructType

    where = table_place(place, name)
    Path(where).mkdir(parents=True, exist_ok=True)
    # Spark puts what partitions a table last, but sees what does only once the table has files: a query that
    # is older than those would fail at its first batch, whose columns are in another order.
    fields = sorted(schema.fields, key=lambda field: field.name in partition_by)
    reader = spark.readStream.schema(StructType(fields)).option("maxFilesPerTrigger", MAX_FILES)
    return _in_order(reader.parquet(where), schema)


def read_growth(
    spark: SparkSession, place: str, name: str, schema: StructType, partition_by: Sequence[str] = ()
) -> DataFrame:
    """What is added to a Delta table, as a stream; it is made where there is none yet."""
    Delta(place, name, tuple(partition_by)).create(lake.to_arrow(schema))
    rows = spark.readStream.format("hedgerow-table").load(table_place(place, name))
    return rows.select(*schema.names)


def write_table(
    rows: DataFrame,
    place: str,
    name: str,
    *,
    form: str = "parquet",
    query: str,
    partition_by: Sequence[str] = (),
    files: int | None = None,
    upkeep: Upkeep = UPKEEP,
) -> DataStreamWriter:
    """The query that appends a stream to a table, each row once; choose a trigger and start it.

    Its checkpoint is `place`/_checkpoints/`query`. `files`: at most so many a batch (and partition of the
    table); the default is one for each core. HedgerowError: an unknown form, or a table whose checkpoint is
    gone.
    """
    check_form(form)
    checkpoint = checkpoint_place(place, query)
    few = rows.coalesce(files or parallelism(rows.sparkSession))
    writer = few.writeStream.queryName(query).option("checkpointLocation", checkpoint)
    where = table_place(place, name)
    if form != "delta" and is_in_store(place):
        raise HedgerowError(f"{where}: a table in a store has the form delta, not {form}")
    if form != "parquet":
        if has_sink_list(Path(where)):
            raise HedgerowError(f"{where} is a table of Parquet: go on with --form parquet, or move it away")
        if form == "delta":
            check_lake_belongs(place, (name,), query)
        return writer.foreachBatch(_committer(place, name, form, query, tuple(partition_by), upkeep))
    _check_belongs(Path(where), Path(checkpoint), query)
    writer = writer.format("parquet").outputMode("append").option("compression", COMPRESSION)
    return (writer.partitionBy(*partition_by) if partition_by else writer).option("path", where)


def append(
    rows: DataFrame,
    batch_id: int,
    place: str,
    name: str,
    *,
    form: str,
    query: str,
    partition_by: Sequence[str] = (),
    upkeep: Upkeep = UPKEEP,
) -> bool:
    """Append to a Delta or Iceberg table as batch `batch_id` of `query`; False: it is there already."""
    check_form(form)
    if form == "parquet":
        raise HedgerowError("a table of Parquet is written by a query of its own: write_table")
    return lake.append(rows, batch_id, form, place, name, query, tuple(partition_by), upkeep)


def replace_table(rows: DataFrame, place: str, name: str) -> None:
    """A Delta table is these rows, in one step, and no longer what it was: readers have one or the other."""
    table = Delta(place, name)
    table.create(lake.to_arrow(rows.schema))
    before = table.files() or []
    written = lake.write_files(rows.coalesce(1), lake.Writing(table.where, (), False, REPLACED))
    table.commit(written, None, REPLACED, int(time.time()), before)


def form_of(place: str | Path, name: str) -> str | None:
    """Which form the table has; None: there is none yet, or it is not written by a stream."""
    if is_delta(table_place(str(place), name)):
        return "delta"
    if is_in_store(place):
        return None
    where = directory_of(place) / name
    if has_sink_list(where):
        return "parquet"
    has_one = lake.has_iceberg(where.parent) and lake.files_of("iceberg", str(place), name) is not None
    return "iceberg" if has_one else None


def table_files(place: str | Path, name: str) -> list[Path]:
    """The files that a table consists of now, for programs that know Parquet and not the table's own list: a
    killed task leaves others there, empty ones or with rows that are in the table already.

    HedgerowError: there is no such table. `quality`, `gaps`, `hot` and `sweep` are all that is there.
    """
    where = directory_of(place) / name
    form = form_of(place, name)
    if form == "delta":
        return sorted(where / file for file in Delta(place, name).files() or ())
    if form == "parquet":
        return sorted(listed_since(where))
    if form == "iceberg":
        found = lake.files_of("iceberg", str(place), name) or ()
        return sorted(Path(unquote(urlsplit(path).path)) for path in found)
    if not where.is_dir():
        raise _no_table(str(place), name)
    return sorted(where.rglob("[!._]*.parquet"))


def table_uris(place: str, name: str) -> list[str]:
    """The same, of tables that may be in a store."""
    if not is_in_store(place):
        return list(map(str, table_files(place, name)))
    found = Delta(place, name).uris()
    if found is None:
        raise _no_table(place, name)
    return sorted(found)


def listed_since(where: Path) -> dict[Path, float]:
    """Of a table of Parquet that a stream has written: its files, and since when each is in the list."""
    entries = list((where / _METADATA).glob("[0-9]*"))
    found: dict[Path, float] = {}
    for entry in sorted(entries, key=lambda path: int(path.name.partition(".")[0])):
        for line in entry.read_text(encoding="utf-8").splitlines()[1:]:
            path = Path(unquote(urlsplit(json.loads(line)["path"]).path))
            found.setdefault(path, entry.stat().st_mtime)
    return found


def has_sink_list(where: Path) -> bool:
    """Is it a table of Parquet that a stream has written?"""
    return (where / _METADATA).is_dir()


def table_place(place: str, name: str) -> str:
    return f"{location_of(place)}/{name}"


def checkpoint_place(place: str, query: str) -> str:
    return str(state_of(place) / CHECKPOINTS / query)


def check_form(form: str) -> None:
    """HedgerowError: an unknown form, or one whose package is not installed."""
    if form not in FORMS:
        raise HedgerowError(f"a table has the form {', '.join(FORMS[:-1])} or {FORMS[-1]}, not {form!r}")
    if form != "parquet":
        lake.check_installed(form)


def _in_order(rows: DataFrame, schema: StructType | None) -> DataFrame:
    """Spark puts what partitions a table last."""
    return rows if schema is None else rows.select(*schema.names)


def _committer(
    place: str, name: str, form: str, query: str, partition_by: tuple[str, ...], upkeep: Upkeep
) -> Callable[[DataFrame, int], None]:
    def commit(rows: DataFrame, batch_id: int) -> None:
        # A new checkpoint counts from 0 again. Its query has another id: its batches are not taken for old.
        life = json.loads(Path(checkpoint_place(place, query), "metadata").read_text())["id"]
        lake.append(rows, batch_id, form, place, name, f"{query}/{life}", partition_by, upkeep)

    return commit


def _check_belongs(where: Path, checkpoint: Path, query: str) -> None:
    """The sink takes a batch for written whose number its list has; with a new checkpoint, whose batches
    count from 0, it would leave out rows and say nothing."""
    if has_sink_list(where) and not (checkpoint / "metadata").exists():
        raise HedgerowError(
            f"{where} has the rows of an earlier query {query}, whose checkpoint {checkpoint} is gone. "
            f"Bring the checkpoint back, or move {where} away and start again"
        )


def check_lake_belongs(place: str, names: Iterable[str], query: str) -> None:
    """Of Delta tables that a query writes. HedgerowError: they have rows and its checkpoint is gone, or they
    are those of an earlier version."""
    checkpoint = Path(checkpoint_place(place, query))
    for name in names:
        where = table_place(place, name)
        if not is_in_store(place) and not is_delta(where) and any(Path(where).rglob("*.parquet")):
            raise HedgerowError(
                f"{where} is a table of an earlier version. Move it and {checkpoint} away: the job {query} "
                "then makes it anew"
            )
        if Delta(place, name).files() and not (checkpoint / "metadata").exists():
            raise HedgerowError(
                f"{where} has the rows of an earlier query {query}, whose checkpoint {checkpoint} is gone: "
                f"they would be there twice. Bring the checkpoint back, or move {where}, what else the job "
                f"writes and {checkpoint}-steps away and start again"
            )


def _no_table(place: str, name: str) -> HedgerowError:
    return HedgerowError(f"there is no table {name} below {place}; the job that writes it has not run there")
