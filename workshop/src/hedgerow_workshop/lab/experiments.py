"""The experiments that `hedgerow lab run NAME` knows: the module of each, and what it is."""

from __future__ import annotations

EXPERIMENTS: dict[str, tuple[str, str]] = {
    "backlog": (
        "hedgerow_workshop.lab.backlog.experiment",
        "what waits on the disk: slow readers, a full disk, a start",
    ),
    "genera": (
        "hedgerow_workshop.lab.genera.experiment",
        "publish/subscribe with no server: a vacuum, a mop and a home",
    ),
    "morales": (
        "hedgerow_workshop.lab.morales.experiment",
        "brokers that move: they keep the topics that are hot",
    ),
    "overload": (
        "hedgerow_workshop.lab.overload.experiment",
        "a federation at full speed: slow readers, and a node that is killed",
    ),
    "schmitt": (
        "hedgerow_workshop.lab.schmitt.experiment",
        "bridges that come and go: five brokers, three leave",
    ),
    "scale": ("hedgerow_workshop.lab.scale", "the federation as it grows: simulated, up to 10,000 brokers"),
    "spohn": (
        "hedgerow_workshop.lab.spohn.experiment",
        "brokers that federate: a grid of nine, whole and failing",
    ),
    "storm": (
        "hedgerow_workshop.lab.storm.experiment",
        "clients handed over all the time: a topic goes hot and cold",
    ),
    "zhang": (
        "hedgerow_workshop.lab.zhang.experiment",
        "UDP sensors: a weather station in nine steps",
    ),
}
