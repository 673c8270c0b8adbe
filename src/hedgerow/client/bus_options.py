"""What `connect` was asked for, as every transport is given it, and the refusal of what one of them lacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hedgerow.client.bus import StateChange
from hedgerow.client.dial import TlsOptions
from hedgerow.client.driver import DriverOptions
from hedgerow.errors import ConfigError


@dataclass(slots=True)
class BusOptions:
    """What `connect` was asked for, beside the address."""

    driver: DriverOptions
    session_is_implied: bool = True
    """The session ends with the bus, though it outlives a lost link."""
    on_state: Callable[[StateChange], None] | None = None

    def refuse(self, lacking: Mapping[str, str], beginning: str) -> None:
        """Raise ConfigError for what a transport lacks. `lacking` has the words for it, which end the
        sentence."""
        connect = self.driver.connect
        asked = {
            "name": connect.username is not None or connect.password is not None,
            "will": connect.will is not None,
            "session": not connect.clean_start or not self.session_is_implied,
            "tls": self.driver.tls != TlsOptions(),
            "properties": bool(connect.properties),
            "origin": connect.origin is not None,
        }
        for what, is_asked_for in asked.items():
            if is_asked_for:
                raise ConfigError(f"{beginning} {lacking[what]}")
