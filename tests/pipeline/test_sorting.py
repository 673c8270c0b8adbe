"""Messages into readings and quarantine: each into exactly one, whatever is killed between two steps."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hedgerow.errors import HedgerowError
from hedgerow.pipeline import sorting
from hedgerow.pipeline.delta import Delta, Upkeep
from hedgerow.pipeline.jobs.ingest import PARTITIONED_BY, bronze, bronze_schema
from hedgerow.pipeline.jobs.readings import READING_SCHEMA, parse
from hedgerow.pipeline.replay import replay_quarantine
from hedgerow.pipeline.rules import Rules, parse_rules
from hedgerow.pipeline.sorting import QUARANTINE, READINGS, Sorter
from hedgerow.pipeline.tables import append, checkpoint_place, read_growth, read_table, write_table
from tests.pipeline.rows import RECEIVED_AT, SCHEMA, message, messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RULES = parse_rules("[[reading]]\nfilter = 'farm/+'\nformat = 'number'\nsensor = [2]\n")
MORE_RULES = parse_rules(
    "[ignore]\nfilters = ['noise']\n"
    "[[reading]]\nfilter = 'farm/+'\nformat = 'number'\nsensor = [2]\n"
    "[[reading]]\nfilter = 'remote/+'\nformat = 'number'\nsensor = [2]\n"
)
LATER = RECEIVED_AT + timedelta(hours=1)
Messages = list[tuple[Any, ...]]


class Lake:
    """A stream of files into the two tables; a file is a batch."""

    def __init__(self, spark: SparkSession, place: Path) -> None:
        self.spark = spark
        self.place = str(place / "tables")
        self._in = str(place / "in")

    def add(self, rows: Messages) -> None:
        bronze(messages(self.spark, *rows)).coalesce(1).write.mode("append").parquet(self._in)

    def run(self, rules: Rules = RULES, **given: Any) -> None:
        """`given`: what else the sorter takes."""
        schema = bronze_schema(SCHEMA)
        stream = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(self._in)
        sorter = Sorter(self.spark, self.place, schema, 2, **given)
        writer = parse(stream, rules).writeStream.foreachBatch(sorter.sort)
        writer = writer.option("checkpointLocation", checkpoint_place(self.place, READINGS))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()

    def found(self, name: str) -> Counter[int]:
        return Counter(row.sequence for row in read_table(self.spark, self.place, name).collect())

    def both(self) -> tuple[list[int], list[int]]:
        return sorted(self.found(READINGS).elements()), sorted(self.found(QUARANTINE).elements())


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path)


def own(start: int, stop: int) -> Messages:
    return [message(n, topic="farm/a", origin="near", broker="near") for n in range(start, stop)]


def renamed(start: int, stop: int) -> Messages:
    given: dict[str, Any] = {"journal": "j2", "broker": "far", "transport": "bridge", "origin": "near"}
    return [message(n, topic="remote/a", **given) for n in range(start, stop)]


@pytest.mark.parametrize(
    ("own_first", "together"),
    [(True, True), (False, False)],
    ids=["own first, in one batch", "renamed first, in two batches"],
)
def test_a_bridge_that_renames_topics_costs_no_readings(lake: Lake, own_first: bool, together: bool) -> None:
    """100 good messages, of which another journal has copies that no rule knows."""
    parts = [own(0, 100), renamed(0, 110)]
    if not own_first:
        parts.reverse()
    for part in [parts[0] + parts[1]] if together else parts:
        lake.add(part)
    lake.run()
    assert lake.both() == (list(range(100)), list(range(100, 110)))
    # And whoever comes a third time.
    lake.add([*own(0, 100), *renamed(50, 110)])
    lake.run()
    assert lake.both() == (list(range(100)), list(range(100, 110)))


class KilledError(Exception):
    """In place of a SIGKILL."""


def killed(*_: object, **__: object) -> None:
    raise KilledError


def test_a_kill_at_any_step_of_a_batch(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the rules are others when it comes back: what was decided stays so."""
    lake.add(renamed(0, 10))
    lake.run()
    commit = Delta.commit

    def killed_at(table: str) -> Any:
        def commit_or_die(self: Delta, *words: Any, **named: Any) -> None:
            if self.name == table:
                raise KilledError
            commit(self, *words, **named)

        return commit_or_die

    places: list[tuple[object, str, Any]] = [
        (sorting, "store_step", killed),
        (sorting, "make_step", killed),
        (Delta, "commit", killed_at(QUARANTINE)),
        (Delta, "commit", killed_at(READINGS)),
        (Sorter, "_remember", killed),
    ]
    for number, (owner, name, instead) in enumerate(places, 1):
        start = 10 * number
        lake.add([*own(start - 5, start + 5), *renamed(start + 5, start + 10)])
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, instead)
            with pytest.raises(Exception, match="KilledError|was not written"):
                lake.run()
        lake.run(RULES if number % 2 else MORE_RULES)
        read, refused = lake.both()
        assert sorted(read + refused) == list(range(start + 10))
        assert set(read) >= {n for at in range(10, start + 1, 10) for n in range(at - 5, at + 5)}


def test_two_drivers_do_not_do_one_batch(lake: Lake) -> None:
    """Tables without their checkpoint would get all of bronze again."""
    lake.add(own(0, 5))
    lake.run()
    Path(checkpoint_place(lake.place, READINGS)).rename(Path(lake.place) / "elsewhere")
    with pytest.raises(HedgerowError, match="whose checkpoint .* is gone"):
        lake.run()
    (Path(lake.place) / "elsewhere").rename(checkpoint_place(lake.place, READINGS))
    lake.run()
    assert lake.both() == (list(range(5)), [])


def test_ids_are_remembered_over_many_batches_and_restarts(lake: Lake) -> None:
    for start in range(0, 30, 10):
        lake.add(own(start, start + 10))
        lake.run(fold_every=2, kept_steps=1)
    directory = Path(checkpoint_place(lake.place, "readings-steps"))
    assert len(list(directory.iterdir())) <= 5
    lake.add([*renamed(0, 32)])
    lake.run()
    assert lake.both() == (list(range(30)), [30, 31])


def test_other_rules_for_what_could_not_be_read(
    lake: Lake, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = [message(n, topic="noise", origin="near") for n in range(20, 25)]
    late = [message(n, topic="remote/a", origin="near", received_at=LATER) for n in range(25, 30)]
    bad = [message(n, topic="remote/a", origin="near", payload=b"x") for n in range(30, 33)]
    lake.add([*own(0, 10), *renamed(10, 20), *noise, *late, *bad])
    lake.run()
    assert lake.both() == (list(range(10)), list(range(10, 33)))

    with monkeypatch.context() as patch:
        patch.setattr(sorting, "make_step", killed)
        with pytest.raises(KilledError):
            replay_quarantine(spark, lake.place, MORE_RULES, end=LATER)
    # What the killed one has decided is made by whoever comes next.
    again = replay_quarantine(spark, lake.place, MORE_RULES, end=LATER)
    assert (again.messages, again.readings, again.quarantined) == (3, 0, 3)
    assert lake.both() == (list(range(20)), list(range(25, 33)))
    reasons = {row.sequence: row.reason for row in read_table(spark, lake.place, QUARANTINE).collect()}
    assert (reasons[25], reasons[30]) == ("no rule", "value is 'x', not a number")
    lake.add([*own(10, 20), *renamed(0, 20)])
    lake.run()
    assert lake.both() == (list(range(20)), list(range(25, 33)))
    replayed = replay_quarantine(spark, lake.place, MORE_RULES, start=LATER)
    assert str(replayed).startswith("5 messages parsed again: 5 into readings, 0 in quarantine")
    assert lake.both() == (list(range(20)) + list(range(25, 30)), [30, 31, 32])


def test_bronze_of_delta_is_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    """With what partitions it, which its files have not."""
    tables = str(tmp_path / "tables")
    schema = bronze_schema(SCHEMA)
    expected = []
    # A query may be older than the table that it reads.
    stream = read_growth(spark, tables, "bronze", schema, PARTITIONED_BY)
    for batch in range(2):
        hours = (RECEIVED_AT + timedelta(hours=n) for n in range(3))
        rows = bronze(
            messages(spark, *(message(batch * 3 + n, received_at=at) for n, at in enumerate(hours)))
        )
        expected += rows.collect()
        append(rows, batch, tables, "bronze", form="delta", query="q", partition_by=PARTITIONED_BY)
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "c"))
        query = writer.trigger(availableNow=True).start(str(tmp_path / "out"))
        assert query.awaitTermination(60)
    found = spark.read.schema(schema).parquet(str(tmp_path / "out"))
    assert sorted(found.collect(), key=lambda row: row.position) == expected


def test_messages_of_bronze_that_no_rule_knew(lake: Lake, spark: SparkSession) -> None:
    rows = [*own(0, 5), *renamed(0, 10), *renamed(3, 12)]
    stream_in = str(Path(lake.place).parent / "messages")
    messages(spark, *rows).coalesce(1).write.parquet(stream_in)
    stream = bronze(spark.readStream.schema(SCHEMA).parquet(stream_in))
    query = write_table(stream, lake.place, "bronze", query="ingest").trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    lake.add(rows)
    lake.run(Rules(RULES.readings, quarantines_unmatched=False))
    assert lake.both() == (list(range(5)), [])
    replayed = replay_quarantine(spark, lake.place, MORE_RULES, from_bronze=True)
    assert replayed.readings == 7
    assert lake.both() == (list(range(12)), [])


def test_a_stream_of_a_table_has_each_row_once(lake: Lake, spark: SparkSession, tmp_path: Path) -> None:
    """Though its small files become large ones meanwhile."""
    often = Upkeep(compact_every=3)

    def follow() -> list[int]:
        rows = read_growth(spark, lake.place, READINGS, sorting.struct(READING_SCHEMA))
        writer = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "c"))
        query = writer.trigger(availableNow=True).start(str(tmp_path / "out"))
        assert query.awaitTermination(60)
        return sorted(row.sequence for row in spark.read.parquet(str(tmp_path / "out")).collect())

    lake.add(own(0, 5))
    lake.run(upkeep=often)
    lake.add(own(5, 8))
    lake.run(upkeep=often)
    assert follow() == list(range(8))
    lake.add(own(8, 10))
    lake.run(upkeep=often)
    assert follow() == follow() == list(range(10))
    replay_quarantine(spark, lake.place, MORE_RULES)
    assert follow() == list(range(10))
