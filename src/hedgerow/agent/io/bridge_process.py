"""The process that carries bridges between brokers that cannot carry them themselves.

It hosts a node without listeners for each such bridge, and the node has a bridge to each of the two brokers.
The agent speaks to it through its standard input, and hears from it through its standard output, a line of
JSON for each command and state. When the input ends, so does the process: it never outlives its agent.

    {"carry": NODE_ID, "data": DIRECTORY or null, "sections": [TEXT, …]}
    {"end": NODE_ID, "delete": true or false}     deleted: the brokers are to forget its sessions
    {"ask": true}     → {"runs": true}
    → {"node": NODE_ID, "connection": NAME, "state": {…} or null}     as on $SYS/broker/bridge/NAME/state
    → {"node": NODE_ID, "failed": REASON}
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from hedgerow.agent.io.connection import BRIDGE_TOPICS
from hedgerow.agent.io.drivers import BridgeState, read_state
from hedgerow.broker.port import Port
from hedgerow.errors import HedgerowError, reason_of
from hedgerow.message import Message
from hedgerow.node import logs
from hedgerow.node.config import Config
from hedgerow.parts import make_server

MAX_LINE_BYTES = 1 << 20  # two sections, as JSON


class NodeBetween:
    """A node between two brokers."""

    def __init__(self, node_id: str, data: Path | None) -> None:
        self._id = node_id
        self._told: dict[str, BridgeState | None] = {}  # by the bridge's name
        self._node = make_server(Config(mqtt=(), ws=(), http=(), id=node_id, data=data, sys_interval_s=0.0))
        self._port: Port | None = None

    async def start(self, sections: list[str]) -> None:
        await self._node.start()
        self._port = Port(self._node.broker, "the agent", self._deliver)
        self._port.subscribe(f"{BRIDGE_TOPICS}+/state", self._node.clock())
        self._port.subscribe(f"{BRIDGE_TOPICS}result", self._node.clock())
        for section in sections:
            self._command("new", section)

    async def end(self, is_deleted: bool) -> None:
        if is_deleted:
            for name in list(self._told):
                self._command("del", name)
        if self._port is not None:
            self._port.close()
        await self._node.stop()

    def _command(self, word: str, text: str) -> None:
        assert self._port is not None
        self._port.publish(Message(f"{BRIDGE_TOPICS}{word}", text.encode(), 1), self._node.clock())
        self._node.flush()

    def _deliver(self, message: Message) -> None:
        found = json.loads(message.payload) if message.payload else None
        if message.topic.endswith("/state"):
            name = message.topic.removeprefix(BRIDGE_TOPICS).removesuffix("/state")
            state = None if found is None else read_state(found)
            # Not when only its counters grew: an agent that is stopped reads nothing, and a full pipe would
            # stop this process too.
            if name not in self._told or self._told[name] != state:
                say({"node": self._id, "connection": name, "state": found})
            self._told[name] = state
            if found is None:
                del self._told[name]
        elif found is not None and not found["ok"]:
            say({"node": self._id, "failed": found["reason"]})


class Host:
    """Commands about one node are done one after the other; none waits for another node, which may take
    seconds to end."""

    def __init__(self) -> None:
        self._bridges: dict[str, NodeBetween] = {}
        self._last: dict[str, asyncio.Task[None]] = {}  # by node

    def handle(self, line: dict[str, Any]) -> None:
        node_id = line["carry"] if "carry" in line else line["end"]
        task = asyncio.get_running_loop().create_task(self._do(line, self._last.get(node_id)))
        self._last[node_id] = task
        task.add_done_callback(lambda done: self._last.pop(node_id) if self._last[node_id] is done else None)

    async def _do(self, line: dict[str, Any], before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        if "carry" in line:
            await self._carry(line)
        else:
            bridge = self._bridges.pop(line["end"], None)
            if bridge is not None:
                await bridge.end(line["delete"])

    async def _carry(self, line: dict[str, Any]) -> None:
        node_id = line["carry"]
        if node_id in self._bridges:
            return
        data = line["data"]
        bridge = NodeBetween(node_id, None if data is None else Path(data))
        try:
            await bridge.start(line["sections"])
        except (HedgerowError, OSError) as error:
            say({"node": node_id, "failed": reason_of(error)})
            return
        self._bridges[node_id] = bridge

    async def stop(self) -> None:
        await asyncio.gather(*self._last.values(), return_exceptions=True)
        await asyncio.gather(*(bridge.end(False) for bridge in self._bridges.values()))


def say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


async def serve() -> None:
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    host = Host()
    try:
        while line := await reader.readline():
            command = json.loads(line)
            if "ask" in command:
                say({"runs": True})
            else:
                host.handle(command)
    finally:
        await host.stop()


def main() -> None:
    import uvloop

    # The first bridge is not to wait for them.
    import_module("hedgerow.bridges.part")
    # A terminal sends it to the agent too, and the agent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logs.set_up("text", "warning")
    with asyncio.Runner(loop_factory=uvloop.Loop) as runner:
        runner.run(serve())


if __name__ == "__main__":
    main()
