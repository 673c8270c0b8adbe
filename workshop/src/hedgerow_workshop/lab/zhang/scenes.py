"""The document's walk-through: who does what at which of its nine steps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hedgerow.sensors.packet import DEFAULT_PORT
from hedgerow_workshop.lab.readings.record import ReadingsRecord
from hedgerow_workshop.lab.readings.scene import MQTT, Action, Device, Does, Scene, Way, every

UDP = Way("udp", 4, f"udp://{{broker}}:{DEFAULT_PORT}", "?port={port}", has_broker=True, transport="udp")
WAYS = (UDP, MQTT)

STATION, STATION_LOSSY = "station", "station-lossy"
LOSS_PERCENT = 5.0
LAPTOP, MOBILE = "laptop", "mobile"
SENSORS = {"thermometer": "temperature", "anemometer": "wind speed", "hygrometer": "humidity"}
PORTS = {LAPTOP: 12_346, MOBILE: 12_349}
STEPS = 9

# As in the document, a subscription never ends.
BROKER_OPTIONS = ("--udp", "{broker}", "--sensors-anonymous", "--sensor-subscription-expiry", "0")


@dataclass(frozen=True, slots=True)
class ZhangSettings:
    seconds: float = 60.0
    step_s: float = 0.3
    """Between two steps that somebody takes; the broker's own follow by themselves."""
    reading_s: float = 0.2
    """Between two readings of one sensor, after the nine steps."""
    last_s: float = 1.0


FAST = ZhangSettings(seconds=10.0, reading_s=0.1)


def station(settings: ZhangSettings) -> Scene:
    taken = iter(range(1, STEPS))

    def step(does: Does, topic: str) -> Action:
        return Action(next(taken) * settings.step_s, does, topic)

    subscribes_1 = step(Does.SUBSCRIBE, "temperature")
    subscribes_2 = step(Does.SUBSCRIBE, "wind speed")
    first = {"temperature": step(Does.PUBLISH, "temperature"), "wind speed": step(Does.PUBLISH, "wind speed")}
    subscribes_3 = step(Does.SUBSCRIBE, "humidity")
    first["humidity"] = step(Does.PUBLISH, "humidity")
    after_s = first["humidity"].at_s + 2 * settings.step_s
    last_s = settings.seconds - settings.last_s
    apart_s = settings.reading_s / len(SENSORS)
    sensors = [
        Device(
            name, actions=(first[topic], *every(settings.reading_s, after_s + index * apart_s, last_s, topic))
        )
        for index, (name, topic) in enumerate(SENSORS.items())
    ]
    watchers = (
        Device(LAPTOP, actions=(subscribes_1, subscribes_3), port=PORTS[LAPTOP]),
        Device(MOBILE, actions=(subscribes_2,), port=PORTS[MOBILE]),
    )
    return Scene(STATION, 0, settings.seconds, (*watchers, *sensors))


def runs(settings: ZhangSettings) -> list[tuple[Scene, Way]]:
    """On a network that loses nothing, and on one that loses some: there UDP and TCP differ."""
    scene = station(settings)
    lossy = replace(scene, name=STATION_LOSSY, loss_percent=LOSS_PERCENT)
    return [(each, way) for each in (scene, lossy) for way in WAYS]


def steps_taken(record: ReadingsRecord) -> int:
    """How many of the nine happened, in the document's order, from the first on."""
    times = [
        _subscribed(record, LAPTOP, "temperature"),
        _subscribed(record, MOBILE, "wind speed"),
        *_published_and_heard(record, "thermometer", LAPTOP),
        *_published_and_heard(record, "anemometer", MOBILE),
        _subscribed(record, LAPTOP, "humidity"),
        *_published_and_heard(record, "hygrometer", LAPTOP),
    ]
    taken, before = 0, float("-inf")
    for at in times:
        if at is None or at < before:
            break
        taken, before = taken + 1, at
    return taken


def _subscribed(record: ReadingsRecord, device: str, topic: str) -> float | None:
    return record.devices[device].subscribed.get(topic)


def _published_and_heard(
    record: ReadingsRecord, sensor: str, device: str
) -> tuple[float | None, float | None]:
    """The sensor's first reading."""
    topic = SENSORS[sensor]
    published = record.devices[sensor].sent.get(topic, {}).get(0)
    received = record.devices[device].received
    return published, next((at for heard, number, at in received if (heard, number) == (topic, 0)), None)
