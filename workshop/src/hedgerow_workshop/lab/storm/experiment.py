"""`hedgerow lab run storm`: which runs there are, and the rows that they become.

A row that ends with the name of a kind is of the run in which nothing failed; the others have `killed` or
`cut` at their ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

from hedgerow.errors import ConfigError
from hedgerow_workshop.lab.harness.experiment import Request, Result, carry_out, hand_in
from hedgerow_workshop.lab.harness.rows import Row
from hedgerow_workshop.lab.storm import measure, report
from hedgerow_workshop.lab.storm.record import StormFault, StormRecord, SubscriberKind
from hedgerow_workshop.lab.storm.run import StormRun
from hedgerow_workshop.lab.storm.settings import FAST, STORM, StormSettings, places
from hedgerow_workshop.lab.storm.subscribers import PACKAGES, is_installed

MAX_INCIDENTS = 5  # that are told of each run

WHAT_FAILS = {
    StormFault.NONE: "nothing fails",
    StormFault.KILLED: "the fixed broker is killed",
    StormFault.CUT: "the link is cut",
}
UNITS = {"lost": "messages", "doubled": "messages", "repeated": "messages", "moves": "connections"}


def run(request: Request) -> Result:
    if request.timeline is not None:
        raise ConfigError("storm takes no --timeline")
    if request.broker != "hedgerow":
        raise ConfigError("only hedgerow nodes move clients: storm takes no --broker")
    settings = make_settings(request)
    kinds = [kind for kind in SubscriberKind if is_installed(kind)]
    notes = [f"{PACKAGES[kind]} is not installed: no {kind}." for kind in SubscriberKind if kind not in kinds]
    records = carry_out(request, lambda directory: perform(settings, kinds, directory, request.say))
    return conclude(request, records, [*notes, describe(settings, kinds)])


def conclude(request: Request, records: list[StormRecord], notes: list[str]) -> Result:
    rows = list(make_rows(records))
    notes += make_notes(records)
    return hand_in(
        request, "storm", records, rows, notes, lambda out: report.write_report(out, records, rows, notes)
    )


def make_settings(request: Request) -> StormSettings:
    settings = FAST if request.fast else StormSettings()
    known = {each.name for each in fields(StormSettings)}
    changes: dict[str, Any] = {name: value for name, value in request.settings.items() if name in known}
    settings = replace(settings, **changes)
    settings.check()
    return settings


async def perform(
    settings: StormSettings, kinds: Sequence[SubscriberKind], directory: Path, say: Callable[[str], None]
) -> list[StormRecord]:
    records = []
    for fault in StormFault:
        say(f"storm of {settings.seconds:g} s, {WHAT_FAILS[fault]} …")
        records.append(await StormRun(settings, fault, kinds, directory / (fault or "calm")).perform())
    return records


def make_rows(records: Sequence[StormRecord]) -> Iterator[Row]:
    for record in records:
        end = f"/{record.fault}" if record.fault else ""
        counted = {kind: measure.count(record, kind) for kind in SubscriberKind}
        for name, unit in UNITS.items():
            for kind, counts in counted.items():
                yield Row(f"{name}/{kind}{end}", unit, None if counts is None else getattr(counts, name))
        yield Row(f"flips{end}", "", len(record.flips))


def describe(settings: StormSettings, kinds: Sequence[SubscriberKind]) -> str:
    """What was run."""
    topics = list(chain.from_iterable(places(settings, len(kinds))))
    at_storm = topics.count(STORM)
    return (
        f"{settings.subscribers} subscribers ({', '.join(kinds)}), {at_storm} of them on the storm's topic, "
        f"{len(topics) - at_storm} on the calm ones; {settings.rate:g} publications a second at QoS 1, "
        f"{settings.storm_rate:g} of them on the storm's topic; {settings.seconds:g} s each; "
        f"X.time {settings.x_s:g} s; nodes {'with' if settings.durable else 'without'} a store."
    )


def make_notes(records: Sequence[StormRecord], max_incidents: int = MAX_INCIDENTS) -> Iterator[str]:
    for record in records:
        name = record.fault or "nothing failed"
        busy = ", ".join(f"{each} {100 * share:.0f} %" for each, share in record.busy.items())
        yield f"{name}: of one processor took {busy}."
        for node in record.tracebacks:
            yield f"{name}: {node} wrote a traceback."
        incidents = sorted(measure.incidents(record))
        for at, text in incidents[:max_incidents]:
            yield f"{name}: {text} (published at {at:.3f} s)."
        if len(incidents) > max_incidents:
            yield f"{name}: … {len(incidents) - max_incidents} more."
