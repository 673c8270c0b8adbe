"""`hedgerow lab run schmitt`: which runs there are, and the rows that they become.

QoS 0 and QoS 1 share a run. The loss at QoS 0 is the time until a departure is noticed, so its rows are those
of killed brokers; at QoS 1 a row is the worst of all departures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from hedgerow_workshop.lab.harness.brokers import OURS, STOCK, check_kind
from hedgerow_workshop.lab.harness.experiment import Request, Result, carry_out, hand_in
from hedgerow_workshop.lab.harness.rows import Row
from hedgerow_workshop.lab.schmitt import measure, report
from hedgerow_workshop.lab.schmitt.record import Departure, Mode, SchmittRecord, SchmittSpec
from hedgerow_workshop.lab.schmitt.side_by_side import run_all
from hedgerow_workshop.lab.schmitt.timeline import TIMELINE, Timeline, read_timeline

DYNAMIC = (Mode.GHOST, Mode.PURE)


def run(request: Request) -> Result:
    notes = check_kind(request.broker)
    path = request.timeline or TIMELINE
    timeline = read_timeline(path)
    specs = [spec for spec in choose_runs(request.broker, request.fast) if not (notes and spec.kind == STOCK)]
    runs = [(spec, timeline.seconds(spec.departure, request.fast)) for spec in specs]
    records = carry_out(request, lambda directory: run_all(runs, path.absolute(), directory, request.say))
    return conclude(request, timeline, records, notes)


def conclude(request: Request, timeline: Timeline, records: list[SchmittRecord], notes: list[str]) -> Result:
    rows = make_rows(request.broker, records)
    notes += make_notes(records)
    return hand_in(
        request,
        "schmitt",
        records,
        rows,
        notes,
        lambda out: report.write_report(out, timeline, records, rows, notes),
    )


def choose_runs(broker: str, fast: bool) -> Iterator[SchmittSpec]:
    """Those of which rows are made; without `fast`, those too that only stand beside them in the report.
    Killed brokers first: their runs are the same for all rows that are compared."""
    for departure in Departure:
        for mode in Mode:
            if mode in DYNAMIC or departure is Departure.KILL or not fast:
                yield SchmittSpec(broker, mode, departure)
        if departure is Departure.KILL and broker != STOCK:
            yield SchmittSpec(STOCK, Mode.PURE, departure)


def make_rows(broker: str, records: Sequence[SchmittRecord]) -> list[Row]:
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
    doubled = [measure.doubled(record, 1) for record in ours]
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


def make_notes(records: Iterable[SchmittRecord]) -> Iterator[str]:
    for record in records:
        if record.spec.mode is Mode.STATIC:
            hub = record.brokers[-1]
            away = measure.away_percent(record, hub)
            yield f"{record.spec}: broker {hub}, the hub, was away for {away:.1f} % of the run."
        for broker in measure.never_heard_again(record):
            yield f"{record.spec}: broker {broker} heard nothing any more after its return."


def _killed_loss(records: Iterable[SchmittRecord], mode: Mode) -> float | None:
    losses = [
        measure.loss_percent(record, 0)
        for record in records
        if record.spec.mode is mode and record.spec.departure is Departure.KILL
    ]
    return max(losses, default=None)
