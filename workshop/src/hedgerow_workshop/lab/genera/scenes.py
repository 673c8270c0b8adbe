"""The document's two robots, a home around them, and the ways that it describes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hedgerow_workshop.lab.readings.scene import MQTT, Action, Device, Scene, Way, every

COMPUTED = Way("ipv6", 6, "multicast://eth0?ip=6", transport="multicast")
IPV6_NAMED = Way("ipv6-mdns", 6, "multicast://eth0?ip=6&naming=mdns", transport="multicast")
IPV4_NAMED = Way("ipv4-mdns", 4, "multicast://eth0?ip=4", transport="multicast")
WAYS = (COMPUTED, IPV6_NAMED, IPV4_NAMED, MQTT)

ROBOTS, ROBOTS_QOS_1, ROBOTS_LOSSY, HOME = "robots", "robots-qos1", "robots-lossy", "home"
LOSS_PERCENT = 5.0
VACUUM, MOP = "home/vacuum/mission", "home/mop/mission"
ROOMS = ("kitchen", "hall", "bath", "bedroom")
QUANTITIES = ("temperature", "humidity", "light")


@dataclass(frozen=True, slots=True)
class GeneraSettings:
    seconds: float = 60.0
    mission_s: float = 0.5
    """Between two missions of the vacuum that are completed."""
    reading_s: float = 0.5
    """Between two readings of one topic."""
    first_s: float = 1.5
    """When a scene's readings begin: what listens has then found what there is."""
    last_s: float = 1.0
    """Before the end, for what is still under way."""


FAST = GeneraSettings(seconds=6.0, mission_s=0.25, reading_s=0.25)


def runs(settings: GeneraSettings) -> list[tuple[Scene, Way]]:
    """In the document a message is one datagram: QoS 0. That each has to arrive is ours, and costs more."""
    certain = robots(settings, ROBOTS_QOS_1, qos=1)
    lossy = replace(certain, name=ROBOTS_LOSSY, loss_percent=LOSS_PERCENT)
    return [
        *((robots(settings), way) for way in WAYS),
        *((scene, way) for scene in (certain, lossy) for way in (COMPUTED, MQTT)),
        *((home(settings), way) for way in WAYS),
    ]


def robots(settings: GeneraSettings, name: str = ROBOTS, qos: int = 0) -> Scene:
    """The vacuum says that it has completed its mission; the mop answers with its own."""
    missions = every(settings.mission_s, settings.first_s, settings.seconds - settings.last_s, VACUUM)
    devices = (
        Device("vacuum", (MOP,), tuple(missions)),
        Device("mop", (VACUUM,), answers={VACUUM: MOP}),
    )
    return Scene(name, qos, settings.seconds, devices)


def home(settings: GeneraSettings) -> Scene:
    """A sensor in each room, and the three that look at them: 12 topics, each with two or three listeners."""
    topics = {room: [f"home/{room}/{quantity}" for quantity in QUANTITIES] for room in ROOMS}
    everything = tuple(topic for of_room in topics.values() for topic in of_room)
    sensors = [Device(room, actions=_readings(settings, of_room)) for room, of_room in topics.items()]
    heating = tuple(topic for topic in everything if topic.endswith(QUANTITIES[0]))
    watchers = (Device("phone", everything), Device("panel", everything), Device("heating", heating))
    return Scene(HOME, 0, settings.seconds, (*sensors, *watchers))


def _readings(settings: GeneraSettings, topics: list[str]) -> tuple[Action, ...]:
    """Of all topics evenly over the time, as sensors that know nothing of each other."""
    apart_s = settings.reading_s / len(topics)
    last_s = settings.seconds - settings.last_s
    found = [
        action
        for index, topic in enumerate(topics)
        for action in every(settings.reading_s, settings.first_s + index * apart_s, last_s, topic)
    ]
    return tuple(sorted(found, key=lambda action: action.at_s))
