"""The sliding window: how many events each topic had in the last Y.time, known anew every X.time.

An event costs one step in the dictionary of the slot that is open; no time is kept of it. That is exact all
the same, since only two kinds of moments matter: the calculations, X.time apart, and the moments Y.time
before them. Time is cut into slots at both, so that a window is always a number of whole slots. A slot
holds what came after its begin and until its end, its end included: of the document's "C.Time − Y.time <
Ts.time".

Memory: the dictionaries of all slots have at most `MAX_COUNTS` entries together, an equal part each. A
topic that comes when the slot is full is not counted before the next slot: counts are exact while the
topics of a slot fit, else some are too small and none is too large, and the busier a topic is, the sooner
in a slot it is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

# A publisher can invent topics faster than a window ends. With these two and the registries' bound all of it
# stays under 64 MiB with the largest names: 128 characters, four bytes each.
MAX_COUNTS = 49_152
MAX_TOPIC_LENGTH = 128

MAX_PERIODS = 1_000  # of X.time in Y.time: each has a slot or two

MICROSECONDS = 1_000_000  # 2.0 // 0.4 is 4.0: how many periods there are in a window is for whole numbers


class Window:
    def __init__(
        self, x_s: float, y_s: float, scored: Callable[[Mapping[str, int]], None] | None = None
    ) -> None:
        """`scored` is called with the counts of each slot as they become part of the scores."""
        period, length = round(x_s * MICROSECONDS), round(y_s * MICROSECONDS)
        if period < 1 or length < 1:
            raise ValueError(f"X.time and Y.time must be longer than 0: {x_s}, {y_s}")
        if length > MAX_PERIODS * period:
            raise ValueError(f"Y.time must be at most {MAX_PERIODS} times X.time: {y_s}, {x_s}")
        whole, rest = divmod(length, period)
        self._period = period
        self._ends = (period - rest, period) if rest else (period,)  # of the slots, since the period began
        self._in_window = len(self._ends) * whole + (1 if rest else 0)
        # Beside the window there are the slots since the last calculation, and what came late.
        self._most = MAX_COUNTS // (self._in_window + len(self._ends) + 1)
        self._scored = scored
        self._start_at = 0.0
        self._number = 0  # of the open slot, since the first
        self._slots: deque[dict[str, int]] = deque([{}])
        self._late: dict[str, int] = {}
        self._unscored: list[dict[str, int]] = []
        self.counts: dict[str, int] = {}
        """Of the open slot."""
        self.begin_at = self.end_at = float("inf")
        """The open slot is (begin_at, end_at]; there is none before `start`."""
        self.calculation_at = self._end_of(len(self._ends) - 1)
        """When the next one is due."""
        self.scores: dict[str, int] = {}
        """Topic → events in the window, as of the last calculation."""
        self.uncounted = 0

    @property
    def started(self) -> bool:
        return self.end_at != float("inf")

    def start(self, now: float) -> None:
        self._start_at = now
        self._open(0)

    @property
    def empty(self) -> bool:
        return not (self.counts or self._late or self._unscored or self.scores)

    def count(self, topic: str, count: int, now: float) -> None:
        if now == self.begin_at and self._number % len(self._ends) == 0:
            # At the very moment of a calculation, and after it was made: part of the slot before.
            self._add(self._late, topic, count)
        else:
            self._add(self.counts, topic, count)

    def close_slot(self) -> bool:
        """Is a calculation to be made at its end? Then `scores` are those of that moment."""
        if self._late:
            _add_counts(self._slots[-1], self._late)
            self._unscored.append(self._late)
            self._late = {}
        self._slots.append(self.counts)
        self._unscored.append(self.counts)
        self.counts = {}
        self._open(self._number + 1)
        if self._number % len(self._ends):
            return False
        for counts in self._unscored:
            _add_counts(self.scores, counts)
            if self._scored is not None:
                self._scored(counts)
        self._unscored.clear()
        while len(self._slots) > self._in_window:
            _subtract_counts(self.scores, self._slots.popleft())
        return True

    def skip(self, now: float) -> None:
        """Over the time in which there was nothing to calculate."""
        periods = int((now - self._start_at) * MICROSECONDS // self._period)
        number = (periods - 1) * len(self._ends)  # The last step is `close_slot`'s, which does not round.
        if number > self._number and self.empty:
            self._open(number)

    def _open(self, number: int) -> None:
        self._number = number
        self.begin_at = self._end_of(number - 1)
        self.end_at = self._end_of(number)
        slots = len(self._ends)
        self.calculation_at = self._end_of(number - number % slots + slots - 1)

    def _end_of(self, number: int) -> float:
        periods, slot = divmod(number, len(self._ends))
        return self._start_at + (periods * self._period + self._ends[slot]) / MICROSECONDS

    def _add(self, counts: dict[str, int], topic: str, count: int) -> None:
        if topic in counts:
            counts[topic] += count
        elif len(counts) < self._most and len(topic) <= MAX_TOPIC_LENGTH:
            counts[topic] = count
        else:
            self.uncounted += count


def _add_counts(to: dict[str, int], counts: dict[str, int]) -> None:
    for topic, count in counts.items():
        to[topic] = to.get(topic, 0) + count


def _subtract_counts(of: dict[str, int], counts: dict[str, int]) -> None:
    for topic, count in counts.items():
        left = of[topic] - count
        if left:
            of[topic] = left
        else:
            del of[topic]
