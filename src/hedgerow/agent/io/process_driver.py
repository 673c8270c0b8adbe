"""The driver for brokers that cannot be told to have a bridge: a process of ours carries it.

One process (`bridge_process.py`) carries all of them, and is started as soon as two such brokers are known,
so that a bridge is a matter of milliseconds. A bridge is up when the node between the brokers is connected
with both. The node's name follows from its two brokers: the brokers keep their sessions for it, and so what
they queued goes on with the next process, whichever agent started it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hedgerow.agent.io.bridge_process import MAX_LINE_BYTES
from hedgerow.agent.io.drivers import BridgeState, DriverContext, WatchedBroker, read_state
from hedgerow.agent.io.events import BridgeProcessEnded, CommandRefused
from hedgerow.agent.io.sections import bridge_name, from_local_side, make_section
from hedgerow.bridges.topic_line import TopicLine
from hedgerow.errors import reason_of

STOP_S = 10.0  # for the stores to be closed
ASK_S = 1.0  # between questions whether the process runs
MAX_UNANSWERED = 3


@dataclass(slots=True)
class _Carried:
    near: str
    far: str
    line: bytes
    states: dict[str, BridgeState] = field(default_factory=dict)

    @property
    def state(self) -> BridgeState:
        ends = [
            self.states.get(bridge_name(end), BridgeState(False, "not connected yet")) for end in self.ends
        ]
        return min(ends, key=lambda state: state.is_up)._replace(address="")  # It leads to two.

    @property
    def ends(self) -> tuple[str, str]:
        return self.near, self.far


class ProcessDriver:
    name = "agent"
    ends_with_agent = True

    def __init__(self, context: DriverContext) -> None:
        self.ask_s = ASK_S
        self._context = context
        self._carried: dict[str, _Carried] = {}  # by the name of its node
        self._foreign: set[str] = set()
        self.process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._unsent: list[bytes] = []
        self._unanswered = 0
        self._is_heard = False  # Until it has started, it cannot answer.
        self._is_stopped = False

    def can_carry(self, near: WatchedBroker) -> bool:
        return True

    def prepare(self, near: WatchedBroker) -> None:
        if near.kind != "hedgerow":
            self._foreign.add(near.id)
            if len(self._foreign) > 1:
                self._start()

    def create(self, near: WatchedBroker, far: WatchedBroker, topics: Sequence[TopicLine]) -> None:
        node_id = node_id_between(near.id, far.id)
        settings, data = self._context.settings, self._context.data
        inner = make_section(bridge_name(near.id), near.entry, map(from_local_side, topics), settings)
        outer = make_section(bridge_name(far.id), far.entry, topics, settings)
        line = {
            "carry": node_id,
            "data": None if data is None else str(data / node_id),
            "sections": [inner.to_text(), outer.to_text()],
        }
        carried = self._carried.get(node_id)
        if carried is not None and carried.line != _to_line(line):
            self._end(node_id, False)  # One of the two is elsewhere now.
        if node_id not in self._carried:
            self._carried[node_id] = _Carried(near.id, far.id, _to_line(line))
            self._send(self._carried[node_id].line)
            self._tell(self._carried[node_id])

    def delete(self, near: WatchedBroker, far_id: str) -> None:
        self._end(node_id_between(near.id, far_id), True)

    def bridges(self, near: WatchedBroker) -> Mapping[str, BridgeState]:
        """It is told of at both ends: one of them may be gone."""
        all_carried = self._carried.values()
        found = {carried.far: carried.state for carried in all_carried if carried.near == near.id}
        for carried in all_carried:
            if carried.far == near.id:
                found[carried.near] = carried.state._replace(is_told_twice=True)
        return found

    def receive_system(self, near: WatchedBroker, topic: str, payload: bytes) -> bool:
        return False

    def forget(self, near: WatchedBroker) -> None:
        pass

    def stand_by(self) -> None:
        """The acting agent carries them from now on, under the same names."""
        for node_id in list(self._carried):
            self._end(node_id, False)

    async def stop(self) -> None:
        self._is_stopped = True
        task = self._task
        if task is None:
            return
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()  # which ends it
        await asyncio.wait([task], timeout=STOP_S)
        if self.process is not None:
            self.process.kill()
            await task

    def _end(self, node_id: str, is_deleted: bool) -> None:
        carried = self._carried.pop(node_id, None)
        if carried is not None:
            self._send(_to_line({"end": node_id, "delete": is_deleted}))
            self._tell(carried)

    def _tell(self, carried: _Carried) -> None:
        for end in carried.ends:
            self._context.on_change(end)

    # The process

    def _start(self) -> None:
        if self._task is None and not self._is_stopped:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def _send(self, line: bytes) -> None:
        self._start()
        if self.process is None:
            self._unsent.append(line)
        elif self.process.stdin is not None:
            self.process.stdin.write(line)

    async def _run(self) -> None:
        """One process, until it ends."""
        try:
            reason = await self._host()
        except (OSError, ValueError) as error:  # no memory for it, or a line without an end
            reason = reason_of(error)
        self.process = self._task = None
        self._unsent.clear()
        if reason:
            self._context.emit(BridgeProcessEnded(reason))
        lost, self._carried = self._carried, {}
        for carried in lost.values():
            self._tell(carried)

    async def _host(self) -> str:
        """Why the process has ended; nothing when it was told to."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "hedgerow.agent.io.bridge_process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=MAX_LINE_BYTES,
        )
        self.process = process
        self._unanswered, self._is_heard = 0, False
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.writelines(self._unsent)
        self._unsent.clear()
        if self._is_stopped:
            process.stdin.close()
        watching = asyncio.create_task(self._watch(process, process.stdin))
        try:
            while line := await process.stdout.readline():
                self._unanswered, self._is_heard = 0, True
                with suppress(ValueError):  # a line cut short by its end
                    self._receive(json.loads(line))
            status = await process.wait()
        finally:
            watching.cancel()
            if process.returncode is None:
                process.kill()
        return f"status {status}" if status else ""

    async def _watch(self, process: asyncio.subprocess.Process, stdin: asyncio.StreamWriter) -> None:
        """A process that hangs would be taken for bridges that are up for ever."""
        while self._unanswered < MAX_UNANSWERED:
            if self._is_stopped:
                return  # It has its own time for that.
            stdin.write(_to_line({"ask": True}))
            await asyncio.sleep(self.ask_s)
            self._unanswered += self._is_heard
        process.kill()

    def _receive(self, line: dict[str, Any]) -> None:
        carried = self._carried.get(line.get("node", ""))
        if carried is None:
            return
        if "failed" in line:
            del self._carried[line["node"]]
            self._send(_to_line({"end": line["node"], "delete": False}))
            self._context.emit(CommandRefused(carried.near, carried.far, line["failed"]))
        elif line["state"] is None:
            carried.states.pop(line["connection"], None)
        else:
            state = read_state(line["state"])
            if state is None or state == carried.states.get(line["connection"]):
                return
            carried.states[line["connection"]] = state
        self._tell(carried)


def node_id_between(near_id: str, far_id: str) -> str:
    """The same whichever end is named first, and short enough for the id of a node."""
    ends = sorted((near_id, far_id))
    name = "carrier." + ".".join(ends)
    if len(name) <= 64 and all("." not in end for end in ends):
        return name
    return "carrier." + hashlib.sha256("/".join(ends).encode()).hexdigest()[:32]


def _to_line(command: dict[str, Any]) -> bytes:
    return json.dumps(command).encode() + b"\n"
