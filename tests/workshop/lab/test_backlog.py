"""What is counted of a backlog, and the rows that it becomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hedgerow.errors import ConfigError
from hedgerow.mqtt.codec import encode
from hedgerow.mqtt.packets import MQTT_3_1_1, Pingresp, Publish
from hedgerow_workshop.lab.backlog import experiment
from hedgerow_workshop.lab.backlog.clients import Publisher, Reader, topic_of
from hedgerow_workshop.lab.backlog.numbers import Layout, Tally, payload
from hedgerow_workshop.lab.backlog.record import (
    MIB,
    FullRecord,
    Heard,
    LineRecord,
    Reading,
    SharedRecord,
    StartRecord,
)
from hedgerow_workshop.lab.backlog.report import BARS
from hedgerow_workshop.lab.backlog.steps import disk_bytes
from hedgerow_workshop.lab.harness.experiment import Request

ADDRESS = ("127.0.0.1", 1)
PING = encode(Pingresp(), MQTT_3_1_1)


def _publish(publisher: int, number: int, size: int, packet_id: int, *, dup: bool = False) -> bytes:
    packet = Publish(topic_of(publisher), payload(publisher, number, size), 1, dup=dup, packet_id=packet_id)
    return encode(packet, MQTT_3_1_1)


@pytest.mark.parametrize("size", [5, 64, 256, 20_000])
def test_a_run_is_taken_apart(size: int) -> None:
    layout = Layout(len(topic_of(0)), size)
    packets = [
        _publish(number % 3, 70_000 + number, size, 300 + number, dup=number == 1) for number in range(4)
    ]
    data = PING + b"".join(packets) + packets[0][:-1]
    assert layout.size == len(packets[0])
    assert layout.run(data, len(PING)) == 4
    assert layout.run(PING + data, len(PING)) == 0
    assert layout.run(data[: len(PING)], len(PING)) == 0
    assert layout.run(b"".join([*packets[:2], PING, *packets[2:]]), 0) == 2
    start = len(PING)
    assert layout.firsts(data, start, 4) == b"\x32\x3a\x32\x32"
    assert list(layout.publishers(data, start, 4)) == [0, 1, 2, 0]
    assert list(layout.numbers(data, start, 4)) == [70_000, 70_001, 70_002, 70_003]
    assert layout.acknowledgements(data, start, 2) == b"\x40\x02\x01\x2c\x40\x02\x01\x2d"


def test_a_packet_of_another_size_ends_a_run() -> None:
    layout = Layout(len(topic_of(0)), 64)
    data = _publish(0, 0, 64, 1) + _publish(0, 1, 65, 2) + _publish(0, 2, 64, 3)
    assert layout.run(data, 0) == 1


def test_a_tally_tells_what_is_missing_and_what_came_again() -> None:
    tally = Tally([4, 2])
    tally.add([0, 0, 1, 0, 0], [0, 2, 1, 2, 0], [0x32, 0x32, 0x32, 0x32, 0x3A])
    assert (tally.count, tally.doubled, tally.repeated) == (3, 1, 1)
    assert tally.missing(0, bytearray([1, 1, 0, 1])) == 2
    assert tally.missing(1, bytearray([0, 1])) == 0


@pytest.mark.parametrize("step", [1, 70, 79, 80, 1_000])
def test_a_reader_reads_whatever_the_chunks(step: int) -> None:
    reader = Reader("reader", ADDRESS, Tally([20]), 64)
    data = b"".join(
        _publish(0, number, 64, number + 1) + (PING if number % 7 == 0 else b"") for number in range(20)
    )
    for at in range(0, len(data), step):
        reader.data_received(data[at : at + step])
    assert (reader.count, reader.tally.doubled) == (20, 0)
    assert reader.tally.missing(0, bytearray(b"\x01" * 20)) == 0


def test_a_publisher_counts_what_was_acknowledged() -> None:
    publisher = Publisher(0, ADDRESS, 64, window=500, most=3)
    publisher._in_flight = {1: 0, 2: 1, 3: 2}
    publisher.data_received(b"\x40\x02\x00\x03\x40\x02\x00\x01\x40\x02\x00\x09")
    assert publisher.count == 2
    assert publisher.acknowledged == bytearray([1, 0, 1])
    assert not publisher.is_done
    publisher.lost()
    assert publisher.is_done


def test_files_are_measured_by_what_they_take(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "1").write_bytes(bytes(100_000))
    assert 100_000 <= disk_bytes(tmp_path) <= 200_000


def test_rows_are_held_against_their_bars(tmp_path: Path) -> None:
    heard = Heard(acknowledged=1_000, missing=3, doubled=2, repeated=1)
    slow = Reading(100, 2.0)
    result = experiment.conclude(
        Request(out=tmp_path),
        {
            "line": LineRecord(False, heard, slow, 5.0, 1.0, 10, {"near": 50, "far": 130}),
            "full": FullRecord(heard, 100 * MIB, has_waited=True, has_continued=False, memory_mib=60),
            "shared": SharedRecord(heard, slow, 1_000, 1_400, 80),
            "start": StartRecord(heard, slow, 3.0, 90),
        },
    )
    rows = {row.name: row.ours for row in result.rows}
    assert rows["line/memory"] == 130
    assert rows["line/rate"] == 200
    assert rows["full/filled"] == 100
    assert rows["shared/disk-ratio"] == 1.4
    judged = {row.name: BARS.is_met(row) for row in result.rows if row.name in BARS}
    assert {name for name, is_met in judged.items() if is_met} == {"full/waited"}
    assert {name for name in BARS if not name.startswith("killed/")} == judged.keys()
    assert "line: 1,000 to be read, 1 came again with DUP." in result.notes
    assert result.report is not None
    assert "MISSED" in result.report.read_text()


def test_nothing_continues_where_nobody_waited() -> None:
    (row,) = (
        row for row in experiment.make_rows("full", FullRecord(Heard())) if row.name == "full/continued"
    )
    assert row.ours is None


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (Request(timeline=Path("t.toml")), "backlog takes no --timeline"),
        (Request(broker="mosquitto"), "it takes no --broker"),
        (
            Request(parts=["lines"]),
            'backlog has no part "lines"; there are line, killed, full, shared, start',
        ),
    ],
)
def test_what_it_does_not_take_is_named(asked: Request, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        experiment.run(asked)
