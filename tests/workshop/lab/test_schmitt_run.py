"""Runs with real processes, on a timeline of seconds: brokers go and return, and nothing is left behind."""

from __future__ import annotations

import subprocess
import sys
from math import inf
from pathlib import Path

import pytest

from hedgerow_workshop.lab.harness.brokers import Mosquitto
from hedgerow_workshop.lab.harness.programs import LabError
from hedgerow_workshop.lab.schmitt import measure
from hedgerow_workshop.lab.schmitt.brokers import Fleet
from hedgerow_workshop.lab.schmitt.clients import read_state
from hedgerow_workshop.lab.schmitt.record import Departure, Mode, SchmittRecord, SchmittSpec, StepTaken
from hedgerow_workshop.lab.schmitt.run import BridgedRun, seen_first
from hedgerow_workshop.lab.schmitt.side_by_side import PlannedRun, run_all
from hedgerow_workshop.lab.schmitt.timeline import GOES, RETURNS, TIMELINE, Step, Timeline
from tests.programs import need_program

STEPS = (Step("t0", 0.3, "3", GOES), Step("t4", 0.6, "3", RETURNS))


async def perform(
    spec: SchmittSpec, seconds: float, directory: Path, beta: float | None = None
) -> SchmittRecord:
    timeline = Timeline(
        run_s=seconds,
        fast_s={},
        settle_s=5,
        publish_interval_s=0.01,
        brokers=("1", "2", "3"),
        publisher="1",
        measured="2",
        steps=STEPS,
        beta=beta,
    )
    run = BridgedRun(spec, timeline, seconds, directory)
    await run.perform(at_once)
    return run.record


async def at_once() -> None:
    pass


async def test_the_agent_finds_another_way_while_the_hub_is_dead(tmp_path: Path) -> None:
    record = await perform(SchmittSpec("hedgerow", Mode.PURE, Departure.KILL), 3, tmp_path)
    assert len(record.sent) == 300
    assert [(step.name, step.broker, step.does) for step in record.happened] == [
        ("t0", "3", "goes"),
        ("t4", "3", "returns"),
    ]
    assert measure.loss_percent(record, 1) == 0
    assert measure.doubled(record, 1) == 0
    assert measure.loss_percent(record, 0) < 20  # without the agent, 30 and more
    assert len(list(measure.detections(record))) == len(list(measure.heals(record))) == 1
    assert list(measure.commands(record, "create"))
    went_at, returned_at = (step.at for step in record.happened)
    assert measure.live_bridges(record, went_at - 0.001) == {("1", "3"), ("2", "3")}
    assert measure.live_bridges(record, returned_at - 0.001) == {("1", "2")}
    assert not measure.never_heard_again(record)


def test_a_broker_is_back_when_the_agent_has_found_it() -> None:
    happened = [StepTaken("t0", 2.0, "3", GOES), StepTaken("t4", 4.0, "3", RETURNS)]
    found = [{"event": "broker_found", "broker": "3", "time": at} for at in (0.5, 3.9, 5.0)]
    assert [step.at for step in seen_first(happened, found)] == [2.0, 3.9]
    assert seen_first(happened, found[::2]) == happened


async def test_ghost_links_as_published_part_the_network_until_they_have_connected(tmp_path: Path) -> None:
    """3, the hub, returns: 1 and 2 are parted until their ghosts are up, and at QoS 1 lose nothing."""
    record = await perform(SchmittSpec("hedgerow", Mode.PUBLISHED, Departure.KILL), 7, tmp_path, beta=0.25)
    went, returned = measure.transitions(record)
    assert (went.created, went.deleted) == ({frozenset("12")}, set())
    assert (returned.created, returned.deleted) == (set(), {frozenset("12")})
    betas = list(measure.ghost_reconnections(record))
    assert len(betas) == 2
    assert returned.alpha is not None
    assert returned.gamma is not None
    assert min(betas) > returned.alpha
    assert returned.gamma > returned.alpha
    assert measure.loss_percent(record, 0) > 100 * (min(betas) - returned.alpha) / 7 - 3
    assert measure.loss_percent(record, 1) == 0
    assert measure.live_bridges(record, inf) == {("1", "3"), ("2", "3")}


@pytest.mark.parametrize("departure", [pytest.param(Departure.STOP, marks=pytest.mark.soak), Departure.CUT])
async def test_static_bridges_deliver_afterwards_what_they_could_not(
    departure: Departure, tmp_path: Path
) -> None:
    record = await perform(SchmittSpec("hedgerow", Mode.STATIC, departure), 1.5, tmp_path)
    went_at, returned_at = (step.at for step in record.happened)
    for broker in ("2", "3"):
        assert measure.loss_percent(record, 1, broker) == 0
        assert measure.doubled(record, 1, broker) == 0
        during = [a for a in record.arrived[broker][1] if went_at + 0.1 < a.at < returned_at]
        assert not during
    assert measure.loss_percent(record, 1, "1") == 0


async def test_stock_brokers_with_their_own_bridges(tmp_path: Path) -> None:
    need_program("mosquitto")
    record = await perform(SchmittSpec("mosquitto", Mode.STATIC, Departure.KILL), 1.5, tmp_path)
    went_at, _ = (step.at for step in record.happened)
    assert measure.live_bridges(record, went_at - 0.001) == {("1", "3"), ("2", "3")}
    assert measure.loss_percent(record, 0, "1") == 0
    assert measure.loss_percent(record, 0) > 25


async def test_a_broker_that_ends_by_itself_is_named(tmp_path: Path) -> None:
    async with Fleet("hedgerow", ["1", "2"], tmp_path) as fleet:
        await fleet.start(is_static=True)
        fleet.check()
        process = fleet.brokers["2"].process
        assert process is not None
        process.terminate()
        process.wait()
        with pytest.raises(LabError, match=r"broker 2 ended by itself: .*node 2 has stopped"):
            fleet.check()


async def test_a_broker_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with Mosquitto("1", tmp_path) as broker:
        broker.find_program = lambda name: None
        with pytest.raises(LabError, match="mosquitto is not on PATH"):
            await broker.start()


async def test_a_run_that_fails_says_which_and_why(tmp_path: Path) -> None:
    spec = SchmittSpec("mosquitto", Mode.PURE, Departure.KILL)
    planned = PlannedRun(spec, 1.0, tmp_path / "none.toml")
    with pytest.raises(LabError, match=r"^mosquitto pure kill: timeline .*none.toml: No such file"):
        await run_all([planned], tmp_path, lambda text: None)


def test_what_a_killed_run_started_ends_with_it(tmp_path: Path) -> None:
    """Whatever outlives it becomes a child of this process, and fails the test."""
    words = ["hedgerow", "static", "kill", "30", str(TIMELINE), str(tmp_path)]
    command = [sys.executable, "-m", "hedgerow_workshop.lab.schmitt.run", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while not (tmp_path / "broker-1" / "output").exists():
            assert process.poll() is None
        process.kill()


@pytest.mark.parametrize(
    ("payload", "word"), [(b"1", "up"), (b"0", "waiting"), (b"", ""), (b'{"state": "idle"}', "idle")]
)
def test_states_of_both_kinds_of_brokers(payload: bytes, word: str) -> None:
    assert read_state(payload) == word
