"""What is reported to whoever keeps the log, and what the shell itself reports."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar, Protocol


class Event(Protocol):
    """What a machine or the shell reports: its text is the log line, `kind_of` its kind.

    `address`, if it has one, is the peer's. `lines_a_minute`, if it has that, is how many lines of this
    kind one address gets a minute, each for another `reason`, without a summary of the rest, which the
    counters tell.

    `history_kind`, if it has one, is the word under which the history keeps it. `is_of_nodes` is true of what
    is about nodes and the links between them. The texts of all others may have names, addresses and topics of
    clients, which are for the node's administrators alone.
    """

    @property
    def level(self) -> int: ...


@dataclass(slots=True)
class TransportFailed:
    """What carries MQTT was refused or broken: a TLS handshake, a WebSocket frame."""

    level: ClassVar[int] = logging.WARNING
    address: str
    scheme: str
    reason: str

    def __str__(self) -> str:
        return f"{self.scheme} connection from {self.address} closed: {self.reason}"
