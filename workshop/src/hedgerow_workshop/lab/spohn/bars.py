"""What the rows are held against."""

from __future__ import annotations

from hedgerow_workshop.lab.bars import Bar, Bars

KILL, CUT = Bar(500), Bar(2_000)

BARS = Bars(
    {
        "delay/node7/mosquitto": Bar(8),
        "delay/node2/mosquitto": Bar(26),
        "delay/node7/hedgerow": Bar(6.5),
        "delay/node2/hedgerow": Bar(22.5),
        "lost": Bar(0),
        "doubled": Bar(0),
        "mesh": Bar(1, least=1),
        "heal/kill": KILL,
        "heal/kill/slowest": KILL,
        "heal/cut": CUT,
        "heal/cut/slowest": CUT,
        "heal/kill/mosquitto": KILL,
        "heal/kill/slowest/mosquitto": KILL,
        "heal/cut/mosquitto": CUT,
        "heal/cut/slowest/mosquitto": CUT,
    }
)
