"""In.Registry and Out.Registry: the topics that this broker keeps, and those that it delegates.

A topic is in one of them, or in none: then the broker keeps it too, as it does with every subscription
until something else is decided. So In.Registry may forget a topic without a word, and Out.Registry may not:
what leaves it is recovered. `take_changes` tells what is different from the last time it was asked; what
went back and forth meanwhile is no change.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import islice
from typing import NamedTuple

from hedgerow.packed import PackedMap

MAX_REGISTERED = 16_384  # topics in each registry: whoever publishes can invent them without end

# Once Out.Registry is full, so many of its silent topics make room at a time. With a flood of topics the
# brokers would otherwise tell each other of every one of them, twice.
MAX_FORGOTTEN = 256


class RegistryChanges(NamedTuple):
    delegate: Sequence[str]
    recover: Sequence[str]

    def __bool__(self) -> bool:
        return bool(self.delegate or self.recover)


class HotRegistries:
    def __init__(self, max_registered: int = MAX_REGISTERED, max_forgotten: int = MAX_FORGOTTEN) -> None:
        self._max_registered = max_registered
        self._max_forgotten = max_forgotten
        self._in: dict[str, None] = {}
        self._out = PackedMap()  # without values
        self._changes: dict[str, bool] = {}  # topic → is it kept now?

    @property
    def in_registry(self) -> Sequence[str]:
        return tuple(self._in)

    @property
    def out_registry(self) -> Sequence[str]:
        return tuple(self._out)

    def keeps(self, topic: str) -> bool:
        return topic not in self._out

    def keep(self, topic: str) -> None:
        if topic in self._in:
            return
        if topic in self._out:
            self._out.pop(topic)
            self._change(topic, kept=True)
        if len(self._in) >= self._max_registered:
            del self._in[next(iter(self._in))]
        self._in[topic] = None

    def delegate(self, topic: str) -> None:
        """Beyond the bound it stays where it is."""
        if topic in self._out or len(self._out) >= self._max_registered:
            return
        self._in.pop(topic, None)
        self._out.set(topic, b"")
        self._change(topic, kept=False)

    def make_room(self, wanted: int, active: Container[str]) -> None:
        """Out.Registry is to take so many more: of those that are not active the oldest are recovered."""
        wanted = min(wanted - (self._max_registered - len(self._out)), self._max_forgotten)
        if wanted <= 0:
            return
        # Active topics that were delegated long ago stand in front: they are not looked at without end.
        oldest = islice(self._out, 2 * self._max_forgotten)
        for topic in [topic for topic in oldest if topic not in active][:wanted]:
            self._out.pop(topic)
            self._change(topic, kept=True)

    def take_changes(self) -> RegistryChanges:
        changes, self._changes = self._changes, {}
        return RegistryChanges(
            delegate=[topic for topic, kept in changes.items() if not kept],
            recover=[topic for topic, kept in changes.items() if kept],
        )

    def _change(self, topic: str, kept: bool) -> None:
        if topic in self._changes:
            del self._changes[topic]
        else:
            self._changes[topic] = kept
