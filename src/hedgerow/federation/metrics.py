"""What `/metrics` shows of a node's federation."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from hedgerow.federation.document.gateway import DocumentGateway
from hedgerow.federation.federation import Federation
from hedgerow.federation.interests.interests import Interests
from hedgerow.federation.state import ledgers_of
from hedgerow.node.metrics import LedgerMetrics, counters, counters_named, ignored_by_reason

# Counter of the federator's `Stats` → help. The name is the counter's, after hedgerow_federation_.
FEDERATION_COUNTERS = {
    "announcements": "Announcements of this node as the core of a mesh.",
    "evicted": "Cores that had to make room for what another neighbour tells.",
}

# Counter of `OverlayStats` → name and help. Those by reason are in
# hedgerow_federation_overlay_packets_ignored.
OVERLAY_COUNTERS = {
    "sent": ("hedgerow_federation_overlay_packets_sent", "Packets about who is whose neighbour, sent."),
    "received": (
        "hedgerow_federation_overlay_packets_received",
        "Packets about who is whose neighbour, received.",
    ),
    "crowded": (
        "hedgerow_federation_overlay_links_refused",
        "Links refused, and newcomers not connected to, because there were too many.",
    ),
    "evicted": (
        "hedgerow_federation_overlay_neighbours_evicted",
        "Neighbours let go to make room for others.",
    ),
    "swapped": (
        "hedgerow_federation_overlay_neighbours_swapped",
        "Neighbours let go because nearer ones had come.",
    ),
}

# Counter of a sidecar's `SubscriptionLogStats` → help. The name is the counter's, after
# hedgerow_subscription_log_.
SUBSCRIPTION_LOG_COUNTERS = {
    "lines": "Lines of the broker's log that told of subscriptions.",
    "notices": "Lines of the broker's log about connections.",
    "early": "Lines before this node's own subscription was seen.",
    "cut": "Lines that the broker had cut.",
    "unreadable": "Lines that could not be read.",
    "ambiguous": "Unsubscriptions with several readings: nothing was taken away.",
    "overflowed": "Clients and subscriptions beyond the bounds.",
}


def federation_metrics(federation: Federation) -> Iterator[Metric]:
    """Of every neighbour for which something may wait, also while it is away."""
    label = ["neighbour"]
    round_trips = GaugeMetricFamily(
        "hedgerow_federation_round_trip_seconds", "How far away each neighbour is.", labels=label
    )
    for name, round_trip_s in federation.overlay.round_trips.items():
        round_trips.add_metric([name], round_trip_s)
    queued = GaugeMetricFamily(
        "hedgerow_federation_queued_messages", "Messages that wait for the neighbour.", labels=label
    )
    queued_bytes = GaugeMetricFamily(
        "hedgerow_federation_queued_bytes", "Bytes of messages that wait for the neighbour.", labels=label
    )
    up = GaugeMetricFamily(
        "hedgerow_federation_neighbour_up", "1 while the neighbour is linked, else 0.", labels=label
    )
    ledger = LedgerMetrics("federation", "neighbour", "the neighbour", "this node")
    for name, session in federation.neighbour_sessions():
        up.add_metric([name], federation.is_linked(name))
        queued.add_metric([name], session.waiting_count)
        queued_bytes.add_metric([name], session.queued_bytes)
        for direction, counts in ledgers_of(session).items():
            ledger.add(name, direction, counts)
    yield GaugeMetricFamily(
        "hedgerow_federation_neighbours", "Neighbours.", len(federation.overlay.round_trips)
    )
    yield from (up, round_trips, queued, queued_bytes, *ledger.families)
    packets = CounterMetricFamily(
        "hedgerow_federation_packets", "Packets between federators.", labels=["direction", "kind"]
    )
    stats, overlay_stats = federation.federator.stats, federation.overlay.stats
    yield from counters_named(stats, "hedgerow_federation_", FEDERATION_COUNTERS)
    yield from counters(overlay_stats, OVERLAY_COUNTERS)
    for direction, kinds in (("out", stats.sent), ("in", stats.received)):
        for kind, count in kinds.items():
            packets.add_metric([direction, kind], count)
    yield packets
    for what, reasons in (
        ("packets", stats.ignored),
        ("overlay_packets", overlay_stats.ignored()),
        ("tunnel_frames", federation.ignored_frames),
    ):
        yield ignored_by_reason(f"hedgerow_federation_{what}_ignored", reasons)


def gateway_metrics(gateway: DocumentGateway) -> Iterator[Metric]:
    """Of neighbours that speak the document's wire."""
    messages = CounterMetricFamily(
        "hedgerow_federation_document_messages",
        "Messages between federators by the document's wire.",
        labels=["direction", "kind"],
    )
    federator = gateway.federator
    for direction, kinds in (("out", federator.sent), ("in", federator.received)):
        for kind, count in kinds.items():
            messages.add_metric([direction, kind], count)
    yield messages
    yield ignored_by_reason("hedgerow_federation_document_messages_ignored", federator.ignored)
    up = GaugeMetricFamily(
        "hedgerow_federation_document_neighbour_up",
        "1 while the broker of the neighbour is reached, else 0.",
        labels=["neighbour"],
    )
    for neighbour in gateway.neighbours.values():
        up.add_metric([neighbour.address], neighbour.is_up)
    yield up


def interest_metrics(interests: Interests) -> Iterator[Metric]:
    """Of a sidecar: what it knows of the subscriptions at the broker that it stands beside."""
    yield from counters_named(interests.log.stats, "hedgerow_subscription_log_", SUBSCRIPTION_LOG_COUNTERS)
    yield GaugeMetricFamily(
        "hedgerow_subscription_log_unknown_subscriptions",
        "Subscriptions that the broker counts and this node does not know.",
        interests.unknown,
    )
    yield ignored_by_reason("hedgerow_federation_interests_ignored", interests.announcements.ignored)
