"""Nodes that take the commands of bridges and say how these fare, without carrying a message.

A bridge is up while the node at its address runs. So an agent can be tested with real connections, probes
and publications, and the bridges are as good as the test wants them.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hedgerow.bridges.section import Section, read_section
from hedgerow.broker.port import Port
from hedgerow.message import Message
from hedgerow.node.config import Config
from hedgerow.node.server import Server
from hedgerow.node.values import Address
from hedgerow.parts import PARTS


class FakeNode:
    """A node in this process. `others` are all of the test, by port."""

    def __init__(self, node_id: str, others: dict[int, FakeNode]) -> None:
        self.id = node_id
        self.others = others
        self.port = 0
        self.bridges: dict[str, Section] = {}
        self.commands: list[str] = []
        self.obeys = True
        self.refuses = False
        self.is_cut_from: set[int] = set()
        self._server: Server | None = None
        self._channel: Port | None = None

    @property
    def word(self) -> str:
        return f"{self.id}=127.0.0.1:{self.port}"

    @property
    def fars(self) -> set[str]:
        """The ends of its bridges."""
        return {name.removeprefix("agent.") for name in self.bridges}

    async def start(self) -> None:
        address = Address("127.0.0.1", self.port)
        without_bridges = [entry for entry in PARTS if entry.name != "bridges"]
        self._server = Server(Config(mqtt=(address,), ws=(), http=(), id=self.id), without_bridges)
        await self._server.start()
        self.port = int(self._server.urls[0].rpartition(":")[2])
        self._server.broker.take_commands(("$SYS/broker/bridge/new", "$SYS/broker/bridge/del"))
        self._channel = Port(self._server.broker, "fake bridges", self._receive)
        self._channel.subscribe("$SYS/broker/bridge/new", self._server.clock())
        self._channel.subscribe("$SYS/broker/bridge/del", self._server.clock())
        self.others[self.port] = self
        self._tell_all()

    async def stop(self) -> None:
        server, self._server = self._server, None
        del self.others[self.port]
        self._tell_all()
        assert server is not None
        await server.stop()

    def _receive(self, message: Message) -> None:
        command = message.topic.rpartition("/")[2]
        section = read_section(message.payload) if command == "new" else None
        name = section.name if section is not None else message.payload.decode()
        self.commands.append(f"{command} {name}")
        if self.refuses:
            result = {"command": command, "connection": name, "ok": False, "reason": "it is not to be"}
            self._publish("result", json.dumps(result).encode(), False)
        elif self.obeys and section is not None:
            self.bridges[name] = section
            self.tell(name)
        elif self.obeys:
            del self.bridges[name]
            self._publish(f"{name}/state", b"", True)

    def tell(self, name: str) -> None:
        address = self.bridges[name].addresses[0]
        is_up = address.port in self.others and address.port not in self.is_cut_from
        state = {
            "connection": name,
            "state": "up" if is_up else "waiting",
            "reason": "" if is_up else "gone",
            "address": str(address),
        }
        self._publish(f"{name}/state", json.dumps(state).encode(), True)

    def _publish(self, level: str, payload: bytes, retain: bool) -> None:
        assert self._channel is not None
        assert self._server is not None
        message = Message(f"$SYS/broker/bridge/{level}", payload, 1, retain)
        self._channel.publish(message, self._server.clock())
        self._server.flush()

    def _tell_all(self) -> None:
        for node in self.others.values():
            for name in node.bridges:
                node.tell(name)


@asynccontextmanager
async def fake_nodes(*ids: str) -> AsyncIterator[list[FakeNode]]:
    """Nodes that run, in this order; those that still do at the end are stopped."""
    others: dict[int, FakeNode] = {}
    nodes = [FakeNode(node_id, others) for node_id in ids]
    try:
        for node in nodes:
            await node.start()
        yield nodes
    finally:
        for node in list(others.values()):
            await node.stop()
