"""What waits for whom, how much of the room it takes, and for how long there is room: figures alone.

A *reader* is a session for which messages wait: of a client, a neighbour, a bridge, a mobile broker. A
message that waits for several readers is stored once, so all of them together may have more than is stored.
"""

from __future__ import annotations

import heapq
import json
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from hedgerow.errors import counted

FILE = "backlogs.json"
"""In the data directory: what `hedgerow doctor` reads."""
VERSION = 2
MAX_READERS = 20  # that are told of, the largest
MAX_OWNERS = 3  # the same
WINDOW_S = 60.0  # in which growth is measured
NEAR = 0.8  # of the room
OVER = 0.7  # and below it, the bound is not near any more

MIB = 1024 * 1024


class LogReader(NamedTuple):
    name: str
    """Its client id."""
    user: str | None
    is_link: bool
    is_connected: bool
    messages: int
    bytes: int
    oldest_at: float | None
    """When the oldest message that waits for it was stored; None: not known."""


class Room(NamedTuple):
    """On the disk, for everything that waits."""

    bytes: int
    limit: int | None
    """None: there is no bound."""

    def share(self, size: int | None = None) -> float | None:
        """Of the room: what so many bytes take, or all that is stored."""
        if not self.limit:
            return None
        return (self.bytes if size is None else size) / self.limit

    def full_in_s(self, growth: float | None) -> float | None:
        """If so many bytes are added a second; None: never, as far as one can see."""
        if self.limit is None or growth is None or growth <= 0:
            return None
        return max(0, self.limit - self.bytes) / growth


class Growth:
    """Bytes a second, over the last minute."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def note(self, size: int, now: float) -> None:
        samples = self._samples
        samples.append((now, size))
        while len(samples) > 2 and samples[1][0] <= now - WINDOW_S:
            samples.popleft()

    @property
    def rate(self) -> float | None:
        """None: not known yet."""
        if len(self._samples) < 2:
            return None
        (began_at, before), (at, after) = self._samples[0], self._samples[-1]
        return (after - before) / (at - began_at) if at > began_at else None


class ReaderFigures(NamedTuple):
    reader: LogReader
    share: float | None
    full_in_s: float | None
    """If what waits for this reader goes on growing, and nothing else does."""


class OwnerFigures(NamedTuple):
    """What waits on the disk for all sessions of a user, or of an address for those without a name."""

    name: str
    bytes: int
    """A message that waits for several of them counts once."""
    share: float | None
    """Of the room."""


class Backlogs(NamedTuple):
    """One look at all readers."""

    at: float
    room: Room
    full_in_s: float | None = None
    readers: int = 0
    """For whom something waits."""
    messages: int = 0
    """Of all readers together."""
    oldest_at: float | None = None
    largest: tuple[ReaderFigures, ...] = ()
    """The readers with the most bytes."""
    owners: tuple[OwnerFigures, ...] = ()
    """Those for whose sessions most waits."""

    def summary(self) -> dict[str, Any]:
        """For the status, which anybody may read: no reader is named."""
        return {
            "readers": self.readers,
            "messages": self.messages,
            "bytes": self.room.bytes,
            "limit": self.room.limit,
            "oldest_at": self.oldest_at,
            "full_in_s": None if self.full_in_s is None else round(self.full_in_s),
        }


class Look:
    """Readers, as they are looked at a few at a time."""

    def __init__(self) -> None:
        self.readers = 0
        self.messages = 0
        self.bytes = 0
        self.oldest_at: float | None = None
        self._largest: list[LogReader] = []

    def add(self, some: Iterable[LogReader]) -> None:
        for reader in some:
            self.readers += 1
            self.messages += reader.messages
            self.bytes += reader.bytes
            if reader.oldest_at is not None and (self.oldest_at is None or reader.oldest_at < self.oldest_at):
                self.oldest_at = reader.oldest_at
            self._largest.append(reader)
        self._largest = heapq.nlargest(MAX_READERS, self._largest, key=lambda each: each.bytes)

    @property
    def largest(self) -> list[LogReader]:
        return self._largest


class Watch:
    """What was seen from look to look."""

    __slots__ = ("_growth", "_growth_of", "_is_near")

    def __init__(self) -> None:
        self._growth = Growth()
        self._growth_of: dict[str, Growth] = {}
        self._is_near = False

    def conclude(
        self, look: Look, room: Room, now: float, held_bytes: Mapping[str, int] | None = None
    ) -> Backlogs:
        """`held_bytes`: by owner, for whose sessions they wait."""
        self._growth.note(room.bytes, now)
        growth_of = {each.name: self._growth_of.get(each.name) or Growth() for each in look.largest}
        self._growth_of = growth_of
        largest = []
        for reader in look.largest:
            growth = growth_of[reader.name]
            growth.note(reader.bytes, now)
            figures = ReaderFigures(reader, room.share(reader.bytes), room.full_in_s(growth.rate))
            largest.append(figures)
        return Backlogs(
            now,
            room,
            room.full_in_s(self._growth.rate),
            look.readers,
            look.messages,
            look.oldest_at,
            tuple(largest),
            tuple(
                OwnerFigures(name, size, room.share(size))
                for name, size in heapq.nlargest(
                    MAX_OWNERS, (held_bytes or {}).items(), key=lambda each: each[1]
                )
            ),
        )

    def crossed(self, backlogs: Backlogs) -> bool | None:
        """True: the bound has come near; False: it is not near any more; None: as before."""
        share = backlogs.room.share()
        if share is None or (OVER <= share < NEAR) or (share >= NEAR) is self._is_near:
            return None
        self._is_near = share >= NEAR
        return self._is_near


# In words


def size_in_words(size: float) -> str:
    for unit, name in ((1024 * MIB, "GiB"), (MIB, "MiB"), (1024, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.0f} B"


def time_in_words(seconds: float) -> str:
    """About so long."""
    for unit, name in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= unit:
            return counted(round(seconds / unit), name)
    return counted(round(seconds), "second")


def room_in_words(room: Room) -> str:
    share = room.share()
    if room.limit is None or share is None:
        return size_in_words(room.bytes)
    return f"{size_in_words(room.bytes)} of {size_in_words(room.limit)} ({share:.0%})"


def reader_in_words(figures: ReaderFigures, now: float) -> str:
    reader = figures.reader
    words = [f"{counted(reader.messages, 'message')}, {size_in_words(reader.bytes)}"]
    if figures.share is not None:
        words.append(f"{figures.share:.0%} of the room")
    if reader.oldest_at is not None:
        words.append(f"the oldest for {time_in_words(max(0.0, now - reader.oldest_at))}")
    if figures.full_in_s is not None:
        words.append(f"full in about {time_in_words(figures.full_in_s)}")
    state = "connected" if reader.is_connected else "away"
    return f"{'link' if reader.is_link else 'client'} {reader.name} ({state}): {', '.join(words)}"


def owner_in_words(figures: OwnerFigures) -> str:
    share = "" if figures.share is None else f", {figures.share:.0%} of the room"
    return f"sessions of {figures.name}: {size_in_words(figures.bytes)}{share}"


# As a file


def encode(backlogs: Backlogs) -> bytes:
    told: dict[str, Any] = {"version": VERSION, **backlogs._asdict()}
    told["room"] = backlogs.room._asdict()
    told["largest"] = [{**each._asdict(), "reader": each.reader._asdict()} for each in backlogs.largest]
    told["owners"] = [each._asdict() for each in backlogs.owners]
    return json.dumps(told, indent=1).encode()


def decode(data: bytes) -> Backlogs:
    """Raises ValueError for what is no such file."""
    try:
        told = json.loads(data)
        if told.pop("version") != VERSION:
            raise ValueError("another version")
        largest = [_figures(each) for each in told.pop("largest")]
        owners = [OwnerFigures(**each) for each in told.pop("owners")]
        room = Room(**told.pop("room"))
        return Backlogs(room=room, largest=tuple(largest), owners=tuple(owners), **told)
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError("not what a node wrote") from error


def _figures(told: Mapping[str, Any]) -> ReaderFigures:
    return ReaderFigures(**{**told, "reader": LogReader(**told["reader"])})
