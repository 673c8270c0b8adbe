"""What `/metrics` shows of mobile and fixed brokers, and of hot topics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from hedgerow.hot.monitor import Monitor
from hedgerow.mobility.fixed import FixedNode
from hedgerow.mobility.mobile import MobileNode
from hedgerow.node.metrics import counters_named

# Counter of a mobile or fixed broker's `Stats` → help. The name is the counter's, after hedgerow_mobility_.
MOBILITY_COUNTERS = {
    "ignored": "Publications of the other broker that came twice, too late or too early.",
    "expired": "Events whose time was over before the other broker was back.",
    "refused": "Publications of the other broker that broke a rule.",
    "duplicates": "Events that had been here before.",
    "overflowed": "Events that the other broker did not get: too much waited for it.",
    "unknown_callbacks": "Subscribers that another broker named and nobody knows.",
}


def mobility_metrics(node: MobileNode | FixedNode, delegated: int, relayed: int | None) -> Iterator[Metric]:
    """`relayed`: clients whose bytes are passed on; None where there is no relay."""
    yield from counters_named(node.machine.stats, "hedgerow_mobility_", MOBILITY_COUNTERS)
    yield GaugeMetricFamily(
        "hedgerow_mobility_delegated_filters", "Topic filters that the fixed broker matches.", delegated
    )
    yield GaugeMetricFamily(
        "hedgerow_mobility_links_up",
        "Of a fixed broker, mobile brokers that are linked to it; of a mobile one, 1 while its link is up.",
        _links_up(node),
    )
    if relayed is not None:
        yield GaugeMetricFamily(
            "hedgerow_mobility_relayed_connections",
            "Clients whose bytes are passed on to the fixed broker.",
            relayed,
        )


def _links_up(node: MobileNode | FixedNode) -> int:
    if isinstance(node, MobileNode):
        return int(node.state.link is not None and bool(node.state.link["linked"]))
    return sum(node.is_linked(mobile_id) for mobile_id in node.machine.mobiles)


def hot_metrics(monitor: Monitor) -> Iterator[Metric]:
    topics = GaugeMetricFamily(
        "hedgerow_hot_topics", "Topics that were ranked, by whether they are kept here.", labels=["registry"]
    )
    topics.add_metric(["in"], len(monitor.in_registry))
    topics.add_metric(["out"], len(monitor.out_registry))
    yield topics
    yield CounterMetricFamily(
        "hedgerow_hot_events_uncounted",
        "Events of topics for which there was no room, or whose name is too long.",
        monitor.uncounted,
    )
