"""`bench multicast` as a whole and in parts, on plans of a moment; bare sockets often stand in for ours."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hedgerow.errors import ConfigError
from hedgerow_workshop.bench import BenchError, multicast
from hedgerow_workshop.bench.multicast import CASES, CONTENDERS, FULL, QUICK, ROW_NAMES, Taken, measure, run
from hedgerow_workshop.bench.multicast_participant import Collect, RoundTally, make_mark, tag_of
from hedgerow_workshop.bench.multicast_team import Round, RoundLoad, outcome, team
from hedgerow_workshop.bench.report import BenchRequest
from hedgerow_workshop.bench.rounds import Plan
from tests.workshop.bench.test_peers import wait_until_gone
from tests.workshop.commands.test_bench import wait_for_children

MOMENT = Plan(rounds=1, warm_up_s=0.01, round_s=0.03, starts=1)
RAW = CONTENDERS["raw"]
ZENOH = CONTENDERS["zenoh"]


def test_every_row_is_measured() -> None:
    """Zenoh stands in for ours, since it too must deliver everything."""
    if ZENOH.version() is None:
        pytest.skip("eclipse-zenoh is not installed; the extra `bench` brings it")
    result = measure([RAW], MOMENT, ours=ZENOH)
    assert tuple(row.name for row in result.rows) == ROW_NAMES
    assert result.about["notes"] == []
    assert all(row.ours > 0 and row.peers["raw"] > 0 for row in result.rows)
    assert all(row.better == ("lower" if row.unit == "µs" else "higher") for row in result.rows)
    delivered = result.about["delivered"]
    assert isinstance(delivered, dict)
    assert delivered.keys() == {case.name for case in CASES}
    assert delivered["qos0-64-1to10"]["zenoh"]["share"] == 1
    assert len(delivered["qos0-64-1to10"]["raw"]["by_subscriber"]) == 10


def test_ours_is_measured() -> None:
    rows = ["qos0-64-1to1", "qos1-1024-1to1", "qos1-1024-1to1-p99"]
    result = measure([], MOMENT, rows)
    assert [row.name for row in result.rows] == ["qos0-64-1to1", "qos1-1024-1to1", "qos1-1024-1to1-p99"]
    assert all(row.ours > 0 and row.peers == {} for row in result.rows)
    delivered = result.about["delivered"]
    assert isinstance(delivered, dict)
    assert delivered["qos1-1024-1to1"]["hedgerow"]["share"] == 1


def test_a_peer_that_is_missing_or_fails_leaves_a_note() -> None:
    absent = replace(ZENOH, package="no-such-package")
    nobody = replace(RAW, name="nobody")
    result = measure([absent, nobody], MOMENT, ["qos0-64-1to1"], ours=RAW)
    assert result.about["notes"] == [
        "zenoh: not installed",
        "nobody: publisher ended with status 1: KeyError: 'nobody'",
    ]
    assert [row.peers for row in result.rows] == [{}]


def test_ours_failing_ends_the_bench() -> None:
    with pytest.raises(BenchError, match="nobody: publisher ended with status 1"):
        measure([RAW], MOMENT, ["qos0-64-1to1"], ours=replace(RAW, name="nobody"))


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="no row qos9; there are qos0-64-1to1, "):
        run(BenchRequest(only=("qos9",)))
    with pytest.raises(ConfigError, match="no peer hedgerow; there are raw, zenoh"):
        run(BenchRequest(peers=("hedgerow",)))


@pytest.mark.parametrize(("plan", "most_s"), [(QUICK, 40), (FULL, 150)])
def test_how_long_the_rounds_take(plan: Plan, most_s: float) -> None:
    """At least, which must leave time for the processes to start."""
    crowds = len(multicast.SUBSCRIBERS)
    loads = len(multicast.SIZES) * sum(len(contender.qualities) for contender in CONTENDERS.values())
    assert crowds * loads * (plan.warm_up_s + plan.rounds * 2 * plan.round_s) < most_s


def test_a_paced_round_times_every_delivery(tmp_path: Path) -> None:
    with team("raw", 2, tmp_path / "team") as made:
        paced = made.play(RoundLoad(64), 0.05, rate=200)
        fast = made.play(RoundLoad(1_024), 0.02)
    assert paced.sent == 10
    assert paced.received == [10, 10]
    assert len(paced.latencies) == 20
    assert all(0 < latency < paced.seconds * 1e9 for latency in paced.latencies)
    assert paced.seconds >= 0.04  # nine gaps of 5 ms, of which the first began a moment before the clock
    assert fast.latencies == []
    assert fast.rate == sum(fast.received) / fast.seconds > 0


def test_what_must_be_complete_is_checked() -> None:
    answers = [
        {"count": 5, "ended_at": 2_000_000_000, "latencies": []},
        {"count": 4, "ended_at": 3_000_000_000, "latencies": [7]},
    ]
    lossy = outcome(RoundLoad(64), 5, 1_000_000_000, answers)
    assert lossy == Round(sent=5, seconds=2.0, received=[5, 4], latencies=[7])
    assert lossy.rate == 4.5
    with pytest.raises(BenchError, match=r"of 5 messages the subscribers received \[5, 4\]"):
        outcome(RoundLoad(64, complete=True), 5, 1_000_000_000, answers)


def test_a_tally_ends_with_its_own_mark() -> None:
    tally = RoundTally(Collect(number=2, timed=False, complete=False))
    assert not tally.add(make_mark(1, 0))
    assert not tally.add(b"\x01 came late")
    assert not tally.add(b"\x02 a message")
    assert tally.add(make_mark(2, 5))
    assert tally.count == 1


def test_a_complete_tally_waits_for_what_comes_after_the_mark() -> None:
    tally = RoundTally(Collect(number=2, timed=False, complete=True))
    assert not tally.add(make_mark(2, 2))
    assert not tally.add(b"\x02 a message")
    assert not tally.add(b"\x01 came late")
    assert tally.add(b"\x02 another")


def test_what_an_unfinished_round_says() -> None:
    tally = RoundTally(Collect(number=2, timed=False, complete=True))
    tally.add(b"\x02 a message")
    assert str(tally.unfinished()) == "1 messages and no mark came within 20 s"
    tally.add(make_mark(2, 5))
    assert str(tally.unfinished()) == "1 messages of 5 came within 20 s"


def test_no_message_resembles_a_mark() -> None:
    for number in (254, 255, 256):
        tally = RoundTally(Collect(number, timed=False, complete=False))
        assert not tally.add(bytes((tag_of(number),)))
        assert tally.count == 1
        assert tally.add(make_mark(number, 1))


def test_what_rounds_come_to() -> None:
    """One slow round does not move the rate; every loss counts."""
    rounds = [Round(10, 1.0, [10, 10], []), Round(10, 1.0, [10, 8], []), Round(10, 4.0, [10, 10], [])]
    latencies = list(range(1_000, 101_000, 1_000))
    taken = Taken(rounds, [Round(50, 1.0, [50, 50], latencies[::-1])])
    assert taken.rate() == 18
    assert taken.share() == 58 / 60
    assert taken.by_subscriber() == [30 / 6, 28 / 6]
    assert taken.latency(50) == 51
    assert taken.latency(99) == 100


def test_a_killed_bench_leaves_no_participants(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path\n"
        "from hedgerow_workshop.bench.multicast_team import team\n"
        f"with team('raw', 1, Path({str(tmp_path / 'team')!r})): print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as bench:
        assert bench.stdout is not None
        bench.stdout.readline()
        children = wait_for_children(bench.pid, 2)
        bench.send_signal(signal.SIGKILL)
    for pid in children:
        wait_until_gone(pid)
