"""A run of the demo that does not go as it should: what is said, and what is left."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hedgerow_workshop.demo import run as runs
from hedgerow_workshop.demo.farm import wait_for_federator
from hedgerow_workshop.demo.ledger import Ledger
from hedgerow_workshop.demo.run import Demo, Options
from hedgerow_workshop.demo.story import Story
from hedgerow_workshop.demo.terminal import Terminal
from hedgerow_workshop.lab.harness.programs import LabError


async def test_a_federator_that_finds_nobody_is_told() -> None:
    with pytest.raises(LabError, match=r"^the federator of west did not find its neighbours within 0\.01 s$"):
        await wait_for_federator(asyncio.Event().wait(), 0.01)


@pytest.mark.parametrize(("free", "is_told"), [(4_096, True), (2**30, False)])
def test_a_full_disk_is_named_as_the_cause(free: int, is_told: bool, tmp_path: Path) -> None:
    class OnDisk(Demo):
        def free_bytes(self) -> int:
            return free

    stream = io.StringIO()
    people = SimpleNamespace(readings_sent=0, readings_heard=0)
    story: Any = SimpleNamespace(ledger=Ledger({}), measured={}, took={}, people=people, in_spark=None)
    demo = OnDisk(Options(), Terminal(stream, is_live=False), tmp_path / "hedgerow-demo-x")
    assert demo.sum_up(story, "step 2: waited in vain") == 1
    assert (f"no room is left in {tmp_path}" in stream.getvalue()) is is_told


def test_a_disk_that_is_full_before_the_farm_is_there_is_named_too() -> None:
    class EndsEarly(Demo):
        async def start(self, stack: object) -> Story:
            raise LabError("broker north ended before listening: it said nothing")

        def free_bytes(self) -> int:
            return 4_096

    stream = io.StringIO()
    with pytest.raises(LabError, match="north"):
        runs.run(Options(), Terminal(stream, is_live=False), EndsEarly)
    assert stream.getvalue().startswith("no room is left in ")


def test_files_are_removed_though_signals_go_on_coming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person who sees nothing happen presses Ctrl-C again."""

    class Ended(Demo):
        async def run(self) -> int:
            (self.directory / "file").touch()
            raise asyncio.CancelledError

    def impatient(*arguments: Any, **keywords: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        remove(*arguments, **keywords)

    remove = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", impatient)
    stream = io.StringIO()
    before = signal.getsignal(signal.SIGINT)
    assert runs.run(Options(), Terminal(stream, is_live=False), Ended, tmp_path) == 1
    assert stream.getvalue() == "ended at once, by a second signal\n"
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGINT) is before
