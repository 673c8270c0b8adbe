"""What `/metrics` shows of a node's bridges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from hedgerow.bridges.bridge import Bridge
from hedgerow.node.metrics import LedgerMetrics


def bridge_metrics(bridges: Iterable[Bridge]) -> Iterator[Metric]:
    """There are at most MAX_BRIDGES of them, with 16 lines each."""
    up = GaugeMetricFamily("hedgerow_bridge_up", "1 while the bridge is up, else 0.", labels=["bridge"])
    queued = GaugeMetricFamily(
        "hedgerow_bridge_queued_messages", "Messages that wait for the far broker.", labels=["bridge"]
    )
    queued_bytes = GaugeMetricFamily(
        "hedgerow_bridge_queued_bytes", "Bytes of messages that wait for the far broker.", labels=["bridge"]
    )
    dropped_there = CounterMetricFamily(
        "hedgerow_bridge_far_messages_dropped",
        "Messages that a far broker which is not Hedgerow says it dropped, for whichever of its clients.",
        labels=["bridge"],
    )
    ledger = LedgerMetrics("bridge", "bridge", "the far broker", "the bridge")
    for bridge in bridges:
        name = bridge.section.name
        up.add_metric([name], bridge.is_up)
        queued.add_metric([name], bridge.session.waiting_count)
        queued_bytes.add_metric([name], bridge.session.queued_bytes)
        dropped_there.add_metric([name], bridge.dropped_there.total)
        for direction, counts in bridge.ledgers().items():
            ledger.add(name, direction, counts)
    yield from (up, queued, queued_bytes, dropped_there, *ledger.families)
