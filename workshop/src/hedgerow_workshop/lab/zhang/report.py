"""The report of `hedgerow lab run zhang`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hedgerow_workshop.lab.harness.rows import Bar, Bars, Row
from hedgerow_workshop.lab.readings import report
from hedgerow_workshop.lab.readings.record import ReadingsRecord
from hedgerow_workshop.lab.zhang.scenes import STEPS

TITLE = "UDP publish/subscribe for sensors"
INTRODUCTION = (
    "The walk-through of IoT Publish-/Subscribe Protocol (Zhang, 2021), on six hosts of their own, as the"
    " document's containers: namespaces whose cables meet in a switch. A laptop subscribes to "
    "temperature, a mobile to wind speed, a thermometer and an anemometer publish; the laptop subscribes "
    "to humidity, and a hygrometer publishes. Then all three sensors go on. udp: the document's packets, "
    "on its ports. mqtt: MQTT 3.1.1 at QoS 0, the same steps at the same times. station-lossy: the same "
    "where every host loses 5 % of the datagrams and TCP segments that arrive."
)
_ALL_STEPS = Bar(STEPS, STEPS)
BARS = Bars({"bytes-ratio": Bar(1.0), "lost": Bar(0.0), "steps/udp": _ALL_STEPS, "steps/mqtt": _ALL_STEPS})


def write_report(
    directory: Path, records: Sequence[ReadingsRecord], rows: Sequence[Row], notes: Sequence[str]
) -> Path:
    return report.write_report(directory, TITLE, [INTRODUCTION], records, rows, notes, BARS)
