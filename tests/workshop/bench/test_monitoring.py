"""`hedgerow bench monitoring`: its rows and what it promises, with brokers that are all the same."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hedgerow.errors import ConfigError
from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.monitoring import PAIR, ROW_NAMES, measure, pair_of, publish_topics, run
from hedgerow_workshop.bench.peers import BROKERS, Child
from hedgerow_workshop.bench.report import BenchRequest
from tests.workshop.bench.test_end_to_end import MOMENT

SAME = pair_of(BROKERS["ceiling"])


def test_every_row_has_both() -> None:
    result = measure(SAME, MOMENT, topics=1_500)
    assert tuple(row.name for row in result.rows) == ROW_NAMES
    assert (result.ours, result.peers) == ("monitoring", ["plain"])
    assert [row.better for row in result.rows] == ["higher", "higher", "lower"]
    assert all(row.ours > 0 for row in result.rows[:2])
    assert all(row.peers.keys() == {"plain"} for row in result.rows)
    busy = result.about["busy"]
    assert isinstance(busy, dict)
    assert busy["monitoring"].keys() == {"monitoring", "plain"}


def test_only_the_rows_asked_for() -> None:
    for name in ROW_NAMES:
        assert [row.name for row in measure(SAME, MOMENT, 10, [name]).rows] == [name]


def test_what_is_not_as_promised_is_said() -> None:
    promising = replace(SAME, at_least=1e9, at_most_mib=-1e9)
    notes = measure(promising, MOMENT, 10).about["notes"]
    assert isinstance(notes, list)
    assert len(notes) == 4
    assert all("less than the 1e+09× that we promise" in note for note in notes[:2])
    assert "10 topics" in notes[2]
    assert "more than the -1e+09 MiB that we promise" in notes[3]


def test_the_one_that_monitors_is_told_to() -> None:
    broker, plain = (broker.command(1, Path()) for broker in PAIR.brokers)
    assert broker == [*plain, "--hot-topics"]


def test_a_broker_of_ours_that_fails_ends_the_bench() -> None:
    broken = replace(
        SAME.plain, command=lambda port, directory: [sys.executable, "-c", "raise SystemExit(3)"]
    )
    with pytest.raises(BenchError, match="plain: ended with status 3"):
        measure(replace(SAME, plain=broken), MOMENT, 10)


def test_each_topic_has_its_message(mosquitto_child: Child) -> None:
    with mosquitto_child.dialect.connect(mosquitto_child.port, "other") as other:
        mosquitto_child.dialect.subscribe(other, ["bench/memory/0001233"])
        publish_topics(mosquitto_child, 1_234)
        expected = mosquitto_child.dialect.delivery("bench/memory/0001233")
        assert other.recv(len(expected) + 1) == expected


def test_unknown_names_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="no row qos9; there are monitoring, monitoring-processor, memory-topics"
    ):
        run(BenchRequest(only=("qos9",)))
    with pytest.raises(ConfigError, match="no peer mosquitto; there are plain"):
        run(BenchRequest(peers=("mosquitto",)))
