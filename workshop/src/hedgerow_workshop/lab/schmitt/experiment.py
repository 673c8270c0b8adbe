"""`hedgerow lab run schmitt`: which runs there are, and the rows that they become.

QoS 0 and QoS 1 share a run. The loss at QoS 0 is the time until a departure is noticed, so its rows are those
of killed brokers; at QoS 1 a row is the worst of all departures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median

from hedgerow_workshop.lab.harness.brokers import OURS, STOCK, check_kind
from hedgerow_workshop.lab.harness.experiment import Request, Result, carry_out, hand_in
from hedgerow_workshop.lab.harness.rows import Row
from hedgerow_workshop.lab.schmitt import measure, report
from hedgerow_workshop.lab.schmitt.record import Departure, Mode, SchmittRecord, SchmittSpec
from hedgerow_workshop.lab.schmitt.side_by_side import PlannedRun, run_all
from hedgerow_workshop.lab.schmitt.timeline import LINE_TIMELINE, TIMELINE, Timeline, read_timeline

DYNAMIC = (Mode.GHOST, Mode.PURE)
"""What is compared at QoS 1 and for every departure."""
GHOSTLY = (Mode.PUBLISHED, Mode.GHOST, Mode.PURE)
"""The policies for ghost links."""


def run(request: Request) -> Result:
    notes = check_kind(request.broker)
    star = request.timeline or TIMELINE
    paths = {mode: LINE_TIMELINE if mode is Mode.LINE else star for mode in Mode}
    timelines = {mode: read_timeline(path) for mode, path in paths.items()}
    runs = [
        PlannedRun(
            spec,
            timelines[spec.mode].seconds(spec.departure, request.fast),
            paths[spec.mode].absolute(),
        )
        for spec in choose_runs(request.broker, request.fast)
        if not (notes and spec.kind == STOCK)
    ]
    records = carry_out(request, lambda directory: run_all(runs, directory, request.say))
    return conclude(request, timelines, records, notes)


def conclude(
    request: Request, timelines: Mapping[Mode, Timeline], records: list[SchmittRecord], notes: list[str]
) -> Result:
    rows = make_rows(request.broker, records)
    notes += make_notes(records)
    return hand_in(
        request,
        "schmitt",
        records,
        rows,
        notes,
        lambda out: report.write_report(out, timelines, records, rows, notes),
    )


def choose_runs(broker: str, fast: bool) -> Iterator[SchmittSpec]:
    """Those of which rows are made; without `fast`, those too that only stand beside them in the report.
    Killed brokers first: their runs are the same for all rows that are compared."""
    for departure in Departure:
        for mode in (Mode.STATIC, *GHOSTLY):
            if mode in DYNAMIC or departure is Departure.KILL or not fast:
                yield SchmittSpec(broker, mode, departure)
        if departure is Departure.KILL and broker != STOCK:
            yield SchmittSpec(STOCK, Mode.PURE, departure)
    yield SchmittSpec(broker, Mode.LINE, Departure.KILL)


def make_rows(broker: str, records: Sequence[SchmittRecord]) -> list[Row]:
    prefix = "" if broker == OURS else f"{broker}/"
    ours = [record for record in records if record.spec.kind == broker]
    dynamic = [record for record in ours if record.spec.mode in DYNAMIC]
    rows = [
        Row(f"{prefix}loss/{mode}/qos0", "%", _killed_loss(ours, mode), report.PUBLISHED.get(mode))
        for mode in Mode
    ]
    for mode in (*GHOSTLY, Mode.LINE):
        losses = [measure.loss_percent(record, 1) for record in ours if record.spec.mode is mode]
        rows.append(Row(f"{prefix}loss/{mode}/qos1", "%", max(losses, default=None)))
    doubled = [measure.doubled(record, 1) for record in ours]
    rows.append(Row(f"{prefix}doubled", "messages", sum(doubled) if doubled else None))
    for departure in (Departure.KILL, Departure.CUT):
        healed = [
            heal for record in dynamic if record.spec.departure is departure for heal in measure.heals(record)
        ]
        rows.append(_times_row(f"{prefix}heal/{departure}", healed))
    rows += _published_rows(prefix, ours)
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


def _published_rows(prefix: str, ours: Iterable[SchmittRecord]) -> Iterator[Row]:
    """What the document names: the times of its transitions, and the changes that it wants few of."""
    killed = {record.spec.mode: record for record in ours if record.spec.departure is Departure.KILL}
    published = killed.get(Mode.PUBLISHED)
    found = list(measure.transitions(published)) if published is not None else []
    yield _times_row(f"{prefix}alpha/t3", [each.alpha for each in found if each.name == "t3" and each.alpha])
    reconnections = list(measure.ghost_reconnections(published)) if published is not None else []
    yield _times_row(f"{prefix}beta/{Mode.PUBLISHED}", reconnections)
    yield _times_row(f"{prefix}gamma/{Mode.PUBLISHED}", [each.gamma for each in found if each.gamma][:1])
    for mode in GHOSTLY:
        record = killed.get(mode)
        changes = (
            [len(each.created) + len(each.deleted) for each in measure.transitions(record)]
            if record
            else None
        )
        yield Row(f"{prefix}changes/{mode}", "bridges", None if changes is None else sum(changes))


def _times_row(name: str, seconds: Sequence[float]) -> Row:
    return Row(name, "ms", 1_000 * median(seconds) if seconds else None)


def _killed_loss(records: Iterable[SchmittRecord], mode: Mode) -> float | None:
    losses = [
        measure.loss_percent(record, 0)
        for record in records
        if record.spec.mode is mode and record.spec.departure is Departure.KILL
    ]
    return max(losses, default=None)
