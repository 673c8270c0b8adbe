"""What `/metrics` shows of a node's multicast gateway."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from hedgerow.multicast.gateway import Gateway

if TYPE_CHECKING:
    from hedgerow.multicast.io.endpoint import MulticastEndpoint

# Counter of the multicast member's `Stats` or `SocketStats` → help. The
# name is the counter's, after hedgerow_multicast_.
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
    "missed": "Messages of QoS 1 and 2 that this node missed: their sender did not wait any longer.",
    "acknowledgements_sent": "Acknowledgements of what this node heard.",
    "acknowledgements_received": "Acknowledgements of what this node sent.",
    "left_behind": "Receivers that this node did not wait for any longer.",
    "not_taken": "Messages of this node that such receivers missed.",
    "fragments_discarded": "Messages in pieces given up: one was lost, or there was no room for more.",
    "dropped": "Valid frames dropped: beyond a limit of this node.",
    "send_errors": "Datagrams that the system refused: no buffer, no route, the interface is away.",
    "unresolved": "Datagrams not sent to a topic's own group because it was not known yet.",
    "groups_refused": "Groups that could not be joined: too many, or the system said no.",
    "overruns": "Datagrams that the system dropped because a socket's buffer was full.",
}


def multicast_metrics(gateway: Gateway, endpoint: MulticastEndpoint) -> Iterator[Metric]:
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
    yield GaugeMetricFamily(
        "hedgerow_gateway_held_back",
        "Messages from multicast that wait for room at the broker.",
        gateway.to_broker.waiting,
    )
    yield CounterMetricFamily(
        "hedgerow_gateway_ids_forgotten", "Ids that the duplicate log had no room for.", gateway.forgotten
    )
    yield GaugeMetricFamily(
        "hedgerow_multicast_receivers",
        "Members that acknowledge what this node sends at QoS 1 and 2.",
        endpoint.member.receiver_count,
    )
    yield GaugeMetricFamily(
        "hedgerow_multicast_unacknowledged_bytes",
        "Under way to the receiver that is furthest behind.",
        endpoint.member.unacknowledged_bytes,
    )
    yield GaugeMetricFamily(
        "hedgerow_multicast_receive_buffer_bytes",
        "Receive buffer that the system granted to each socket.",
        endpoint.receive_buffer_bytes,
    )
    member = asdict(endpoint.member.stats) | asdict(endpoint.stats) | {"overruns": endpoint.overruns}
    for counter, help_text in MULTICAST_COUNTERS.items():
        yield CounterMetricFamily(f"hedgerow_multicast_{counter}", help_text, member[counter])
