"""What `/metrics` shows of each machine's counters: names and help texts, as data.

Names follow Prometheus' conventions: base units (`_seconds`, `_bytes`) at the end, and the library adds
`_total` to those of counters. Every counter of every `Stats` is in one of these tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hedgerow.node.server import Server

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
    "unseen": "Clients that subscribed and were not seen to connect.",
    "early": "Lines before this node's own subscription was seen.",
    "cut": "Lines that the broker had cut.",
    "unreadable": "Lines that could not be read.",
    "ambiguous": "Unsubscriptions with several readings: nothing was taken away.",
    "overflowed": "Clients and subscriptions beyond the bounds.",
}

# Figure of `CommitStats` → name and help; only where the node has a store or a journal.
COMMIT_COUNTERS = {
    "commits": ("hedgerow_commits", "Batches that are durable in the store and the journal."),
    "commit_s": ("hedgerow_commit_seconds", "Time that batches took from being gathered to being durable."),
    "failures": ("hedgerow_commit_failures", "Attempts to write to the store that failed, and are repeated."),
}

# Name → help and what to read.
GAUGES: dict[str, tuple[str, Callable[[Server], float]]] = {
    "hedgerow_clients": ("Clients that are connected.", lambda server: server.broker.client_count),
    "hedgerow_links": (
        "Connections to and from other brokers that are up.",
        lambda server: server.broker.link_count,
    ),
    "hedgerow_connections": (
        "Open connections: clients, links, and who is not logged in yet.",
        lambda server: len(server.broker.connections),
    ),
    "hedgerow_connections_limit": (
        "How many connections may be open.",
        lambda server: server.config.limits.connections,
    ),
    "hedgerow_http_connections": (
        "Open connections of the HTTP port.",
        lambda server: server.sockets.http_open,
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
    "hedgerow_shared_subscriptions": (
        "Subscriptions that share their messages with others.",
        lambda server: server.broker.subscriptions.shared_count,
    ),
    "hedgerow_retained_bytes": ("Bytes of retained messages.", lambda server: server.broker.retained.bytes),
    "hedgerow_healthy": (
        "1 while the node can do all of its work, else 0.",
        lambda server: server.problem is None,
    ),
}
