"""Chance that can be repeated: a stream of its own for each purpose, all from one seed.

Streams are named, so that one more throw for one purpose does not change what another one gets.
"""

from __future__ import annotations

from random import Random


def stream(seed: int, purpose: str) -> Random:
    # A text is hashed with SHA-512, which is the same in every process; hash() is not.
    return Random(f"{seed}/{purpose}")
