"""A run of the demo that does not go as it should: what is said, and what is left."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import signal
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hedgerow_workshop.demo import farm as farms
from hedgerow_workshop.demo import run as runs
from hedgerow_workshop.demo.farm import DemoFarm
from hedgerow_workshop.demo.ledger import Ledger
from hedgerow_workshop.demo.run import Demo, Options
from hedgerow_workshop.demo.terminal import Terminal
from hedgerow_workshop.lab.harness.programs import LabError


def test_a_federator_that_finds_nobody_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hear_nothing(farm: DemoFarm) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(farms, "FEDERATED_S", 0.01)
    monkeypatch.setattr(DemoFarm, "_hear_of_neighbours", hear_nothing)
    with pytest.raises(LabError, match=r"^the federator of west did not find its neighbours within 0\.01 s$"):
        asyncio.run(DemoFarm(tmp_path, None)._wait_for_federator())


@pytest.mark.parametrize(("free", "is_told"), [(4_096, True), (2**30, False)])
def test_a_full_disk_is_named_as_the_cause(
    free: int, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    stream = io.StringIO()
    people = SimpleNamespace(readings_sent=0, readings_heard=0)
    story: Any = SimpleNamespace(ledger=Ledger({}), measured={}, people=people, in_spark=None)
    demo = Demo(Options(), Terminal(stream, is_live=False), tmp_path / "hedgerow-demo-x")
    assert demo._sum_up(story, "step 2: waited in vain") == 1
    assert (f"no room is left in {tmp_path}" in stream.getvalue()) is is_told


def test_a_disk_that_is_full_before_the_farm_is_there_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def end_early(demo: Demo, stack: object) -> None:
        raise LabError("broker north ended before listening: it said nothing")

    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=4_096))
    monkeypatch.setattr(Demo, "_start", end_early)
    stream = io.StringIO()
    with pytest.raises(LabError, match="north"):
        runs.run(Options(), Terminal(stream, is_live=False))
    assert stream.getvalue().startswith("no room is left in ")


def test_files_are_removed_though_signals_go_on_coming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person who sees nothing happen presses Ctrl-C again."""

    async def be_ended(demo: Demo) -> int:
        (demo._directory / "file").touch()
        raise asyncio.CancelledError

    def impatient(*arguments: Any, **keywords: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        remove(*arguments, **keywords)

    remove = shutil.rmtree
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(shutil, "rmtree", impatient)
    monkeypatch.setattr(Demo, "run", be_ended)
    stream = io.StringIO()
    before = signal.getsignal(signal.SIGINT)
    assert runs.run(Options(), Terminal(stream, is_live=False)) == 1
    assert stream.getvalue() == "ended at once, by a second signal\n"
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGINT) is before
