"""`hedgerow bench sensors`: what it counts, and what it does with peers that lose or lie."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from hedgerow.cli import main
from hedgerow.pipeline.program import Program
from hedgerow_workshop.bench import BenchError, sensors
from hedgerow_workshop.bench.peers import OURS, Child
from hedgerow_workshop.bench.rounds import Plan
from hedgerow_workshop.bench.scenarios import measure_all
from hedgerow_workshop.bench.sensors import CHUNK, PACKET, ROW_NAMES, SCENARIOS, SENSOR_BROKERS, PacketLoad

PLAN = Plan(rounds=1, warm_up_s=0.02, round_s=0.05, starts=1)


def test_every_row_has_ours_beside_its_peer() -> None:
    peers = [SENSOR_BROKERS[name] for name in sensors.PEERS]
    result = measure_all(SCENARIOS, SENSOR_BROKERS[OURS], peers, PLAN)
    assert [row.name for row in result.rows] == list(ROW_NAMES)
    assert {row.name: list(row.peers) for row in result.rows} == {
        "sensors-1to1": ["echo"],
        "sensors-1to10": ["fan-out"],
        "sensors-latency-p50": ["echo"],
        "sensors-latency-p99": ["echo"],
    }
    for row in result.rows:
        assert row.ours > 0
        assert all(value > 0 for value in row.peers.values())
    # A busy machine may lose datagrams; nothing else goes wrong.
    notes = result.about["notes"]
    assert isinstance(notes, list)
    assert all(" lost " in note for note in notes)


def test_nobody_asks_at_a_port_that_no_broker_has_yet() -> None:
    assert all(broker.announces_port for broker in SENSOR_BROKERS.values())


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    words = ["--quick", "--only", "sensors-latency-p50", "--peers", "--json", str(file)]
    assert main(["bench", "sensors", *words]) == 0
    (row,) = json.loads(file.read_text())["rows"]
    assert (row["name"], row["peers"]) == ("sensors-latency-p50", {})
    assert "sensors-latency-p50" in capsys.readouterr().out
    assert main(["bench", "sensors", "--only", "x"]) == 2
    assert main(["bench", "sensors", "--peers", "mosquitto"]) == 2
    assert "no peer mosquitto; there are echo, fan-out" in capsys.readouterr().err


@contextmanager
def impostor(answer: Callable[[int, bytes], bytes | None]) -> Iterator[Child]:
    """A broker in this process that answers each datagram, with its number, as it likes."""
    with socket.socket(type=socket.SOCK_DGRAM) as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]

        def serve() -> None:
            number = 0
            while True:
                data, source = bound.recvfrom(65_507)
                if data == b"end":
                    return
                if (reply := answer(number, data)) is not None:
                    bound.sendto(reply, source)
                number += 1

        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield Child(SENSOR_BROKERS["echo"], Program("impostor", Path.cwd()), port, 0.0)
        finally:
            with socket.socket(type=socket.SOCK_DGRAM) as ending:
                ending.sendto(b"end", ("127.0.0.1", port))
            serving.join()


def test_what_arrives_is_what_counts() -> None:
    dropped = []

    def answer(number: int, data: bytes) -> bytes | None:
        if data == PACKET and number % 10 == 0:
            dropped.append(number)
            return None
        return data

    with impostor(answer) as child, ExitStack() as stack:
        load = PacketLoad(child, 1, stack, lost_s=0.2)
        delivered, _, _ = load.run(0.01)
        assert load.lost > 0
        assert load.lost == len(dropped)
        assert (delivered + load.lost) % CHUNK == 0


def test_nothing_at_all_is_an_error() -> None:
    with (
        impostor(lambda number, data: None if data == PACKET else data) as child,
        ExitStack() as stack,
        pytest.raises(BenchError, match="nothing arrived"),
    ):
        PacketLoad(child, 1, stack, lost_s=0.2).run(0.01)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [(b"short", "delivered 5 bytes instead of 72"), (b"x" * len(PACKET), "something other")],
)
def test_something_else_is_an_error(wrong: bytes, error: str) -> None:
    with (
        impostor(lambda number, data: wrong if data == PACKET else data) as child,
        ExitStack() as stack,
        pytest.raises(BenchError, match=error),
    ):
        PacketLoad(child, 1, stack, lost_s=0.2).run(0.01)
