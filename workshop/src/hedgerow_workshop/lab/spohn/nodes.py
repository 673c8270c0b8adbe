"""What runs at the nodes of the grid: a broker, and beside a stock one the federator as a sidecar."""

from __future__ import annotations

import signal
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
)
from hedgerow_workshop.lab.harness.programs import LabProgram
from hedgerow_workshop.lab.spohn import grid
from hedgerow_workshop.lab.spohn.network import GridNetwork, host

STATE_TOPICS = {OURS: STATE_TOPIC, STOCK: HOME_STATE_TOPIC + "{node}"}


class GridNode:
    """One of a federation. It keeps its port and its data when it is started again."""

    def __init__(self, kind: str, name: str, network: GridNetwork, directory: Path) -> None:
        self.name = name
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
            neighbours += ["--neighbour", f"mqtt://{address}:{port}"]
        if isinstance(self.broker, Hedgerow):
            self.broker.options = tuple(neighbours)
        await self.broker.start()
        if self._sidecar is not None:
            self._sidecar.start(self.broker, neighbours)

    @property
    def programs(self) -> list[LabProgram]:
        return [self.broker] if self._sidecar is None else [self._sidecar, self.broker]

    def kill(self) -> None:
        """All at one moment."""
        for program in self.programs:
            if program.process is not None:
                program.send(signal.SIGKILL)
        for program in self.programs:
            program.kill()
