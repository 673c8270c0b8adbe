"""`hedgerow bench bridge`: what it counts, and bridges that lose, double or never come up."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hedgerow.bench import BenchError, bridge
from hedgerow.bench.bridge import (
    MOSQUITTO,
    OUR_BRIDGES,
    PEER_BRIDGE,
    ROW_NAMES,
    TRAFFIC,
    Bridge,
    LossyLoad,
    LossySubscriber,
    bridging,
    measure,
    run,
)
from hedgerow.bench.loader import Publisher
from hedgerow.bench.peers import BROKERS
from hedgerow.bench.report import Request
from hedgerow.bench.rounds import QUICK, Plan
from hedgerow.cli import main
from hedgerow.errors import ConfigError
from hedgerow.fabric.bridges.section import read_section

MOMENT = Plan(rounds=1, warm_up_s=0.02, round_s=0.05, starts=1)
PACKET = TRAFFIC[0].delivery()
CHUNK = 10


def stand_ins() -> tuple[Bridge, ...]:
    """Our bridges, carried by Mosquitto: out and in, and every traffic."""
    if MOSQUITTO.version() is None:
        pytest.skip("mosquitto is not installed; `make test` fetches it where it can")
    return tuple(replace(each, carrier=MOSQUITTO, far=MOSQUITTO, at_least=None) for each in OUR_BRIDGES)


def test_every_row_has_ours_beside_mosquitto() -> None:
    result = measure(stand_ins(), PEER_BRIDGE, MOMENT)
    assert tuple(row.name for row in result.rows) == ROW_NAMES
    assert result.peers == ["mosquitto"]
    for row in result.rows:
        assert row.ours > 0
        assert row.ratio.keys() == {"mosquitto"}
    lost = result.about["lost"]
    assert isinstance(lost, dict)
    assert lost.keys() == {"qos0-64", "qos0-1024"}
    for counted in lost.values():
        assert counted.keys() == {*(each.name for each in OUR_BRIDGES), PEER_BRIDGE.name}
        assert all(each["sent"] > 0 and each["lost"] == 0 for each in counted.values())
    busy = result.about["busy"]
    assert isinstance(busy, dict)
    assert busy["qos1-64"][PEER_BRIDGE.name].keys() == {"loader", "broker", "far"}


def test_only_the_rows_asked_for() -> None:
    result = measure(stand_ins(), PEER_BRIDGE, MOMENT, ["qos1-64-mosquitto-hedgerow"])
    assert [row.name for row in result.rows] == ["qos1-64-mosquitto-hedgerow"]
    busy = result.about["busy"]
    assert isinstance(busy, dict)
    assert {name: list(each) for name, each in busy.items()} == {
        "qos1-64": ["mosquitto-hedgerow", "mosquitto-mosquitto"]
    }


def test_a_ratio_below_what_is_promised_is_said() -> None:
    ours = [replace(stand_ins()[0], at_least=1e9)]
    result = measure(ours, PEER_BRIDGE, MOMENT, ["qos1-64-hedgerow-hedgerow"])
    assert "is less than the 1e+09× that we promise" in str(result.about["notes"])


def test_without_mosquitto_its_bridges_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = stand_ins()[:1]
    absent = replace(MOSQUITTO, name="absent", version=lambda: None)
    far_absent = replace(OUR_BRIDGES[1], carrier=MOSQUITTO, far=absent)
    peer = replace(PEER_BRIDGE, carrier=absent, far=absent)
    monkeypatch.setattr(bridge, "TRAFFIC", TRAFFIC[:1])
    result = measure([*ours, far_absent], peer, MOMENT)
    assert [(row.name, row.peers) for row in result.rows] == [("qos0-64-hedgerow-hedgerow", {})]
    assert result.peers == []
    assert result.about["notes"] == ["absent: not installed"]


class _Nowhere(Bridge):
    """A bridge that carries another topic."""

    def section(self, far_port: int, qos: int) -> str:
        return super().section(far_port, qos).replace("bench/#", "elsewhere/#")


def test_a_bridge_that_does_not_come_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mosquitto's leaves a note; ours ends the bench."""
    monkeypatch.setattr(bridge, "READY_S", 1.0)
    ours, rows = stand_ins()[:1], ["qos0-64-hedgerow-hedgerow"]
    nowhere = _Nowhere(PEER_BRIDGE.name, MOSQUITTO, MOSQUITTO, "out")
    result = measure(ours, nowhere, MOMENT, rows)
    assert result.about["notes"] == ["mosquitto-mosquitto: the bridge was not up within 1 s"]
    assert [row.peers for row in result.rows] == [{}]
    with pytest.raises(BenchError, match="hedgerow-hedgerow: the bridge was not up within 1 s"):
        measure([replace(nowhere, name="hedgerow-hedgerow")], None, MOMENT, rows)


def test_ours_gets_its_section_as_a_file(tmp_path: Path) -> None:
    section = OUR_BRIDGES[2].section(1234, 1)
    words = bridging(BROKERS["hedgerow"], section).command(0, tmp_path)
    assert words[-2:] == ["--bridge", str(tmp_path / "bridge.conf")]
    read = read_section((tmp_path / "bridge.conf").read_text())
    assert [str(each) for each in read.addresses] == ["127.0.0.1:1234"]
    assert [(each.pattern, each.direction, each.qos) for each in read.topics] == [("bench/#", "in", 1)]


@contextmanager
def lossy_load(forward: Callable[[int], int]) -> Iterator[LossyLoad]:
    """A load through a stand-in for the bridge that passes on the packet with each number so many times."""
    (publisher, source), (sink, subscriber) = socket.socketpair(), socket.socketpair()

    def serve() -> None:
        number, data = 0, b""
        while received := source.recv(65_536):
            data += received
            while len(data) >= len(PACKET):
                sink.sendall(data[: len(PACKET)] * forward(number))
                number, data = number + 1, data[len(PACKET) :]

    serving = threading.Thread(target=serve)
    serving.start()
    with source, sink:
        load = LossyLoad(
            [Publisher(publisher, [PACKET] * CHUNK, CHUNK)], [LossySubscriber(subscriber, PACKET)], 4 * CHUNK
        )
        try:
            yield load
        finally:
            publisher.shutdown(socket.SHUT_RDWR)
            serving.join()
            load.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "LOST_S", 0.1)


@pytest.mark.usefixtures("impatient")
def test_what_arrives_is_what_counts() -> None:
    with lossy_load(lambda number: 0 if number % 10 == 0 else 1) as load:
        measured = load.run(seconds=20, messages=1_000)
        assert (load.sent, load.lost, measured.messages) == (1_000, 100, 900)
        assert load.run(seconds=20, messages=100).messages == 90
        assert (load.sent, load.lost) == (1_100, 110)


@pytest.mark.usefixtures("impatient")
def test_waiting_for_the_lost_is_not_measured() -> None:
    with lossy_load(lambda number: 0 if number >= 20 else 1) as load:
        assert load.run(seconds=20, messages=40).seconds < bridge.LOST_S


@pytest.mark.usefixtures("impatient")
def test_nothing_at_all_is_an_error() -> None:
    with (
        lossy_load(lambda number: 0) as load,
        pytest.raises(BenchError, match="none of 40 messages arrived"),
    ):
        load.run(seconds=20, messages=40)


def test_more_than_was_published_is_an_error() -> None:
    """The first packet comes a hundred times, in one piece: the surplus is there when the run ends."""
    with (
        lossy_load(lambda number: 100 if number == 0 else 1) as load,
        pytest.raises(BenchError, match="beyond the 10 messages published"),
    ):
        load.run(seconds=20, messages=CHUNK)


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="no row qos9; there are qos0-64-hedgerow-hedgerow, "):
        run(Request(only=("qos9",)))
    assert main(["bench", "bridge", "--peers", "aedes"]) == 2
    assert "no peer aedes; there are mosquitto" in capsys.readouterr().err


def test_the_quick_plan_fits_a_minute() -> None:
    """What its rounds take at least, which must leave time for the brokers to start."""
    rounds_s = QUICK.warm_up_s + QUICK.rounds * QUICK.round_s
    assert len(TRAFFIC) * (len(OUR_BRIDGES) + 1) * rounds_s < 30
