"""What the shell itself reports to whoever keeps the log."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar


@dataclass(slots=True)
class TransportFailed:
    """What carries MQTT was refused or broken: a TLS handshake, a WebSocket frame."""

    level: ClassVar[int] = logging.WARNING
    address: str
    scheme: str
    reason: str

    def __str__(self) -> str:
        return f"{self.scheme} connection from {self.address} closed: {self.reason}"
