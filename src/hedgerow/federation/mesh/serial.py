"""The order of announcement numbers, which has no end (serial numbers, after RFC 1982).

Numbers run from 1 to `MAX_SEQUENCE` and then from 1 again; of two numbers the later one is at most half the
circle ahead. So whatever number somebody invents in the name of a core, there is a later one, and the core
takes it as soon as it hears of the invention.
"""

from __future__ import annotations

from hedgerow.federation.mesh.limits import MAX_SEQUENCE

NONE_YET = -1


def is_after(sequence: int, other: int) -> bool:
    """Is it later than the other? Every number is later than `NONE_YET`."""
    if other == NONE_YET:
        return sequence != NONE_YET
    return sequence != NONE_YET and 0 < (sequence - other) % MAX_SEQUENCE <= MAX_SEQUENCE // 2


def following(sequence: int) -> int:
    """The next one. It is never 0, which stands for no list yet."""
    return sequence % MAX_SEQUENCE + 1
