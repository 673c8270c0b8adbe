"""Results of experiments that never were: their records, and the journals that are left of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hedgerow_workshop.lab.harness.journals import leave
from hedgerow_workshop.lab.harness.record import Arrival, Received, RunRecord
from hedgerow_workshop.lab.harness.rows import Row
from hedgerow_workshop.lab.morales.record import FarmRecord, MoralesRecord
from hedgerow_workshop.lab.morales.setting import Uplink
from hedgerow_workshop.lab.overload.record import OverloadRecord, Readers
from hedgerow_workshop.lab.schmitt.record import Mode, SchmittRecord
from hedgerow_workshop.lab.spohn.record import SpohnRecord
from hedgerow_workshop.lab.storm.record import StormFault, StormRecord, SubscriberKind, Tally
from hedgerow_workshop.lab.storm.settings import CALM, STORM
from tests.workshop.lab.morales_records import make_farm, make_trio
from tests.workshop.lab.overload_records import make_overload
from tests.workshop.lab.readings_records import make_station
from tests.workshop.lab.schmitt_records import make_record as make_schmitt
from tests.workshop.lab.spohn_records import make_delays, make_failures


@dataclass(slots=True)
class Results:
    """Something is lost, doubled and repeated in each."""

    spohn: list[SpohnRecord] = field(default_factory=list)
    schmitt: list[SchmittRecord] = field(default_factory=list)
    morales: list[MoralesRecord] = field(default_factory=list)
    farm: FarmRecord = field(default_factory=FarmRecord)
    storm: list[StormRecord] = field(default_factory=list)
    overload: list[OverloadRecord] = field(default_factory=list)


def make_results() -> Results:
    return Results(_spohn(), _schmitt(), _morales(), _farm(), _storm(), [make_overload(Readers.SLOW)])


def leave_results(results: Results, directory: Path) -> None:
    """As the experiments leave them, each in a directory of its own."""
    rows = [Row("lost", "messages", 3), Row("delay/node7/hedgerow", "ms", 5.4, 18.61)]
    records: dict[str, Sequence[RunRecord]] = {
        "spohn": results.spohn,
        "schmitt": results.schmitt,
        "morales": [*results.morales, results.farm],
        "storm": results.storm,
        "overload": results.overload,
        "zhang": [make_station("udp"), make_station("mqtt")],
        "genera": [],
        "scale": [],
        "backlog": [],
    }
    for name, runs in records.items():
        (directory / name).mkdir(parents=True)
        leave(directory / name, name, runs, rows, [f"A note of {name}."])


def _spohn() -> list[SpohnRecord]:
    failures = make_failures("hedgerow")
    del failures.arrived["2"][50:53]
    failures.arrived["7"] += [Received("6", 3, 1_006.0), Received("6", 3, 1_006.5)]
    return [make_delays("hedgerow", 60, {"7": 0.0054, "2": 0.0211}), failures]


def _schmitt() -> list[SchmittRecord]:
    pure = make_schmitt(Mode.PURE, seconds=3, missing=range(200, 220), missing_qos1=range(3))
    pure.arrived["2"][1].append(Arrival(7, 1_004.0))
    return [pure, make_schmitt(Mode.STATIC, seconds=3, missing=range(100, 220))]


def _morales() -> list[MoralesRecord]:
    records = make_trio(Uplink.LTE, "biased90", {2.0: 6}) + make_trio(Uplink.LTE, "burst-short", {0.1: 30})
    first = records[0]
    first.arrived += [first.arrived[50], first.arrived[5]]
    del first.arrived[60], first.arrived[3]
    return records


def _farm() -> FarmRecord:
    farm = make_farm()
    del farm.arrived["office"][10]
    again = farm.arrived["irrigation"][20]
    farm.arrived["irrigation"] += [
        Received(again.publisher, again.number, again.at + 5, True),
        Received(again.publisher, again.number, again.at + 6),
    ]
    return farm


def _storm() -> list[StormRecord]:
    sent = {STORM: [9.0, 9.5, 10.0], **{topic: [9.1] for topic in CALM}}
    tallies = [
        _tally("extension-0", SubscriberKind.EXTENSION, 0, 1, 2),
        _tally("paho5-0", SubscriberKind.PAHO_5, 0, 2, 2, 2, 0),
    ]
    tallies += [_tally("paho5-1", SubscriberKind.PAHO_5, 2), _tally("paho311-0", SubscriberKind.PAHO_3)]
    tallies[1].repeated = [0, 2]
    return [StormRecord(StormFault.KILLED, sent, tallies, happened=[(9.4, "killed")], began_at=9.0)]


def _tally(name: str, kind: SubscriberKind, *numbers: int) -> Tally:
    tally = Tally(name, kind, STORM)
    for place, number in enumerate(numbers):
        tally.receive(b"%d   " % number, False, 10.0 + place)
    return tally
