"""`hedgerow lab run spohn`: which runs there are, and the rows that they become.

A row of delays is the mean of the longest run; the shorter ones have rows with the number of publications at
the end of their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import median

from hedgerow.errors import ConfigError
from hedgerow_workshop.lab.harness.brokers import OURS, STOCK, check_kind
from hedgerow_workshop.lab.harness.experiment import Request, Result, carry_out, hand_in
from hedgerow_workshop.lab.harness.measure import count_doubled, count_lost, delays_ms, spread
from hedgerow_workshop.lab.harness.rows import Row
from hedgerow_workshop.lab.spohn import grid, measure, report
from hedgerow_workshop.lab.spohn.delays import (
    BROKER_NODES,
    CENTRALISED_SUBSCRIBERS,
    measure_centralised,
    measure_federated,
)
from hedgerow_workshop.lab.spohn.distances import GRAPHS, GRAPHS_FAST, measure_distances
from hedgerow_workshop.lab.spohn.failures import Failures
from hedgerow_workshop.lab.spohn.federation import GridFederation
from hedgerow_workshop.lab.spohn.mixed import MixedFederation, measure_document_wire
from hedgerow_workshop.lab.spohn.record import Misfortune, Setting, SpohnRecord, SpohnSpec
from hedgerow_workshop.lab.spohn.report import BARS
from hedgerow_workshop.programs import find_program

FAST_COUNTS = (60,)


def run(request: Request) -> Result:
    if request.timeline is not None:
        raise ConfigError("spohn takes no --timeline")
    notes = check_kind(request.broker)
    kinds = [OURS] if notes else [STOCK] if request.broker == STOCK else [STOCK, OURS]
    counts = FAST_COUNTS if request.fast else grid.COUNTS
    records = carry_out(
        request, lambda directory: perform(kinds, counts, request.fast, directory, request.say)
    )
    return conclude(request, records, notes)


def conclude(request: Request, records: list[SpohnRecord], notes: list[str]) -> Result:
    rows = make_rows(records, FAST_COUNTS if request.fast else grid.COUNTS)
    notes += [*make_notes(records), *BARS.missed(rows)]
    return hand_in(
        request, "spohn", records, rows, notes, lambda out: report.write_report(out, records, rows, notes)
    )


async def perform(
    kinds: list[str], counts: Sequence[int], fast: bool, directory: Path, say: Callable[[str], None]
) -> list[SpohnRecord]:
    say("on the simulator: distances on links of all kinds …")
    records = [measure_distances(GRAPHS_FAST if fast else GRAPHS)]
    has_stock = find_program(STOCK) is not None
    for kind in kinds:
        if has_stock and (kind == kinds[-1] or not fast):
            say(f"{kind} with a federator that is not ours: nine brokers start …")
            async with MixedFederation(kind, directory / f"{kind}-mixed") as mixed:
                records.append(await measure_document_wire(mixed, min(counts)))
        say(f"{kind} federated: nine brokers start …")
        async with GridFederation(kind, directory / kind) as federation:
            for count in counts:
                say(f"{kind} federated: {count} publications …")
                records.append(await measure_federated(federation, count))
            say(f"{kind} federated: nodes are killed, links are cut …")
            records.append(await Failures(federation).perform(fast))
    for count in counts:
        say(f"{' and '.join(kinds)} centralised: {count} publications …")
        records += await measure_centralised(kinds, count, directory)
    return records


def make_rows(records: Sequence[SpohnRecord], counts: Sequence[int]) -> list[Row]:
    federated = [record for record in records if record.spec.setting is Setting.FEDERATED]
    hearings = [hearing for record in records for hearing in record.hearings()]
    return [
        *_delay_rows(records, counts),
        Row("lost", "messages", count_lost(hearings) if records else None),
        Row("doubled", "messages", count_doubled(hearings) if records else None),
        Row("mesh", "", float(not any(map(_differences, federated))) if federated else None),
        Row("distance/shortest", "", _share_of_shortest(records)),
        *_document_wire_rows(records),
        *_transmission_rows(federated),
        *_heal_rows(records),
    ]


def _delay_rows(records: Sequence[SpohnRecord], counts: Sequence[int]) -> Iterator[Row]:
    places = [("", subscriber) for subscriber in grid.SUBSCRIBERS]
    places += [(node, subscriber) for node in BROKER_NODES for subscriber in CENTRALISED_SUBSCRIBERS]
    found = {record.spec: record for record in records}
    for (node, subscriber), kind, count in product(places, (STOCK, OURS), reversed(counts)):
        place = f"centralised/node{node}/{subscriber}" if node else f"node{subscriber}"
        end = "" if count == max(counts) else f"/{count}"
        setting = Setting.CENTRALISED if node else Setting.FEDERATED
        record = found.get(SpohnSpec(kind, setting, count, node))
        ours = spread(delays_ms(record.heard(subscriber))) if record is not None else None
        published = grid.published(node, subscriber, count)
        yield Row(f"delay/{place}/{kind}{end}", "ms", ours and ours.mean, published.mean)


def _share_of_shortest(records: Sequence[SpohnRecord]) -> float | None:
    """Of the brokers of all runs: how many have the fewest links to the core for their distance."""
    found = [pair for record in records for pair in measure.said_distances(record)]
    return sum(said == fewest for said, fewest in found) / len(found) if found else None


def _document_wire_rows(records: Sequence[SpohnRecord]) -> Iterator[Row]:
    mixed = [record for record in records if record.spec.setting is Setting.DOCUMENT_WIRE]
    hearings = [hearing for record in mixed for hearing in record.hearings()]
    yield Row("document-wire/lost", "messages", count_lost(hearings) if mixed else None)
    yield Row("document-wire/doubled", "messages", count_doubled(hearings) if mixed else None)


def _transmission_rows(federated: Sequence[SpohnRecord]) -> Iterator[Row]:
    """Of the longest run."""
    for kind in (STOCK, OURS):
        ours = [record for record in federated if record.spec.kind == kind and record.transmissions]
        found = max(ours, key=lambda record: record.spec.count, default=None)
        sent = redundant = None
        if found is not None:
            links, count = found.transmissions.values(), found.spec.count
            sent = sum(each.sent for each in links) / count
            redundant = sum(each.redundant for each in links) / count
        yield Row(f"transmissions/{kind}", "per publication", sent)
        yield Row(f"transmissions/{kind}/redundant", "per publication", redundant)


def _heal_rows(records: Sequence[SpohnRecord]) -> Iterator[Row]:
    """The median, and the slowest, which a median would hide."""
    for kind, end in ((OURS, ""), (STOCK, f"/{STOCK}")):
        ours = [record for record in records if record.spec.kind == kind]
        for misfortune in Misfortune:
            healed = [1_000 * s for record in ours for _, s in measure.heals(record, misfortune)]
            yield Row(f"heal/{misfortune}{end}", "ms", median(healed) if healed else None)
            yield Row(f"heal/{misfortune}/slowest{end}", "ms", max(healed, default=None))


def make_notes(records: Sequence[SpohnRecord]) -> Iterator[str]:
    for record in records:
        spec = record.spec
        lost, doubled = count_lost(record.hearings()), count_doubled(record.hearings())
        if lost or doubled:
            yield f"{spec}: {lost} lost, {doubled} doubled."
        for difference in _differences(record):
            yield f"{spec}: {difference}."
        for misfortune in Misfortune:
            healed = list(measure.heals(record, misfortune))
            if healed:
                what, worst = max(healed, key=lambda each: each[1])
                slowest = f"{misfortune} {what} took {1_000 * worst:.0f} ms to heal"
                yield f"{spec}: the slowest of {len(healed)}, {slowest}."


def _differences(record: SpohnRecord) -> list[str]:
    """From the document's mesh, when the first message was published and at the end, each once."""
    found = (text for states in record.states for text in measure.mesh_differences(states, record.topic))
    return list(dict.fromkeys(found))
