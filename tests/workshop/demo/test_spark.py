"""What the demo reads from the tables of the pipeline, which stand here without Spark, and what it says."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.parquet import write_table

from hedgerow.journal import Writer
from hedgerow.message import Message, MessageId
from hedgerow.pipeline import progress
from hedgerow.pipeline.progress import Progress
from hedgerow_workshop.demo import run as runs
from hedgerow_workshop.demo.farm import SENSOR_TOPICS
from hedgerow_workshop.demo.ledger import Ledger
from hedgerow_workshop.demo.run import Demo, Options
from hedgerow_workshop.demo.spark import Learned, PipelineProgram
from hedgerow_workshop.demo.story import InSpark
from hedgerow_workshop.demo.summary import summary_lines
from hedgerow_workshop.demo.terminal import Terminal
from hedgerow_workshop.tables import Reckoning, reckon

EVEN = Reckoning(3, 0, 0)
LEARNED = Learned(readings=7, scored=2, anomalies=1, links=3, lost=0, datagrams=4)


@pytest.fixture
def pipeline(tmp_path: Path) -> PipelineProgram:
    return PipelineProgram(tmp_path / "spark", tmp_path / "journals")


def put(pipeline: PipelineProgram, table: str, *rows: dict[str, Any]) -> None:
    (pipeline.tables / table).mkdir(parents=True)
    write_table(pa.Table.from_pylist(list(rows)), pipeline.tables / table / "part-0.parquet")


def row(journal: str, topic: str, payload: bytes, sequence: int) -> dict[str, Any]:
    names = ("journal", "topic", "payload", "origin", "epoch", "sequence")
    return dict(zip(names, (journal, topic, payload, "station-north", 1, sequence), strict=True))


def tell(
    pipeline: PipelineProgram, rows: int, jobs: tuple[str, ...] = ("ingest", "readings", "quarantine")
) -> None:
    for job in jobs:
        progress.store(Progress(job, "running", 1, total_rows=rows), pipeline.tables)


def test_rows_of_bronze_are_known_by_the_keys_of_the_ledger(pipeline: PipelineProgram) -> None:
    wind = row("n", "farm/north/mast/wind", b"3.0 m/s", 2)
    station = row("n", "farm/north/station", b'{"number": 1}', 1)
    put(pipeline, "bronze", station, {**station, "journal": "h"}, wind, wind)
    ledger = Ledger({})
    for key in (
        "farm/north/station 1",
        str(MessageId("station-north", 1, 2)),
        "farm/north/station 3",
        "never",
    ):
        ledger.begin(key, "north", "farm/north/station", 1.0)
        if key != "never":
            ledger.acknowledge(key)
    assert reckon(ledger.acknowledged, pipeline.keys()) == Reckoning(3, lost=1, doubled=1)


def test_how_much_is_journalled_and_how_much_was_taken(pipeline: PipelineProgram, tmp_path: Path) -> None:
    for name, count in (("north", 2), ("south", 3)):
        with Writer(tmp_path / "journals" / name, name) as writer:
            for _ in range(count):
                writer.append(Message("farm/soil", b"1"), transport="mqtt", received_at=1.0)
    assert (pipeline.journalled(), pipeline.rows(), pipeline.unread()) == (5, 0, 5)
    tell(pipeline, 3)
    assert (pipeline.rows(), pipeline.unread()) == (3, 2)
    progress.store(Progress("ingest", "running", 1, total_rows=3, unreadable=2), pipeline.tables)
    assert pipeline.unread() == 0


def test_the_jobs_are_done_when_each_has_taken_what_there_is(pipeline: PipelineProgram) -> None:
    asked_at = pipeline.asked_at = 100.0
    put(pipeline, "readings", {"value": 1.0, "field": "wind"}, {"value": None, "field": "mission"})
    tell(pipeline, 2)
    assert not pipeline.has_learned()
    progress.store(Progress("quality", "finished"), pipeline.tables)
    summary = pipeline.tables / progress.DIRECTORY / "quality.json"
    os.utime(summary, (asked_at - 1, asked_at - 1))
    put(pipeline, "anomalies", {"field": "wind"})
    assert not pipeline.has_learned()
    os.utime(summary, (asked_at + 1, asked_at + 1))
    assert pipeline.has_learned()
    tell(pipeline, 1, ("quarantine",))
    assert not pipeline.has_learned()


def test_what_the_jobs_have_learned(pipeline: PipelineProgram) -> None:
    put(pipeline, "readings", *({"field": "wind"} for _ in range(4)))
    judged = {"sensor": "north", "field": "wind", "score": 1.0, "is_anomaly": False}
    put(pipeline, "anomalies", judged, {**judged, "score": None}, {**judged, "is_anomaly": True})
    link = {"kind": "link", "source": "n", "target": "h", "topic": "farm/soil", "lost": 1}
    sensors = {**link, "topic": SENSOR_TOPICS[1], "lost": 5}
    put(pipeline, "quality", link, sensors, {**link, "topic": None, "lost": 6}, {**link, "kind": "hop"})
    learned = pipeline.learned()
    assert learned == Learned(readings=4, scored=1, anomalies=1, links=1, lost=1, datagrams=5)
    assert str(learned) == (
        "4 readings, 1 series of them with a score and 1 unlike those before them; "
        "on 1 links 1 messages and 5 datagrams lost"
    )


@pytest.mark.parametrize(
    ("found", "lines", "status"),
    [
        (
            InSpark(EVEN, 0, LEARNED),
            ["in Spark: 3 of 3 messages, 0 lost, 0 doubled", f"its jobs made of them {LEARNED}"],
            0,
        ),
        (InSpark(Reckoning(3, 1, 0), 0, LEARNED), ["in Spark: 2 of 3 messages, 1 lost, 0 doubled"], 1),
        (InSpark(Reckoning(3, 0, 1), 0, LEARNED), ["in Spark: 3 of 3 messages, 0 lost, 1 doubled"], 1),
        (
            InSpark(Reckoning(3, 1, 0), 9, None),
            [
                "in Spark: 2 of 3 messages so far, 0 doubled; it has not read the last 9 rows of the "
                "journals in time: none is called lost",
                "its jobs were not done with them in time",
            ],
            0,
        ),
        (InSpark(Reckoning(3, 1, 1), 9, LEARNED), ["in Spark: 2 of 3 messages so far, 1 doubled"], 1),
        (InSpark(), ["in Spark: not compared, since it was ended before"], 0),
    ],
    ids=["even", "lost", "doubled", "late", "late and doubled", "ended before"],
)
def test_what_is_said_of_it_and_with_which_status(
    found: InSpark, lines: list[str], status: int, tmp_path: Path
) -> None:
    people = SimpleNamespace(readings_sent=0, readings_heard=0)
    story: Any = SimpleNamespace(ledger=Ledger({}), measured={}, people=people, in_spark=found)
    said = list(summary_lines(story, is_whole=True))[1:-1]
    assert len(said) == (1 if found.reckoning is None else 2)
    for line, begin in zip(said, lines, strict=False):
        assert line.startswith(begin)
    with (tmp_path / "said").open("w") as stream:
        assert Demo(Options(), Terminal(stream, is_live=False), tmp_path).sum_up(story, "") == status


@pytest.mark.parametrize("moment", ["tell", "look_into_spark"])
def test_who_ends_it_does_not_wait_for_spark(moment: str, tmp_path: Path) -> None:
    done: list[str] = []
    people = SimpleNamespace(readings_sent=0, readings_heard=0)
    story: Any = SimpleNamespace(ledger=Ledger({}), measured={}, people=people, in_spark=InSpark())
    stream = io.StringIO()

    def step(name: str) -> Callable[[], Awaitable[None]]:
        async def do() -> None:
            done.append(name)
            if name == moment:
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.Event().wait()

        return do

    for name in ("tell", "end", "look_into_spark"):
        setattr(story, name, step(name))

    class Started(Demo):
        async def start(self, stack: object) -> Any:
            return story

    assert runs.run(Options(), Terminal(stream, is_live=False), Started, tmp_path) == 0
    assert done == (["tell", "end"] if moment == "tell" else ["tell", "end", "look_into_spark"])
    assert "in Spark: not compared, since it was ended before\n" in stream.getvalue()
