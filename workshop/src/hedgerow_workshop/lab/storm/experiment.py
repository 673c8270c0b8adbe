"""`hedgerow lab run storm`: which runs there are, and the rows that they become.

A row that ends with the name of a kind is of the run in which nothing failed; the others have `killed` or
`cut` at their ends.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import uvloop

from hedgerow.errors import ConfigError
from hedgerow_workshop.lab.clients import quiet_clients
from hedgerow_workshop.lab.experiments import Request, Result, Row
from hedgerow_workshop.lab.journals import leave
from hedgerow_workshop.lab.storm import measure, report
from hedgerow_workshop.lab.storm.journal import journal_of
from hedgerow_workshop.lab.storm.record import Fault, Kind, Record
from hedgerow_workshop.lab.storm.run import Run
from hedgerow_workshop.lab.storm.settings import FAST, STORM, Settings, places
from hedgerow_workshop.lab.storm.subscribers import PACKAGES, is_installed

MAX_INCIDENTS = 5  # that are told of each run

WHAT_FAILS = {
    Fault.NONE: "nothing fails",
    Fault.KILLED: "the fixed broker is killed",
    Fault.CUT: "the link is cut",
}
UNITS = {"lost": "messages", "doubled": "messages", "repeated": "messages", "moves": "connections"}


def run(request: Request) -> Result:
    if request.timeline is not None:
        raise ConfigError("storm takes no --timeline")
    if request.broker != "hedgerow":
        raise ConfigError("only hedgerow nodes move clients: storm takes no --broker")
    settings = make_settings(request)
    kinds = [kind for kind in Kind if is_installed(kind)]
    notes = [f"{PACKAGES[kind]} is not installed: no {kind}." for kind in Kind if kind not in kinds]
    if request.out is not None:
        request.out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="hedgerow-lab-") as directory,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        quiet_clients(),
    ):
        records = runner.run(perform(settings, kinds, Path(directory), request.say))
    rows = list(make_rows(records))
    notes += [describe(settings, kinds), *make_notes(records)]
    page = None
    if request.out is not None:
        for record in records:
            record.write(request.out / f"storm{'-' if record.fault else ''}{record.fault}.json")
        leave(request.out, "storm", list(map(journal_of, records)), rows, notes)
        page = report.write_report(request.out, records, rows, notes)
    return Result(rows, notes, page)


def make_settings(request: Request) -> Settings:
    settings = FAST if request.fast else Settings()
    known = {each.name for each in fields(Settings)}
    changes: dict[str, Any] = {name: value for name, value in request.settings.items() if name in known}
    settings = replace(settings, **changes)
    settings.check()
    return settings


async def perform(
    settings: Settings, kinds: Sequence[Kind], directory: Path, say: Callable[[str], None]
) -> list[Record]:
    records = []
    for fault in Fault:
        say(f"storm of {settings.seconds:g} s, {WHAT_FAILS[fault]} …")
        records.append(await Run(settings, fault, kinds, directory / (fault or "calm")).perform())
    return records


def make_rows(records: Sequence[Record]) -> Iterator[Row]:
    for record in records:
        end = f"/{record.fault}" if record.fault else ""
        counted = {kind: measure.count(record, kind) for kind in Kind}
        for name, unit in UNITS.items():
            for kind, counts in counted.items():
                yield Row(f"{name}/{kind}{end}", unit, None if counts is None else getattr(counts, name))
        yield Row(f"flips{end}", "", len(record.flips))


def describe(settings: Settings, kinds: Sequence[Kind]) -> str:
    """What was run."""
    topics = list(chain.from_iterable(places(settings, len(kinds))))
    at_storm = topics.count(STORM)
    return (
        f"{settings.subscribers} subscribers ({', '.join(kinds)}), {at_storm} of them on the storm's topic, "
        f"{len(topics) - at_storm} on the calm ones; {settings.rate:g} publications a second at QoS 1, "
        f"{settings.storm_rate:g} of them on the storm's topic; {settings.seconds:g} s each; "
        f"X.time {settings.x_s:g} s; nodes {'with' if settings.durable else 'without'} a store."
    )


def make_notes(records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        name = record.fault or "nothing failed"
        busy = ", ".join(f"{each} {100 * share:.0f} %" for each, share in record.busy.items())
        yield f"{name}: of one processor took {busy}."
        for node in record.tracebacks:
            yield f"{name}: {node} wrote a traceback."
        incidents = sorted(measure.incidents(record))
        for at, text in incidents[:MAX_INCIDENTS]:
            yield f"{name}: {text} (published at {at:.3f} s)."
        if len(incidents) > MAX_INCIDENTS:
            yield f"{name}: … {len(incidents) - MAX_INCIDENTS} more."
