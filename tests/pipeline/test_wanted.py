"""What is read of a journal for a query with filters, and how far."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from hedgerow.errors import ConfigError
from hedgerow.journal import Writer
from hedgerow.message import Message
from hedgerow.pipeline.options import read_options
from hedgerow.pipeline.source import HedgerowDataSource, SparkJournalReader
from hedgerow.pipeline.wanted import EVERYTHING, Wanted, wanted_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEGAN_AT = 1_700_000_000
LATER = datetime.fromtimestamp(BEGAN_AT + 60, UTC)


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ([], EVERYTHING),
        ([IsNotNull(("topic",)), Not(EqualTo(("topic",), "a")), EqualTo(("qos",), 1)], EVERYTHING),
        ([EqualTo(("topic",), "a/b")], Wanted(topics=("a/b",))),
        ([In(("topic",), ("a", "b"))], Wanted(topics=("a", "b"))),
        ([StringStartsWith(("topic",), "a/b")], Wanted(topics=("a/#",))),
        ([StringStartsWith(("topic",), "a/b/")], Wanted(topics=("a/b/#",))),
        ([StringStartsWith(("topic",), "a")], EVERYTHING),
        ([EqualTo(("topic",), "a/#/b")], EVERYTHING),
        ([EqualTo(("journal",), "j"), In(("journal",), ("j", "k"))], Wanted(journals=frozenset("j"))),
        ([GreaterThan(("position",), 5), LessThanOrEqual(("position",), 9)], Wanted(first=5, end=10)),
        ([EqualTo(("position",), 7), LessThan(("position",), 90)], Wanted(first=7, end=8)),
        (
            [GreaterThanOrEqual(("received_at",), LATER), LessThan(("received_at",), LATER)],
            Wanted(since=LATER.timestamp(), until=LATER.timestamp()),
        ),
    ],
)
def test_what_filters_can_mean(filters: list[Filter], wanted: Wanted) -> None:
    assert wanted_of(filters, EVERYTHING, ()) == wanted


def test_topics_of_the_options_stay() -> None:
    assert wanted_of([EqualTo(("topic",), "a")], EVERYTHING, ("b/#",)) == EVERYTHING


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A message a second for two minutes, to two topics in turn, a frame for each."""
    for number in range(120):
        with Writer(tmp_path / "journal", "north") as writer:
            message = Message(f"farm/{number % 2}", b"%d" % number)
            writer.append(message, transport="mqtt", received_at=BEGAN_AT + number)
    return tmp_path / "journal"


def positions(journal: Path, filters: list[Filter], **options: str) -> list[int]:
    """What is read, of which Spark would still take what it wants."""
    reader = SparkJournalReader(read_options({"journals": str(journal), **options}))
    assert reader.pushFilters(filters) == filters
    parts = reader.partitions()
    return [at for part in parts for batch in reader.read(part) for at in batch["position"].to_pylist()]


def test_what_is_not_wanted_is_not_read(journal: Path) -> None:
    assert positions(journal, []) == list(range(120))
    assert positions(journal, [EqualTo(("topic",), "farm/1")]) == list(range(1, 120, 2))
    assert positions(journal, [GreaterThan(("position",), 100)]) == list(range(100, 120))
    assert positions(journal, [GreaterThanOrEqual(("received_at",), LATER)]) == list(range(60, 120))
    assert positions(journal, [EqualTo(("journal",), "none")]) == []


def test_reading_may_end_before_the_end(journal: Path) -> None:
    assert positions(journal, [], endingTime=LATER.isoformat()) == list(range(60))
    assert positions(journal, [], endingPosition=f'{{"{journal}": 7}}') == list(range(7))
    assert positions(journal, [], endingPosition="earliest") == []
    with pytest.raises(ConfigError, match="endingTime needs received_at"):
        read_options({"journals": "j", "columns": "topic", "endingTime": LATER.isoformat()})
    options = {"journals": str(journal), "endingTime": LATER.isoformat()}
    source = HedgerowDataSource(options)
    with pytest.raises(ConfigError, match="a stream has no end"):
        source.streamReader(source.schema())


def test_any_session_knows_the_source(journal: Path, spark: SparkSession) -> None:
    """Nothing is registered, and SQL has its filters taken."""
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW messages USING hedgerow OPTIONS (journals '{journal}')")
    rows = spark.sql("SELECT topic, count(*) AS n FROM messages WHERE position >= 100 GROUP BY topic")
    assert {row.topic: row.n for row in rows.collect()} == {"farm/0": 10, "farm/1": 10}
