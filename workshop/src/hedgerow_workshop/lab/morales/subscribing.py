"""Clients with many subscriptions, which count what comes and keep nothing of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, islice

from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.packets import MQTT_3_1_1, Subscribe, Subscription
from hedgerow_workshop.lab.harness.wire import WireClient

AT_ONCE = 500  # filters in one SUBSCRIBE
CONNECTING = 50  # clients at the same time
_CONNACK, _PUBLISH, _SUBACK = 2, 3, 9


class ManySubscriptions(WireClient):
    """At QoS 0."""

    def __init__(self, name: str, address: tuple[str, int], topics: Sequence[str]) -> None:
        super().__init__(name, address)
        self.arrived = 0
        self._topics = topics
        self._to_be_granted = 0

    def receive(self, first: int, data: bytes, start: int, end: int) -> None:
        kind = first >> 4
        if kind == _PUBLISH:
            self.arrived += 1
        elif kind == _CONNACK:
            self._subscribe()
        elif kind == _SUBACK:
            self._to_be_granted -= 1
            if not self._to_be_granted:
                self._ready.set()

    def _subscribe(self) -> None:
        assert self._transport is not None
        topics = iter(self._topics)
        for packet_id in count(1):
            chosen = [Subscription(topic, 0) for topic in islice(topics, AT_ONCE)]
            if not chosen:
                break
            self._to_be_granted += 1
            self._transport.write(encode(Subscribe(packet_id, chosen), MQTT_3_1_1))
