"""What `/metrics` shows of a node's journal, and of its replays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from hedgerow.journal.replay.source import ReplaySource

# Figure of the journal → name and help.
JOURNAL_COUNTERS = {
    "messages/recorded": ("hedgerow_journal_messages", "Messages recorded in the journal."),
    "messages/duplicates": ("hedgerow_journal_duplicates", "Messages that the journal had already."),
    "messages/missed": ("hedgerow_journal_missed", "Messages passed on and not recorded, for want of room."),
    "bytes/recorded": ("hedgerow_journal_bytes", "Bytes of the payloads recorded in the journal."),
}
JOURNAL_GAUGES = {
    "messages/durable": (
        "hedgerow_journal_durable_position",
        "The position in the journal up to which all is on the disk.",
    ),
    "bytes/buffered": ("hedgerow_journal_buffered_bytes", "Bytes recorded that are not on the disk yet."),
}


def journal_metrics(figures: Mapping[str, int]) -> Iterator[Metric]:
    for figure, (name, help_text) in JOURNAL_COUNTERS.items():
        yield CounterMetricFamily(name, help_text, figures[figure])
    for figure, (name, help_text) in JOURNAL_GAUGES.items():
        yield GaugeMetricFamily(name, help_text, figures[figure])


def replay_metrics(replays: ReplaySource) -> Iterator[Metric]:
    yield GaugeMetricFamily("hedgerow_replays", "Subscriptions that read the journal.", len(replays))
    yield GaugeMetricFamily("hedgerow_replays_behind", "Those that have something to read.", replays.behind)
    text = "Messages of the journal that replays have passed, whether they match or not."
    yield CounterMetricFamily("hedgerow_replay_messages", text, replays.messages)
    text = "Messages that replays could not read any more: removed, or damaged."
    yield CounterMetricFamily("hedgerow_replay_lost", text, replays.lost)
