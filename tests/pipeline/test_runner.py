"""Jobs put together: journals become tables, and whatever was not read yet is read the next time."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hedgerow.errors import ConfigError, HedgerowError
from hedgerow.journal import Writer, committed_positions
from hedgerow.message import Message, MessageId
from hedgerow.pipeline import progress
from hedgerow.pipeline.files import rotate
from hedgerow.pipeline.locks import Lock
from hedgerow.pipeline.progress import Progress
from hedgerow.pipeline.queries import (
    JOBS,
    STREAMS,
    SUMMARIES,
    QuerySettings,
    check_jobs,
    messages,
    reader_name,
    start,
    start_readings,
)
from hedgerow.pipeline.rules import load_rules
from hedgerow.pipeline.runner import Runner, explain
from hedgerow.pipeline.tables import read_table
from hedgerow_workshop.tables import load_rows
from tests.conftest import StartNode
from tests.programs import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BEGAN_AT = 1_700_000_000.0
SPARK_S = 60.0  # for queries that start, on a machine that has other tests to run


def publish(journal: Path, start: int, stop: int, sequence: int = 0) -> None:
    """Ten a second; every tenth cannot be read, and one of three hundred is a spike."""
    with Writer(journal, "north") as writer:
        for number in range(start, stop):
            text = "broken" if number % 10 == 9 else f"{60 if number % 300 == 120 else 20 + number % 3} °C"
            topic = f"farm/north/mast{number % 2}/temperature"
            message = Message(topic, text.encode(), id=MessageId("north", 1, sequence + number))
            writer.append(message, transport="mqtt", received_at=BEGAN_AT + number / 10)


def settings_for(tmp_path: Path, every_s: float | None = None, journal: str = "journal") -> QuerySettings:
    tables = str(tmp_path / "tables")
    return QuerySettings(
        (str(tmp_path / journal),), tables, load_rules(), rows_per_batch=200, every_s=every_s
    )


def count(spark: SparkSession, tmp_path: Path, name: str) -> int:
    return read_table(spark, str(tmp_path / "tables"), name).count()


@pytest.mark.soak
def test_all_jobs_and_again_for_what_has_come_since(tmp_path: Path, spark: SparkSession) -> None:
    told: list[Progress] = []
    publish(tmp_path / "journal", 0, 300)
    Runner(spark, settings_for(tmp_path), told.append).run(check_jobs(()))
    assert (count(spark, tmp_path, "bronze"), count(spark, tmp_path, "quarantine")) == (300, 30)
    assert (count(spark, tmp_path, "readings"), count(spark, tmp_path, "anomalies")) == (270, 1)
    assert count(spark, tmp_path, "hot") > 0
    assert count(spark, tmp_path, "quality") == 0  # One journal has no other end.
    states = progress.load(tmp_path / "tables")
    assert states.keys() == set(JOBS)
    assert {each.state for each in states.values()} == {"finished"}
    ingest = states["ingest"]
    assert (ingest.batch, ingest.rows, ingest.total_rows, ingest.behind) == (1, 100, 300, 0)
    assert [each.batch for each in told if each.job == "ingest" and each.state == "running"][-1] == 1
    assert ingest.line().startswith("ingest: finished, batch 1, 100 rows in ")

    assert count(spark, tmp_path, "late") == states["anomalies"].late == 0

    publish(tmp_path / "journal", 300, 450)
    # Of the two sensors two readings come that are 15 s behind, and two that are 5 s behind.
    publish(tmp_path / "journal", 150, 152, sequence=1_000)
    publish(tmp_path / "journal", 250, 252, sequence=1_000)
    settings = replace(settings_for(tmp_path), late_s=10.0)
    Runner(spark, settings, told.append).run(("ingest", "readings", "anomalies"))
    assert (count(spark, tmp_path, "bronze"), count(spark, tmp_path, "late")) == (454, 2)
    assert (count(spark, tmp_path, "readings"), count(spark, tmp_path, "anomalies")) == (270 + 135 + 4, 2)
    assert progress.load(tmp_path / "tables")["anomalies"].late == 2
    # The last commit may be the next run's.
    name = reader_name(str(tmp_path / "tables"), "ingest")
    assert committed_positions(tmp_path / "journal")[name] >= 200


def test_it_runs_until_it_is_stopped(tmp_path: Path, spark: SparkSession) -> None:
    """What reads tables begins when they are written, and a summary is made when it is asked for."""
    publish(tmp_path / "journal", 0, 50)
    runner = Runner(spark, settings_for(tmp_path, every_s=0), lambda news: None)

    def wait_for(rows: int, job: str, what: str) -> None:
        wait_until(lambda: _rows(tmp_path, job) == rows, what, SPARK_S)

    def ask_to_stop() -> None:
        try:
            wait_for(50, "ingest", "the first rows")
            publish(tmp_path / "journal", 50, 80)
            wait_for(80, "ingest", "the rows that came later")
            wait_for(80, "readings", "what is read of them")
            runner.summarise_soon()
            wait_until(lambda: "quality" in progress.load(tmp_path / "tables"), "the summary", SPARK_S)
        finally:
            runner.stop()

    asking = threading.Thread(target=ask_to_stop)
    asking.start()
    runner.run(("ingest", "readings", "quality"))
    asking.join()
    states = {job: each.state for job, each in progress.load(tmp_path / "tables").items()}
    assert states == dict.fromkeys(("ingest", "readings"), "stopped") | {"quality": "finished"}
    assert count(spark, tmp_path, "bronze") == 80
    assert len(list(load_rows(str(tmp_path / "tables"), "bronze", ("position",)))) == 80


def test_a_summary_that_fails_stops_nothing(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path / "journal", 0, 20)
    failed = threading.Event()

    def fail(spark: SparkSession, settings: QuerySettings) -> None:
        failed.set()
        raise ValueError("no room")

    monkeypatch.setitem(SUMMARIES, "quality", (fail, "fails"))
    monkeypatch.setitem(STREAMS, "hot", (starting_badly(tmp_path, times=2), "fails twice"))
    told: list[Progress] = []
    runner = Runner(spark, settings_for(tmp_path, every_s=0), told.append, back_off_s=0.1)

    def ask_to_stop() -> None:
        try:
            runner.summarise_soon()
            wait_until(lambda: _rows(tmp_path, "ingest") == 20, "the first rows", SPARK_S)
            runner.summarise_soon()
            assert failed.wait(SPARK_S)
            publish(tmp_path / "journal", 20, 30)
            wait_until(lambda: _rows(tmp_path, "ingest") == 30, "rows after the failure", SPARK_S)
            wait_until(lambda: _rows(tmp_path, "hot") == 30, "a job that began again", SPARK_S)
        finally:
            runner.stop()

    asking = threading.Thread(target=ask_to_stop)
    asking.start()
    runner.run(("hot", "ingest", "quality"))
    asking.join()
    states = progress.load(tmp_path / "tables")
    assert (states["quality"].state, states["quality"].reason) == ("failed", "no room")
    assert (states["ingest"].state, states["ingest"].total_rows) == ("stopped", 30)
    assert [each.reason for each in told if (each.job, each.state) == ("hot", "failed")] == ["full", "full"]
    assert (states["hot"].state, states["hot"].total_rows) == ("stopped", 30)
    # Where it is all that is asked for, its failure is that of the command.
    with pytest.raises(HedgerowError, match="quality: no room"):
        Runner(spark, settings_for(tmp_path), lambda news: None).run(("quality",))


def starting_badly(tmp_path: Path, times: int) -> Callable[..., list[StreamingQuery]]:
    """A job whose batches fail so often, and then no more."""
    left = iter(range(times))

    def handle(rows: DataFrame, batch_id: int) -> None:
        if next(left, None) is not None:
            raise HedgerowError("full")
        rows.count()  # Rows that nobody looks at are not counted as read.

    def begin(spark: SparkSession, settings: QuerySettings) -> list[StreamingQuery]:
        writer = messages(spark, settings, "hot").writeStream.foreachBatch(handle)
        return [start(writer.option("checkpointLocation", str(tmp_path / "c")), "bad", settings)]

    return begin


def test_a_log_is_kept_short(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("ab") as file:
        for text in (b"one\n", b"two\n", b"three\n"):
            file.write(text)
            file.flush()
            rotate(log, max_bytes=4)
    assert log.read_bytes() == b""
    assert (tmp_path / "log.1").read_bytes() == b"three\n"


def test_a_second_driver_is_told_who_has_the_job(tmp_path: Path, spark: SparkSession) -> None:
    publish(tmp_path / "journal", 0, 20)
    place = str(tmp_path / "tables")
    lock = Lock(place, "ingest")
    runner = Runner(spark, settings_for(tmp_path), lambda news: None)
    with pytest.raises(HedgerowError, match=rf"another process \(pid {os.getpid()}\) runs ingest"):
        runner.run(("ingest",))
    lock.release()
    Lock(place, "ingest", patience_s=0).release()


def test_a_query_may_be_older_than_the_table_that_it_reads(tmp_path: Path, spark: SparkSession) -> None:
    publish(tmp_path / "journal", 0, 20)
    queries = start_readings(spark, settings_for(tmp_path, every_s=0))
    try:
        wait_until(
            lambda: all(query.status["message"] != "Initializing sources" for query in queries), "a start"
        )
        Runner(spark, settings_for(tmp_path), lambda news: None).run(("ingest",))
        for query in queries:
            query.processAllAvailable()
    finally:
        for query in queries:
            query.stop()
    rows = load_rows(str(tmp_path / "tables"), "quarantine", ("position", "date", "hour", "clamped"))
    shown = [tuple(row.values()) for row in rows]
    assert sorted(shown) == [(9, "2023-11-14", 22, None), (19, "2023-11-14", 22, None)]


def _rows(tmp_path: Path, job: str) -> int:
    found = progress.load(tmp_path / "tables").get(job)
    return 0 if found is None else found.total_rows


def test_all_that_is_told_to_a_broker_goes_over_one_connection(
    tmp_path: Path, spark: SparkSession, hedgerow_node: StartNode
) -> None:
    publish(tmp_path / "journal", 0, 20)
    node = hedgerow_node()
    settings = replace(settings_for(tmp_path), broker=node.urls["mqtt"])
    Runner(spark, settings, lambda news: None).run(("ingest", "readings"))
    wait_until(lambda: " disconnected" in node.log, "its leave")
    assert node.log.count(" connected from") == 1


def test_why_a_query_fails_is_said_in_our_own_words(tmp_path: Path, spark: SparkSession) -> None:
    runner = Runner(spark, settings_for(tmp_path, journal="nowhere"), lambda news: None)
    with pytest.raises(HedgerowError, match="ingest: .*nowhere"):
        runner.run(("ingest",))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "Traceback\n  File x\nhedgerow.errors.StoreError: no journal there\n\nat org.apache",
            "no journal there",
        ),
        ("[SOME_CLASS] Something is wrong.\nat org.apache.spark", "[SOME_CLASS] Something is wrong."),
        (
            "An error occurred while calling o12.persist.\n: java.lang.Error: full\n\tat java",
            "java.lang.Error: full",
        ),
        ("", "ValueError"),
    ],
)
def test_one_line_of_many(text: str, reason: str) -> None:
    assert explain(ValueError(text)) == reason


def test_jobs_are_run_in_the_order_in_which_they_need_each_other() -> None:
    assert check_jobs(("readings", "ingest")) == ("ingest", "readings")
    assert check_jobs(()) == tuple(JOBS)
    with pytest.raises(ConfigError, match='no job "ingets"; did you mean ingest\\?'):
        check_jobs(("ingets",))


def test_progress_that_is_damaged_is_left_out(tmp_path: Path) -> None:
    progress.store(Progress("ingest", "running", 3), tmp_path)
    (tmp_path / "_progress/hot.json").write_text("{")
    (tmp_path / "_progress/other.json").write_text(json.dumps({"word": 1}))
    assert progress.load(tmp_path) == {"ingest": Progress("ingest", "running", 3)}
    message = progress.message(Progress("ingest", "running", 3))
    assert (message.topic, message.retain) == ("$hedgerow/pipeline/ingest", True)
    assert json.loads(message.payload)["batch"] == 3
