"""The job against the brokers' own machine, on the same recorded events."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from hedgerow.errors import ConfigError
from hedgerow.hot.hot_topics import HotTopics
from hedgerow.pipeline.jobs.hot import first_events, hot_topics, registries, topic_counts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

TICK = 15_625  # microseconds: a 64th of a second, which is exact as a float
# In UTF-16 the last is before the one before it.
TOPICS = ("a", "b", "c", "farm/Öl", "farm/öl", "日本", "\ufffd", "\U0001f600")
NO_BROKER = ""


class Event(NamedTuple):
    broker: str
    topic: str
    at: int
    """Microseconds."""


class Calculation(NamedTuple):
    at: int
    scores: list[tuple[str, int]]
    in_registry: set[str]
    out_registry: set[str]


class Settings(NamedTuple):
    slide: int
    window: int
    share: float = 0.5
    capacity: int | None = None


def messages(spark: SparkSession, events: Iterable[Event]) -> DataFrame:
    columns = list(zip(*events, strict=True))
    types = {"broker": pa.string(), "topic": pa.string(), "received_at": pa.timestamp("us", "UTC")}
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types.values(), strict=True)]
    return spark.createDataFrame(pa.table(arrays, names=list(types)))


def machine(events: Iterable[Event], using: Settings) -> list[Calculation]:
    """What a broker's own machine makes of them, calculation by calculation."""
    hot = HotTopics(using.slide / 1e6, using.window / 1e6, using.share, using.capacity)
    calculations = []

    def calculate() -> None:
        at = hot.deadline
        hot.handle_timer(at)
        if hot.scores:
            scores = list(hot.scores.items())
            registered = (set(hot.in_registry), set(hot.out_registry))
            calculations.append(Calculation(round(at * 1e6), scores, *registered))

    for event in sorted(events, key=lambda event: event.at):
        while hot.deadline < event.at / 1e6:
            calculate()
        hot.note(event.topic, event.at / 1e6)
    while hot.deadline != float("inf"):
        calculate()
    return calculations


def job(rows: Iterable[Row]) -> dict[str, list[Calculation]]:
    """Broker → what the job's rows say; a topic without a row stays where it is."""
    found: dict[str, list[Calculation]] = {}
    kept: dict[str, dict[str, bool]] = {}
    ordered = sorted(rows, key=lambda row: (*calculation_of(row), row.rank))
    for (broker, at), group in groupby(ordered, key=calculation_of):
        ranking = list(group)
        assert [row.rank for row in ranking] == list(range(1, len(ranking) + 1))
        sides = kept.setdefault(broker, {})
        sides |= {row.topic: row.kept for row in ranking}
        calculation = Calculation(
            at,
            [(row.topic, row.events) for row in ranking],
            {topic for topic, is_kept in sides.items() if is_kept},
            {topic for topic, is_kept in sides.items() if not is_kept},
        )
        found.setdefault(broker, []).append(calculation)
    return found


def calculation_of(row: Row) -> tuple[str, int]:
    return row.broker or NO_BROKER, microseconds(row.calculation_at)


def microseconds(at: datetime) -> int:
    return round((at.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))


def by_machines(events: Sequence[Event], using: Settings) -> dict[str, list[Calculation]]:
    """Each broker's, and under no name that of one that gets the events of all."""
    brokers = {event.broker for event in events}
    own = {name: machine([event for event in events if event.broker == name], using) for name in brokers}
    found = own | {NO_BROKER: machine(events, using)}
    return {name: calculations for name, calculations in found.items() if calculations}


def by_job(spark: SparkSession, events: Sequence[Event], using: Settings) -> DataFrame:
    journal = messages(spark, events)
    counts = topic_counts(journal, using.window / 1e6, using.slide / 1e6, starts=first_events(journal))
    return hot_topics(counts, using.share, using.capacity)


# Clocks that stand still, bursts, and silences that are longer than any window.
waits = st.one_of(st.just(0), st.just(0), st.integers(0, 6), st.integers(0, 40), st.integers(0, 400))
steps = st.tuples(waits, st.sampled_from(TOPICS), st.integers(1, 3))
streams = st.lists(st.lists(steps, min_size=1, max_size=25), min_size=8, max_size=16)
periods = st.tuples(st.integers(1, 12), st.integers(0, 30)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@settings(
    max_examples=5,
    phases=(Phase.explicit, Phase.generate),  # Shrinking is a query for each try.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@given(
    periods,
    st.sampled_from([0.5, 0.5, 0.0, 0.07, 1 / 3, 0.9, 1.0]),
    st.one_of(st.none(), st.integers(0, 4)),
    st.integers(0, 1_700_000_000 * 64),  # In the past: what lies ahead is left out.
    streams,
)
def test_equal_to_the_machine_per_broker_and_overall(
    spark: SparkSession,
    ticks: tuple[int, int],
    share: float,
    capacity: int | None,
    start: int,
    brokers: list[list[tuple[int, str, int]]],
) -> None:
    events = []
    for number, stream in enumerate(brokers):
        now = start + number
        for wait, topic, count in stream:
            now += wait
            events += [Event(f"broker {number}", topic, now * TICK)] * count
    using = Settings(ticks[0] * TICK, ticks[1] * TICK, share, capacity)
    assert job(by_job(spark, events, using).collect()) == by_machines(events, using)


def test_equal_with_the_documents_times(spark: SparkSession) -> None:
    """X.time 0.4 s, Y.time 2 s, and events at the very moments of calculations and of windows' begins."""
    using = Settings(400_000, 2_000_000)
    events = [Event("a", topic, at * 100_000) for at in range(0, 80, 2) for topic in TOPICS[: at % 7]]
    events += [Event("b", TOPICS[at % 3], at * 100_000) for at in range(4, 300, 5)]
    events += [Event("b", "x" * 129, 700_000), Event("b", "ö" * 128, 700_000)]  # Too long, and not.
    hot = by_job(spark, [Event("a", "first", 0), *events], using).cache()
    machines = by_machines([Event("a", "first", 0), *events], using)
    assert job(hot.collect()) == machines
    at_last = {name: calculations[-1] for name, calculations in machines.items()}
    sides: dict[str, tuple[set[str], set[str]]] = {name: (set(), set()) for name in machines}
    for row in registries(hot).collect():
        sides[row.broker or NO_BROKER][0 if row.kept else 1].add(row.topic)
    assert sides == {name: (last.in_registry, last.out_registry) for name, last in at_last.items()}


def test_without_starts_the_moments_are_multiples_of_the_slide(spark: SparkSession) -> None:
    """The machine, when its first event was at such a moment and long ago."""
    using = Settings(400_000, 2_000_000)
    long_ago = Event("a", "first", 1_000_000 * 400_000)
    events = [Event("a", TOPICS[n % 5], long_ago.at + 9_000_001 + n * n * 10_007) for n in range(60)]
    rows = hot_topics(topic_counts(messages(spark, events))).collect()
    without_first = [
        Calculation(at, scores, in_registry - {"first"}, out_registry)
        for at, scores, in_registry, out_registry in machine([long_ago, *events], using)
        if at > events[0].at
    ]
    assert job(rows) == {"a": without_first, NO_BROKER: without_first}


def test_times_that_cannot_be_are_left_out(spark: SparkSession) -> None:
    in_time = Event("a", "topic", 1_000_000)
    journal = messages(spark, [in_time, Event("a", "ahead", 4_102_444_800_000_000)]).unionByName(
        spark.createDataFrame([("a", "never", None)], "broker string, topic string, received_at timestamp")
    )
    assert {row.topic for row in topic_counts(journal).collect()} == {"topic"}


@pytest.mark.parametrize(
    ("window_s", "slide_s", "share", "capacity"),
    [(0.2, 0.4, 0.5, None), (2.0, 0.0, 0.5, None), (1e6, 0.4, 0.5, None), (2, 1, 1.1, None), (2, 1, 0.5, -1)],
)
def test_settings_that_mean_nothing_are_refused(
    spark: SparkSession, window_s: float, slide_s: float, share: float, capacity: int | None
) -> None:
    journal = messages(spark, [Event("a", "topic", 0)])
    with pytest.raises(ConfigError):
        hot_topics(topic_counts(journal, window_s, slide_s), share, capacity)


def test_a_stream_gives_each_calculation_once_and_whole(spark: SparkSession, tmp_path: Path) -> None:
    """Rows that come out of order within `late_s` are counted, a later one is not."""
    seconds = [[0.5, 1.3, 0.9], [3.0, 2.1], [9.0, 8.6], [0.6, 9.9], [20.0]]
    files = [[Event("a", f"t{at:.0f}", round(at * 1e6)) for at in file] for file in seconds]
    for number, events in enumerate(files):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(messages(spark, events).toArrow(), path)
        os.utime(path, (number, number))  # Spark reads the oldest first.
    schema = "broker string, topic string, received_at timestamp"
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path))
    batches: list[list[Row]] = []
    writer = (
        topic_counts(stream, late_s=1.0)
        .writeStream.foreachBatch(lambda batch, _: batches.append(hot_topics(batch).collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    query = writer.start()
    query.awaitTermination()
    rows = [row for batch in batches for row in batch]
    in_time = [event for events in files for event in events if event != Event("a", "t1", 600_000)]
    of_all = hot_topics(topic_counts(messages(spark, in_time))).collect()
    told = [row for row in of_all if microseconds(row.calculation_at) <= 18_600_000]
    assert len(batches) > len([batch for batch in batches if batch]) > 2, "told as time goes on"
    assert sorted(rows, key=str) == sorted(told, key=str)
    dropped = [
        int(state.numRowsDroppedByWatermark)
        for progress in query.recentProgress
        for state in progress.stateOperators
    ]
    assert sum(dropped) == 1
