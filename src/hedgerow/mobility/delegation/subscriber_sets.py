"""Sets of subscribers as they travel: a list, or a counting Bloom filter over addresses told before.

The addresses of a mobile broker's subscribers travel once, and then those that come and go. After that a
topic's subscribers are a filter: of all addresses that are known at that place of the stream, those that it
names, but for a few that it names wrongly. Who writes it knows those, since they are the owner's, and
appends them; so nobody is notified of what he did not subscribe to. Where the callbacks themselves are
shorter, as for a handful of subscribers, or where far more addresses are known, they are listed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hedgerow.mobility.delegation.bloom import CountingBloomFilter
from hedgerow.mobility.delegation.publications import Members, Registration

MIN_MEMBERS = 4
MAX_TO_LOOK_AT = 8
"""Addresses for each member: whoever reads a filter asks it of all of them."""


def packed(registration: Registration, addresses: Collection[str]) -> Registration:
    """In whichever form is shorter. All its subscribers are among the addresses."""
    by_qos: dict[int, list[str]] = {}
    for name, qos in registration.entries:
        by_qos.setdefault(qos, []).append(name)
    entries: list[tuple[str, int]] = []
    members: list[Members] = []
    for qos, names in by_qos.items():
        found = _members(qos, names, addresses)
        if found is None:
            entries += [(name, qos) for name in names]
        else:
            members.append(found)
    return Registration(registration.topic_filter, tuple(entries), tuple(members))


def _members(qos: int, names: Collection[str], addresses: Collection[str]) -> Members | None:
    if len(names) < MIN_MEMBERS or len(addresses) > MAX_TO_LOOK_AT * len(names):
        return None
    found = CountingBloomFilter(len(names))
    for name in names:
        found.add(name)
    own = set(names)
    exceptions = tuple(sorted(name for name in addresses if name in found and name not in own))
    size = len(found.encode()) + _size(exceptions)
    return Members(qos, found, exceptions) if size < _size(names) else None


def _size(names: Collection[str]) -> int:
    return sum(len(name.encode()) + 1 for name in names)


def unpacked(registration: Registration, addresses: Collection[str]) -> Registration | None:
    """With its subscribers by name; None: it speaks of addresses that were not told, or of too many."""
    entries: Mapping[str, int] = dict(registration.entries)
    for qos, members, exceptions in registration.members:
        if len(addresses) > MAX_TO_LOOK_AT * len(members):
            return None
        names = {name for name in addresses if name in members}.difference(exceptions)
        if len(names) != len(members):
            return None
        entries = {**entries, **dict.fromkeys(names, qos)}
    return Registration(registration.topic_filter, tuple(entries.items()))
