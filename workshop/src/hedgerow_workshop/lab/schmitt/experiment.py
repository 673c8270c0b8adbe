"""`hedgerow lab run schmitt`: which runs there are, and the rows that they become.

QoS 0 and QoS 1 share a run. The loss at QoS 0 is the time until a departure is noticed, so its rows are those
of killed brokers; at QoS 1 a row is the worst of all departures.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

from hedgerow.errors import ConfigError
from hedgerow.node.programs import find_program
from hedgerow_workshop.lab.brokers import KINDS
from hedgerow_workshop.lab.experiments import Request, Result, Row
from hedgerow_workshop.lab.journals import leave
from hedgerow_workshop.lab.schmitt import measure, report
from hedgerow_workshop.lab.schmitt.journal import journal_of
from hedgerow_workshop.lab.schmitt.record import Departure, Mode, Record, Spec
from hedgerow_workshop.lab.schmitt.side_by_side import run_all
from hedgerow_workshop.lab.schmitt.timeline import TIMELINE, read_timeline

OURS, STOCK = "hedgerow", "mosquitto"
DYNAMIC = (Mode.GHOST, Mode.PURE)


def run(request: Request) -> Result:
    if request.broker not in KINDS:
        raise ConfigError(f"no broker {request.broker}; there are {', '.join(KINDS)}")
    if request.out is not None:
        request.out.mkdir(parents=True, exist_ok=True)
    path = request.timeline or TIMELINE
    timeline = read_timeline(path)
    notes = []
    specs = list(choose_runs(request.broker, request.fast))
    if find_program(STOCK) is None:
        if request.broker == STOCK:
            raise ConfigError("mosquitto is not on PATH")
        specs = [spec for spec in specs if spec.kind != STOCK]
        notes.append("mosquitto is not on PATH: there is no run with it.")
    runs = [(spec, timeline.seconds(spec.departure, request.fast)) for spec in specs]
    with tempfile.TemporaryDirectory(prefix="hedgerow-lab-") as directory:
        records = asyncio.run(run_all(runs, path.absolute(), Path(directory), request.say))
    rows = make_rows(request.broker, records)
    notes += make_notes(records)
    page = None
    if request.out is not None:
        for record in records:
            record.write(request.out / f"{record.spec.file_name}.json")
        leave(request.out, "schmitt", list(map(journal_of, records)), rows, notes)
        page = report.write_report(request.out, timeline, records, rows, notes)
    return Result(rows, notes, page)


def choose_runs(broker: str, fast: bool) -> Iterator[Spec]:
    """Those of which rows are made; without `fast`, those too that only stand beside them in the report.
    Killed brokers first: their runs are the same for all rows that are compared."""
    for departure in Departure:
        for mode in Mode:
            if mode in DYNAMIC or departure is Departure.KILL or not fast:
                yield Spec(broker, mode, departure)
        if departure is Departure.KILL and broker != STOCK:
            yield Spec(STOCK, Mode.PURE, departure)


def make_rows(broker: str, records: Sequence[Record]) -> list[Row]:
    prefix = "" if broker == OURS else f"{broker}/"
    ours = [record for record in records if record.spec.kind == broker]
    dynamic = [record for record in ours if record.spec.mode in DYNAMIC]
    rows = [
        Row(f"{prefix}loss/{mode}/qos0", "%", _killed_loss(ours, mode), report.PUBLISHED[mode])
        for mode in Mode
    ]
    for mode in DYNAMIC:
        losses = [measure.loss_percent(record, 1) for record in dynamic if record.spec.mode is mode]
        rows.append(Row(f"{prefix}loss/{mode}/qos1", "%", max(losses, default=None)))
    doubled = [measure.count_doubled(record, 1) for record in ours]
    rows.append(Row(f"{prefix}doubled", "messages", sum(doubled) if doubled else None))
    for departure in (Departure.KILL, Departure.CUT):
        healed = [
            heal for record in dynamic if record.spec.departure is departure for heal in measure.heals(record)
        ]
        rows.append(Row(f"{prefix}heal/{departure}", "ms", 1_000 * median(healed) if healed else None))
    if broker != STOCK:
        stock = [record for record in records if record.spec.kind == STOCK]
        loss = _killed_loss(stock, Mode.PURE)
        rows.append(Row(f"{STOCK}/loss/{Mode.PURE}/qos0", "%", loss, report.PUBLISHED[Mode.PURE]))
    return rows


def make_notes(records: Iterable[Record]) -> Iterator[str]:
    for record in records:
        if record.spec.mode is Mode.STATIC:
            hub = record.brokers[-1]
            away = measure.away_percent(record, hub)
            yield f"{record.spec}: broker {hub}, the hub, was away for {away:.1f} % of the run."
        for broker in measure.never_heard_again(record):
            yield f"{record.spec}: broker {broker} heard nothing any more after its return."


def _killed_loss(records: Iterable[Record], mode: Mode) -> float | None:
    losses = [
        measure.loss_percent(record, 0)
        for record in records
        if record.spec.mode is mode and record.spec.departure is Departure.KILL
    ]
    return max(losses, default=None)
