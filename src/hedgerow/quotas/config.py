"""How much may be published: the `quotas` of a configuration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hedgerow.node.config import Chapter, Given
from hedgerow.node.values import A_SIZE, AT_RELOAD, SIZE_UNITS, Key, Read, number_within

MAX_PER_S = 1e12
OF_WHAT = {"client": "each client", "user": "all clients of a user", "listener": "all clients of a listener"}
"""Quotas are of these; a client without a name counts as its address does."""


@dataclass(slots=True, frozen=True)
class QuotasConfig:
    """In messages and bytes a second; 0 is no bound."""

    client_messages: float = 0.0
    client_bytes: float = 0.0
    user_messages: float = 0.0
    user_bytes: float = 0.0
    listener_messages: float = 0.0
    listener_bytes: float = 0.0


def _read_rate(units: dict[str, float], what: str) -> Read:
    def read(value: object, base: Path) -> float:
        return float(number_within(value, units, what, 0, MAX_PER_S))

    return read


def _keys() -> Iterator[Key]:
    for of, who in OF_WHAT.items():
        yield Key(
            f"quotas.{of}_messages",
            f"--quota-{of}-messages",
            "N",
            _read_rate({}, "a number"),
            f"messages a second that {who} may publish (default: 0, any number)",
            takes_effect=AT_RELOAD,
        )
        yield Key(
            f"quotas.{of}_bytes",
            f"--quota-{of}-bytes",
            "SIZE",
            _read_rate({name: float(size) for name, size in SIZE_UNITS.items()}, A_SIZE),
            "and bytes a second, of whole packets (default: 0, any number)",
            takes_effect=AT_RELOAD,
        )


def _make(given: Given) -> QuotasConfig:
    return QuotasConfig(**given.table("quotas"))


CHAPTER = Chapter(QuotasConfig, tuple(_keys()), _make)
