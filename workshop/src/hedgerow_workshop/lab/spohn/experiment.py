"""`hedgerow lab run spohn`: which runs there are, and the rows that they become.

A row of delays is the mean of the longest run; the shorter ones have rows with the number of publications at
the end of their names.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import median

import uvloop

from hedgerow.errors import ConfigError
from hedgerow.node.programs import find_program
from hedgerow_workshop.lab.brokers import KINDS
from hedgerow_workshop.lab.clients import quiet_clients
from hedgerow_workshop.lab.experiments import Request, Result, Row
from hedgerow_workshop.lab.journals import leave
from hedgerow_workshop.lab.spohn import grid, measure, report
from hedgerow_workshop.lab.spohn.bars import BARS
from hedgerow_workshop.lab.spohn.delays import (
    BROKER_NODES,
    CENTRALISED_SUBSCRIBERS,
    measure_centralised,
    measure_federated,
    topic_of,
)
from hedgerow_workshop.lab.spohn.failures import Failures
from hedgerow_workshop.lab.spohn.federation import Federation
from hedgerow_workshop.lab.spohn.journal import journal_of
from hedgerow_workshop.lab.spohn.nodes import OURS, STOCK
from hedgerow_workshop.lab.spohn.record import Misfortune, Record, Setting, Spec

FAST_COUNTS = (60,)


def run(request: Request) -> Result:
    if request.timeline is not None:
        raise ConfigError("spohn takes no --timeline")
    if request.broker not in KINDS:
        raise ConfigError(f"no broker {request.broker}; there are {', '.join(KINDS)}")
    if request.out is not None:
        request.out.mkdir(parents=True, exist_ok=True)
    kinds = [STOCK] if request.broker == STOCK else [STOCK, OURS]
    notes = []
    if find_program(STOCK) is None:
        if request.broker == STOCK:
            raise ConfigError("mosquitto is not on PATH")
        kinds = [OURS]
        notes.append("mosquitto is not on PATH: there is no run with it.")
    counts = FAST_COUNTS if request.fast else grid.COUNTS
    with (
        tempfile.TemporaryDirectory(prefix="hedgerow-lab-") as directory,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        quiet_clients(),
    ):
        records = runner.run(perform(kinds, counts, request.fast, Path(directory), request.say))
    rows = make_rows(records, counts)
    notes += [*make_notes(records), *BARS.missed(rows)]
    page = None
    if request.out is not None:
        for record in records:
            record.write(request.out / f"{record.spec.file_name}.json")
        leave(request.out, "spohn", list(map(journal_of, records)), rows, notes)
        page = report.write_report(request.out, records, rows, notes)
    return Result(rows, notes, page)


async def perform(
    kinds: list[str], counts: Sequence[int], fast: bool, directory: Path, say: Callable[[str], None]
) -> list[Record]:
    records = []
    for kind in kinds:
        say(f"{kind} federated: nine brokers start …")
        async with Federation(kind, directory / kind) as federation:
            for count in counts:
                say(f"{kind} federated: {count} publications …")
                records.append(await measure_federated(federation, count))
            say(f"{kind} federated: nodes are killed, links are cut …")
            records.append(await Failures(federation).perform(fast))
    for count in counts:
        say(f"{' and '.join(kinds)} centralised: {count} publications …")
        records += await measure_centralised(kinds, count, directory)
    return records


def make_rows(records: Sequence[Record], counts: Sequence[int]) -> list[Row]:
    federated = [record for record in records if record.spec.setting is Setting.FEDERATED]
    lost, doubled = map(measure.count_lost, records), map(measure.count_doubled, records)
    return [
        *_delay_rows(records, counts),
        Row("lost", "messages", sum(lost) if records else None),
        Row("doubled", "messages", sum(doubled) if records else None),
        Row("mesh", "", float(not any(map(_differences, federated))) if federated else None),
        *_heal_rows(records),
    ]


def _delay_rows(records: Sequence[Record], counts: Sequence[int]) -> Iterator[Row]:
    places = [("", subscriber) for subscriber in grid.SUBSCRIBERS]
    places += [(node, subscriber) for node in BROKER_NODES for subscriber in CENTRALISED_SUBSCRIBERS]
    found = {record.spec: record for record in records}
    for (node, subscriber), kind, count in product(places, (STOCK, OURS), reversed(counts)):
        place = f"centralised/node{node}/{subscriber}" if node else f"node{subscriber}"
        end = "" if count == max(counts) else f"/{count}"
        setting = Setting.CENTRALISED if node else Setting.FEDERATED
        record = found.get(Spec(kind, setting, count, node))
        ours = measure.delay(record, subscriber) if record is not None else None
        published = grid.published(node, subscriber, count)
        yield Row(f"delay/{place}/{kind}{end}", "ms", ours and ours.mean, published.mean)


def _heal_rows(records: Sequence[Record]) -> Iterator[Row]:
    """The median, and the slowest, which a median would hide."""
    for kind, end in ((OURS, ""), (STOCK, f"/{STOCK}")):
        ours = [record for record in records if record.spec.kind == kind]
        for misfortune in Misfortune:
            healed = [1_000 * s for record in ours for _, s in measure.heals(record, misfortune)]
            yield Row(f"heal/{misfortune}{end}", "ms", median(healed) if healed else None)
            yield Row(f"heal/{misfortune}/slowest{end}", "ms", max(healed, default=None))


def make_notes(records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        spec = record.spec
        lost, doubled = measure.count_lost(record), measure.count_doubled(record)
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


def _differences(record: Record) -> list[str]:
    """From the document's mesh, when the first message was published and at the end, each once."""
    topic = topic_of(record.spec)
    return list(
        dict.fromkeys(text for states in record.states for text in measure.mesh_differences(states, topic))
    )
