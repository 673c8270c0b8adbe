"""What a federation reports to whoever keeps the log, beside what its overlay does."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from hedgerow.facts import NodeFact
from hedgerow.rates import name_of


@dataclass(frozen=True, slots=True)
class LinkNotOpen(NodeFact):
    """Told once for each reason."""

    level: ClassVar[int] = logging.WARNING
    history_kind: ClassVar[str] = "lost"
    address: str
    reason: str

    def __str__(self) -> str:
        return f"no link to {self.address}: {self.reason}"


@dataclass(frozen=True, slots=True)
class DocumentLinkUp(NodeFact):
    history_kind: ClassVar[str] = "joined"
    address: str
    number: int
    """Of this node."""

    def __str__(self) -> str:
        return f"{self.address} is a neighbour's broker, by the document's wire; our number is {self.number}"


@dataclass(frozen=True, slots=True)
class DocumentNeighbourProved(NodeFact):
    address: str
    number: int
    speaker: str | None
    """The owner of its session here; None: the broker does not tell."""

    def __str__(self) -> str:
        kind, _, name = (self.speaker or "").partition(":")
        told = {"user": f", as user {name}", "site": f", from {name_of(name)}"}.get(kind, "")
        return f"the federator at {self.address} is number {self.number}{told}"


@dataclass(frozen=True, slots=True)
class DocumentLinkDown(NodeFact):
    history_kind: ClassVar[str] = "lost"
    address: str
    why: str

    def __str__(self) -> str:
        return f"link to {self.address} lost: {self.why}"


@dataclass(frozen=True, slots=True)
class RightMissing(NodeFact):
    """At the broker that a sidecar stands beside."""

    level: ClassVar[int] = logging.WARNING
    address: str
    user: str | None

    def __str__(self) -> str:
        who = f"the user {self.user}" if self.user is not None else "clients without a user name"
        return (
            f"the broker at {self.address} does not let us write and read hedgerow/#, so that no"
            f" other federator can link to it: give {who} the right `topic readwrite hedgerow/#`"
        )
