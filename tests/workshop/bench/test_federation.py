"""`hedgerow bench federation`: its lines, with stand-ins for our programs, and sidecars that fail."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

import hedgerow
from hedgerow.errors import ConfigError
from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.bridge import MOSQUITTO
from hedgerow_workshop.bench.end_to_end import QOS_1, TOPIC, EndToEnd, connect, measure
from hedgerow_workshop.bench.federation import ROW_NAMES, STAGES, Line, make_stages, run
from hedgerow_workshop.bench.peers import OURS, BrokerKind
from hedgerow_workshop.bench.report import BenchRequest, progress
from hedgerow_workshop.bench.rounds import QUICK
from tests.waiting import PATIENCE_S
from tests.workshop.bench.test_end_to_end import MOMENT

STAND_IN = [sys.executable, str(Path(__file__).with_name("stand_in.py"))]


@pytest.fixture
def node() -> BrokerKind:
    """Stands in for ours."""
    if MOSQUITTO.version() is None:
        pytest.skip("mosquitto is not installed; `make test` fetches it where it can")

    def node_command(port: int, directory: Path) -> list[str]:
        return [*STAND_IN, "up", "--mqtt", f"127.0.0.1:{port}"]

    return replace(MOSQUITTO, name=OURS, command=node_command)


def test_every_row_has_ours_beside_mosquitto(node: BrokerKind) -> None:
    stages = make_stages(node, STAND_IN)
    result = measure([stages[0], stages[-1]], MOMENT)
    assert tuple(row.name for row in result.rows) == (*ROW_NAMES[:2], *ROW_NAMES[-2:])
    assert result.peers == ["mosquitto"]
    for row in result.rows:
        assert row.ours > 0
        assert row.ratio.keys() == {"mosquitto"}
    lost, busy = result.about["lost"], result.about["busy"]
    assert isinstance(lost, dict)
    assert isinstance(busy, dict)
    assert {name: counted.keys() for name, counted in lost.items()} == {
        "qos0-1hop": {"hedgerow", "sidecars", "bridges"}
    }
    assert {line: shares.keys() for line, shares in busy["qos1-3hops"].items()} == {
        "hedgerow": {"loader", "broker"},
        "sidecars": {"loader", "broker", "sidecar"},
        "bridges": {"loader", "broker"},
    }


@pytest.mark.parametrize(
    ("line", "state_topic"),
    [
        (STAGES[-1].ours[0], "$SYS/broker/federation/state"),
        (STAGES[0].ours[1], "hedgerow/federation/state/bench-0"),
    ],
    ids=["nodes", "sidecars"],
)
def test_ours_are_as_long_a_line_as_they_say(line: Line, state_topic: str, tmp_path: Path) -> None:
    if not all(broker.version() for broker in line.brokers):
        pytest.skip("mosquitto is not installed; `make test` fetches it where it can")
    with progress(1) as shown, ExitStack() as stack:
        ends = line.open(EndToEnd(MOMENT, line, tmp_path, shown), QOS_1, stack)
        load = connect(ends, QOS_1)
        stack.callback(load.close)
        assert load.run(MOMENT.round_s).messages > 0
        assert asyncio.run(wait_for_distance(ends.publisher_at.port, state_topic)) == line.hops


async def wait_for_distance(port: int, state_topic: str) -> int:
    """How many links the node at this port says that there are to the subscriber's."""
    async with asyncio.timeout(PATIENCE_S), hedgerow.connect(f"mqtt://127.0.0.1:{port}") as bus:
        async for message in bus.subscribe(state_topic):
            filters = json.loads(message.payload)["filters"]
            if TOPIC in filters:
                return int(filters[TOPIC]["distance"])
    raise AssertionError("the subscription ended")


@pytest.mark.parametrize(
    ("code", "linked_s", "said"),
    [
        (
            "import sys; sys.exit('no such right')",
            PATIENCE_S,
            r"sidecar bench-\d ended with status 1: no such right",
        ),
        ("import signal; signal.pause()", 0.5, r"the sidecars were not linked within 0.5 s"),
    ],
    ids=["it ends", "it does nothing"],
)
def test_a_sidecar_that_fails(code: str, linked_s: float, said: str, node: BrokerKind) -> None:
    stages = make_stages(node, [sys.executable, "-c", code], linked_s)
    with pytest.raises(BenchError, match=f"sidecars: {said}"):
        measure(stages, MOMENT, ["qos0-1hop-sidecars"])


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="no row qos9; there are qos0-1hop-hedgerow, qos0-1hop-sidecars, "):
        run(BenchRequest(only=("qos9",)))
    with pytest.raises(ConfigError, match="no peer nats-server; there are mosquitto"):
        run(BenchRequest(peers=("nats-server",)))


def test_the_quick_plan_fits_a_minute() -> None:
    """What its rounds take at least, which must leave time for many programs to start."""
    rounds_s = QUICK.warm_up_s + QUICK.rounds * QUICK.round_s
    assert sum(len(stage.ways) for stage in STAGES) * rounds_s < 20
