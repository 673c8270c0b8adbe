"""What a storm is made of, and what each publication of it is about.

There is the storm's topic, and calm ones. The storm's has the same traffic all the time. That of the calm
ones alternates with every X.time: in one period all of it is on the first of them, so that the storm's topic
is among the upper half, and is kept; in the next it is spread over all of them, and the storm's topic has
the least, and is delegated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice

from hedgerow.errors import ConfigError

DOMAIN = "lab/brokers"
STORM = "lab/storm"
CALM = ("lab/calm/0", "lab/calm/1", "lab/calm/2")
TOPICS = (STORM, *CALM)

# What is published late must not be counted in the next period as traffic that is spread.
SPREAD_PART = 0.75

# Each of the calm topics has events in every period, or it would have no rank.
TRICKLE_PART = 0.25

# The least that the storm's topic must have in a period, and by how much the calm ones must exceed it.
MIN_EVENTS = 3
MIN_FACTOR = 1.5

MIN_SUBSCRIBERS = 8  # of each kind one on either side


@dataclass(frozen=True, slots=True)
class StormSettings:
    subscribers: int = 200
    """Of all kinds together."""
    share: float = 0.94
    """Of the subscribers, those on the storm's topic; the others are on the calm ones."""
    rate: float = 1_000.0
    """Publications a second, all at QoS 1, on all topics together."""
    storm_rate: float = 20.0
    """Of these, those on the storm's topic: each subscriber there gets so many a second."""
    seconds: float = 60.0
    x_s: float = 0.4
    """X.time, and Y.time too: a calculation looks at one period alone."""
    durable: bool = False
    """Both nodes keep their sessions on the disk; else a fixed broker that is killed forgets everything."""
    faults: int = 2
    """How often something fails in a run in which it does."""
    killed_s: float = 3.0
    cut_s: float = 8.0
    takeover_s: float = 3.0
    """How long a broker waits for the other, before it takes over."""
    patience_s: float = 20.0
    """Without anything arriving at the end, before what is missing is given up."""
    quiet_s: float = 2.0
    """After the last: what is doubled would come now."""

    def check(self) -> None:
        """Raise ConfigError for a storm that would not flip."""
        if not 0 < self.share < 1:
            raise ConfigError(f"--share {self.share:g} is not between 0 and 1")
        if self.subscribers < MIN_SUBSCRIBERS:
            raise ConfigError(f"--subscribers {self.subscribers} is less than {MIN_SUBSCRIBERS}")
        if self.seconds < 2 * self.x_s:
            raise ConfigError(f"--seconds {self.seconds:g}: it takes {2 * self.x_s:g} to go hot and cold")
        if self.storm_rate * self.x_s < MIN_EVENTS:
            raise ConfigError(f"--storm-rate {self.storm_rate:g} is less than {MIN_EVENTS / self.x_s:g}")
        spread = (self.rate - self.storm_rate) * SPREAD_PART / len(CALM)
        if spread < MIN_FACTOR * self.storm_rate:
            raise ConfigError(f"--rate {self.rate:g} leaves the calm topics too little to exceed the storm's")


FAST = StormSettings(
    subscribers=20,
    share=0.75,
    rate=100.0,
    storm_rate=10.0,
    seconds=6.0,
    faults=1,
    killed_s=1.0,
    cut_s=2.5,
    takeover_s=1.0,
    patience_s=8.0,
    quiet_s=0.5,
)


def places(settings: StormSettings, kinds: int) -> list[list[str]]:
    """The topics of the subscribers of each kind: in each some are on either side."""
    found: list[list[str]] = []
    calm_topics = cycle(CALM)
    for index in range(kinds):
        count = settings.subscribers // kinds + (index < settings.subscribers % kinds)
        calm = round((1 - settings.share) * count) or 1
        found.append([*islice(calm_topics, calm), *[STORM] * (count - calm)])
    return found


def publications(settings: StormSettings) -> Iterator[tuple[float, str]]:
    """(seconds since the beginning, topic) of each."""
    trickle_rate = settings.storm_rate * TRICKLE_PART
    due = {STORM: 0.0, **dict.fromkeys(CALM[1:], 0.5 / trickle_rate)}
    gaps = {STORM: 1 / settings.storm_rate, **dict.fromkeys(CALM[1:], 1 / trickle_rate)}
    for number in range(round(settings.seconds * settings.rate)):
        at = number / settings.rate
        topic = min(due, key=due.__getitem__)
        if due[topic] <= at:
            due[topic] += gaps[topic]
        else:
            topic = _calm_topic(number, at / settings.x_s)
        yield at, topic


def _calm_topic(number: int, periods: float) -> str:
    period, part = divmod(periods, 1)
    return CALM[number % len(CALM)] if period % 2 and part < SPREAD_PART else CALM[0]
