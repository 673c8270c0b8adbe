"""Where tables may be, and what of a directory belongs to a table."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from hedgerow.cli import main
from hedgerow.errors import ConfigError, HedgerowError
from hedgerow.pipeline.jobs.ingest import write_bronze
from hedgerow.pipeline.options import read_options
from hedgerow.pipeline.places import directory_of, state_of
from hedgerow.pipeline.tables import checkpoint_place, table_files, table_place
from tests.pipeline.rows import RECEIVED_AT, SCHEMA, message, messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STORES = ["s3a://bucket/lake", "abfss://box@store/lake", "gs://bucket/lake"]
ELSEWHERE = ["hdfs://name:9000/lake", "s3a:/b", "s3://bucket/lake?x=1", "file://other/srv"]


def test_a_directory_may_be_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert directory_of("tables") == directory_of(tmp_path / "tables") == tmp_path / "tables"
    assert (
        directory_of(f"file://{tmp_path}/a%20b") == directory_of(f"file:{tmp_path}/a b") == tmp_path / "a b"
    )
    assert directory_of("file://localhost/srv") == Path("/srv")
    assert directory_of("a:b") == tmp_path / "a:b"
    assert table_place(f"file://{tmp_path}", "bronze") == str(tmp_path / "bronze")


@pytest.mark.parametrize("place", STORES)
def test_tables_may_be_in_a_store_and_what_goes_with_them_is_here(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert table_place(f"{place}/", "bronze") == f"{place}/bronze"
    checkpoint = Path(checkpoint_place(place, "ingest"))
    assert checkpoint.parts[-2:] == ("_checkpoints", "ingest")
    assert checkpoint.is_relative_to(tmp_path / "state")
    assert checkpoint != Path(checkpoint_place(f"{place}2", "ingest"))
    monkeypatch.setenv("HEDGEROW_STATE", str(tmp_path / "mine"))
    assert state_of(place) == tmp_path / "mine"
    for option in ("journals", "gaps"):
        with pytest.raises(ConfigError, match="in a file system"):
            read_options({"journals": "j", option: place})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ELSEWHERE)
def test_other_urls_are_refused_and_make_no_folder(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for call in (table_place, checkpoint_place):
        with pytest.raises(ConfigError, match="tables are in a directory|write "):
            call(place, "bronze")
    for words in (["run", "--journal", "j", "--tables", place], ["report", "--tables", place]):
        assert main(["pipeline", *words]) == 2
        assert place in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_file_url_is_honoured(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = messages(spark, message(0), message(1))
    rows.coalesce(1).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in"))
    query = write_bronze(stream, f"file://{tmp_path}/tables").trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert main(["pipeline", "files", "bronze", "--tables", f"file://{tmp_path}/tables"]) == 0
    [path] = capsys.readouterr().out.splitlines()
    assert path.startswith(str(tmp_path / "tables/bronze"))
    assert {each.name for each in tmp_path.iterdir()} == {"in", "tables"}


@pytest.mark.parametrize("form", ["parquet", "delta"])
def test_any_program_reads_a_table_after_a_kill(spark: SparkSession, tmp_path: Path, form: str) -> None:
    """A task that was killed left an empty file, and one with rows that another has written."""
    tables = tmp_path / "tables"
    with pytest.raises(HedgerowError, match="no table bronze"):
        table_files(tables, "bronze")
    rows = messages(spark, *(message(n, received_at=RECEIVED_AT + timedelta(hours=n)) for n in range(4)))
    rows.coalesce(1).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in"))
    query = write_bronze(stream, str(tables), form).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    whole = table_files(tables, "bronze")
    (whole[0].parent / "part-00001.c000.zstd.parquet").touch()
    (whole[0].parent / "part-00002.c000.zstd.parquet").write_bytes(whole[0].read_bytes())
    assert table_files(tables, "bronze") == whole
    found = pq.read_table(whole, columns=["position"])
    assert sorted(found["position"].to_pylist()) == list(range(4))
