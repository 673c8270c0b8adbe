"""What was published, and what each listener heard of it: once, or it is counted as lost or doubled.

A message counts as published when its broker has acknowledged it. From then on every listener who has a
filter for its topic is to hear it; until it has, it is `waiting` for that listener. What is heard before it
is acknowledged counts too.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from hedgerow.message import Message
from hedgerow.topics import matches

Key = str


@dataclass(slots=True)
class Publication:
    place: str
    """Where it was published."""
    topic: str
    begun_at: float
    is_acknowledged: bool = False
    heard_at: dict[str, float] = field(default_factory=dict)
    """By listener, for the first time."""


def key_of(message: Message) -> Key:
    """What tells a message from all others, wherever it is heard.

    A client that knows nothing of us gives no ids, and a broker that is not ours none either: such messages
    have a number in their payload, which is JSON. Robots count their missions: no payload comes again.
    """
    if message.payload.startswith(b"{"):
        return numbered(message.topic, json.loads(message.payload)["number"])
    if message.topic.startswith("home/"):
        return f"{message.topic} {message.payload.decode()}"
    return str(message.id)


def numbered(topic: str, number: int) -> Key:
    return f"{topic} {number}"


class Ledger:
    """`listeners` are their filters, by name."""

    def __init__(self, listeners: Mapping[str, Collection[str]]) -> None:
        self._listeners = {name: tuple(filters) for name, filters in listeners.items()}
        self._wanted: dict[str, tuple[str, ...]] = {}  # by topic: who is to hear of it
        self._publications: dict[Key, Publication] = {}
        self._waiting: set[tuple[Key, str]] = set()
        self._doubles: Counter[tuple[str, str]] = Counter()  # by listener and topic
        self.published = 0
        self.delivered = 0
        self.doubled = 0

    @property
    def acknowledged(self) -> set[Key]:
        """All that was published, but for what was forgotten."""
        return {key for key, publication in self._publications.items() if publication.is_acknowledged}

    @property
    def lost(self) -> int:
        """Deliveries that are due and have not been made; at the end, those that never will be."""
        return len(self._waiting)

    def explain(self) -> str:
        """Who did not hear what, and who heard it again; nothing if all is well."""
        missed = Counter((listener, self._publications[key].topic) for key, listener in self._waiting)
        texts = [f"{listener} lacks {count} of {topic}" for (listener, topic), count in missed.items()]
        texts += [f"{name} heard {count} of {topic} again" for (name, topic), count in self._doubles.items()]
        return "; ".join(texts)

    def begin(self, key: Key, place: str, topic: str, now: float) -> None:
        """It is being published."""
        self._publications[key] = Publication(place, topic, now)

    def acknowledge(self, key: Key) -> None:
        """Its broker has it."""
        publication = self._publications[key]
        publication.is_acknowledged = True
        self.published += 1
        for listener in self.listeners_of(publication.topic):
            if listener not in publication.heard_at:
                self._waiting.add((key, listener))

    def hear(self, listener: str, key: Key, now: float) -> None:
        """What was not begun here is not counted."""
        publication = self._publications.get(key)
        if publication is None:
            return
        if listener in publication.heard_at:
            self.doubled += 1
            self._doubles[listener, publication.topic] += 1
            return
        publication.heard_at[listener] = now
        self.delivered += 1
        self._waiting.discard((key, listener))

    def forget_before(self, time: float) -> None:
        """Forget what was begun before then and is done; a copy that comes later is not noticed."""
        waiting = {key for key, _ in self._waiting}
        self._publications = {
            key: publication
            for key, publication in self._publications.items()
            if publication.begun_at >= time or not publication.is_acknowledged or key in waiting
        }

    def listeners_of(self, topic: str) -> tuple[str, ...]:
        wanted = self._wanted.get(topic)
        if wanted is None:
            wanted = self._wanted[topic] = tuple(
                name
                for name, filters in self._listeners.items()
                if any(matches(each, topic) for each in filters)
            )
        return wanted

    def waiting(self, listeners: Collection[str], begun_before: float = float("inf")) -> int:
        """Deliveries that are due to these of what was begun before then."""
        return sum(
            listener in listeners and self._publications[key].begun_at < begun_before
            for key, listener in self._waiting
        )

    def heard_between(
        self, begin: float, end: float, places: Collection[str], listeners: Collection[str]
    ) -> int:
        """Deliveries to these within that time, of what was published there."""
        return sum(
            begin <= at < end
            for publication in self._of(places)
            for listener, at in publication.heard_at.items()
            if listener in listeners
        )

    def through_at(self, since: float, places: Collection[str], listeners: Collection[str]) -> float | None:
        """When each of these listeners had heard from each of these places, by messages begun since then.

        Those who are not to hear from a place are left out. None: `unheard` says who has not.
        """
        first = self._first_heard(since, places, listeners)
        return None if None in first.values() else max(at for at in first.values() if at is not None)

    def unheard(self, since: float, places: Collection[str], listeners: Collection[str]) -> str:
        """Who has not heard from whom, for people."""
        first = self._first_heard(since, places, listeners)
        return ", ".join(f"{listener} from {place}" for (place, listener), at in first.items() if at is None)

    def _first_heard(
        self, since: float, places: Collection[str], listeners: Collection[str]
    ) -> dict[tuple[str, str], float | None]:
        """By place and listener. A place that has published nothing is as one that nobody hears."""
        first: dict[tuple[str, str], float | None] = {}
        for publication in self._of(places):
            if publication.begun_at < since:
                continue
            for listener in self.listeners_of(publication.topic):
                if listener not in listeners:
                    continue
                pair = publication.place, listener
                at = publication.heard_at.get(listener)
                before = first.setdefault(pair, at)
                if at is not None:
                    first[pair] = at if before is None else min(at, before)
        silent = set(places) - {place for place, _ in first}
        return first | {(place, "nobody"): None for place in silent}

    def _of(self, places: Collection[str]) -> Iterator[Publication]:
        return (each for each in self._publications.values() if each.place in places)
