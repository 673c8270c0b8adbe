"""`/metrics`: the broker's counters in Prometheus' text formats, read from `Stats` at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from hedgerow.net.http import Handler, Request, Response

if TYPE_CHECKING:
    from hedgerow.net.server import Server

# Counter of `Stats` → name and help. Prometheus adds "_total" to the names of counters.
COUNTERS = {
    "bytes_received": ("hedgerow_received_bytes", "Bytes received from clients."),
    "bytes_sent": ("hedgerow_sent_bytes", "Bytes sent to clients."),
    "packets_received": ("hedgerow_packets_received", "Control packets received from clients."),
    "packets_sent": ("hedgerow_packets_sent", "Control packets sent to clients."),
    "publish_received": ("hedgerow_messages_received", "Publications received from clients."),
    "publish_sent": ("hedgerow_messages_sent", "Publications sent to clients."),
    "publish_dropped": (
        "hedgerow_messages_dropped",
        "Deliveries given up: a slow reader, a full queue, a packet larger than the client takes.",
    ),
    "publish_expired": ("hedgerow_messages_expired", "Deliveries whose message expired while waiting."),
    "publish_refused": ("hedgerow_messages_refused", "Publications refused by an access rule or a limit."),
    "publish_bytes_received": ("hedgerow_messages_received_bytes", "Bytes of publications received."),
    "publish_bytes_sent": ("hedgerow_messages_sent_bytes", "Bytes of publications sent."),
    "connections_opened": ("hedgerow_connections_opened", "Connections accepted."),
    "connections_refused": ("hedgerow_connections_refused", "Connections refused, whatever the reason."),
    "protocol_errors": ("hedgerow_protocol_errors", "Connections closed because the client broke a rule."),
    "sessions_expired": ("hedgerow_sessions_expired", "Sessions that ended because their time was over."),
}

# Name → help and what to read.
GAUGES: dict[str, tuple[str, Callable[[Server], float]]] = {
    "hedgerow_connections": ("Open client connections.", lambda server: len(server.broker.connections)),
    "hedgerow_connections_limit": (
        "How many client connections may be open.",
        lambda server: server.config.limits.connections,
    ),
    "hedgerow_clients_maximum": (
        "The most clients that were connected at one time.",
        lambda server: server.broker.stats.clients_maximum,
    ),
    "hedgerow_sessions": (
        "Sessions, with and without a connection.",
        lambda server: len(server.broker.sessions),
    ),
    "hedgerow_subscriptions": (
        "Subscriptions of all sessions.",
        lambda server: len(server.broker.subscriptions),
    ),
    "hedgerow_retained_messages": ("Retained messages.", lambda server: len(server.broker.retained)),
    "hedgerow_stored_messages": (
        "Messages that the store keeps for deliveries.",
        lambda server: len(server.broker.durability.references),
    ),
    "hedgerow_healthy": (
        "1 while the node can do all of its work, else 0.",
        lambda server: server.problem is None,
    ),
}


class BrokerCollector(Collector):
    def __init__(self, server: Server) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        server = self._server
        yield InfoMetricFamily("hedgerow_node", "This node.", {"id": server.node_id})
        for counter, (name, help_text) in COUNTERS.items():
            yield CounterMetricFamily(name, help_text, getattr(server.broker.stats, counter))
        for name, (help_text, read) in GAUGES.items():
            yield GaugeMetricFamily(name, help_text, read(server))


def metrics(server: Server) -> Handler:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(BrokerCollector(server))
    ProcessCollector(registry=registry)

    def handle(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), content_type)

    return handle
