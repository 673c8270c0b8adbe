"""What is counted of an overload, and the rows that it becomes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hedgerow.errors import ConfigError
from hedgerow_workshop.lab.harness.experiment import Request
from hedgerow_workshop.lab.harness.wire import packets
from hedgerow_workshop.lab.overload import experiment, measure
from hedgerow_workshop.lab.overload.record import Readers
from tests.workshop.lab.overload_records import make_overload

ROWS = {"lost/mqtt", "lost/multicast", "doubled", "flaps", "udp/uncounted", "memory/largest", "slowed"}


def test_what_was_acknowledged_and_never_came_is_lost() -> None:
    record = make_overload(Readers.FAST)
    assert measure.count_lost(record, multicast=False) == 1
    assert measure.count_lost(record, multicast=True) == 1
    assert next(iter(measure.incidents(record))) == "reader lost 1 of north, published from 0.30 to 0.30 s"


def test_what_a_broker_may_send_again_is_not_doubled() -> None:
    record = make_overload(Readers.FAST)
    assert measure.count_doubled(record) == 1  # long before the connection was lost
    assert measure.count_doubled(record, repeated=True) == 2
    record.losses = {}
    assert measure.count_doubled(record) == 2


def _log(*lines: tuple[float, str, str]) -> Iterable[str]:
    yield "not JSON"
    for at, event, neighbour in lines:
        told = {
            "ts": datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds"),
            "event": event,
            "message": f"{neighbour} is no neighbour any more" if event == "neighbour_lost" else neighbour,
            "fields": {"node_id": neighbour},
        }
        yield json.dumps(told)


def test_a_link_that_is_lost_while_both_ends_live_is_a_flap() -> None:
    links = measure.lost_links(
        "north",
        _log(
            (90.0, "neighbour_lost", "east"),
            (100.0, "neighbour_gained", "east"),
            (101.0, "neighbour_lost", "west"),
            (101.5, "neighbour_lost", "east"),
            (109.0, "neighbour_lost", "west"),
            (110.0, "log", "2 more of NeighbourLost from everywhere were left out"),
        ),
    )
    found = list(measure.flaps("north", links, "west", [(100.5, 102.5)], 95.0))
    assert [at for at, _ in found] == [101.5, 109.0, 110.0, 110.0]
    assert found[0][1] == "north: east is no neighbour any more"


def test_rows_are_held_against_their_bars() -> None:
    records = [make_overload(Readers.FAST), make_overload(Readers.SLOW, 4.0)]
    result = experiment.conclude(Request(), records)
    rows = {row.name: row.ours for row in result.rows}
    assert rows.keys() >= ROWS
    assert {name: rows[name] for name in sorted(ROWS)} == {
        "doubled": 2, "flaps": 2, "lost/mqtt": 2, "lost/multicast": 2, "memory/largest": 200, "slowed": 0.5,
        "udp/uncounted": 2,
    }  # fmt: skip
    missed = [note for note in result.notes if "misses its bar" in note]
    assert len(missed) == len(ROWS)
    assert "slowed misses its bar: it is 0.5, and should be 0.8 … inf." in missed


def test_the_report_has_what_happened(tmp_path: Path) -> None:
    records = [make_overload(Readers.SLOW)]
    result = experiment.conclude(Request(out=tmp_path), records)
    assert result.report is not None
    text = result.report.read_text()
    assert "<td>west killed</td><td>2.300</td>" in text
    assert "MISSED" in text


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (Request(timeline=Path("t.toml")), "overload takes no --timeline"),
        (Request(broker="mosquitto"), "it takes no --broker"),
    ],
)
def test_what_it_does_not_take_is_named(asked: Request, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        experiment.run(asked)


def test_packets_are_cut_wherever_the_bytes_are() -> None:
    data = b"\x40\x02\x00\x01" + b"\x30\x81\x01" + b"x" * 129 + b"\xd0\x00"
    whole = [(0x40, 2, 4), (0x30, 7, 136), (0xD0, 138, 138)]
    for size in range(len(data) + 1):
        assert list(packets(data[:size])) == [each for each in whole if each[2] <= size]
