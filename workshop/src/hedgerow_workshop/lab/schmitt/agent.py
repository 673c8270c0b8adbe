"""The agent of a run, as a process: `hedgerow agent`, and the events that it prints."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from hedgerow_workshop.lab.harness.programs import LabProgram
from hedgerow_workshop.lab.schmitt.brokers import Fleet
from hedgerow_workshop.lab.schmitt.record import BridgeState, Mode

GHOSTS = {Mode.PUBLISHED: "published", Mode.GHOST: "keep", Mode.PURE: "delete", Mode.LINE: "delete"}
STATES = {"bridge_up": "up", "bridge_down": "waiting", "bridge_gone": ""}


class AgentProgram(LabProgram):
    def __init__(self, directory: Path) -> None:
        super().__init__("the agent", directory)

    def start(self, fleet: Fleet, mode: Mode, topology: str, ghost_retry_s: float | None) -> None:
        """`ghost_retry_s`: of bridges whose far end is away, as published; None: the agent's own."""
        file = self.directory / "brokers.toml"
        file.write_text("\n".join(_entry(fleet, name) for name in fleet.brokers))
        words = ["--file", str(file), "--topology", topology, "--ghosts", GHOSTS[mode], "--json"]
        if mode is Mode.PUBLISHED and ghost_retry_s is not None:
            words += ["--option", f"restart_timeout {ghost_retry_s:.3f}"]
        # What it carries between stock brokers stays in memory: those promise nothing for QoS 1 either.
        self.launch([sys.executable, "-m", "hedgerow", "agent", *words])

    def events(self) -> list[dict[str, Any]]:
        """What it has said so far, without a line that is half written."""
        lines = (
            self.output.read_text(errors="replace").splitlines(keepends=True) if self.output.exists() else []
        )
        return [json.loads(line) for line in lines if line.endswith("\n")]


def _entry(fleet: Fleet, name: str) -> str:
    host, port = fleet.far_address(name)
    return f'[[broker]]\nid = "{name}"\nurl = "mqtt://{host}:{port}"\nbind = "{fleet.binds[name]}"\n'


def bridge_states(events: list[dict[str, Any]]) -> list[BridgeState]:
    """What the agent knew of the bridges, for brokers that do not say it themselves."""
    return [
        BridgeState(event["time"], event["broker"], event["far"], STATES[event["event"]])
        for event in events
        if event["event"] in STATES
    ]
