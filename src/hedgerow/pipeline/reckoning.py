"""Bronze beside what was published: every message is to be there, and in the journal of each node once.

The table is read without Spark: what has written it is not asked whether it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable
from typing import NamedTuple


class Reckoning(NamedTuple):
    published: int
    lost: int
    doubled: int

    @property
    def is_even(self) -> bool:
        return not (self.lost or self.doubled)

    def __str__(self) -> str:
        found = self.published - self.lost
        return f"{found:,} of {self.published:,} messages, {self.lost:,} lost, {self.doubled:,} doubled"


def reckon(published: Collection[Hashable], rows: Iterable[tuple[str, Hashable]]) -> Reckoning:
    """`rows` are the journal and the key of each row of bronze; those of other messages do not count."""
    copies = Counter(row for row in rows if row[1] in published)
    found = {key for _, key in copies}
    return Reckoning(len(published), len(published) - len(found), copies.total() - len(copies))
