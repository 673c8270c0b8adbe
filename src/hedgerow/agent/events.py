"""What an agent reports to people, as facts."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from hedgerow.agent.plan import BrokerLink, TopologyPlan


@dataclass(frozen=True, slots=True)
class BrokerFound:
    level: ClassVar[int] = logging.INFO
    broker: str

    def __str__(self) -> str:
        return f"broker {self.broker} answers"


@dataclass(frozen=True, slots=True)
class BrokerLost:
    level: ClassVar[int] = logging.WARNING
    broker: str
    silent_s: float

    def __str__(self) -> str:
        return f"broker {self.broker} is gone: last heard {self.silent_s:.2f} s ago"


@dataclass(frozen=True, slots=True)
class PairCut:
    level: ClassVar[int] = logging.WARNING
    link: BrokerLink

    def __str__(self) -> str:
        return f"{self.link} cannot be linked at present"


@dataclass(frozen=True, slots=True)
class PairRestored:
    level: ClassVar[int] = logging.INFO
    link: BrokerLink

    def __str__(self) -> str:
        return f"{self.link} may be linked again"


@dataclass(frozen=True, slots=True)
class ActingChanged:
    level: ClassVar[int] = logging.INFO
    is_acting: bool

    def __str__(self) -> str:
        return "this agent acts" if self.is_acting else "this agent stands by"


@dataclass(frozen=True, slots=True)
class Planned:
    level: ClassVar[int] = logging.INFO
    plan: TopologyPlan

    def __str__(self) -> str:
        return f"plan: {str(self.plan).replace(chr(10), ', ')}"


AgentEvent = BrokerFound | BrokerLost | PairCut | PairRestored | ActingChanged | Planned
