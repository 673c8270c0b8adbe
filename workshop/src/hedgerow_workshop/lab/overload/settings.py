"""What an overload is made of."""

from __future__ import annotations

from dataclasses import dataclass

TOPICS = "overload/"
FILTER = f"{TOPICS}#"
PROBE = f"{TOPICS}probe"
SENSORS = "sensors/field"
SENSOR_NUMBER = 1

# Who is where. The three nodes are a ring, and Mosquitto's federator is linked to two of them.
RECORDER, GATEWAY, KILLED = "north", "east", "west"
NODES = (RECORDER, GATEWAY, KILLED)
STOCK = "mosquitto"
BROKERS = (*NODES, STOCK)
MULTICAST = ("robot-1", "robot-2")


@dataclass(frozen=True, slots=True)
class OverloadSettings:
    seconds: float = 60.0
    """For so long there are publications."""
    messages: int = 60_000
    """At most so many from each publisher: what one broker takes must be read at all others."""
    window: int = 500
    """A publisher has so many in flight."""
    payload_bytes: int = 64
    multicast_rate: float = 500.0
    """A second, of each publisher that has no broker."""
    sensors: int = 3
    sensor_rate: float = 300.0
    """A second, of each UDP sensor."""
    slow_share: float = 0.1
    """Slow readers read so much of what is published, until publishing has ended."""
    kills: int = 2
    killed_s: float = 1.0
    patience_s: float = 30.0
    """Without anything arriving at the end, before what is missing is given up."""
    settle_s: float = 600.0
    """The longest that readers may take at the end."""
    quiet_s: float = 2.0
    """After the last: what is doubled would come now."""


FAST = OverloadSettings(
    seconds=20.0,
    messages=30_000,
    multicast_rate=200.0,
    sensor_rate=200.0,
    patience_s=12.0,
    settle_s=50.0,
    quiet_s=1.0,
)
