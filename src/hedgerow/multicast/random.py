"""Chance, as a machine is given it: `random.SystemRandom()` in a program, a seeded one in a test."""

from __future__ import annotations

from typing import Protocol


class Random(Protocol):
    def random(self) -> float:
        """From 0 to 1."""

    def randbytes(self, n: int, /) -> bytes: ...
