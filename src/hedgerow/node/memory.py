"""Memory that nobody uses any more, given back to the system.

What Python frees goes to the C library, which keeps most of it for what comes next: after a large table is
gone the process is as large as before.
"""

from __future__ import annotations

import ctypes
import gc

QUIET_S = 2.0


def give_back() -> bool:
    """False: this C library cannot. It is done in some milliseconds."""
    gc.collect()  # Python keeps thousands of small objects for reuse, each with a page around it.
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # not glibc; no libraries to be loaded; Windows
        return False
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return bool(trim(0))


class SpareMemory:
    """When to give it back: so many things were freed since the last time, and no more for a while."""

    def __init__(self, many: int) -> None:
        self.deadline = float("inf")
        self._many = many
        self._freed = self._given_back = 0

    def note(self, freed: int, now: float) -> None:
        """How many are free now."""
        before, self._freed = self._freed, freed
        self._given_back = min(self._given_back, freed)
        if freed > before and freed - self._given_back >= self._many:
            self.deadline = now + QUIET_S

    def is_due(self, now: float) -> bool:
        if now < self.deadline:
            return False
        self.deadline, self._given_back = float("inf"), self._freed
        return True
