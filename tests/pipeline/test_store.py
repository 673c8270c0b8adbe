"""Tables in an object store, as executors and the driver see them (`test_exactly_once` has Spark do it)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, InputPartition

from hedgerow.errors import HedgerowError
from hedgerow.pipeline.delta import Delta, Upkeep, WrittenFile, is_delta
from hedgerow.pipeline.growth import TableOptions, TableReader, TableStreamReader
from hedgerow.pipeline.lake import Writing
from hedgerow.pipeline.tables import form_of, table_uris
from tests.object_store import BUCKET, run_store

SCHEMA = pa.schema([("n", pa.int64()), ("hour", pa.int32())])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with run_store(tmp_path_factory.mktemp("store")) as environment:
        yield environment


@pytest.fixture
def place(store: dict[str, str], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    for name, value in store.items():
        monkeypatch.setenv(name, value)
    return f"s3a://{BUCKET}/{request.node.name}"


def written(table: Delta, batch: int) -> list[WrittenFile]:
    """Ten rows in two hours, as a task writes them."""
    rows = pa.RecordBatch.from_pylist(
        [{"n": batch * 10 + number, "hour": number // 5} for number in range(10)], SCHEMA
    )
    writing = Writing(table.where, ("hour",), False, f"{batch:08}")
    return [WrittenFile(*row.values()) for part in writing.write(iter([rows])) for row in part.to_pylist()]


def rows_of(reader: TableReader | TableStreamReader, parts: list[InputPartition]) -> list[int]:
    return sorted(n for part in parts for batch in reader.read(part) for n in batch["n"].to_pylist())


def test_a_table_in_a_store(place: str) -> None:
    from pyspark.sql.types import StructType

    table = Delta(
        place, "t", ("hour",), Upkeep(compact_every=4, vacuum_every=8, vacuum_after=timedelta(hours=1))
    )
    assert form_of(place, "t") is None
    with pytest.raises(HedgerowError, match="no table t"):
        table_uris(place, "t")
    table.create(SCHEMA)
    schema = table.spark_schema()
    assert isinstance(schema, StructType)
    growth = TableStreamReader(table.where, schema)
    at = growth.latestOffset(growth.initialOffset(), growth.getDefaultReadLimit())
    seen = rows_of(growth, list(growth.partitions(growth.initialOffset(), at)))
    for batch in range(6):
        files = written(table, batch)
        written(table, batch)  # A task that ran twice: nobody commits these.
        if not table.has("q", batch):
            table.commit(files, SCHEMA, "q", batch)
        end = growth.latestOffset(at, growth.getDefaultReadLimit())
        seen += rows_of(growth, list(growth.partitions(at, end)))
        at = end
    assert seen == list(range(60))
    assert table.has("q", 5)
    assert not table.has("q", 6)
    assert is_delta(table.where)
    assert len(table_uris(place, "t")) < 12, "small files became large ones"

    reader = TableReader(TableOptions(table.where, None, False), schema)
    assert rows_of(reader, list(reader.partitions())) == list(range(60))
    assert isinstance(reader.pushFilters([EqualTo(("hour",), 1), GreaterThanOrEqual(("n",), 55)]), list)
    assert rows_of(reader, list(reader.partitions())) == list(range(55, 60))


def test_of_two_that_write_the_same_batch_one_is_refused(place: str) -> None:
    """Both looked, and neither had written: the second finds the number in the commit that it lost to."""
    table = Delta(place, "t", ("hour",))
    table.create(SCHEMA)
    one, other = written(table, 0), written(table, 0)
    stale = _open_twice(table)
    table.commit(one, None, "q", 0)
    with pytest.raises(Exception, match="(?i)transaction"):
        stale(other)
    reader = TableReader(TableOptions(table.where, None, False), table.spark_schema())
    assert rows_of(reader, list(reader.partitions())) == list(range(10))


def _open_twice(table: Delta) -> Any:
    """A commit to the table as it is now, to be made later."""
    from deltalake import CommitProperties, DeltaTable, Transaction
    from deltalake.transaction import AddAction

    opened = DeltaTable(table.where)

    def commit(files: list[WrittenFile]) -> None:
        actions = [
            AddAction(file.path, file.bytes, {"hour": file.partition[0]}, 0, True, file.statistics)
            for file in files
        ]
        properties = CommitProperties(app_transactions=[Transaction("q", 0)])
        opened.create_write_transaction(
            actions, "append", opened.schema(), ["hour"], commit_properties=properties
        )

    return commit


def test_a_path_of_a_worker_is_that_of_the_log(place: str) -> None:
    table = Delta(place, "t", ("hour",))
    [first, *_] = written(table, 3)
    assert Path(first.path).parts[0] == "hour=0"
    assert first.rows == 5
