"""The data log: which publications have been here, so that none goes round and none comes twice.

"To avoid looping […], a data log must be employed to keep records of the most recently forwarded data
packets. The size of the log and the minimum time for keeping the entries should be left as a configuration
parameter" (§4). Beyond its size the oldest entry goes, unless it is younger than the minimum time; then the
log grows, to `MOST` times its size, since whoever sends fast could make it grow for ever.

Sequences begin anew when a federator restarts: what has the numbers of an earlier publication, and another
payload, is another one.

Each entry says which neighbours have the publication: those that it was sent to, and those that proved to
have sent it. So nobody who says beforehand what is about to be published keeps it from anybody else: whoever
is not known to have it gets the copy that comes next.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b

from hedgerow.federation.document.numbers import PublicationId

MOST = 4
ENTRY_BYTES = 240  # as tracemalloc counts


def key_of(topic: str, publication: PublicationId, payload: bytes) -> bytes:
    head = f"{publication.origin}/{publication.sequence}/{len(topic)}/{topic}".encode()
    return blake2b(head + payload, digest_size=16).digest()


class DataLog:
    def __init__(self, size_bytes: int, least_age_s: float) -> None:
        self._most = max(1, size_bytes // ENTRY_BYTES)
        self._least_age_s = least_age_s
        # → when it came, and the bits of those who have it; the oldest first
        self._entries: OrderedDict[bytes, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def holders(self, key: bytes) -> int | None:
        """The bits of those who have it; None: it was not here."""
        entry = self._entries.get(key)
        return None if entry is None else entry[1]

    def note(self, key: bytes, holders: int, now: float) -> None:
        """It is here, and these have it."""
        entry = self._entries.get(key)
        if entry is not None:
            if holders != entry[1]:
                self._entries[key] = entry[0], holders
            return
        self._entries[key] = now, holders
        while len(self._entries) > self._most:
            is_young = next(iter(self._entries.values()))[0] + self._least_age_s > now
            if is_young and len(self._entries) <= self._most * MOST:
                break
            self._entries.popitem(last=False)
