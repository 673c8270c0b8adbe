"""What mobile and fixed brokers report to whoever keeps the log, beside what their machines do."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from hedgerow.errors import counted
from hedgerow.facts import NodeFact


@dataclass(frozen=True, slots=True)
class FixedLinked(NodeFact):
    url: str
    fixed_broker: str

    def __str__(self) -> str:
        return f"{self.fixed_broker} at {self.url} supports this broker"


@dataclass(frozen=True, slots=True)
class FixedNotLinked(NodeFact):
    """Told once for each reason."""

    level: ClassVar[int] = logging.WARNING
    url: str
    reason: str

    def __str__(self) -> str:
        return f"no link to the fixed broker at {self.url}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ClientSent:
    level: ClassVar[int] = logging.INFO
    client_id: str
    address: str

    def __str__(self) -> str:
        return f"{self.client_id!r} is sent to {self.address}"


@dataclass(frozen=True, slots=True)
class MobileLinked(NodeFact):
    mobile_broker: str
    address: str

    def __str__(self) -> str:
        return f"{self.mobile_broker}, whose clients are at {self.address or 'no address'}, is linked"


@dataclass(frozen=True, slots=True)
class HomeNotProved(NodeFact):
    level: ClassVar[int] = logging.WARNING
    mobile_broker: str
    clients_at: str
    link_from: str

    def __str__(self) -> str:
        return (
            f"clients of {self.mobile_broker} are not sent home: {self.clients_at} is not where its link"
            f" comes from ({self.link_from}); if it is right, set mobility.homes (--mobile-clients-at"
            f" {self.clients_at})"
        )


@dataclass(frozen=True, slots=True)
class PlanRefused:
    level: ClassVar[int] = logging.WARNING
    reason: str

    def __str__(self) -> str:
        return f"a plan is not followed: {self.reason}"


@dataclass(frozen=True, slots=True)
class SessionCame:
    """From another broker, for a client that is here now."""

    level: ClassVar[int] = logging.INFO
    client_id: str
    missed: int

    def __str__(self) -> str:
        return f"{self.client_id!r} has its session here, with {counted(self.missed, 'missed message')}"


@dataclass(frozen=True, slots=True)
class SessionLeft:
    """The client is away, or at another broker."""

    level: ClassVar[int] = logging.INFO
    client_id: str
    to: str

    def __str__(self) -> str:
        return f"the session of {self.client_id!r} is with {self.to}"


@dataclass(frozen=True, slots=True)
class SessionHeld:
    level: ClassVar[int] = logging.INFO
    client_id: str
    mobile_broker: str
    missed: int

    def __str__(self) -> str:
        what = counted(self.missed, "message")
        return f"the session of {self.client_id!r} is kept for {self.mobile_broker}, with {what}"


NodeEvent = (
    FixedLinked
    | FixedNotLinked
    | ClientSent
    | MobileLinked
    | HomeNotProved
    | PlanRefused
    | SessionCame
    | SessionLeft
    | SessionHeld
)
