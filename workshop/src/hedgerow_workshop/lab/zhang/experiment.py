"""`hedgerow lab run zhang`: the walk-through in both ways, and the rows that it becomes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hedgerow_workshop.lab.harness.experiment import Request, Result, carry_out, hand_in
from hedgerow_workshop.lab.harness.rows import Row
from hedgerow_workshop.lab.readings import measure
from hedgerow_workshop.lab.readings.experiment import check, make_notes, perform
from hedgerow_workshop.lab.readings.record import ReadingsRecord
from hedgerow_workshop.lab.readings.scene import Way
from hedgerow_workshop.lab.zhang import report
from hedgerow_workshop.lab.zhang.scenes import (
    BROKER_OPTIONS,
    FAST,
    STATION,
    UDP,
    WAYS,
    ZhangSettings,
    runs,
    steps_taken,
)


def run(request: Request) -> Result:
    reason = check(request, "zhang")
    if reason is not None:
        return conclude(request, [], [reason])
    settings = FAST if request.fast else ZhangSettings()
    records = carry_out(request, lambda directory: perform(runs(settings), directory, request, options_of))
    return conclude(request, records)


def options_of(way: Way) -> tuple[str, ...]:
    return BROKER_OPTIONS if way is UDP else ()


def conclude(request: Request, records: Sequence[ReadingsRecord], notes: Sequence[str] = ()) -> Result:
    rows = list(make_rows(records))
    told = [*report.BARS.missed(rows), *notes, *make_notes(request, records)]
    return hand_in(
        request, "zhang", records, rows, told, lambda out: report.write_report(out, records, rows, told)
    )


def make_rows(records: Sequence[ReadingsRecord]) -> Iterator[Row]:
    found = measure.by_scene_and_way(records)
    yield from measure.head_rows(found, STATION, UDP.name)
    for way in WAYS:
        record = found.get((STATION, way.name))
        yield Row(f"steps/{way.name}", "steps", None if record is None else steps_taken(record))
    yield from measure.rows_of(found, [(scene.name, way.name) for scene, way in runs(FAST)])
