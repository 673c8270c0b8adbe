"""What the agent's shell reports beside the machine's events, and the JSON of both."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from hedgerow.agent.events import AgentEvent
from hedgerow.agent.plan import TopologyPlan
from hedgerow.node.logs import json_name


@dataclass(frozen=True, slots=True)
class CommandSent:
    level: ClassVar[int] = logging.INFO
    action: str
    broker: str
    far: str
    carrier: str
    """The kind of the broker that carries the bridge, or `agent`: a process of ours does."""

    def __str__(self) -> str:
        return f"{self.action} the bridge {self.broker} – {self.far}, carried by {self.carrier}"


@dataclass(frozen=True, slots=True)
class CommandRefused:
    level: ClassVar[int] = logging.WARNING
    broker: str
    far: str
    reason: str

    def __str__(self) -> str:
        return f"{self.broker} refused a command about its bridge to {self.far}: {self.reason}"


@dataclass(frozen=True, slots=True)
class AgentBridgeUp:
    logged_as: ClassVar[str] = "BridgeUp"
    level: ClassVar[int] = logging.INFO
    broker: str
    far: str

    def __str__(self) -> str:
        return f"the bridge {self.broker} – {self.far} is up"


@dataclass(frozen=True, slots=True)
class AgentBridgeDown:
    logged_as: ClassVar[str] = "BridgeDown"
    level: ClassVar[int] = logging.WARNING
    broker: str
    far: str
    reason: str

    def __str__(self) -> str:
        return f"the bridge {self.broker} – {self.far} is down: {self.reason}"


@dataclass(frozen=True, slots=True)
class AgentBridgeGone:
    logged_as: ClassVar[str] = "BridgeGone"
    level: ClassVar[int] = logging.INFO
    broker: str
    far: str

    def __str__(self) -> str:
        return f"the bridge {self.broker} – {self.far} was deleted"


@dataclass(frozen=True, slots=True)
class BrokerKnown:
    level: ClassVar[int] = logging.INFO
    broker: str
    version: str

    def __str__(self) -> str:
        return f"broker {self.broker} is {self.version}"


@dataclass(frozen=True, slots=True)
class BrokerRefuses:
    """It answers, but does not take this agent in."""

    level: ClassVar[int] = logging.WARNING
    broker: str
    reason: str

    def __str__(self) -> str:
        return f"broker {self.broker}: {self.reason}"


@dataclass(frozen=True, slots=True)
class BridgeProcessEnded:
    logged_as: ClassVar[str] = "CarrierEnded"
    level: ClassVar[int] = logging.ERROR
    reason: str

    def __str__(self) -> str:
        return f"the process that carries bridges has ended: {self.reason}"


ShellEvent = (
    CommandSent
    | CommandRefused
    | AgentBridgeUp
    | AgentBridgeDown
    | AgentBridgeGone
    | BrokerKnown
    | BrokerRefuses
    | BridgeProcessEnded
)


def to_json(event: AgentEvent | ShellEvent, now: float) -> str:
    """One line: `time` (Unix), `event` (the fact's name), its fields, and `message` for people."""
    values = {each.name: _plain(getattr(event, each.name)) for each in fields(event)}
    line = json.dumps(
        {"time": now, "event": json_name(event), **values, "message": str(event)}, ensure_ascii=False
    )
    return line.encode(errors="replace").decode()  # JSON of a broker may hold halves of characters.


def _plain(value: Any) -> Any:
    if isinstance(value, TopologyPlan):
        return {
            "create": [list(link) for link in value.create],
            "delete": [list(link) for link in value.delete],
        }
    return list(value) if isinstance(value, tuple) else value
