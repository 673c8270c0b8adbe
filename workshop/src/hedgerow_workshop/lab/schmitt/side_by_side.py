"""Runs as processes, some at a time.

Runs that share the machine begin their timelines when all of them have started, one shortly after the other:
nobody starts a dozen programs while another one's departure is timed, and no two departures meet.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

from hedgerow.pipeline.program import ending_with_parent
from hedgerow_workshop.lab.harness.programs import LabError
from hedgerow_workshop.lab.schmitt.record import SchmittRecord, SchmittSpec, read_record

SIDE_BY_SIDE = 5  # of some seven processes each; on 2 cores they are busy for two thirds of the time
APART_S = 0.4
STOP_S = 10.0
"""How long a run that is told to stop may take."""


class PlannedRun(NamedTuple):
    spec: SchmittSpec
    seconds: float
    timeline: Path


class RunProcess:
    """`hedgerow_workshop.lab.schmitt.run` in a process. It ends with the block."""

    def __init__(self, planned: PlannedRun, directory: Path) -> None:
        spec, seconds, timeline = planned
        self._spec = spec
        self._directory = directory
        self._words = [spec.kind, spec.mode, spec.departure, str(seconds), str(timeline), str(directory)]

    async def __aenter__(self) -> RunProcess:
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hedgerow_workshop.lab.schmitt.run", *self._words),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            preexec_fn=ending_with_parent(),
        )
        return self

    async def __aexit__(self, *reason: object) -> None:
        if self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await self._process.communicate()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        if not await self._process.stdout.readline():
            await self.finish()

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def finish(self) -> SchmittRecord:
        """What it has written down. Raises LabError when it failed."""
        _, said = await self._process.communicate()
        if self._process.returncode != 0:
            lines = said.decode(errors="replace").strip().splitlines()
            reason = lines[-1] if lines else f"ended with status {self._process.returncode}"
            raise LabError(f"{self._spec}: {reason}")
        return read_record(self._directory / "record.json")


async def run_all(
    planned: Sequence[PlannedRun], directory: Path, say: Callable[[str], None]
) -> list[SchmittRecord]:
    """All runs, in their order. The first one that fails ends all."""
    records: list[SchmittRecord] = []
    for first in range(0, len(planned), SIDE_BY_SIDE):
        batch = planned[first : first + SIDE_BY_SIDE]
        say(", ".join(f"{each.spec} ({each.seconds:g} s)" for each in batch) + " …")
        async with AsyncExitStack() as stack:
            runs = [
                await stack.enter_async_context(RunProcess(each, directory / each.spec.file_name))
                for each in batch
            ]
            await asyncio.gather(*(run.wait_until_ready() for run in runs))
            for run in runs:
                run.begin()
                await asyncio.sleep(APART_S)
            records += await asyncio.gather(*(run.finish() for run in runs))
    return records
