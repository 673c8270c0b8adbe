"""What bridges report to whoever keeps the log, as facts.

A bridge of the node's own (`follows`) leads to the broker that it stands beside. Nobody has given that bridge
a name, so people are told of the broker, by the option with which they named it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from hedgerow.errors import counted
from hedgerow.facts import NodeFact
from hedgerow.mqtt.dropped_there import describe_dropped


def _broker(address: str) -> str:
    return f"the broker at {address} (--broker)"


@dataclass(slots=True)
class BridgeUp(NodeFact):
    history_kind: ClassVar[str] = "joined"
    name: str
    address: str
    far_node: str | None
    follows: bool = False
    is_proven: bool = True

    def __str__(self) -> str:
        proof = "" if self.is_proven else ", which does not have this node's key"
        who = f" (node {self.far_node}{proof})" if self.far_node is not None else ""
        if self.follows:
            return f"the link to {_broker(self.address)} is up{who}"
        return f"bridge {self.name} is up, to {self.address}{who}"


@dataclass(slots=True)
class BridgeDown(NodeFact):
    level: ClassVar[int] = logging.WARNING
    history_kind: ClassVar[str] = "lost"
    name: str
    address: str
    reason: str
    follows: bool = False

    def __str__(self) -> str:
        if self.follows:
            return f"the link to {_broker(self.address)} is down: {self.reason}"
        return f"bridge {self.name} to {self.address} is down: {self.reason}"


@dataclass(slots=True)
class BridgeClosed(BridgeDown):
    """As somebody wants it: the bridge is deleted or replaced, or the node stops."""

    level: ClassVar[int] = logging.INFO
    history_kind: ClassVar[str] = "other"


@dataclass(slots=True)
class BridgeNotUp(NodeFact):
    """An attempt failed: told once for each reason, until it is up."""

    level: ClassVar[int] = logging.WARNING
    history_kind: ClassVar[str] = "lost"
    name: str
    address: str
    reason: str
    follows: bool = False

    def __str__(self) -> str:
        if self.follows:
            return f"cannot connect to {_broker(self.address)}: {self.reason}"
        return f"bridge {self.name} cannot connect to {self.address}: {self.reason}"


@dataclass(slots=True)
class TlsFilesRefused:
    """For administrators alone, and so not `is_of_nodes`: it tells which files there are."""

    level: ClassVar[int] = logging.WARNING
    lines_a_minute: ClassVar[int] = 20
    name: str
    reason: str

    def __str__(self) -> str:
        return f"bridge {self.name}: the TLS files cannot be used: {self.reason}"


@dataclass(slots=True)
class QueueTaken(NodeFact):
    """What waited for one broker goes another way too."""

    name: str
    count: int
    waiting_for: str

    def __str__(self) -> str:
        return f"bridge {self.name} takes {counted(self.count, 'message')} waiting for {self.waiting_for}"


@dataclass(slots=True)
class MessagesDroppedThere(NodeFact):
    """By a broker that is not ours, which may have had them for us."""

    level: ClassVar[int] = logging.WARNING
    history_kind: ClassVar[str] = "lost"
    name: str
    address: str
    count: int

    def __str__(self) -> str:
        return describe_dropped(self.address, self.count)


BridgeEvent = BridgeUp | BridgeDown | BridgeClosed | BridgeNotUp | QueueTaken | MessagesDroppedThere
