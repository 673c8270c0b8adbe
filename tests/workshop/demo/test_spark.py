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

from hedgerow.errors import HedgerowError
from hedgerow.journal import Writer
from hedgerow.message import Message, MessageId
from hedgerow.pipeline import progress
from hedgerow.pipeline.progress import Progress
from hedgerow_workshop.demo import run as runs
from hedgerow_workshop.demo.farm import SENSOR_TOPICS
from hedgerow_workshop.demo.ledger import Ledger
from hedgerow_workshop.demo.run import Demo, Options
from hedgerow_workshop.demo.spark import MAX_STARTS, Learned, PipelineProgram
from hedgerow_workshop.demo.story import Cast, InSpark, Story
from hedgerow_workshop.demo.summary import summary_lines
from hedgerow_workshop.demo.terminal import Terminal
from hedgerow_workshop.tables import Reckoning, reckon

EVEN = Reckoning(3, 0, 0)
LEARNED = Learned(readings=7, sensors=2, anomalies=1, links=3, lost=0, datagrams=4)


@pytest.fixture
def pipeline(tmp_path: Path) -> PipelineProgram:
    return PipelineProgram(tmp_path / "spark", tmp_path / "journals")


def put(pipeline: PipelineProgram, table: str, *rows: dict[str, Any]) -> None:
    (pipeline.tables / table).mkdir(parents=True)
    write_table(pa.Table.from_pylist(list(rows)), pipeline.tables / table / "part-0.parquet")


def row(journal: str, topic: str, payload: bytes, sequence: int) -> dict[str, Any]:
    names = ("journal", "topic", "payload", "origin", "epoch", "sequence")
    return dict(zip(names, (journal, topic, payload, "station-north", 1, sequence), strict=True))


def tell(pipeline: PipelineProgram, rows: int, jobs: tuple[str, ...] = ("ingest", "readings")) -> None:
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
    progress.store(Progress("anomalies", "running", 1), pipeline.tables)
    assert not pipeline.has_learned()
    os.utime(summary, (asked_at + 1, asked_at + 1))
    assert pipeline.has_learned()
    judged = pipeline.tables / progress.DIRECTORY / "anomalies.json"
    os.utime(judged, (asked_at, asked_at))
    assert not pipeline.has_learned()
    progress.store(Progress("anomalies", "running", 2), pipeline.tables)
    assert pipeline.has_learned()
    tell(pipeline, 1, ("readings",))
    assert not pipeline.has_learned()


def test_what_the_jobs_have_learned(pipeline: PipelineProgram) -> None:
    put(pipeline, "readings", *({"sensor": "north", "field": "wind"} for _ in range(4)))
    began = {"sensor": "north", "field": "wind", "kind": "stuck", "at": 1, "is_over": False}
    put(pipeline, "anomalies", began, {**began, "is_over": True})
    link = {"kind": "link", "source": "n", "target": "h", "topic": "farm/soil", "lost": 1}
    sensors = {**link, "topic": SENSOR_TOPICS[1], "lost": 5}
    put(pipeline, "quality", link, sensors, {**link, "topic": None, "lost": 6}, {**link, "kind": "hop"})
    learned = pipeline.learned()
    assert learned == Learned(readings=4, sensors=1, anomalies=1, links=1, lost=1, datagrams=5)
    assert str(learned) == (
        "4 readings of 1 sensors and fields, 1 anomalies; on 1 links 1 messages and 5 datagrams lost"
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
        (
            InSpark(gave_up="Python worker failed to connect back"),
            ["Spark failed for good: Python worker failed to connect back", "in Spark: nothing to compare"],
            1,
        ),
        (InSpark(EVEN, 0, LEARNED, has_no_plan=True), ["in Spark: 3 of 3 messages, 0 lost, 0 doubled"], 1),
    ],
    ids=["even", "lost", "doubled", "late", "late and doubled", "ended before", "given up", "no plan"],
)
def test_what_is_said_of_it_and_with_which_status(
    found: InSpark, lines: list[str], status: int, tmp_path: Path
) -> None:
    people = SimpleNamespace(readings_sent=0, readings_heard=0)
    story: Any = SimpleNamespace(ledger=Ledger({}), measured={}, took={}, people=people, in_spark=found)
    said = list(summary_lines(story, is_whole=True))[1:-1]
    assert len(said) == (1 if found.reckoning is None and not found.gave_up else 2)
    for line, begin in zip(said, lines, strict=False):
        assert line.startswith(begin)
    with (tmp_path / "said").open("w") as stream:
        assert Demo(Options(), Terminal(stream, is_live=False), tmp_path).sum_up(story, "") == status


@pytest.mark.parametrize("moment", ["tell", "look_into_spark"])
def test_who_ends_it_does_not_wait_for_spark(moment: str, tmp_path: Path) -> None:
    done: list[str] = []
    people = SimpleNamespace(readings_sent=0, readings_heard=0)
    story: Any = SimpleNamespace(ledger=Ledger({}), measured={}, took={}, people=people, in_spark=InSpark())
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


FAILS = ["sh", "-c", "echo 'Python worker failed to connect back.' >&2; exit 1"]


class ToldStory(Story):
    """On a farm where nothing happens but what Spark does."""

    def __init__(self, pipeline: PipelineProgram) -> None:
        self.stream = io.StringIO()
        quiet: Any = SimpleNamespace(check=lambda: None, dashboard="")
        watch: Any = SimpleNamespace(plan=None, planned_at=None)
        cast = Cast(quiet, quiet, watch, None, pipeline)
        super().__init__(cast, {}, Terminal(self.stream, is_live=False), 1.0)


async def test_a_pipeline_that_fails_is_started_again_and_then_left_out(pipeline: PipelineProgram) -> None:
    with pipeline:
        pipeline.run(FAILS)
        story = ToldStory(pipeline)
        text = await story.follow_plan()
    assert text == "no plan of hot topics: the pipeline does not run"
    reason = "Python worker failed to connect back."
    assert story.stream.getvalue().splitlines() == [
        *[f"Spark has failed, and is started again, from where it was: {reason}"] * (MAX_STARTS - 1),
        f"Spark has failed {MAX_STARTS} times; the farm goes on without it: {reason}",
    ]
    assert story.in_spark is not None
    assert (story.in_spark.failures, story.in_spark.gave_up) == (MAX_STARTS - 1, reason)
    await story.look_into_spark()  # There is nothing to look into.
    assert story.in_spark.reckoning is None


async def test_one_that_fails_once_goes_on(pipeline: PipelineProgram, tmp_path: Path) -> None:
    with pipeline:
        failed = tmp_path / "failed"
        pipeline.run(["sh", "-c", f"test -e {failed} && exec sleep 60; touch {failed}; exit 1"])
        story = ToldStory(pipeline)
        await story.until(lambda: pipeline.starts == 2, "another start")
        assert not pipeline.has_ended
        # It is asked for its summary when it is under way: before that the signal would end it.
        pipeline.summarise()
        assert not pipeline.has_ended
        assert pipeline.asked_of == 0
        progress.store(Progress("ingest", "running", 1), pipeline.tables)
        assert pipeline.is_under_way
        assert not pipeline.has_learned()
        assert pipeline.asked_of == 2
    assert list(summary_lines(story_with(story.in_spark), is_whole=True))[1] == (
        "Spark failed and was started again: 1 time"
    )


def story_with(found: InSpark | None) -> Any:
    people = SimpleNamespace(readings_sent=0, readings_heard=0)
    return SimpleNamespace(ledger=Ledger({}), measured={}, took={}, people=people, in_spark=found)


def test_how_long_each_part_took_is_told() -> None:
    story = story_with(None)
    story.took = {"the farm's start": 2.0, "finding": 3.25}
    assert "it took 5.2 s: the farm's start 2.0 s, finding 3.2 s" in list(summary_lines(story, is_whole=True))


async def test_a_farm_that_does_not_go_on_is_said_so(tmp_path: Path) -> None:
    async def nothing() -> None:
        pass

    async def fail() -> None:
        raise HedgerowError("broker north ended by itself")

    story = story_with(None)
    story.dashboard = "http://localhost"
    story.tell = story.end = story.look_into_spark = nothing
    story.go_on = fail
    stream = io.StringIO()

    class Started(Demo):
        async def start(self, stack: object) -> Any:
            return story

    demo = Started(Options(goes_on=True), Terminal(stream, is_live=False), tmp_path)
    assert await demo.run() == 1
    assert "the farm does not go on: broker north ended by itself" in stream.getvalue()
