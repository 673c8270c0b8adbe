"""What the journal of a run holds. Publications are numbered by topic: each topic has a publisher's name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from hedgerow_workshop.lab.journals import Delivered, Due, Published, RunJournal
from hedgerow_workshop.lab.storm.record import Record, Tally


def journal_of(record: Record) -> RunJournal:
    return RunJournal(
        "storm",
        f"storm{'-' if record.fault else ''}{record.fault}",
        {"fault": record.fault},
        [Due(tally.name, tally.topic, group=tally.kind) for tally in record.tallies],
        [
            Published(topic, number, topic, at, 1)
            for topic, sent in record.sent.items()
            for number, at in enumerate(sent)
        ],
        [delivered for tally in record.tallies for delivered in _deliveries(record, tally)],
        record.happened,
    )


def _deliveries(record: Record, tally: Tally) -> Iterator[Delivered]:
    """A tally knows how often a number came with DUP, not which time: the later ones are taken for it."""
    sent, left, repeated = record.sent[tally.topic], Counter(tally.numbers), Counter(tally.repeated)
    for number, at in zip(tally.numbers, tally.times, strict=True):
        is_repeated = left[number] <= repeated[number]
        left[number] -= 1
        published_at = sent[number] if number < len(sent) else None
        yield Delivered(
            tally.name, tally.topic, number, tally.topic, at, published_at, 1, is_repeated=is_repeated
        )
