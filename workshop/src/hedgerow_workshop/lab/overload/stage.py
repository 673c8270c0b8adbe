"""The programs of a run: three nodes, a Mosquitto as our guide has it, and its federator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from hedgerow_workshop.lab.harness.brokers import (
    SUBSCRIPTION_LOG,
    BrokerProgram,
    Hedgerow,
    Mosquitto,
    Sidecar,
)
from hedgerow_workshop.lab.harness.programs import LabProgram
from hedgerow_workshop.lab.overload.settings import (
    FILTER,
    GATEWAY,
    KILLED,
    NODES,
    RECORDER,
    SENSOR_NUMBER,
    SENSORS,
    STOCK,
)
from hedgerow_workshop.programs import free_udp_port

LOG = ("--log-format", "json")

# The queue of docs/guides/mosquitto.md. The harness has no bound on messages already.
GUIDE = "max_inflight_messages 1000\nmax_queued_bytes 268435456\n"

# What a node counts of readings that it could not take, or could not record.
DROPPED = (
    *("overruns", "malformed", "unknown_topic", "limited", "refused"),
    "hedgerow_journal_missed_total",
)


class OverloadNode(Hedgerow):
    def dropped_readings(self) -> int:
        found = self.metrics()
        names = [
            name if name.startswith("hedgerow_") else f"hedgerow_sensor_packets_{name}_total"
            for name in DROPPED
        ]
        return round(sum(found.get(name, 0.0) for name in names))


class Stage(NamedTuple):
    nodes: dict[str, OverloadNode]
    stock: Mosquitto
    federator: Sidecar
    multicast_port: int

    @property
    def brokers(self) -> dict[str, BrokerProgram]:
        return {**self.nodes, STOCK: self.stock}

    @property
    def recorder(self) -> OverloadNode:
        return self.nodes[RECORDER]

    @property
    def killed(self) -> OverloadNode:
        return self.nodes[KILLED]

    @property
    def programs(self) -> list[LabProgram]:
        return [*self.nodes.values(), self.stock, self.federator]

    def federated(self) -> Iterator[tuple[str, LabProgram]]:
        """All that have links, by the names that they have there."""
        yield from self.nodes.items()
        yield STOCK, self.federator


def make_stage(directory: Path, stack: ExitStack) -> Stage:
    """Nothing of it runs yet."""
    nodes = {name: stack.enter_context(OverloadNode(name, directory / name)) for name in NODES}
    stock = stack.enter_context(Mosquitto(STOCK, directory / STOCK))
    stock.more = SUBSCRIPTION_LOG + GUIDE
    federator = stack.enter_context(Sidecar(STOCK, directory / "federator"))
    return Stage(nodes, stock, federator, free_udp_port())


async def start(stage: Stage) -> None:
    """Who is dialled comes before who dials."""
    port = str(stage.multicast_port)
    options = {
        RECORDER: (
            *("--federation", "--udp", "127.0.0.1:0", "--sensor-topic", f"{SENSOR_NUMBER:02}={SENSORS}"),
            *("--journal", FILTER, "--journal", SENSORS),
        ),
        GATEWAY: (
            *("--multicast", FILTER, "--multicast-interface", "lo", "--multicast-ip", "4"),
            *("--multicast-port", port),
        ),
        KILLED: (),
    }
    started: list[OverloadNode] = []
    for name, node in stage.nodes.items():
        node.http = "127.0.0.1:0"
        links = [word for other in started for word in ("--neighbour", other.url)]
        node.options = (*LOG, *options[name], *links)
        await node.start()
        started.append(node)
    await stage.stock.start()
    links = [word for name in (RECORDER, KILLED) for word in ("--neighbour", stage.nodes[name].url)]
    stage.federator.start(stage.stock, [*LOG, *links])
    await stage.federator.wait_until(
        lambda: b"federating" in stage.federator.output.read_bytes() + stage.federator.log.read_bytes(),
        "federation",
    )
