"""A set of filters that one node keeps and others copy: the list of a core, or the meshes that a child is in.

The keeper numbers the states of the set and tells what changed since one of them; a copy that is not in that
state cannot follow, says so, and the keeper sends the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hedgerow.federation.mesh.limits import PART_BYTES
from hedgerow.federation.mesh.wire import FilterChanges, parts


class Roster:
    """The copy."""

    __slots__ = ("filters", "version")

    def __init__(self) -> None:
        self.version = 0
        """0 is none yet."""
        self.filters: set[str] = set()

    def difference(self, changes: FilterChanges) -> tuple[set[str], set[str]] | None:
        """(what comes, what goes); None when this copy cannot follow."""
        if changes.since not in (0, self.version):
            return None
        after = set(changes.added)
        if changes.since == 0:
            gone = self.filters - after
        else:
            gone = self.filters.intersection(changes.removed) - after
        new = after - self.filters
        if len(self.filters) + len(new) - len(gone) != changes.size:
            return None
        return new, gone

    def follow(self, version: int, new: Iterable[str], gone: Iterable[str]) -> None:
        self.version = version
        self.filters.difference_update(gone)
        self.filters.update(new)


class Pending:
    """What the keeper has yet to tell."""

    __slots__ = ("added", "removed")

    def __init__(self) -> None:
        self.added: set[str] = set()
        self.removed: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed)

    def add(self, topic_filter: str) -> None:
        if topic_filter in self.removed:
            self.removed.discard(topic_filter)
        else:
            self.added.add(topic_filter)

    def remove(self, topic_filter: str) -> None:
        if topic_filter in self.added:
            self.added.discard(topic_filter)
        else:
            self.removed.add(topic_filter)

    def clear(self) -> None:
        self.added.clear()
        self.removed.clear()


def chain(
    version: int, count: int, added: Iterable[str], removed: Iterable[str] = ()
) -> Iterator[FilterChanges]:
    """The changes that lead on from `version`, with `count` filters, each short enough for a packet. From 0
    they are the whole set."""
    removed_parts = parts(sorted(removed), PART_BYTES)
    added_parts = parts(sorted(added), PART_BYTES)
    steps = [((), gone) for gone in removed_parts[:-1]] + [(added_parts[0], removed_parts[-1])]
    steps += [(new, ()) for new in added_parts[1:]]
    for new, gone in steps:
        count += len(new) - len(gone)
        yield FilterChanges(version + 1, version, count, new, gone)
        version += 1
