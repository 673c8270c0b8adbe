"""`/metrics`: what the node counts in Prometheus' text formats, read from its machines at each scrape.

Nothing is counted for it: a machine counts what it does in its `Stats`, and tables name each. Here are those
of the broker; each part gives its own. Names follow Prometheus' conventions: base units (`_seconds`,
`_bytes`) at the end, and the library adds `_total` to those of counters. Every counter of every `Stats` is in
one of the tables. Labels are bounded: neighbours, bridges, transports, and kinds and reasons that are words
of this program.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from hedgerow.node.handlers import Request, Response
from hedgerow.node.version import VERSION

if TYPE_CHECKING:
    from hedgerow.broker.broker import Broker
    from hedgerow.node.part import NodeContext, Part

# Scrapes run on the loop that serves the clients, and the more bridges and neighbours there are, the longer
# each takes. All of them together get this share of its time, and may be ahead of it by so much.
RENDERING_SHARE = 0.1
RENDERING_BURST_S = 0.1

OPEN_METRICS = "application/openmetrics-text"

# Counter of the broker's `Stats` → name and help.
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
    "publish_set_aside": (
        "hedgerow_messages_set_aside",
        "Messages for links that the far end cannot take, refuses or closes on; the log says which and why.",
    ),
    "publish_expired": ("hedgerow_messages_expired", "Deliveries whose message expired while waiting."),
    "publish_refused": ("hedgerow_messages_refused", "Publications refused by an access rule or a limit."),
    "publish_bytes_received": ("hedgerow_messages_received_bytes", "Bytes of publications received."),
    "publish_bytes_sent": ("hedgerow_messages_sent_bytes", "Bytes of publications sent."),
    "connections_opened": ("hedgerow_connections_opened", "Connections accepted."),
    "connections_refused": ("hedgerow_connections_refused", "Connections refused, whatever the reason."),
    "protocol_errors": ("hedgerow_protocol_errors", "Connections closed because the client broke a rule."),
    "connections_failed": (
        "hedgerow_connections_failed",
        "Connections closed after an error in Hedgerow itself; the log has its traceback.",
    ),
    "sessions_expired": ("hedgerow_sessions_expired", "Sessions that ended because their time was over."),
}

# Name → help and what to read.
GAUGES: dict[str, tuple[str, Callable[[NodeContext], float]]] = {
    "hedgerow_clients": ("Clients that are connected.", lambda node: node.broker.client_count),
    "hedgerow_links": (
        "Connections to and from other brokers that are up.",
        lambda node: node.broker.link_count,
    ),
    "hedgerow_connections": (
        "Open connections: clients, links, and who is not logged in yet.",
        lambda node: len(node.broker.connections),
    ),
    "hedgerow_connections_limit": (
        "How many connections may be open.",
        lambda node: node.config.limits.connections,
    ),
    "hedgerow_http_connections": (
        "Open connections of the HTTP port.",
        lambda node: node.sockets.http_open,
    ),
    "hedgerow_clients_maximum": (
        "The most clients that were connected at one time.",
        lambda node: node.broker.stats.clients_maximum,
    ),
    "hedgerow_sessions": (
        "Sessions, with and without a connection.",
        lambda node: len(node.broker.sessions),
    ),
    "hedgerow_subscriptions": (
        "Subscriptions of all sessions.",
        lambda node: len(node.broker.subscriptions),
    ),
    "hedgerow_retained_messages": ("Retained messages.", lambda node: len(node.broker.retained)),
    "hedgerow_stored_messages": (
        "Messages that wait in the log, counted for each session.",
        lambda node: node.broker.durability.references,
    ),
    "hedgerow_shared_subscriptions": (
        "Subscriptions that share their messages with others.",
        lambda node: node.broker.subscriptions.shared_count,
    ),
    "hedgerow_retained_bytes": ("Bytes of retained messages.", lambda node: node.broker.retained.bytes),
    "hedgerow_healthy": (
        "1 while the node can do all of its work, else 0.",
        lambda node: node.problem is None,
    ),
}

# What is passed on, or waits, is no drop.
LEDGER_DROPS = {
    "out": ("away", "overflowed", "expired", "too_large", "refused", "discarded"),
    "in": ("duplicates", "outdated", "refused"),
}


class NodeCollector(Collector):
    def __init__(self, node: NodeContext) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        node = self._node
        yield InfoMetricFamily("hedgerow_node", "This node.", {"id": node.node_id})
        yield InfoMetricFamily("hedgerow_build", "This program.", {"version": VERSION})
        yield GaugeMetricFamily(
            "hedgerow_start_time_seconds", "When the node started, in Unix time.", node.started_at
        )
        yield from counters(node.broker.stats, COUNTERS)
        for name, (help_text, read) in GAUGES.items():
            yield GaugeMetricFamily(name, help_text, read(node))
        yield CounterMetricFamily(
            "hedgerow_ids_forgotten",
            "Ids of messages from other brokers that the duplicate log had no room for.",
            node.broker.duplicates.forgotten,
        )
        yield GaugeMetricFamily(
            "hedgerow_open_sockets",
            "Open sockets of all listeners, those of HTTP and of clients that are not logged in too.",
            node.sockets.open,
        )
        yield GaugeMetricFamily(
            "hedgerow_loop_lateness_maximum_seconds",
            "By how much the latest timer of the last half to whole minute was late: clients wait so long.",
            node.lateness.maximum(node.clock()),
        )
        yield from _broker_metrics(node.broker)
        none: list[Metric] = []
        of_parts = [metric for part in node.parts for metric in node.ask(part, _read_metrics, none)]
        failures = CounterMetricFamily(
            "hedgerow_part_failures",
            "Failures of parts of the node, each by an error in Hedgerow itself; the log has its traceback.",
            labels=["part"],
        )
        for name, count in node.failures.counts.items():
            failures.add_metric([name], count)
        yield failures
        yield from of_parts


def _read_metrics(part: Part) -> list[Metric]:
    return list(part.metrics())


def _broker_metrics(broker: Broker) -> Iterator[Metric]:
    """By a look at every connection and session, as `$SYS` takes it: 0.1 ms for a thousand of them."""
    transports = GaugeMetricFamily(
        "hedgerow_transport_connections", "Open connections, by transport.", labels=["transport"]
    )
    for transport, count in Counter(each.transport for each in broker.connections).items():
        transports.add_metric([transport], count)
    yield transports
    sessions = broker.sessions.values()
    yield GaugeMetricFamily(
        "hedgerow_queued_messages",
        "Messages that wait for their subscribers.",
        sum(session.waiting_count for session in sessions),
    )
    yield GaugeMetricFamily(
        "hedgerow_queued_bytes",
        "Bytes of messages that wait for their subscribers.",
        sum(session.queued_bytes for session in sessions),
    )


# What parts make theirs with


def counters(stats: object, table: Mapping[str, tuple[str, str]]) -> Iterator[Metric]:
    """Counter of `stats` → name and help."""
    for counter, (name, help_text) in table.items():
        yield CounterMetricFamily(name, help_text, getattr(stats, counter))


def counters_named(stats: object, prefix: str, table: Mapping[str, str]) -> Iterator[Metric]:
    """Counter of `stats` → help. The name is the counter's, after the prefix."""
    for counter, help_text in table.items():
        yield CounterMetricFamily(f"{prefix}{counter}", help_text, getattr(stats, counter))


def ignored_by_reason(name: str, reasons: Mapping[str, int]) -> Metric:
    help_text = "What neighbours, or strangers, sent that was passed over, by reason."
    ignored = CounterMetricFamily(name, help_text, labels=["reason"])
    for reason, count in reasons.items():
        ignored.add_metric([reason], count)
    return ignored


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


def metrics(
    node: NodeContext, clock: Callable[[], float] = time.perf_counter
) -> Callable[[Request], Response]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeCollector(node))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    renderings = Renderings(registry, clock)

    def handle(request: Request) -> Response:
        return renderings.response(OPEN_METRICS in request.headers.get("accept", ""))

    return handle


class Renderings:
    """The metrics as text, made anew for each scrape as long as scrapes do not take too much time.

    Then they share the last text, until the node has had its time back.
    """

    def __init__(self, registry: Collector, clock: Callable[[], float]) -> None:
        self._registry = registry
        self._clock = clock
        self._last: dict[bool, Response] = {}  # by whether it is OpenMetrics
        self._paid_at = clock()

    def response(self, is_open: bool) -> Response:
        now = self._clock()
        is_affordable = self._paid_at - now <= RENDERING_BURST_S / RENDERING_SHARE
        if is_affordable or is_open not in self._last:
            # Of formats there are two: a peer that invents versions must not have us keep a text of each.
            encode, content_type = choose_encoder(f"{OPEN_METRICS}; version=1.0.0" if is_open else "")
            self._last[is_open] = Response(encode(self._registry), content_type)
            took_s = self._clock() - now
            self._paid_at = max(self._paid_at, now) + took_s / RENDERING_SHARE
        return self._last[is_open]
