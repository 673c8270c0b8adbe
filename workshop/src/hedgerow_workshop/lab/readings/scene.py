"""What happens on the hosts, and the ways in which it may be carried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MQTT_PORT = 1883
BROKER = "broker"


class Does(StrEnum):
    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"


@dataclass(frozen=True, slots=True)
class Action:
    at_s: float
    """Since the scene began."""
    does: Does
    topic: str


@dataclass(frozen=True, slots=True)
class Device:
    """A host of its own."""

    name: str
    subscribed: tuple[str, ...] = ()
    """From the beginning."""
    actions: tuple[Action, ...] = ()
    answers: Mapping[str, str] = field(default_factory=dict)
    """A topic that is heard, and the one on which that is answered at once."""
    port: int = 0
    """Where it receives, if the way gives it a choice; 0: the system chooses."""


@dataclass(frozen=True, slots=True)
class Scene:
    name: str
    qos: int
    seconds: float
    devices: tuple[Device, ...]
    loss_percent: float = 0.0
    """Of the datagrams and TCP segments that arrive at a host."""


@dataclass(frozen=True, slots=True)
class Way:
    name: str
    ip: int
    """The one IP version that its hosts have."""
    url: str
    """As devices connect, with {broker} where it names one."""
    own_port: str = ""
    """What is added for a device that receives at a {port} of its own."""
    has_broker: bool = False
    transport: str = "mqtt"
    """As a journal calls it."""

    def url_of(self, device: Device, broker: str | None) -> str:
        url = self.url + (self.own_port if device.port else "")
        return url.format(broker=broker, port=device.port)


MQTT = Way("mqtt", 4, f"mqtt://{{broker}}:{MQTT_PORT}", has_broker=True)
"""MQTT 3.1.1, which all others are held against."""


def every(step_s: float, first_s: float, until_s: float, topic: str) -> list[Action]:
    """A reading at each of these times."""
    count = max(0, int((until_s - first_s) / step_s + 1e-9))
    return [Action(first_s + index * step_s, Does.PUBLISH, topic) for index in range(count)]
