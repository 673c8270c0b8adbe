"""`hedgerow bench pipeline`: its rows, measured on so little that the figures mean nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hedgerow.errors import ConfigError
from hedgerow.journal import JournalReader
from hedgerow_workshop.bench import pipeline
from hedgerow_workshop.bench.pipeline import PipelinePlan, measure, run
from hedgerow_workshop.bench.pipeline.publisher import PAYLOAD_BYTES, payload, read_payload
from hedgerow_workshop.bench.pipeline.recording import record
from hedgerow_workshop.bench.report import BenchRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOMENT = PipelinePlan(rows=2_000, rounds=1, rate=500, seconds=1, flood=2_000, stall_s=0.3, sensors=50)


@pytest.mark.soak
def test_a_race(spark: SparkSession) -> None:
    result = measure(replace(MOMENT, rounds=0, at_least=1e9), ("ingest",), has_alternative=False, spark=spark)
    assert [(row.name, list(row.peers)) for row in result.rows] == [("ingest", ["spark-parquet"])]
    assert all(row.ours > 0 for row in result.rows)
    notes = result.about["notes"]
    assert isinstance(notes, list)
    assert "is less than the 1e+09× that we promise" in notes[0]


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_every_row(spark: SparkSession) -> None:
    result = measure(MOMENT, spark=spark)
    assert [row.name for row in result.rows] == list(pipeline.ROWS)
    by_name = {row.name: row for row in result.rows}
    assert by_name["stall"].ours == 0
    assert by_name["stall"].peers.keys() == by_name["flood"].peers.keys() == {"paho-parquet"}


def test_both_sources_have_the_same_rows(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    recording = record(tmp_path, 1_000)
    reader = JournalReader(recording.journal)
    assert reader.end_position == recording.rows == 1_000
    table = pq.read_table(recording.parquet)
    assert table.column("sequence").to_pylist() == list(range(1_000))
    assert set(table.column("journal").to_pylist()) == {reader.journal_id}


def test_a_payload_says_when() -> None:
    data = payload(7, 1_700_000_000.25)
    assert len(data) == PAYLOAD_BYTES
    assert read_payload(data) == (7, 1_700_000_000.25)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="no row ingets; there are ingest, hot, rollup"):
        run(BenchRequest(only=("ingets",)))
    with pytest.raises(ConfigError, match="no peer kafka; there are spark-parquet, paho-parquet"):
        run(BenchRequest(peers=("kafka",)))
