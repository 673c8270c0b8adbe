"""`hedgerow lab run backlog`: what waits on the disk of nodes, in five parts, and their rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path

from hedgerow.errors import ConfigError
from hedgerow_workshop.lab.backlog import full, report
from hedgerow_workshop.lab.backlog.line import Line
from hedgerow_workshop.lab.backlog.record import (
    MIB,
    FullRecord,
    Heard,
    LineRecord,
    Record,
    SharedRecord,
    StartRecord,
)
from hedgerow_workshop.lab.backlog.settings import FAST, BacklogSettings
from hedgerow_workshop.lab.backlog.shared import share
from hedgerow_workshop.lab.backlog.start import start
from hedgerow_workshop.lab.harness.experiment import Request, Result, carry_out, hand_in
from hedgerow_workshop.lab.harness.rows import Row

Perform = Callable[[BacklogSettings, Path], Awaitable[Record]]

PARTS: Mapping[str, tuple[Perform, str]] = {
    "line": (
        lambda settings, directory: Line(settings, directory, is_killed=False).perform(),
        "a line of three nodes, and a slow reader",
    ),
    "killed": (
        lambda settings, directory: Line(settings, directory, is_killed=True).perform(),
        "the same, with the middle node killed",
    ),
    "full": (full.fill, "a small file system that fills"),
    "shared": (share, "many sessions with the same wildcard"),
    "start": (start, "a node that starts with a backlog"),
}


def run(request: Request) -> Result:
    if request.timeline is not None:
        raise ConfigError("backlog takes no --timeline")
    if request.broker != "hedgerow":
        raise ConfigError("backlog is about nodes of Hedgerow: it takes no --broker")
    for name in request.parts:
        if name not in PARTS:
            raise ConfigError(f'--part: backlog has no part "{name}"; there are {", ".join(PARTS)}')
    settings = FAST if request.fast else BacklogSettings()
    records, notes = carry_out(request, lambda directory: perform(settings, directory, request))
    return conclude(request, records, notes)


def conclude(request: Request, records: Mapping[str, Record], notes: Sequence[str] = ()) -> Result:
    rows = [row for name, record in records.items() for row in make_rows(name, record)]
    told = [*report.BARS.missed(rows), *notes, *make_notes(records)]
    return hand_in(request, "backlog", [], rows, told, lambda out: report.write_report(out, rows, told))


async def perform(
    settings: BacklogSettings, directory: Path, request: Request
) -> tuple[dict[str, Record], list[str]]:
    records: dict[str, Record] = {}
    notes: list[str] = []
    for name, (perform_part, what) in PARTS.items():
        if request.parts and name not in request.parts:
            continue
        part_directory = directory / name
        part_directory.mkdir()
        if name == "full" and (reason := full.why_not(part_directory)) is not None:
            notes.append(f"full was left out: there can be no small file system here ({reason}).")
            continue
        request.say(f"{name}: {what} …")
        records[name] = await perform_part(settings, part_directory)
    return records, notes


def make_rows(name: str, record: Record) -> Iterator[Row]:
    heard = record.heard
    missing = "lost" if isinstance(record, FullRecord) else "missing"
    yield Row(f"{name}/{missing}", "messages", heard.missing)
    yield Row(f"{name}/doubled", "messages", heard.doubled)
    match record:
        case LineRecord():
            yield Row(f"{name}/memory", "MiB", max(record.memory.values(), default=None))
            yield Row(f"{name}/read-rate", "messages/s", record.reading.rate)
            rate = heard.acknowledged / record.published_s if record.published_s else None
            yield Row(f"{name}/rate", "messages/s", rate)
            yield Row(f"{name}/passed-on", "s", record.passed_on_s)
        case FullRecord():
            yield Row(f"{name}/waited", "", float(record.has_waited))
            yield Row(f"{name}/continued", "", float(record.has_continued) if record.has_waited else None)
            yield Row(f"{name}/filled", "MiB", record.filled_bytes / MIB)
            yield Row(f"{name}/memory", "MiB", record.memory_mib)
        case SharedRecord():
            yield Row(f"{name}/disk-ratio", "", record.disk_ratio)
            yield Row(f"{name}/read-rate", "deliveries/s", record.reading.rate)
            yield Row(f"{name}/memory", "MiB", record.memory_mib)
        case StartRecord():
            yield Row(f"{name}/seconds", "s", record.seconds)
            yield Row(f"{name}/read-rate", "messages/s", record.reading.rate)
            yield Row(f"{name}/memory", "MiB", record.memory_mib)


def make_notes(records: Mapping[str, Record]) -> Iterator[str]:
    for name, record in records.items():
        yield f"{name}: {_heard(record.heard)}."
        if isinstance(record, LineRecord):
            memory = ", ".join(f"{node} {mib:.0f}" for node, mib in record.memory.items())
            read = f"{record.read_meanwhile:,} were read meanwhile"
            yield f"{name}: published in {record.published_s:.1f} s, {read}; MiB at most {memory}."


def _heard(heard: Heard) -> str:
    return f"{heard.acknowledged:,} to be read, {heard.repeated:,} came again with DUP"
