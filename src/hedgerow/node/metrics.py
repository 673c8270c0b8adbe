"""`/metrics`: what the node counts in Prometheus' text formats, read from its machines at each scrape.

Nothing is counted for it: a machine counts what it does in its `Stats`, and `metric_tables` names each.
Labels are bounded: neighbours, bridges, transports, and kinds and reasons that are words of this program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from hedgerow.federation.state import ledgers_of
from hedgerow.node.http import Request, Response
from hedgerow.node.metric_tables import (
    COMMIT_COUNTERS,
    COUNTERS,
    FEDERATION_COUNTERS,
    GAUGES,
    JOURNAL_COUNTERS,
    JOURNAL_GAUGES,
    LEDGER_DROPS,
    MOBILITY_COUNTERS,
    MULTICAST_COUNTERS,
    OVERLAY_COUNTERS,
    SENSOR_COUNTERS,
    SUBSCRIPTION_LOG_COUNTERS,
)
from hedgerow.node.version import VERSION

if TYPE_CHECKING:
    from hedgerow.bridges.bridge import Bridge
    from hedgerow.broker.broker import Broker
    from hedgerow.federation.federation import Federation
    from hedgerow.federation.interests.interests import Interests
    from hedgerow.hot.monitor import Monitor
    from hedgerow.mobility.part import MobilityPart
    from hedgerow.multicast.part import MulticastGateway
    from hedgerow.node.server import Server
    from hedgerow.sensors.exchange import Exchange


class BrokerCollector(Collector):
    def __init__(self, server: Server) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        server = self._server
        yield InfoMetricFamily("hedgerow_node", "This node.", {"id": server.node_id})
        yield InfoMetricFamily("hedgerow_build", "This program.", {"version": VERSION})
        yield GaugeMetricFamily(
            "hedgerow_start_time_seconds", "When the node started, in Unix time.", server.started_at
        )
        for counter, (name, help_text) in COUNTERS.items():
            yield CounterMetricFamily(name, help_text, getattr(server.broker.stats, counter))
        for name, (help_text, read) in GAUGES.items():
            yield GaugeMetricFamily(name, help_text, read(server))
        yield CounterMetricFamily(
            "hedgerow_ids_forgotten",
            "Ids of messages from other brokers that the duplicate log had no room for.",
            server.broker.duplicates.forgotten,
        )
        yield GaugeMetricFamily(
            "hedgerow_open_sockets",
            "Open sockets of all listeners, those of HTTP and of clients that are not logged in too.",
            server.open_sockets,
        )
        yield GaugeMetricFamily(
            "hedgerow_loop_lateness_maximum_seconds",
            "By how much the latest timer of the last half to whole minute was late: clients wait so long.",
            server.lateness.maximum(server.clock()),
        )
        yield from _broker_metrics(server.broker)
        if server.commits is not None:
            for figure, (name, help_text) in COMMIT_COUNTERS.items():
                yield CounterMetricFamily(name, help_text, getattr(server.commits, figure))
        if server.journal is not None:
            yield from _journal_metrics(server.journal.figures())
        if server.bridges is not None:
            yield from _bridge_metrics(server.bridges.bridges.kept)
        if server.federation is not None:
            yield from _federation_metrics(server.federation.machine)
            if server.federation.interests is not None:
                yield from _interest_metrics(server.federation.interests)
        if server.mobility is not None:
            yield from _mobility_metrics(server.mobility, len(server.broker.subscriptions.inactive))
        if (monitor := _monitor(server)) is not None:
            yield from _hot_metrics(monitor)
        if server.sensors is not None:
            yield from _sensor_metrics(server.sensors.exchange)
        if server.multicast is not None:
            yield from _multicast_metrics(server.multicast)


def _broker_metrics(broker: Broker) -> Iterator[Metric]:
    """By a look at every connection and session, as `$SYS` takes it: 0.1 ms for a thousand of them."""
    transports = GaugeMetricFamily(
        "hedgerow_transport_connections", "Open connections, by transport.", labels=["transport"]
    )
    for transport, count in Counter(each.transport for each in broker.connections).items():
        transports.add_metric([transport], count)
    yield transports
    outboxes = [session.outbox for session in broker.sessions.values() if session.outbox is not None]
    yield GaugeMetricFamily(
        "hedgerow_queued_messages", "Messages that wait for their subscribers.", sum(map(len, outboxes))
    )
    yield GaugeMetricFamily(
        "hedgerow_queued_bytes",
        "Bytes of messages that wait for their subscribers.",
        sum(outbox.bytes for outbox in outboxes),
    )


def _journal_metrics(figures: Mapping[str, int]) -> Iterator[Metric]:
    for figure, (name, help_text) in JOURNAL_COUNTERS.items():
        yield CounterMetricFamily(name, help_text, figures[figure])
    for figure, (name, help_text) in JOURNAL_GAUGES.items():
        yield GaugeMetricFamily(name, help_text, figures[figure])


def _sensor_metrics(exchange: Exchange) -> Iterator[Metric]:
    for counter, (name, help_text) in SENSOR_COUNTERS.items():
        yield CounterMetricFamily(name, help_text, getattr(exchange.stats, counter))
    yield GaugeMetricFamily(
        "hedgerow_sensor_subscriptions", "Sensor subscriptions.", exchange.subscription_count
    )


def _multicast_metrics(multicast: MulticastGateway) -> Iterator[Metric]:
    gateway, endpoint = multicast.gateway, multicast.endpoint
    ledger = CounterMetricFamily(
        "hedgerow_gateway_messages",
        "Messages between the broker and multicast: published, and what became of them.",
        labels=["direction", "what"],
    )
    for direction, counts in (("to_multicast", gateway.to_group), ("to_broker", gateway.to_broker)):
        for what, count in asdict(counts).items():
            if what != "waiting":
                ledger.add_metric([direction, what], count)
    yield ledger
    yield GaugeMetricFamily(
        "hedgerow_gateway_waiting", "Messages that wait to leave by multicast.", gateway.to_group.waiting
    )
    yield CounterMetricFamily(
        "hedgerow_gateway_ids_forgotten", "Ids that the duplicate log had no room for.", gateway.forgotten
    )
    member = asdict(endpoint.member.stats) | asdict(endpoint.stats) | {"overruns": endpoint.overruns}
    for counter, help_text in MULTICAST_COUNTERS.items():
        yield CounterMetricFamily(f"hedgerow_multicast_{counter}", help_text, member[counter])


def _bridge_metrics(bridges: Iterable[Bridge]) -> Iterator[Metric]:
    """There are at most MAX_BRIDGES of them, with 16 lines each."""
    up = GaugeMetricFamily("hedgerow_bridge_up", "1 while the bridge is up, else 0.", labels=["bridge"])
    queued = GaugeMetricFamily(
        "hedgerow_bridge_queued_messages", "Messages that wait for the far broker.", labels=["bridge"]
    )
    queued_bytes = GaugeMetricFamily(
        "hedgerow_bridge_queued_bytes", "Bytes of messages that wait for the far broker.", labels=["bridge"]
    )
    ledger = LedgerMetrics("bridge", "bridge", "the far broker", "the bridge")
    for bridge in bridges:
        name, outbox = bridge.section.name, bridge.session.outbox
        up.add_metric([name], bridge.state.value == "up")
        queued.add_metric([name], len(outbox or ()))
        queued_bytes.add_metric([name], outbox.bytes if outbox is not None else 0)
        for direction, counts in bridge.ledgers().items():
            ledger.add(name, direction, counts)
    yield from (up, queued, queued_bytes, *ledger.families)


class LedgerMetrics:
    """What became of messages between this broker and others."""

    def __init__(self, prefix: str, label: str, far: str, carrier: str) -> None:
        labels = [label, "direction"]
        self._published = CounterMetricFamily(
            f"hedgerow_{prefix}_messages_published",
            f"Messages for {far} (out) and from it (in).",
            labels=labels,
        )
        self._relayed = CounterMetricFamily(
            f"hedgerow_{prefix}_messages_relayed", f"Messages that {carrier} passed on.", labels=labels
        )
        self._dropped = CounterMetricFamily(
            f"hedgerow_{prefix}_messages_dropped",
            f"Messages that {carrier} did not pass on, by reason.",
            labels=[*labels, "reason"],
        )
        self.families = (self._published, self._relayed, self._dropped)

    def add(self, name: str, direction: str, counts: dict[str, int]) -> None:
        self._published.add_metric([name, direction], counts["published"])
        self._relayed.add_metric([name, direction], counts["relayed"])
        for reason in LEDGER_DROPS[direction]:
            self._dropped.add_metric([name, direction, reason], counts[reason])


def _federation_metrics(federation: Federation) -> Iterator[Metric]:
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
        queued.add_metric([name], len(session.outbox or ()))
        queued_bytes.add_metric([name], session.outbox.bytes if session.outbox is not None else 0)
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
    for counter, help_text in FEDERATION_COUNTERS.items():
        yield CounterMetricFamily(f"hedgerow_federation_{counter}", help_text, getattr(stats, counter))
    for counter, (name, help_text) in OVERLAY_COUNTERS.items():
        yield CounterMetricFamily(name, help_text, getattr(overlay_stats, counter))
    for direction, kinds in (("out", stats.sent), ("in", stats.received)):
        for kind, count in kinds.items():
            packets.add_metric([direction, kind], count)
    yield packets
    for what, reasons in (
        ("packets", stats.ignored),
        ("overlay_packets", overlay_stats.ignored()),
        ("tunnel_frames", federation.ignored_frames),
    ):
        yield _ignored(f"hedgerow_federation_{what}_ignored", reasons)


def _ignored(name: str, reasons: Mapping[str, int]) -> Metric:
    help_text = "What neighbours, or strangers, sent that was passed over, by reason."
    ignored = CounterMetricFamily(name, help_text, labels=["reason"])
    for reason, count in reasons.items():
        ignored.add_metric([reason], count)
    return ignored


def _interest_metrics(interests: Interests) -> Iterator[Metric]:
    """Of a sidecar: what it knows of the subscriptions at the broker that it stands beside."""
    for counter, help_text in SUBSCRIPTION_LOG_COUNTERS.items():
        value = getattr(interests.log.stats, counter)
        yield CounterMetricFamily(f"hedgerow_subscription_log_{counter}", help_text, value)
    yield GaugeMetricFamily(
        "hedgerow_subscription_log_unknown_subscriptions",
        "Subscriptions that the broker counts and this node does not know.",
        interests.unknown,
    )
    yield _ignored("hedgerow_federation_interests_ignored", interests.announcements.ignored)


def _monitor(server: Server) -> Monitor | None:
    """Of a mobile broker, or of a node that shows hot topics and delegates none."""
    if server.monitoring is not None:
        return server.monitoring.monitor
    mobile = server.mobility.mobile_node if server.mobility is not None else None
    return mobile.monitor if mobile is not None else None


def _hot_metrics(monitor: Monitor) -> Iterator[Metric]:
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


def _mobility_metrics(mobility: MobilityPart, delegated: int) -> Iterator[Metric]:
    for counter, help_text in MOBILITY_COUNTERS.items():
        value = getattr(mobility.node.machine.stats, counter)
        yield CounterMetricFamily(f"hedgerow_mobility_{counter}", help_text, value)
    yield GaugeMetricFamily(
        "hedgerow_mobility_delegated_filters", "Topic filters that the fixed broker matches.", delegated
    )
    yield GaugeMetricFamily(
        "hedgerow_mobility_links_up",
        "Of a fixed broker, mobile brokers that are linked to it; of a mobile one, 1 while its link is up.",
        _links_up(mobility),
    )
    if mobility.relay is not None:
        yield GaugeMetricFamily(
            "hedgerow_mobility_relayed_connections",
            "Clients whose bytes are passed on to the fixed broker.",
            len(mobility.relay.passed),
        )


def _links_up(mobility: MobilityPart) -> int:
    mobile, fixed = mobility.mobile_node, mobility.fixed_node
    if mobile is not None:
        return int(mobile.state.link is not None and bool(mobile.state.link["linked"]))
    return sum(fixed.is_linked(mobile_id) for mobile_id in fixed.machine.mobiles) if fixed is not None else 0


def metrics(server: Server) -> Callable[[Request], Response]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(BrokerCollector(server))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)

    def handle(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), content_type)

    return handle
