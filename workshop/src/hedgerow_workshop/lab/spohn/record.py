"""What is kept of one run: who published what when, what arrived where, and what happened meanwhile.

All times are seconds of the machine's monotonic clock. A record is data alone, and is written as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple


class Setting(StrEnum):
    FEDERATED = "federated"
    FAILURES = "failures"
    """Federated, while nodes die and links are cut."""
    CENTRALISED = "centralised"


class Misfortune(StrEnum):
    KILL = "kill"
    """SIGKILL of all that runs at a node."""
    CUT = "cut"
    """A link that passes nothing, and tells nobody."""


@dataclass(frozen=True, slots=True)
class Spec:
    """Which run. `node` is that of the broker in a centralised one."""

    kind: str
    setting: Setting
    count: int = 0
    """Publications that were asked for."""
    node: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.kind, self.setting, self.node and f"node {self.node}")))

    @property
    def file_name(self) -> str:
        return "-".join(filter(None, (self.kind, self.setting, self.node, str(self.count or ""))))


class Arrival(NamedTuple):
    publisher: str
    number: int
    at: float


class Happened(NamedTuple):
    """`what` is a node, or a link as "4-5"."""

    misfortune: Misfortune
    what: str
    at: float
    whole_at: float | None = None
    """When the nodes said that all was as before; None: not while anybody waited for it."""


State = Mapping[str, Any]
"""What a federator says of itself."""


@dataclass(slots=True)
class Record:
    spec: Spec
    sent: dict[str, list[float]] = field(default_factory=dict)
    """Publisher → when each number was published."""
    arrived: dict[str, list[Arrival]] = field(default_factory=dict)
    """Subscriber → what it received."""
    states: list[dict[str, State]] = field(default_factory=list)
    """What the nodes said at the first publication, and at the end."""
    happened: list[Happened] = field(default_factory=list)
    ended_at: float = 0.0

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
