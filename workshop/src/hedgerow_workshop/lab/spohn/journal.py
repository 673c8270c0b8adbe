"""What the journal of a run holds."""

from __future__ import annotations

from hedgerow_workshop.lab.journals import Delivered, Due, Published, RunJournal
from hedgerow_workshop.lab.spohn.delays import topic_of
from hedgerow_workshop.lab.spohn.record import Record, Setting


def journal_of(record: Record) -> RunJournal:
    spec, topic = record.spec, topic_of(record.spec)
    qos = int(spec.setting is Setting.FAILURES)
    return RunJournal(
        "spohn",
        spec.file_name,
        {"kind": spec.kind, "setting": spec.setting, "count": str(spec.count), "node": spec.node},
        [Due(subscriber, topic, broker=spec.node or subscriber) for subscriber in record.arrived],
        [
            Published(publisher, number, topic, at, qos, spec.node or publisher)
            for publisher, sent in record.sent.items()
            for number, at in enumerate(sent)
        ],
        [
            Delivered(
                subscriber, publisher, number, topic, at, record.sent[publisher][number], qos,
                spec.node or subscriber,
            )
            for subscriber, arrivals in record.arrived.items()
            for publisher, number, at in arrivals
        ],
        [(each.at, f"{each.misfortune} {each.what}") for each in record.happened],
    )  # fmt: skip
