"""An event that is larger than the broker at the other end of a mobile link takes does not end the link."""

from __future__ import annotations

from typing import Any

import pytest

from hedgerow.broker.limits import Limits
from hedgerow.mobility.events import FixedNotLinked
from hedgerow.mqtt.packets import MQTT_5
from tests.mobility.domain import Domain, Roamer
from tests.mobility.traffic import Traffic, steady

SMALL = Limits(packet_bytes=20_000)


@pytest.mark.parametrize("small", ["f", "m"])
@pytest.mark.parametrize("at", ["f", "m"])
def test_a_large_event_does_not_end_the_link(small: str, at: str) -> None:
    domain = Domain()
    limits: dict[str, Any] = {small: {"limits": SMALL}}
    domain.add_fixed("f", **limits.get("f", {}))
    domain.add_mobile("m", "f", settings={"moves_clients": False}, **limits.get("m", {}))
    domain.advance(0.5)
    roamer = Roamer(domain, "m", "r", MQTT_5, "hot", "cold")
    other = Roamer(domain, "f", "o", MQTT_5, "cold")
    traffic = Traffic(domain, "m", steady(hot=50.0, cold=5.0))
    domain.advance(3)
    traffic.stop()
    assert domain["m"].delegated == {"cold"}
    publisher = Roamer(domain, at, "publisher", MQTT_5)
    before = domain["m"].told(FixedNotLinked)
    size = 15_000 if at == small else 50_000
    publisher.publish("cold", b"x" * size, 1)
    publisher.publish("cold", b"after", 1)
    domain.advance(10)
    assert domain["m"].told(FixedNotLinked) == before, "the link stands"
    assert b"after" in roamer.payloads
    assert b"after" in other.payloads
    if at != small:
        mine = roamer if at == "m" else other
        assert b"x" * size in mine.payloads, "those at its own broker get it"
