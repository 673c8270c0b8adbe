"""What runs at the nodes of the grid: a broker, and beside a stock one the federator as a sidecar."""

from __future__ import annotations

import signal
from collections.abc import Collection
from pathlib import Path

from hedgerow.federation.state import HOME_STATE_TOPIC, STATE_TOPIC
from hedgerow_workshop.lab.harness.brokers import (
    OURS,
    STOCK,
    SUBSCRIPTION_LOG,
    BrokerProgram,
    Hedgerow,
    Mosquitto,
    Sidecar,
    read_metrics,
)
from hedgerow_workshop.lab.harness.programs import LabProgram
from hedgerow_workshop.lab.spohn import grid
from hedgerow_workshop.lab.spohn.network import GridNetwork, host

RELAYED, DROPPED = "hedgerow_federation_messages_relayed_total", "hedgerow_federation_messages_dropped_total"
ANNOUNCE_S = 1.0  # with federators that are not ours, which are as quick
STATE_TOPICS = {OURS: STATE_TOPIC, STOCK: HOME_STATE_TOPIC + "{node}"}


class GridNode:
    """One of a federation. It keeps its port and its data when it is started again."""

    def __init__(
        self, kind: str, name: str, network: GridNetwork, directory: Path, foreign: Collection[str] = ()
    ) -> None:
        """`foreign`: neighbours beside which there is a federator that is not ours."""
        self.name = name
        self._foreign = foreign
        self.state_topic = STATE_TOPICS[kind].format(node=name)
        self._network = network
        self._sidecar: Sidecar | None = None
        place = directory / "broker", host(name), network.ports[name]
        self.broker: BrokerProgram
        if kind == STOCK:
            stock = Mosquitto(name, *place)
            stock.more = SUBSCRIPTION_LOG
            self.broker = stock
            self._sidecar = Sidecar(name, directory / "federator")
        else:
            self.broker = Hedgerow(name, *place)

    async def start(self) -> None:
        """Returns when its broker takes connections; the state topic tells of the rest."""
        neighbours = ["--redundancy", str(grid.REDUNDANCY)]
        for other in grid.neighbours(self.name):
            address, port = self._network.address(self.name, other)
            url = f"mqtt://{address}:{port}"
            is_foreign = other in self._foreign
            neighbours += ["--document-neighbour", f"{other}={url}"] if is_foreign else ["--neighbour", url]
        if self._foreign:
            neighbours += ["--announce-interval", f"{ANNOUNCE_S} s"]
        if isinstance(self.broker, Hedgerow):
            self.broker.options = tuple(neighbours)
            self.broker.http = f"{host(self.name)}:0"
        else:
            neighbours += ["--http", f"{host(self.name)}:0"]
        await self.broker.start()
        if self._sidecar is not None:
            self._sidecar.start(self.broker, neighbours)

    @property
    def programs(self) -> list[LabProgram]:
        return [self.broker] if self._sidecar is None else [self._sidecar, self.broker]

    def sent(self) -> dict[str, tuple[int, int]]:
        """By neighbour: messages passed on to it, and those among its own that had come by another way."""
        found = dict.fromkeys(grid.neighbours(self.name), (0, 0))
        for name, labels, value in read_metrics(self._sidecar or self.broker):
            out, redundant = found.get(labels.get("neighbour", ""), (0, 0))
            if name == RELAYED and labels["direction"] == "out":
                found[labels["neighbour"]] = int(value), redundant
            elif name == DROPPED and labels["direction"] == "in" and labels["reason"] == "duplicates":
                found[labels["neighbour"]] = out, int(value)
        return found

    def kill(self) -> None:
        """All at one moment."""
        for program in self.programs:
            if program.process is not None:
                program.send(signal.SIGKILL)
        for program in self.programs:
            program.kill()
