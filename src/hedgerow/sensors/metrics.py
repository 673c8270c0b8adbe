"""What `/metrics` shows of a node's UDP sensors."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from hedgerow.node.metrics import counters
from hedgerow.sensors.exchange import Exchange

# Counter of `SensorStats` → name and help.
SENSOR_COUNTERS = {
    "received": ("hedgerow_sensor_packets_received", "Sensor packets received."),
    "published": ("hedgerow_sensor_packets_published", "Sensor packets taken from publishers."),
    "forwarded": ("hedgerow_sensor_packets_forwarded", "Sensor packets to subscribers."),
    "malformed": ("hedgerow_sensor_packets_malformed", "Sensor packets dropped: the header is wrong."),
    "unknown_topic": ("hedgerow_sensor_packets_unknown_topic", "Dropped: the topic is not in the table."),
    "limited": ("hedgerow_sensor_packets_limited", "Dropped: beyond the rate of their address."),
    "refused": ("hedgerow_sensor_packets_refused", "Dropped: a bound or an access rule forbids it."),
    "looped": ("hedgerow_sensor_packets_looped", "Dropped: subscribers had just been sent the same."),
    "expired": ("hedgerow_sensor_subscriptions_expired", "Sensor subscriptions that were not renewed."),
    "replaced": (
        "hedgerow_sensor_subscriptions_replaced",
        "Sensor subscriptions without an end, replaced by newer ones of their address.",
    ),
    "too_large": ("hedgerow_sensor_messages_too_large", "Messages that fit no datagram."),
    "unsent": ("hedgerow_sensor_packets_unsent", "Packets that the system did not take."),
}


def sensor_metrics(exchange: Exchange, overruns: int, receive_buffer_bytes: int) -> Iterator[Metric]:
    yield from counters(exchange.stats, SENSOR_COUNTERS)
    yield GaugeMetricFamily(
        "hedgerow_sensor_subscriptions", "Sensor subscriptions.", exchange.subscription_count
    )
    yield CounterMetricFamily(
        "hedgerow_sensor_packets_overruns",
        "Sensor packets that the system dropped because the socket's buffer was full.",
        overruns,
    )
    yield GaugeMetricFamily(
        "hedgerow_sensor_receive_buffer_bytes",
        "Receive buffer that the system granted to each socket.",
        receive_buffer_bytes,
    )
