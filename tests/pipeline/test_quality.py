"""What became of messages between two ends, on a few rows that show one thing each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from hedgerow.pipeline.jobs.ingest import bronze_schema
from hedgerow.pipeline.jobs.quality import (
    DELIVERY_COLUMNS,
    GAP_COLUMNS,
    LATENCY_COLUMNS,
    QUALITY_COLUMNS,
    deliveries,
    gaps,
    latency,
    quality,
    summarise,
)
from tests.pipeline.rows import SCHEMA as MESSAGE_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = bronze_schema(MESSAGE_SCHEMA)
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def row(broker: str, sequence: int, at_ms: float = 0.0, **more: Any) -> dict[str, Any]:
    """A message of a's, at `broker`."""
    received_at = NOON + timedelta(seconds=sequence, milliseconds=at_ms)
    return {
        "journal": f"of {more.get('client') or broker}", "position": sequence, "origin": "a", "epoch": 1,
        "sequence": sequence, "broker": broker, "transport": "mqtt", "client": None, "topic": "field/1",
        "payload": b"", "qos": 0, "retain": False, "properties": None, "published_at": None,
        "received_at": received_at, "date": "2026-06-01", "hour": 12, "clamped": None,
    } | more  # fmt: skip


def subscriber(sequence: int, at_ms: float = 0.0, **more: Any) -> dict[str, Any]:
    return row("b", sequence, at_ms, transport="subscriber", client="app", **more)


def hop(broker: str, via: str, sequence: int, at_ms: float = 0.0, **more: Any) -> dict[str, Any]:
    return row(broker, sequence, at_ms, transport="neighbour", client=via, journal=f"of {broker}", **more)


def bronze(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    return spark.createDataFrame([tuple(each[name] for name in SCHEMA.names) for each in rows], SCHEMA)


def found(frame: DataFrame) -> dict[tuple[Any, ...], dict[str, Any]]:
    """By kind, source, target and topic."""
    rows = [each.asDict() for each in frame.collect()]
    by_key = {(each["kind"], each["source"], each["target"], each["topic"]): each for each in rows}
    assert len(by_key) == len(rows)
    for each in rows:
        parts = each["before"] + each["delivered"] + (each["lost"] or 0) + each["open_end"]
        assert each["published"] == parts, each
    return by_key


@pytest.fixture(scope="module")
def table(spark: SparkSession) -> dict[tuple[Any, ...], dict[str, Any]]:
    """a → b, and an application at b; c is behind b. Of other topics and origins one message or two."""
    at_a = [row("a", number, published_at=NOON) for number in range(1, 11)]
    # b has 3, 4, 7 and 9 of 1 … 10: it subscribed late, and 10 may be under way.
    at_b = [hop("b", "a", number, delay) for number, delay in ((3, 10), (4, 20), (7, 30), (9, -5))]
    at_c = [hop("c", "b", number, 40) for number in (3, 4, 9)]
    at_app = [subscriber(3, 11), subscriber(4, 22), subscriber(4, 23), subscriber(7, 0, retain=True)]
    other = [
        row("a", 20, topic="field/2"),
        row("b", 20, 2, topic="north/field/2", transport="bridge", client="a"),
        row("b", 21, 1, origin="meter", published_at=NOON + timedelta(seconds=21), client="meter"),
        row("b", 23, 1, origin="meter", published_at=NOON + timedelta(seconds=23), client="meter"),
        row("a", 24, topic="field/3"),
        row("b", 24, 5, topic="field/3", clamped="in the future"),
        row("b", 25, origin=None, epoch=None),
    ]
    return found(quality(bronze(spark, at_a + at_b + at_c + at_app + other)))


def test_a_link_has_lost_what_is_missing_between_the_first_and_the_last(table: Any) -> None:
    link = table["link", "a", "b", "field/1"]
    assert tuple(link) == QUALITY_COLUMNS
    counts = [link[name] for name in ("published", "before", "delivered", "lost", "open_end", "gaps")]
    assert counts == [10, 2, 4, 3, 1, 2]
    assert link["basis"] == "journal"
    assert link["duplicates"] == 0
    assert link["first_at"].second == 3


def test_delays_are_exact_and_negative_ones_are_told(table: Any) -> None:
    link = table["link", "a", "b", "field/1"]  # -5, 10, 20 and 30 ms
    assert link["delay_p50_s"] == pytest.approx(0.015)
    assert link["delay_max_s"] == pytest.approx(0.030)
    assert link["delay_p99_s"] == pytest.approx(0.030 - 0.03 * 0.010)
    assert link["negative"] == 1
    assert link["clock_skew_s"] == pytest.approx(0.005)
    assert table["link", "a", "c", "field/1"]["clock_skew_s"] == 0


def test_a_subscriber_may_get_a_message_twice(table: Any) -> None:
    app = table["subscriber", "a", "app", "field/1"]
    assert [app[name] for name in ("delivered", "lost", "duplicates", "before", "open_end")] == [
        3,
        2,
        1,
        2,
        3,
    ]
    # The retained value is no measure of the way, nor is the second copy.
    assert app["delay_max_s"] == pytest.approx(0.022)


def test_a_hop_is_told_by_the_neighbour_in_the_journal(table: Any) -> None:
    second = table["hop", "b", "c", "field/1"]
    assert [second[name] for name in ("published", "delivered", "lost", "before", "open_end")] == [
        4,
        3,
        1,
        0,
        0,
    ]
    assert second["delay_p50_s"] == pytest.approx(0.030)  # 30, 20 and 45 ms after b had it
    # 7 came to b: on the whole way more is missing than on this hop.
    assert table["link", "a", "c", "field/1"]["lost"] == 4


def test_a_message_is_known_by_its_id_whatever_its_topic_is_called(table: Any) -> None:
    assert table["link", "a", "b", "field/2"]["delivered"] == 1
    assert ("link", "a", "b", "north/field/2") not in table


def test_without_the_origins_journal_what_any_journal_has_was_published(table: Any) -> None:
    meter = table["link", "meter", "b", "field/1"]
    assert [meter[name] for name in ("basis", "published", "delivered")] == ["known", 2, 2]
    assert meter["delay_p50_s"] == pytest.approx(0.001)  # by the publisher's own time


def test_what_nobody_knows_is_not_0(table: Any, spark: SparkSession) -> None:
    meter = table["link", "meter", "b", "field/1"]  # 22 was lost before b, or was of another topic
    assert (meter["lost"], meter["gaps"]) == (None, None)
    of_all = table["link", "meter", "b", None]
    assert (of_all["basis"], of_all["lost"], of_all["gaps"]) == ("known", None, None)
    # With the source's journal 0 is a fact, and without it what another journal has was lost at least.
    assert (table["link", "a", "b", "field/2"]["lost"], table["link", "a", "b", "field/2"]["gaps"]) == (0, 0)
    elsewhere = [row("c", number, origin="meter") for number in (1, 2, 3)]
    lossy = found(quality(bronze(spark, elsewhere + [row("b", number, origin="meter") for number in (1, 3)])))
    assert lossy["link", "meter", "b", "field/1"]["lost"] == 1
    assert lossy["link", "meter", "c", "field/1"]["lost"] is None


def test_a_time_that_bronze_clamped_is_no_measure(table: Any) -> None:
    clamped = table["link", "a", "b", "field/3"]
    assert clamped["delivered"] == 1
    assert clamped["delay_p50_s"] is None
    assert clamped["clock_skew_s"] is None


def test_all_topics_of_a_link_together(table: Any) -> None:
    link = table["link", "a", "b", None]
    assert [link[name] for name in ("published", "delivered", "lost", "gaps")] == [12, 6, 3, 2]


def test_gaps_are_ranges_of_the_topics_own_messages_in_one_life_of_the_origin(spark: SparkSession) -> None:
    """Sequences 3 and 5 are of another topic: 2, 4 and 6 are one gap. The origin then begins anew."""
    sent = [row("a", number) for number in (1, 2, 4, 6, 7, 8, 9)]
    sent += [row("a", number, epoch=2) for number in (1, 2, 3)]
    got = [row("b", 1), row("b", 7), row("b", 8), row("b", 2, epoch=2)]
    told = deliveries(bronze(spark, sent + got + [row("a", 3, topic="t"), row("a", 5, topic="t")]))
    assert tuple(told.columns) == DELIVERY_COLUMNS
    ranges = gaps(told)
    assert tuple(ranges.columns) == GAP_COLUMNS
    seen = {(r.epoch, r.first_sequence, r.last_sequence, r.missing) for r in ranges.collect()}
    assert seen == {(1, 2, 6, 3), (1, 9, 9, 1), (2, 1, 1, 1)}
    link = found(summarise(told))["link", "a", "b", None]
    assert (link["gaps"], link["lost"], link["open_end"]) == (3, 5, 1)


def test_a_recorders_journal_may_count_as_a_subscriber(spark: SparkSession) -> None:
    rows = [
        row("a", 1),
        row("a", 2),
        row("a", 1, 5, journal="recorder's"),
        row("a", 2, 6, journal="recorder's"),
    ]
    table = found(quality(bronze(spark, rows), {"recorder's": "barn"}))
    assert table["subscriber", "a", "barn", None]["delivered"] == 2
    assert not any(kind == "link" for kind, *_ in table)


def test_latency_and_loss_of_each_hop_by_the_minute(spark: SparkSession) -> None:
    """By the clock of the source, so that a minute's lost ones are in it; and neither of what came before."""
    at_a = [row("a", number) for number in (1, 10, 20, 50, 70, 80)]
    at_b = [hop("b", "a", number, delay) for number, delay in ((10, 10), (50, 30), (70, 15_000), (80, 40))]
    rows = latency(deliveries(bronze(spark, [*at_a, *at_b]))).where("kind = 'hop'").orderBy("start")
    assert tuple(rows.columns) == LATENCY_COLUMNS
    noon = NOON.replace(tzinfo=None)
    found = [
        (each.start, each.delivered, each.lost, each.delay_p50_s, each.delay_max_s) for each in rows.collect()
    ]
    assert found == [
        (noon, 2, 1, pytest.approx(0.02), pytest.approx(0.03)),
        (noon + timedelta(minutes=1), 2, 0, pytest.approx(7.52), pytest.approx(15)),
    ]
