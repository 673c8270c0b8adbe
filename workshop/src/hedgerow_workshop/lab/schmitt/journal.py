"""What the journal of a run holds. Both topics have the same numbers, so each has a publisher of its own."""

from __future__ import annotations

from hedgerow_workshop.lab.journals import Delivered, Due, Published, RunJournal
from hedgerow_workshop.lab.schmitt.clients import TOPICS
from hedgerow_workshop.lab.schmitt.record import QOS, Record


def journal_of(record: Record) -> RunJournal:
    spec = record.spec
    publishers = {qos: f"{record.publisher}/qos{qos}" for qos in QOS}
    return RunJournal(
        "schmitt",
        spec.file_name,
        {"kind": spec.kind, "mode": spec.mode, "departure": spec.departure, "measured": record.measured},
        [
            Due(broker, TOPICS[qos], broker=broker, group=f"qos{qos}")
            for broker, by_qos in record.arrived.items()
            for qos in by_qos
        ],
        [
            Published(publishers[qos], number, TOPICS[qos], at, qos, record.publisher)
            for number, at in enumerate(record.sent)
            for qos in QOS
        ],
        [
            Delivered(broker, publishers[qos], number, TOPICS[qos], at, record.sent[number], qos, broker)
            for broker, by_qos in record.arrived.items()
            for qos, arrivals in by_qos.items()
            for number, at in arrivals
        ],
        [(each.at, f"{each.name}: broker {each.broker} {each.does}") for each in record.happened],
        is_monotonic=False,
    )
