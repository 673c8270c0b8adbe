"""Delta tables that are written for years: few files, a short log, and each batch once all the same."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StructType

from hedgerow.errors import HedgerowError
from hedgerow.pipeline.delta import LOG, UPKEEP, Delta, Upkeep, WrittenFile, statistics_of
from hedgerow.pipeline.growth import TableStreamReader

SCHEMA = pa.schema(
    [
        ("sequence", pa.int64()), ("sensor", pa.string()), ("value", pa.float64()), ("payload", pa.binary()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
BATCHES, ROWS = 300, 4


def written(place: Path, batch: int, rows: int = ROWS) -> WrittenFile:
    path = place / "t" / f"{batch}.parquet"
    columns = [
        {
            "sequence": batch * rows + number, "sensor": f"s{number}", "value": float(number),
            "payload": b"x",
            "at": NOON + timedelta(seconds=batch, microseconds=1_500),
        }
        for number in range(rows)
    ]  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(columns, SCHEMA), path)
    return WrittenFile(path.name, path.stat().st_size, rows, [], statistics_of(pq.read_metadata(path)))


def add(place: Path, batch: int, upkeep: Upkeep = UPKEEP) -> None:
    table = Delta(place, "t", upkeep=upkeep)
    if not table.has("q", batch):
        table.commit([written(place, batch)], SCHEMA, "q", batch)


def test_files_and_log_stay_few_and_each_batch_is_there_once(tmp_path: Path) -> None:
    upkeep = Upkeep(20, timedelta(0), compact_every=32, vacuum_every=64, vacuum_after=timedelta(0))
    for batch in range(BATCHES):
        add(tmp_path, batch, upkeep)
        if batch % 50 == 49:  # A foreign commit between two of ours, and a batch that comes again.
            DeltaTable(str(tmp_path / "t")).alter.set_table_properties({"delta.appendOnly": "false"})
            add(tmp_path, batch, upkeep)
    table = DeltaTable(str(tmp_path / "t"))
    found = table.to_pyarrow_table()["sequence"].to_pylist()
    assert sorted(found) == list(range(BATCHES * ROWS))
    assert len(table.file_uris()) <= 33
    assert len(list((tmp_path / "t").glob("*.parquet"))) <= 33 + 64
    assert len(list((tmp_path / "t" / LOG).glob("*.json"))) <= 42
    assert not Delta(tmp_path, "t").has("q", BATCHES)
    assert all(Delta(tmp_path, "t").has("q", batch) for batch in (0, BATCHES - 1))


def test_a_table_that_cannot_be_tended_is_written_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for batch in range(3):
        add(tmp_path, batch, Upkeep(compact_every=2, target_bytes=-1))
    assert "could not be tended" in caplog.text
    assert DeltaTable(str(tmp_path / "t")).to_pyarrow_table().num_rows == 3 * ROWS


def test_the_log_says_between_what_the_values_of_a_file_are(tmp_path: Path) -> None:
    file = written(tmp_path, 7)
    assert json.loads(file.statistics) == {
        "numRecords": 4,
        "minValues": {"sequence": 28, "sensor": "s0", "value": 0.0, "at": "2026-03-01T12:00:07.001Z"},
        "maxValues": {"sequence": 31, "sensor": "s3", "value": 3.0, "at": "2026-03-01T12:00:07.002Z"},
        "nullCount": dict.fromkeys(SCHEMA.names, 0),
    }
    add(tmp_path, 7)
    add(tmp_path, 9)
    dataset = DeltaTable(str(tmp_path / "t")).to_pyarrow_dataset()
    after = pa.scalar(NOON + timedelta(seconds=8), pa.timestamp("us", "UTC"))
    [fragment] = dataset.get_fragments(filter=pa.compute.field("at") > after)
    assert fragment.path.endswith("9.parquet")


def test_what_is_no_bound_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    columns = {
        "long": ["x" * 33, "a"],
        "none": pa.array([None, None], pa.int64()),
        "nan": [float("inf"), 1.0],
    }
    pq.write_table(pa.table(columns), path)
    found = json.loads(statistics_of(pq.read_metadata(path)))
    assert found["minValues"] == found["maxValues"] == {}
    assert found["nullCount"] == {"long": 0, "none": 2, "nan": 0}


def test_a_stream_that_was_away_for_too_long_is_told_so(tmp_path: Path) -> None:
    for batch in range(5):
        add(tmp_path, batch)
    reader = TableStreamReader(str(tmp_path / "t"), StructType())
    first = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    files = [path for part in reader.partitions(reader.initialOffset(), first) for path in part.value]
    assert sorted(files) == [f"{batch}.parquet" for batch in range(5)]
    add(tmp_path, 5)
    second = reader.latestOffset(first, reader.getDefaultReadLimit())
    assert [part.value for part in reader.partitions(first, second)] == [["5.parquet"]]
    add(tmp_path, 6)
    add(tmp_path, 7)
    DeltaTable(str(tmp_path / "t")).create_checkpoint()
    (tmp_path / "t" / LOG / f"{second['version']:020d}.json").unlink()
    with pytest.raises(HedgerowError, match="was away for too long"):
        reader.latestOffset(first, reader.getDefaultReadLimit())
