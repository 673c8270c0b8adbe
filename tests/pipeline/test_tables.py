"""Delta and Iceberg tables: a batch is in them once, whatever happens between the files and the commit."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow.parquet import read_table as read_file
from pyiceberg.utils.concurrent import ExecutorFactory

from hedgerow.errors import HedgerowError
from hedgerow.pipeline import lake
from hedgerow.pipeline.delta import Delta, Upkeep, WrittenFile
from hedgerow.pipeline.growth import TableOptions, TableReader
from hedgerow.pipeline.jobs.ingest import PARTITIONED_BY, bronze, bronze_schema, write_bronze
from hedgerow.pipeline.tables import append, check_form, form_of, read_table
from tests.pipeline.catalog import FileCatalog
from tests.pipeline.rows import RECEIVED_AT, SCHEMA, message, messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HAS_SQL = find_spec("sqlalchemy") is not None
LAKES = ["delta", "iceberg"]


@pytest.fixture(autouse=True)
def catalog(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The tables are Iceberg's own; what names them is a file where SQLAlchemy is not installed."""
    if not HAS_SQL:
        monkeypatch.setattr(lake, "open_catalog", FileCatalog)
        monkeypatch.setitem(lake._NEEDS, "iceberg", ("pyiceberg",))
    yield
    # pyiceberg keeps its threads for as long as the process runs.
    threads, ExecutorFactory._instance = ExecutorFactory.get_or_create(), None
    threads.shutdown()


def rows_of(spark: SparkSession, start: int, end: int) -> DataFrame:
    rows = (message(n, received_at=RECEIVED_AT + timedelta(minutes=20 * n)) for n in range(start, end))
    return bronze(messages(spark, *rows))


def positions(spark: SparkSession, place: Path, form: str) -> list[int]:
    table = read_table(spark, str(place), "bronze", form, bronze_schema(SCHEMA))
    return sorted(row.position for row in table.select("position").collect())


@pytest.mark.parametrize("form", LAKES)
def test_a_batch_is_appended_once(spark: SparkSession, tmp_path: Path, form: str) -> None:
    def add(start: int, batch_id: int, query: str = "q") -> bool:
        rows = rows_of(spark, start, start + 5)
        return append(
            rows, batch_id, str(tmp_path), "bronze", form=form, query=query, partition_by=PARTITIONED_BY
        )

    with pytest.raises(HedgerowError, match="no table bronze"):
        positions(spark, tmp_path, form)
    assert add(0, 0)
    assert not add(0, 0)
    assert add(5, 1)
    assert not add(0, 0)
    assert not add(5, 1)
    assert add(10, 0, "another")
    assert not add(5, 1)
    # Files that nobody has committed, as a driver leaves them that is killed.
    writing = lake.Writing(str(tmp_path / "bronze"), PARTITIONED_BY, form == "iceberg", "00000002")
    rows_of(spark, 90, 95).mapInArrow(writing.write, lake.WRITTEN).collect()
    assert positions(spark, tmp_path, form) == list(range(15))

    found = read_table(spark, str(tmp_path), "bronze", form, bronze_schema(SCHEMA))
    expected = rows_of(spark, 0, 15).orderBy("position").collect()
    assert found.orderBy("position").collect() == expected
    assert (tmp_path / "bronze/date=2026-03-01/hour=13").is_dir()


def test_a_batch_that_comes_again_after_another_wrote_and_snapshots_expired(tmp_path: Path) -> None:
    rows = pa.RecordBatch.from_pydict({"x": [1, 2, 3]})
    table = lake.Iceberg(tmp_path, "t", ())
    table.create(rows.schema)
    for batch in range(2):
        writing = lake.Writing(table.where, (), True, f"{batch:08}")
        written = [
            WrittenFile(*row.values()) for part in writing.write(iter([rows])) for row in part.to_pylist()
        ]
        table.commit(written, None, "q", batch)
    theirs = lake.open_catalog(tmp_path).load_table((lake.NAMESPACE, "t"))
    theirs.append(pa.Table.from_batches([rows]))
    *ours, _ = (snapshot.snapshot_id for snapshot in theirs.snapshots())
    theirs.maintenance.expire_snapshots().by_ids(ours).commit()
    assert len(lake.open_catalog(tmp_path).load_table((lake.NAMESPACE, "t")).snapshots()) == 1
    assert [table.has("q", batch) for batch in range(3)] == [True, True, False]


@pytest.mark.parametrize("form", LAKES)
def test_a_query_that_runs_a_batch_again(spark: SparkSession, tmp_path: Path, form: str) -> None:
    tables = tmp_path / "tables"

    def run(start: int, end: int) -> None:
        rows = messages(spark, *(message(n) for n in range(start, end)))
        rows.coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
        stream = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in"))
        query = write_bronze(stream, str(tables), form).trigger(availableNow=True).start()
        assert query.awaitTermination(60)

    run(0, 5)
    commits = tables / f"_checkpoints/ingest-{form}/commits"
    for path in (commits / "0", commits / ".0.crc"):
        path.unlink()
    run(5, 8)
    assert positions(spark, tables, form) == list(range(8))


def test_a_table_of_another_form_or_without_its_checkpoint_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    messages(spark, message(0)).coalesce(1).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in"))
    for form in ("parquet", "delta"):
        tables = tmp_path / form
        assert form_of(tables, "bronze") is None
        query = write_bronze(stream, str(tables), form).trigger(availableNow=True).start()
        assert query.awaitTermination(60)
        assert form_of(tables, "bronze") == form
    with pytest.raises(HedgerowError, match="is a table of Parquet: go on with --form parquet"):
        write_bronze(stream, str(tmp_path / "parquet"), "delta")
    shutil.rmtree(tmp_path / "delta/_checkpoints")
    with pytest.raises(HedgerowError, match="whose checkpoint .* is gone"):
        write_bronze(stream, str(tmp_path / "delta"), "delta")


def test_no_more_files_are_open_than_allowed(tmp_path: Path) -> None:
    hours = [*range(lake.MAX_OPEN + 1), 0, 2, 1]
    batches = [pa.RecordBatch.from_pydict({"hour": [hour], "x": [n]}) for n, hour in enumerate(hours)]
    writing = lake.Writing(str(tmp_path), ("hour",), True, "p")
    written = [row for batch in writing.write(iter(batches)) for row in batch.to_pylist()]
    found = [(row["partition"], read_file(tmp_path / row["path"], partitioning=None)) for row in written]
    assert sorted(x for _, table in found for x in table["x"].to_pylist()) == list(range(len(hours)))
    assert all(set(table["hour"].to_pylist()) == {int(part[0])} for part, table in found)
    assert [row["rows"] for row in written] == [table.num_rows for _, table in found]


def test_rows_of_no_partition_are_kept(tmp_path: Path) -> None:
    """A null is not equal to itself, and would be in no part."""
    batch = pa.RecordBatch.from_pydict({"hour": [1, None, 2], "x": [0, 1, 2]})
    writing = lake.Writing(str(tmp_path), ("hour",), True, "p")
    written = [row for one in writing.write(iter([batch])) for row in one.to_pylist()]
    assert sum(row["rows"] for row in written) == 3


def test_unknown_and_missing_forms_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HedgerowError, match="parquet, delta or iceberg, not 'orc'"):
        check_form("orc")
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(HedgerowError, match=r"needs deltalake; type: .* -m pip install .*\[spark\]'"):
        check_form("delta")
    monkeypatch.setitem(lake._NEEDS, "iceberg", ("pyiceberg", "no_such_package"))
    with pytest.raises(HedgerowError, match="needs no_such_package"):
        check_form("iceberg")


@pytest.mark.skipif(not HAS_SQL, reason="SQLAlchemy is not installed")
def test_the_catalog_is_a_file_beside_the_tables(tmp_path: Path) -> None:
    catalog = lake.open_catalog(tmp_path)
    assert catalog.list_namespaces() == []
    assert (tmp_path / lake.CATALOG).exists()


def written(table: Delta, columns: dict[str, list[Any]], prefix: str) -> list[WrittenFile]:
    writing = lake.Writing(table.where, (), False, prefix)
    batches = writing.write(iter([pa.RecordBatch.from_pydict(columns)]))
    return [WrittenFile(*row.values()) for batch in batches for row in batch.to_pylist()]


def test_a_column_that_is_new_is_null_in_what_was_there(tmp_path: Path) -> None:
    table = Delta(tmp_path, "t")
    table.create(pa.schema({"x": pa.int64()}))
    table.commit(written(table, {"x": [1]}, "0"), None, "q", 0)
    more = pa.schema({"x": pa.int64(), "y": pa.string()})
    table.create(more)
    table.commit(written(table, {"x": [2], "y": ["a"]}, "1"), None, "q", 1)
    reader = TableReader(TableOptions(table.where, None, False), table.spark_schema())
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    assert sorted(rows, key=lambda row: row["x"]) == [{"x": 1, "y": None}, {"x": 2, "y": "a"}]
    with pytest.raises(HedgerowError, match="the column x is .*long.* there, and not .*string"):
        table.create(pa.schema({"x": pa.string()}))


def test_rows_that_are_too_old_are_forgotten_by_whole_files(tmp_path: Path) -> None:
    table = Delta(tmp_path, "t", upkeep=Upkeep(compact_every=3, target_bytes=1, rows_kept=timedelta(days=30)))
    table.create(pa.schema({"received_at": pa.timestamp("us", "UTC")}))
    now = datetime.now(UTC)
    for batch, days in enumerate((40, 31, 29, 0)):
        rows = {"received_at": pa.array([now - timedelta(days=days)], pa.timestamp("us", "UTC"))}
        table.commit(written(table, rows, str(batch)), None, "q", batch)
    assert sorted(name[0] for name in table.files() or ()) == ["2", "3"]
    assert table.has("q", 3)
