"""`$SYS`: the broker's state as retained messages, under the names that Mosquitto gave them.

People's dashboards read these, so names and units are Mosquitto's: totals since the start, and load
averages per minute over 1, 5 and 15 minutes. A topic is published when its value has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import exp

from hedgerow.broker.core import BrokerCore
from hedgerow.broker.publishing import publish_message
from hedgerow.message import Message

LOAD_MINUTES = (1, 5, 15)

# Topic below $SYS/broker/load → the counter whose rate it is.
LOADS = {
    "messages/received": "packets_received",
    "messages/sent": "packets_sent",
    "publish/received": "publish_received",
    "publish/sent": "publish_sent",
    "publish/dropped": "publish_dropped",
    "bytes/received": "bytes_received",
    "bytes/sent": "bytes_sent",
    "sockets": "connections_opened",
    "connections": "connections_opened",
}

# Topic below $SYS/broker → the counter that it shows.
COUNTERS = {
    "messages/received": "packets_received",
    "messages/sent": "packets_sent",
    "publish/messages/received": "publish_received",
    "publish/messages/sent": "publish_sent",
    "publish/messages/dropped": "publish_dropped",
    "publish/messages/expired": "publish_expired",
    "publish/messages/refused": "publish_refused",
    "publish/bytes/received": "publish_bytes_received",
    "publish/bytes/sent": "publish_bytes_sent",
    "bytes/received": "bytes_received",
    "bytes/sent": "bytes_sent",
    "clients/maximum": "clients_maximum",
    "clients/expired": "sessions_expired",
    "connections/refused": "connections_refused",
    "protocol/errors": "protocol_errors",
}


class SysTopics:
    def __init__(self, broker: BrokerCore, now: float, interval_s: float, version: str) -> None:
        self._broker = broker
        self._interval_s = interval_s  # 0: never
        self._version = f"hedgerow version {version}"
        self._started_at = now
        self._published_at = now
        self._last_counters = dict.fromkeys(LOADS.values(), 0)
        self._loads: dict[str, list[float]] = {topic: [0.0] * len(LOAD_MINUTES) for topic in LOADS}
        self._last_values: dict[str, str] = {}
        self._is_publishing = False
        self.next_at = now if interval_s else float("inf")

    def publish(self, now: float) -> None:
        self.next_at = now + self._interval_s
        self._update_loads(now)
        if self._is_publishing:
            return  # Some are still on their way: there are very many who get them.
        self._is_publishing = True
        values = iter(list(self._values(now)))
        self._broker.begin_turn()
        if not self._publish_some(values):
            self._broker.end_later(partial(self._publish_some, values))

    def _publish_some(self, values: Iterator[tuple[str, str]]) -> bool:
        """Are all of them published?"""
        broker = self._broker
        while not broker.turn_is_over:
            topic, value = next(values, (None, ""))
            if topic is None:
                self._is_publishing = False
                return True
            if self._last_values.get(topic) == value:
                continue
            self._last_values[topic] = value
            name = f"$SYS/broker/{topic}"
            message = Message(name, value.encode(), retain=True)
            broker.retained.set(message)
            # To those who subscribed before: as any live message, without RETAIN.
            publish_message(broker, Message(name, message.payload), broker.find_route(name), None)
        return False

    def _values(self, now: float) -> Iterator[tuple[str, str]]:
        broker = self._broker
        stats = broker.stats
        # Links to other brokers are no clients, here as in `/metrics` and in a status.
        clients = sum(not each.role.is_link for each in broker.sessions.values())
        connected = broker.client_count
        yield "version", self._version
        yield "uptime", f"{int(now - self._started_at)} seconds"
        yield "clients/total", str(clients)
        yield "clients/connected", str(connected)
        yield "clients/active", str(connected)
        yield "clients/disconnected", str(clients - connected)
        yield "clients/inactive", str(clients - connected)
        for topic, counter in COUNTERS.items():
            yield topic, str(getattr(stats, counter))
        yield "retained messages/count", str(len(broker.retained))
        sessions = broker.sessions.values()
        stored = len(broker.retained) + sum(session.waiting_count for session in sessions)
        yield "messages/stored", str(stored)
        yield "store/messages/count", str(stored)
        yield (
            "store/messages/bytes",
            str(broker.retained.bytes + sum(session.queued_bytes for session in sessions)),
        )
        yield "subscriptions/count", str(len(broker.subscriptions))
        yield "shared_subscriptions/count", str(broker.subscriptions.shared_count)
        for observer in broker.subscriptions.observers:
            for topic, figure in observer.figures().items():
                yield f"{observer.name}/{topic}", str(figure)
        for topic, averages in self._loads.items():
            for minutes, average in zip(LOAD_MINUTES, averages, strict=True):
                yield f"load/{topic}/{minutes}min", f"{average:.2f}"

    def _update_loads(self, now: float) -> None:
        """Exponential averages of the rate per minute, as the kernel keeps its load."""
        elapsed_s = now - self._published_at
        self._published_at = now
        if elapsed_s <= 0:
            return
        growth = {}
        for counter, last in self._last_counters.items():
            value = getattr(self._broker.stats, counter)
            growth[counter] = (value - last) * 60 / elapsed_s
            self._last_counters[counter] = value
        for topic, averages in self._loads.items():
            for position, minutes in enumerate(LOAD_MINUTES):
                weight = exp(-elapsed_s / (60 * minutes))
                rate = growth[LOADS[topic]]
                averages[position] = averages[position] * weight + rate * (1 - weight)
