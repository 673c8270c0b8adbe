"""`/metrics`: the broker's counters in Prometheus' text formats, read from `Stats` at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from hedgerow.net.http import Handler, Request, Response
from hedgerow.node.state import ledgers_of

if TYPE_CHECKING:
    from hedgerow.fabric.bridges.bridge import Bridge
    from hedgerow.fabric.sensors.exchange import Exchange
    from hedgerow.net.gateway import MulticastGateway
    from hedgerow.net.mobility.shell import Mobility
    from hedgerow.net.server import Server
    from hedgerow.node.federation import Federation

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

# Counter of `SensorStats` → name and help; only where the node has a UDP address.
SENSOR_COUNTERS = {
    "received": ("hedgerow_sensor_packets_received", "Sensor packets received."),
    "published": ("hedgerow_sensor_packets_published", "Sensor packets taken from publishers."),
    "forwarded": ("hedgerow_sensor_packets_forwarded", "Sensor packets to subscribers."),
    "malformed": ("hedgerow_sensor_packets_malformed", "Sensor packets dropped: the header is wrong."),
    "unknown_topic": ("hedgerow_sensor_packets_unknown_topic", "Dropped: the topic is not in the table."),
    "limited": ("hedgerow_sensor_packets_limited", "Dropped: beyond the rate of their address."),
    "refused": ("hedgerow_sensor_packets_refused", "Dropped: a bound or an access rule forbids it."),
    "expired": ("hedgerow_sensor_subscriptions_expired", "Sensor subscriptions that were not renewed."),
    "too_large": ("hedgerow_sensor_messages_too_large", "Messages that fit no datagram."),
    "unsent": ("hedgerow_sensor_packets_unsent", "Packets that the system did not take."),
}

# Counter of the multicast member's `Stats` or `SocketStats` → help; only where the node takes part in
# multicast. The name is the counter's, after hedgerow_multicast_.
MULTICAST_COUNTERS = {
    "published": "Messages that this node published by multicast.",
    "delivered": "Messages given on that came by multicast.",
    "datagrams_sent": "Datagrams sent.",
    "datagrams_received": "Datagrams received.",
    "copies_sent": "Datagrams sent to single peers that do not hear our multicast.",
    "malformed": "Datagrams dropped: no frame of this protocol.",
    "other_topic": "Frames dropped: of another topic at the same address.",
    "forged": "Frames dropped: no key of ours opens them, or they were changed on their way.",
    "clear": "Frames dropped: in clear, though this node has a key.",
    "sealed": "Frames dropped: sealed, though this node has no key.",
    "replayed": "Frames dropped: sealed, and received before or too old.",
    "unproven": "Frames dropped: their senders never showed that they live.",
    "duplicates": "Frames and messages dropped: received before.",
    "too_large": "Messages dropped: larger than max_payload.",
    "repairs_requested": "Requests of this node for what it missed.",
    "repairs_suppressed": "Requests not made because another member made them.",
    "repairs_sent": "Frames sent again for those who missed them.",
    "repairs_refused": "Repairs not sent: beyond the rate of this node.",
    "lost": "Frames of QoS 1 and 2 that nobody could send again.",
    "fragments_discarded": "Messages in pieces given up: one was lost, or there was no room for more.",
    "dropped": "Valid frames dropped: beyond a limit of this node.",
    "send_errors": "Datagrams that the system refused: no buffer, no route, the interface is away.",
    "unresolved": "Datagrams not sent to a topic's own group because it was not known yet.",
    "groups_refused": "Groups that could not be joined: too many, or the system said no.",
    "overruns": "Datagrams that the system dropped because a socket's buffer was full.",
}

# Counter of a mobile or fixed broker's `Stats` → help. The name is the counter's, after hedgerow_mobility_.
MOBILITY_COUNTERS = {
    "ignored": "Publications of the other broker that came twice, too late or too early.",
    "expired": "Events whose time was over before the other broker was back.",
    "refused": "Publications of the other broker that broke a rule.",
    "duplicates": "Events that had been here before.",
    "overflowed": "Events that the other broker did not get: too much waited for it.",
    "unknown_callbacks": "Subscribers that another broker named and nobody knows.",
}

# Figure of the journal → name and help; only where the node has one.
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

# What is passed on, or waits, is no drop.
LEDGER_DROPS = {
    "out": ("away", "overflowed", "expired", "too_large", "refused", "discarded"),
    "in": ("duplicates", "outdated", "refused"),
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
        yield CounterMetricFamily(
            "hedgerow_ids_forgotten",
            "Ids of messages from other brokers that the duplicate log had no room for.",
            server.broker.duplicates.forgotten,
        )
        if server.journal is not None:
            yield from _journal_metrics(server.journal.figures())
        if server.bridges is not None:
            yield from _bridge_metrics(server.bridges.bridges.kept)
        if server.federation is not None:
            yield from _federation_metrics(server.federation.machine)
        if server.mobility is not None:
            yield from _mobility_metrics(server.mobility, len(server.broker.subscriptions.delegated))
        if server.sensors is not None:
            yield from _sensor_metrics(server.sensors.exchange)
        if server.multicast is not None:
            yield from _multicast_metrics(server.multicast)


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
    ledger = Ledger("bridge", "bridge", "the far broker", "the bridge")
    for bridge in bridges:
        name, outbox = bridge.section.name, bridge.session.outbox
        up.add_metric([name], bridge.state.value == "up")
        queued.add_metric([name], len(outbox or ()))
        queued_bytes.add_metric([name], outbox.bytes if outbox is not None else 0)
        for direction, counts in bridge.ledgers().items():
            ledger.add(name, direction, counts)
    yield from (up, queued, queued_bytes, *ledger.families)


class Ledger:
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
    ledger = Ledger("federation", "neighbour", "the neighbour", "this node")
    for name, session in federation.neighbour_sessions():
        queued.add_metric([name], len(session.outbox or ()))
        queued_bytes.add_metric([name], session.outbox.bytes if session.outbox is not None else 0)
        for direction, counts in ledgers_of(session).items():
            ledger.add(name, direction, counts)
    yield GaugeMetricFamily(
        "hedgerow_federation_neighbours", "Neighbours.", len(federation.overlay.round_trips)
    )
    yield from (round_trips, queued, queued_bytes, *ledger.families)
    packets = CounterMetricFamily(
        "hedgerow_federation_packets", "Packets between federators.", labels=["direction", "kind"]
    )
    stats = federation.federator.stats
    for direction, kinds in (("out", stats.sent), ("in", stats.received)):
        for kind, count in kinds.items():
            packets.add_metric([direction, kind], count)
    yield packets
    for what, reasons in (
        ("packets", stats.ignored),
        ("overlay_packets", federation.overlay.stats.ignored()),
        ("tunnel_frames", federation.ignored_frames),
    ):
        ignored = CounterMetricFamily(
            f"hedgerow_federation_{what}_ignored",
            "What neighbours, or strangers, sent that was passed over, by reason.",
            labels=["reason"],
        )
        for reason, count in reasons.items():
            ignored.add_metric([reason], count)
        yield ignored


def _mobility_metrics(mobility: Mobility, delegated: int) -> Iterator[Metric]:
    for counter, help_text in MOBILITY_COUNTERS.items():
        value = getattr(mobility.node.machine.stats, counter)
        yield CounterMetricFamily(f"hedgerow_mobility_{counter}", help_text, value)
    yield GaugeMetricFamily(
        "hedgerow_mobility_delegated_filters", "Topic filters that the fixed broker matches.", delegated
    )
    if mobility.relay is not None:
        yield GaugeMetricFamily(
            "hedgerow_mobility_relayed_connections",
            "Clients whose bytes are passed on to the fixed broker.",
            len(mobility.relay.passed),
        )


def metrics(server: Server) -> Handler:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(BrokerCollector(server))
    ProcessCollector(registry=registry)

    def handle(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), content_type)

    return handle
