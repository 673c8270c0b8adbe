"""`hedgerow lab run overload`: two runs, one with fast readers and one with slow ones, and their rows.

Losses and the like are those of both runs together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hedgerow.errors import ConfigError
from hedgerow_workshop.lab.harness.brokers import STOCK as STOCK_KIND
from hedgerow_workshop.lab.harness.brokers import check_kind
from hedgerow_workshop.lab.harness.experiment import Request, Result, carry_out, hand_in
from hedgerow_workshop.lab.harness.rows import Row
from hedgerow_workshop.lab.overload import measure, report
from hedgerow_workshop.lab.overload.record import OverloadRecord, Readers
from hedgerow_workshop.lab.overload.run import OverloadRun
from hedgerow_workshop.lab.overload.settings import FAST, OverloadSettings

MAX_INCIDENTS = 12  # that are told of each run


def run(request: Request) -> Result:
    if request.timeline is not None:
        raise ConfigError("overload takes no --timeline")
    if request.broker != "hedgerow":
        raise ConfigError("overload has brokers of both kinds: it takes no --broker")
    check_kind(STOCK_KIND)
    settings = FAST if request.fast else OverloadSettings()
    records = carry_out(request, lambda directory: perform(settings, directory, request.say))
    return conclude(request, records)


def conclude(request: Request, records: list[OverloadRecord]) -> Result:
    rows = list(make_rows(records))
    notes = [*report.BARS.missed(rows), *make_notes(records)]
    return hand_in(
        request, "overload", records, rows, notes, lambda out: report.write_report(out, records, rows, notes)
    )


async def perform(
    settings: OverloadSettings, directory: Path, say: Callable[[str], None]
) -> list[OverloadRecord]:
    records = []
    for readers in Readers:
        say(f"publishing for {settings.seconds:g} s, {readers} readers …")
        record = await OverloadRun(settings, readers, directory / readers).perform()
        say(f"… {record.rate:,.0f} a second, and all read {record.settled_s:.1f} s later")
        records.append(record)
    return records


def make_rows(records: Sequence[OverloadRecord]) -> Iterator[Row]:
    yield Row("lost/mqtt", "messages", sum(measure.count_lost(each, multicast=False) for each in records))
    yield Row("lost/multicast", "messages", sum(measure.count_lost(each, multicast=True) for each in records))
    yield Row("doubled", "messages", sum(map(measure.count_doubled, records)))
    yield Row("flaps", "links", sum(len(each.flaps) for each in records))
    yield Row("udp/uncounted", "readings", sum(each.sensors.uncounted for each in records))
    yield Row("memory/largest", "MiB", max((max(each.memory.values()) for each in records), default=None))
    rates = {each.readers: each.rate for each in records}
    fast, slow = rates.get(Readers.FAST), rates.get(Readers.SLOW)
    yield Row("slowed", "", slow / fast if fast and slow is not None else None)
    for each in records:
        yield Row(f"rate/{each.readers}", "messages/s", each.rate)
        yield Row(f"read/{each.readers}", "s", each.settled_s)
        yield Row(f"repeated/{each.readers}", "messages", measure.count_doubled(each, repeated=True))
        yield Row(f"udp/counted/{each.readers}", "readings", each.sensors.counted)


def make_notes(records: Sequence[OverloadRecord], max_incidents: int = MAX_INCIDENTS) -> Iterator[str]:
    for record in records:
        name = f"{record.readers} readers"
        sent = ", ".join(f"{publisher} {len(numbers):,}" for publisher, numbers in record.sent.items())
        yield f"{name}: acknowledged {sent}; {record.sensors.sent:,} readings sent."
        memory = ", ".join(f"{node} {mib:.0f}" for node, mib in record.memory.items())
        yield f"{name}: MiB at most {memory}."
        for program in record.tracebacks:
            yield f"{name}: {program} wrote a traceback."
        incidents = [
            *(f"{text}, at {at - record.began_at:.2f} s" for at, text in record.flaps),
            *measure.incidents(record),
        ]
        for text in incidents[:max_incidents]:
            yield f"{name}: {text}."
        if len(incidents) > max_incidents:
            yield f"{name}: … {len(incidents) - max_incidents} more."
