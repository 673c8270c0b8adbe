"""What is found in very many items, for one page.

The broker has no time for a page while it looks through a hundred thousand of something. So a `Scan` goes on
for `SLICE_S` at a time, and lets others have their turn in between, for `MAX_SCAN_S` in all; what it has not
looked at by then is told as "more".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Generic, TypeVar

SLICE_S = 0.004
MAX_SCAN_S = 0.05  # of the loop's time, for one request; a page that is looked at asks each second
AT_ONCE = 50  # items between two looks at the clock

Item = TypeVar("Item")
Found = TypeVar("Found")


class Scan(Generic[Item, Found]):
    """What is found in many items, a slice at a time: the first `limit`, and how much there is in all."""

    def __init__(self, items: Iterable[Item], find: Callable[[Item], Sequence[Found]], limit: int) -> None:
        self.first: list[Found] = []
        self.found = 0
        self.has_begun = self.is_done = False
        self._items = iter(items)
        self._find = find
        self._limit = limit

    @property
    def total(self) -> int:
        """At least so many, while it is not done."""
        return self.found + (not self.is_done)

    def run(self, slice_s: float = SLICE_S, at_least: int = 0) -> None:
        """`at_least` so many items are looked at: on a busy machine a slice may be over before it began."""
        ends_at = time.perf_counter() + slice_s
        self.has_begun = True
        while not self.is_done:
            items = list(islice(self._items, AT_ONCE))
            at_least -= len(items)
            for item in items:
                if found := self._find(item):
                    self.found += len(found)
                    self.first.extend(found[: self._limit - len(self.first)])
            self.is_done = len(items) < AT_ONCE
            if at_least <= 0 and time.perf_counter() >= ends_at:
                return

    def begun(self) -> Scan[Item, Found]:
        """One that was run in turns has had its time; another one has a slice."""
        if not self.has_begun:
            self.run()
        return self

    async def run_in_turns(self, max_s: float = MAX_SCAN_S) -> None:
        for _ in range(max(1, round(max_s / SLICE_S))):
            self.run()
            if self.is_done:
                return
            await asyncio.sleep(0)
