"""The document's setting (its section 6), as data: the topics, the links, the algorithms and their times."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hedgerow.hot.hot_topics import Score
from hedgerow.mqtt.packets import MQTT_3_1_1
from hedgerow_workshop.lab.conditions import Conditions

DOMAIN, FAR_DOMAIN = "farm/sector1", "farm/sector2"
CLIENT_OPTIONS = {"version": MQTT_3_1_1}
"""As the document's clients speak it."""
TOPICS = tuple(f"crop/topic{number:02}" for number in range(1, 11))
BIASED_TOPIC = TOPICS[1]
"""The document's example."""
PUBLICATIONS = 200
"""A set of them; several sets are published one after the other."""

X_S = 0.4
Y_S = 2.0
SHARES = tuple(range(10, 100, 10))
"""Percent of the publications that are of the biased topic."""
SCORE_WINDOW_S = 0.2
"""With bursts: the window with which the two scores are compared in a row."""
SHORT_WINDOWS_S = (0.1, 0.2, 0.5, 1.0)
LONG_WINDOWS_S = (2.0, 5.0, 10.0, 20.0)

WIFI = Conditions(delay_s=0.000_473)
BANDWIDTH = 10e6  # "a common bandwidth of at least 10Mbps"


class Uplink(StrEnum):
    """Between the mobile broker and the fixed one."""

    LTE = "lte"
    WIMAX = "wimax"

    @property
    def label(self) -> str:
        return {Uplink.LTE: "LTE", Uplink.WIMAX: "WiMAX"}[self]

    @property
    def conditions(self) -> Conditions:
        return Conditions(delay_s=DELAYS_S[self], bandwidth_bits_per_s=BANDWIDTH)


DELAYS_S = {Uplink.LTE: 0.015_12, Uplink.WIMAX: 0.020_7}


@dataclass(frozen=True, slots=True)
class Algorithm:
    """How the mobile broker chooses what it delegates."""

    window_s: float | None = None
    """Y.time of the hot-topic algorithm; None: the naïve one."""
    half: int = 0
    """Which half of the topics the naïve one delegates."""
    score: Score = "window"
    """What the hot-topic algorithm ranks topics by."""

    @property
    def is_hot(self) -> bool:
        return self.window_s is not None

    def __str__(self) -> str:
        if self.window_s is None:
            return f"naive{self.half}"
        return f"hot{window_name(self.window_s)}" + ("-published" if self.score == "published" else "")

    @property
    def options(self) -> tuple[str, ...]:
        """Words of `hedgerow up`."""
        if self.window_s is None:
            return "--hot-every", f"{X_S:g}", "--hot-algorithm", "naive", "--naive-half", str(self.half)
        words = ("--hot-every", f"{X_S:g}", "--hot-window", f"{self.window_s:g}")
        return words if self.score == "window" else (*words, "--hot-score", self.score)


NAIVE = (Algorithm(half=0), Algorithm(half=1))


def window_name(window_s: float) -> str:
    return f"{1_000 * window_s:.0f}ms" if window_s < 1 else f"{window_s:g}s"
