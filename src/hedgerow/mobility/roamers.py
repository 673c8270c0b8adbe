"""Clients that go from one mobile broker to another: what a fixed broker knows of each, and of how many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hedgerow.broker.pool import Pool
from hedgerow.mobility.delegation.limits import MAX_EXPECTED, MIN_EXPECTED, ORDINARY_CHARS
from hedgerow.mobility.roaming import Giving, Noted, Taking


@dataclass(slots=True)
class Roamer:
    client_id: str
    username: str | None
    whose: str
    """The user or address of the mobile broker that has told of it first."""
    owner: str | None = None
    """The mobile broker that has its session; "": it is here; None: nobody is known to."""
    claimer: tuple[str, int] | None = None
    """The mobile broker that its client is at, and the number of its HERE."""
    written: int = 0
    """How many events had been written there when that was read."""
    asked: set[str] = field(default_factory=set)
    """Mobile brokers that may have something of it, and were told to give it."""
    had: Noted = field(default_factory=Noted)
    """What it has got lately, and others may have as well."""
    taking: dict[str, Taking] = field(default_factory=dict)
    giving: Giving | None = None
    heard: dict[str, int] = field(default_factory=dict)
    """By mobile broker, the number of its last HERE."""
    been_at: set[str] = field(default_factory=set)
    """Mobile brokers, of all that are not forgotten."""
    is_fresh: bool = False
    """Its session here has nothing but what has been published since it is on its way to here."""
    is_doubtful: bool = False
    """It was given before, and nobody knows whether that one has it."""
    is_elsewhere: bool = False
    """The session that ends here is kept by another broker."""

    @property
    def is_known_somewhere(self) -> bool:
        return bool(self.owner is not None or self.claimer or self.asked or self.taking)

    @property
    def weight(self) -> int:
        return 1 + (len(self.username or "") + len(self.client_id)) // ORDINARY_CHARS


class Roamers:
    """By client id, and no more of one user or address than it may have."""

    def __init__(self) -> None:
        self._by_client: dict[str, Roamer] = {}
        self._room = Pool(MAX_EXPECTED, MIN_EXPECTED, 1)

    def __iter__(self) -> Iterator[Roamer]:
        return iter(self._by_client.values())

    def get(self, client_id: str) -> Roamer | None:
        return self._by_client.get(client_id)

    def has_room(self, roamer: Roamer) -> bool:
        return self._room.has_room(roamer.whose, roamer.weight)

    def add(self, roamer: Roamer) -> None:
        self._room.change(roamer.whose, roamer.weight)
        self._by_client[roamer.client_id] = roamer

    def remove(self, roamer: Roamer) -> None:
        if self._by_client.pop(roamer.client_id, None) is not None:
            self._room.change(roamer.whose, -roamer.weight)

    def is_at_both(self, client_id: str, first: str, second: str) -> bool:
        """Has the same client been at these two mobile brokers?"""
        roamer = self._by_client.get(client_id)
        return roamer is not None and first != second and {first, second} <= roamer.been_at
