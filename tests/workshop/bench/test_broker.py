"""`bench broker` as a whole, on plans of a moment."""

from __future__ import annotations

import resource
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from hedgerow.errors import ConfigError
from hedgerow.topics import is_wildcard, matches, validate_filter
from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.broker import (
    ROW_NAMES,
    SCENARIOS,
    TOPICS,
    TOPICS_FILTER,
    crowd_filters,
    file_system,
    plan,
    run,
)
from hedgerow_workshop.bench.peers import BROKERS, BrokerKind
from hedgerow_workshop.bench.report import BenchRequest
from hedgerow_workshop.bench.rounds import FULL, QUICK, Plan
from hedgerow_workshop.bench.scenarios import measure_all
from hedgerow_workshop.bench.wire import Mqtt

MOMENT = Plan(rounds=2, warm_up_s=0.02, round_s=0.05, starts=1)
CEILING = BROKERS["ceiling"]
OURS = replace(CEILING, name="ours")
ENDS_AT_ONCE = replace(
    BROKERS["mosquitto"],
    version=lambda: "0",
    command=lambda port, directory: [sys.executable, "-c", "raise SystemExit('out of hedges')"],
)
measure = partial(measure_all, SCENARIOS)
ABSENT = replace(BROKERS["nats-server"], version=lambda: None)


def mosquitto() -> BrokerKind:
    if BROKERS["mosquitto"].version() is None:
        pytest.skip("mosquitto is not installed; `make test` fetches it where it can")
    return BROKERS["mosquitto"]


def test_every_row_is_measured() -> None:
    """Mosquitto stands in for ours too, so that it takes every kind of load."""
    little = replace(MOMENT, rounds=1, idle_connections=50, crowd_subscriptions=2_000)
    peer = mosquitto()
    result = measure(replace(peer, name="ours"), [peer], little)
    assert tuple(row.name for row in result.rows) == ROW_NAMES
    assert result.peers == ["mosquitto"]
    assert result.about["notes"] == []
    for row in result.rows:
        assert row.peers.keys() == row.ratio.keys() == {"mosquitto"} or row.name == "memory-idle-connection"
        assert row.better == ("higher" if row.name.startswith(("qos", "matching")) else "lower")
        assert row.ours > 0 or row.name == "memory-idle-connection"


def test_ours_is_measured() -> None:
    """With its own arguments, and its store."""
    rows = ["qos0-topics", "qos1-durable", "qos2-1to1", "latency-1000-p99"]
    result = measure(BROKERS["hedgerow"], [], MOMENT, rows)
    assert [row.name for row in result.rows] == rows
    assert all(row.ours > 0 and row.peers == {} for row in result.rows)


def test_only_the_rows_asked_for() -> None:
    result = measure(OURS, [CEILING], MOMENT, ["latency-1-p50", "qos0-1to10"])
    assert [row.name for row in result.rows] == ["qos0-1to10", "latency-1-p50"]
    assert all(row.peers.keys() == {"ceiling"} for row in result.rows)


def test_a_peer_that_is_missing_or_fails_leaves_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    result = measure(OURS, [ENDS_AT_ONCE, ABSENT, CEILING], MOMENT, ["qos0-1to1"])
    assert result.about["notes"] == [
        "nats-server: not installed",
        "mosquitto: ended with status 1: out of hedges",
    ]
    assert [row.peers.keys() for row in result.rows] == [{"ceiling"}]
    assert "nats-server: not installed" in capsys.readouterr().err


def test_ours_failing_ends_the_bench() -> None:
    with pytest.raises(BenchError, match="ours: ended with status 1: out of hedges"):
        measure(replace(ENDS_AT_ONCE, name="ours"), [CEILING], MOMENT, ["qos0-1to1"])


def test_a_peer_that_stalls_leaves_a_note() -> None:
    """The forwarder acknowledges nothing, so to the QoS 1 rows it is a broker that has stalled."""
    silent = replace(CEILING, name="amqtt", dialect=_Granting())
    result = measure(replace(mosquitto(), name="ours"), [silent], replace(MOMENT, stall_s=0.2), ["qos1-1to1"])
    assert str(result.about["notes"]).startswith(
        "['amqtt: stalled: of 1000 messages sent, 0 were acknowledged"
    )
    assert [row.peers for row in result.rows] == [{}]


class _Granting(Mqtt):
    """Takes the QoS that the forwarder grants, 0, for the one it asked for."""

    def subscribe(self, connection: socket.socket, topic_filters: Sequence[str], qos: int = 0) -> None:
        super().subscribe(connection, topic_filters)


def test_too_few_open_files_is_said() -> None:
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    result = measure(OURS, [], replace(MOMENT, idle_connections=limit), ["memory-idle-connection"])
    assert result.rows == []
    assert result.about["notes"] == [
        f"memory-idle-connection: needs {limit + 200} open files, and the hard limit is {limit}"
    ]


def test_a_crowd_of_different_filters_that_match_nothing() -> None:
    filters = crowd_filters(100_000)
    assert len(set(filters)) == 100_000
    assert all(is_wildcard(validate_filter(each)) for each in filters)
    assert not any(matches(each, TOPICS[7]) for each in filters)
    assert all(matches(TOPICS_FILTER, topic) for topic in TOPICS)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="no row qos9; there are qos0-1to1, "):
        run(BenchRequest(only=("qos9",)))
    with pytest.raises(ConfigError, match="no peer rabbit; there are mosquitto, "):
        run(BenchRequest(peers=("rabbit",)))


def test_the_quick_plan_fits_a_minute() -> None:
    """What its rounds take at least, which must leave time for the brokers to start."""
    for peers in (2, 4):
        quick = plan(quick=True, peers=peers)
        rounds = sum(
            quick.warm_up_s + quick.rounds * quick.round_s for scenario in SCENARIOS for _ in range(1 + peers)
        )
        assert rounds < 45
    assert plan(quick=True, peers=2) is QUICK
    assert plan(quick=False, peers=4) is FULL


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        ("/dev/vda / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n", "tmpfs"),
        ("tmpfs / tmpfs rw 0 0\n/dev/vda /tmp ext4 rw 0 0\n", "ext4"),
    ],
)
def test_the_file_system_is_that_of_the_nearest_mount(mounts: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text(mounts)
    assert file_system(Path("/tmp/x"), tmp_path / "mounts") == expected
