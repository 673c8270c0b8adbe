"""What runs at the nodes of the grid: a broker, and beside a stock one the federator as a sidecar."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from hedgerow.federation.interests.events import MOSQUITTO_LINES
from hedgerow.federation.state import HOME_STATE_TOPIC, STATE_TOPIC
from hedgerow_workshop.lab.brokers import Broker, Hedgerow, Mosquitto
from hedgerow_workshop.lab.processes import Program, together
from hedgerow_workshop.lab.spohn import grid
from hedgerow_workshop.lab.spohn.network import Network, host

OURS, STOCK = "hedgerow", "mosquitto"
STATE_TOPICS = {OURS: STATE_TOPIC, STOCK: HOME_STATE_TOPIC + "{node}"}

# Naming types leaves out all others, and that it runs now is told as one of them.
_TOLD_TOO = ("log_type error", "log_type warning", "log_type information")
SUBSCRIPTION_LOG = "\n".join((*MOSQUITTO_LINES, *_TOLD_TOO, ""))
"""What a sidecar needs to learn of subscriptions."""


class Sidecar(Program):
    def __init__(self, node: str, directory: Path) -> None:
        super().__init__(f"the federator of node {node}", directory)
        self._node = node

    def start(self, broker: Broker, neighbours: list[str]) -> None:
        words = ["federate", "--id", self._node, "--broker", broker.url, *neighbours]
        words += ["--data", str(self.directory / "data")]
        self.launch([sys.executable, "-m", "hedgerow", *words])

    def end(self) -> None:
        self.kill()


class Node:
    """One of a federation. It keeps its port and its data when it is started again."""

    def __init__(self, kind: str, name: str, network: Network, directory: Path) -> None:
        self.name = name
        self.state_topic = STATE_TOPICS[kind].format(node=name)
        self._network = network
        self._sidecar: Sidecar | None = None
        place = directory / "broker", host(name), network.ports[name]
        self.broker: Broker
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
    def programs(self) -> list[Program]:
        return [self.broker] if self._sidecar is None else [self._sidecar, self.broker]

    def kill(self) -> None:
        """All at one moment."""
        for program in self.programs:
            if program.process is not None:
                program.send(signal.SIGKILL)
        for program in self.programs:
            program.kill()


class Nodes:
    """They end with the block."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.by_name = {node.name: node for node in nodes}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.by_name.values():
            node.kill()

    async def start(self) -> None:
        await together(node.start() for node in self.by_name.values())

    def check(self) -> None:
        """Raise for a program that has ended by itself."""
        for node in self.by_name.values():
            for program in node.programs:
                program.check()
