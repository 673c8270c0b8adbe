"""Log lines about peers, at most so many a minute for each kind and address.

Whoever connects decides how often it is refused, so without a bound a hostile or broken peer fills
the disk through the log. Lines beyond the bound are counted, and the minute ends with one line for
each kind and address that says how many were left out. A kind with a bound of its own says each reason
once, and ends the last of its lines with the word that it is the last.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from typing import Any, cast

from hedgerow.node.events import Event
from hedgerow.node.history import History
from hedgerow.node.logs import kind_of

WINDOW_S = 60.0
MAX_LINES = 30  # a minute, of one kind from one address
MAX_KEYS = 1_000  # kinds × addresses told apart within a minute; the rest share one count
MAX_SUMMARIES = 20
NO_MORE = "; more from there are only counted for a minute"

_OTHERS = ("other events", "other addresses")


class EventLog:
    def __init__(self, logger: logging.Logger) -> None:
        self.history = History()
        self._logger = logger
        self._counts: Counter[tuple[str, str]] = Counter()
        self._reasons: dict[tuple[str, str], set[str]] = {}  # of kinds with a bound of their own
        self._window_ends_at = 0.0
        self._is_over = False  # some lines of this minute were left out

    @property
    def deadline(self) -> float | None:
        """When `handle_timer` has something to say."""
        return self._window_ends_at if self._is_over else None

    def write(self, event: Event, now: float) -> None:
        self.history.add(event, now)
        if not self._logger.isEnabledFor(event.level):
            return
        if now >= self._window_ends_at:
            self._end_window()
            self._window_ends_at = now + WINDOW_S
        key = (kind_of(event), getattr(event, "address", ""))
        if key not in self._counts and len(self._counts) >= MAX_KEYS:
            key = _OTHERS
        bound = getattr(event, "lines_a_minute", None)
        if bound is not None and key is not _OTHERS:
            reasons, reason = self._reasons.setdefault(key, set()), cast(Any, event).reason
            if reason in reasons or len(reasons) >= bound:
                return
            reasons.add(reason)
            if len(reasons) == bound:
                event = cast(Event, replace(cast(Any, event), reason=reason + NO_MORE))
        self._counts[key] += 1
        if self._counts[key] <= MAX_LINES:
            # A failure of our own code brings its traceback.
            self._logger.log(event.level, event, exc_info=getattr(event, "error", None))
        else:
            self._is_over = True

    def handle_timer(self, now: float) -> None:
        if self._is_over and now >= self._window_ends_at:
            self._end_window()

    def close(self) -> None:
        self._end_window()

    def _end_window(self) -> None:
        left_out = {key: count - MAX_LINES for key, count in self._counts.items() if count > MAX_LINES}
        for (kind, address), count in Counter(left_out).most_common(MAX_SUMMARIES):
            self._logger.warning("%d more of %s from %s were left out", count, kind, address or "everywhere")
        self._counts.clear()
        self._reasons.clear()
        self._is_over = False
