"""`hedgerow lab run genera`: the scenes, each in every way, and the rows that they become."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hedgerow_workshop.lab.genera import report
from hedgerow_workshop.lab.genera.scenes import COMPUTED, FAST, HOME, GeneraSettings, runs
from hedgerow_workshop.lab.harness.experiment import Request, Result, carry_out, hand_in
from hedgerow_workshop.lab.harness.rows import Row
from hedgerow_workshop.lab.readings import measure
from hedgerow_workshop.lab.readings.experiment import check, make_notes, perform
from hedgerow_workshop.lab.readings.record import ReadingsRecord


def run(request: Request) -> Result:
    reason = check(request, "genera")
    if reason is not None:
        return conclude(request, [], [reason])
    settings = FAST if request.fast else GeneraSettings()
    records = carry_out(request, lambda directory: perform(runs(settings), directory, request))
    return conclude(request, records)


def conclude(request: Request, records: Sequence[ReadingsRecord], notes: Sequence[str] = ()) -> Result:
    rows = list(make_rows(records))
    told = [*report.BARS.missed(rows), *notes, *make_notes(request, records)]
    return hand_in(
        request, "genera", records, rows, told, lambda out: report.write_report(out, records, rows, told)
    )


def make_rows(records: Sequence[ReadingsRecord]) -> Iterator[Row]:
    found = measure.by_scene_and_way(records)
    yield from measure.head_rows(found, HOME, COMPUTED.name)
    yield from measure.rows_of(found, [(scene.name, way.name) for scene, way in runs(FAST)])
