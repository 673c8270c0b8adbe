"""The form of an experiment: what it is asked for, what it answers, and what it leaves.

An experiment is a module with `run(Request) -> Result`. Its result is rows: a figure of ours beside the one
that was published, if there is one. They become a table on the terminal and a JSON file.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from hedgerow_workshop.lab.harness.clients import quiet_clients
from hedgerow_workshop.lab.harness.journals import leave
from hedgerow_workshop.lab.harness.record import RunRecord
from hedgerow_workshop.lab.harness.rows import Row

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """What an experiment is asked for."""

    fast: bool = False
    """Within a minute, and less exact."""
    out: Path | None = None
    """Where the report goes."""
    broker: str = "hedgerow"
    timeline: Path | None = None
    """None: the experiment's own."""
    say: Callable[[str], None] = lambda text: None
    """Told what is being done, while it is."""
    settings: Mapping[str, float] = field(default_factory=dict)
    """What the experiment is to have other than by itself, by the setting's name."""
    parts: Sequence[str] = ()
    """Of an experiment in parts, those to carry out; none: all."""

    def make_out(self) -> None:
        """Before an hour of work, not after it."""
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True, slots=True)
class Result:
    rows: list[Row]
    notes: list[str] = field(default_factory=list)
    """What a reader of the rows should know."""
    report: Path | None = None


def write_json(path: Path, result: Result) -> None:
    document = {"rows": [asdict(row) for row in result.rows]}
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def carry_out(request: Request, work: Callable[[Path], Coroutine[Any, Any, T]]) -> T:
    """`work` gets a directory that is gone afterwards."""
    request.make_out()
    with (
        tempfile.TemporaryDirectory(prefix="hedgerow-lab-") as directory,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        quiet_clients(),
    ):
        return runner.run(work(Path(directory)))


def hand_in(
    request: Request,
    experiment: str,
    records: Sequence[RunRecord],
    rows: list[Row],
    notes: list[str],
    write_report: Callable[[Path], Path],
) -> Result:
    """The result. Where a report is asked for, records, journals, rows and the report are left there;
    `write_report` writes it into the directory, and gives its path."""
    if request.out is None:
        return Result(rows, notes)
    for record in records:
        record.write(request.out / f"{record.file_name}.json")
    leave(request.out, experiment, records, rows, notes)
    return Result(rows, notes, write_report(request.out))
