"""The report of `hedgerow lab run genera`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hedgerow_workshop.lab.harness.rows import Bar, Bars, Row
from hedgerow_workshop.lab.readings import report
from hedgerow_workshop.lab.readings.record import ReadingsRecord

TITLE = "Publish/subscribe with no server"
INTRODUCTION = (
    "The scene of Self-Organizing Publish/Subscribe on the Network Edge (Genera, 2022), and a larger one,"
    " on hosts of their own: namespaces whose cables meet in a switch that floods multicast. robots: a "
    "vacuum says that it has completed its mission, and a mop answers, at QoS 0, as in the document each "
    "message is one datagram. robots-qos1: the same at QoS 1. robots-lossy: the same where every host "
    "loses 5 % of the datagrams and TCP segments that arrive. home: a sensor in each of four rooms with "
    "three topics each, a phone and a panel that listen to all of them, and a heating that listens to "
    "temperatures, at QoS 0. ipv6: groups are computed from topics. ipv6-mdns and ipv4-mdns: publishers "
    "choose them, and multicast DNS tells them. mqtt: MQTT 3.1.1 through a broker on one more host."
)
BARS = Bars({"bytes-ratio": Bar(1.0), "lost": Bar(0.0)})


def write_report(
    directory: Path, records: Sequence[ReadingsRecord], rows: Sequence[Row], notes: Sequence[str]
) -> Path:
    return report.write_report(directory, TITLE, [INTRODUCTION], records, rows, notes, BARS)
