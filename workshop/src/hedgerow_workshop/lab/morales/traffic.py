"""What is published when: the document's three modes, each the same again for the same name.

- RandomTraffic: every topic as likely as any other.
- BiasedTraffic: one topic has a share of the publications; the others have equal parts of the rest.
- BurstTraffic: bursts of biased traffic, each with another hot topic. Topics are dealt like cards, six of
  each, so that none is hot oftener than the others and the order tells nothing of what comes. In `mixed`
  traffic every other burst is one of random traffic.

The document names neither the rate nor the length of its bursts. At 100 publications a second a set of 200
takes as long as the window of 2 s. Bursts of 0.5 to 1 s are a little longer than the 0.4 s between two
decisions: much shorter ones no window would follow, and in much longer ones every window would. Their lengths
are drawn, so that they keep no step with X.time.

Before what is measured comes a warm-up of the same kind: every topic once, then as long as the longest window
of the run and a little more, since the document measures an algorithm that runs already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from hedgerow_workshop.lab.morales.setting import BIASED_TOPIC, PUBLICATIONS, TOPICS

RATE = 100.0
# A typical one: by a model of the algorithm, what random traffic comes to differs by 2 % from drawing to
# drawing, and what bursts do with the longest window by 6 %.
SEED = 1
BIASED, BURST, MIXED = "biased", "burst", "mixed"
GAP_S = (0.5 / RATE, 1.5 / RATE)  # an even rhythm would meet the calculations always at the same moment
BURST_S = (0.5, 1.0)
BURST_SHARE = 90
OF_EACH = 6

Choose = Callable[[float], str]
"""The topic of a publication at this time."""


class PlannedPublication(NamedTuple):
    at_s: float
    """Since the first one."""
    topic: str
    is_random: bool = False
    """Of a burst of random traffic."""


@dataclass(frozen=True, slots=True)
class DrawnTraffic:
    name: str
    choose: Callable[[Random], Choose]
    sets: int
    """That are measured."""
    warm_up_s: float
    publications: int = PUBLICATIONS
    """Of one set."""

    def draw(self) -> tuple[list[PlannedPublication], int]:
        """All publications, and how many of them are the warm-up."""
        random = Random(f"{SEED}/{self.name}")
        choose = self.choose(random)
        publications: list[PlannedPublication] = []
        warm_up, at_s = 0, 0.0
        while len(publications) - warm_up < self.sets * self.publications:
            topic = TOPICS[len(publications)] if len(publications) < len(TOPICS) else choose(at_s)
            is_random = isinstance(choose, Bursts) and choose.is_random
            publications.append(PlannedPublication(at_s, topic, is_random))
            warm_up += at_s < self.warm_up_s
            at_s += random.uniform(*GAP_S)
        return publications, warm_up


def random_traffic(sets: int, warm_up_s: float) -> DrawnTraffic:
    return DrawnTraffic("random", lambda random: lambda at_s: random.choice(TOPICS), sets, warm_up_s)


def biased_traffic(share: int, sets: int, warm_up_s: float) -> DrawnTraffic:
    def choose(random: Random) -> Choose:
        return lambda at_s: choose_biased(random, BIASED_TOPIC, share)

    return DrawnTraffic(f"{BIASED}{share}", choose, sets, warm_up_s)


def burst_traffic(name: str, sets: int, warm_up_s: float, share: int = BURST_SHARE) -> DrawnTraffic:
    return DrawnTraffic(f"{BURST}-{name}", lambda random: Bursts(random, share), sets, warm_up_s)


def mixed_traffic(sets: int, warm_up_s: float, share: int = BURST_SHARE) -> DrawnTraffic:
    return DrawnTraffic(MIXED, lambda random: Bursts(random, share, is_mixed=True), sets, warm_up_s)


def choose_biased(random: Random, hot: str, share: int) -> str:
    if random.random() < share / 100:
        return hot
    return random.choice([topic for topic in TOPICS if topic != hot])


class Bursts:
    def __init__(self, random: Random, share: int, is_mixed: bool = False) -> None:
        self.is_random = False
        """The present one."""
        self._random = random
        self._share = share
        self._is_mixed = is_mixed
        self._cards: list[str] = []
        self._hot = ""
        self._ends_at_s = 0.0

    def __call__(self, at_s: float) -> str:
        if at_s >= self._ends_at_s:
            self._ends_at_s = at_s + self._random.uniform(*BURST_S)
            self.is_random = self._is_mixed and not self.is_random
            if not self.is_random:
                self._hot = self._deal()
        if self.is_random:
            return self._random.choice(TOPICS)
        return choose_biased(self._random, self._hot, self._share)

    def _deal(self) -> str:
        """The next that is another than the last; the last one alone when no other is left."""
        if not self._cards:
            self._cards = list(TOPICS) * OF_EACH
            self._random.shuffle(self._cards)
        place = next((place for place, topic in enumerate(self._cards) if topic != self._hot), 0)
        return self._cards.pop(place)
