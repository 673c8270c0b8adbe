"""Log lines about peers, at most so many a minute for each kind and site (`rates.site_of`).

Whoever connects decides how often it is refused, so without a bound a hostile or broken peer fills
the disk through the log. Lines beyond the bound are counted, and the minute ends with one line for
each kind and site that says how many were left out. A kind with a bound of its own says each reason
once, and ends the last of its lines with the word that it is the last.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from heapq import nlargest
from operator import itemgetter
from typing import Any, cast

from hedgerow.node.events import Event
from hedgerow.node.history import History
from hedgerow.node.logs import kind_of
from hedgerow.rates import name_of, site_of

WINDOW_S = 60.0
MAX_LINES = 30  # a minute, of one kind from one site
MAX_WARNINGS = 10  # the same: what peers do wrong, and may do all day
MAX_KEYS = 1_000  # kinds × sites told apart within a minute; the rest share one count
MAX_SUMMARIES = 20
NO_MORE = "; more from there are only counted for a minute"

_OTHERS = ("other events", "other addresses")


class EventLog:
    def __init__(self, logger: logging.Logger) -> None:
        self.history = History()
        self._logger = logger
        # Not `Counter`s: to set a number in one is a call in Python.
        self._counts: dict[tuple[str, str], int] = {}
        self._reasons: dict[tuple[str, str], set[str]] = {}  # of kinds with a bound of their own
        self._window_ends_at = 0.0
        self._left_out: dict[tuple[str, str], int] = {}  # of this minute
        # By class and address, what is counted alone for the rest of the minute: of thousands of clients that
        # come at once.
        self._spent: dict[tuple[type, str], tuple[str, str]] = {}

    @property
    def deadline(self) -> float | None:
        """When `handle_timer` has something to say."""
        return self._window_ends_at if self._left_out else None

    def write(self, event: Event, now: float) -> None:
        self.history.add(event, now)
        if not self._logger.isEnabledFor(event.level):
            return
        if now >= self._window_ends_at:
            self._end_window()
            self._window_ends_at = now + WINDOW_S
        address = getattr(event, "address", "")
        spent = self._spent.get((type(event), address))
        if spent is not None:
            self._left_out[spent] += 1
            return
        key = (kind_of(event), site_of(address))
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
        count = self._counts[key] = self._counts.get(key, 0) + 1
        is_warning_of_peer = key[1] and event.level > logging.INFO
        most = bound or (MAX_WARNINGS if is_warning_of_peer else MAX_LINES)
        if count <= most:
            # A failure of our own code brings its traceback.
            self._logger.log(event.level, event, exc_info=getattr(event, "error", None))
            return
        self._left_out[key] = self._left_out.get(key, 0) + 1
        if len(self._spent) < MAX_KEYS:
            self._spent[type(event), address] = key

    def handle_timer(self, now: float) -> None:
        if self._left_out and now >= self._window_ends_at:
            self._end_window()

    def close(self) -> None:
        self._end_window()

    def _end_window(self) -> None:
        for (kind, site), count in nlargest(MAX_SUMMARIES, self._left_out.items(), key=itemgetter(1)):
            self._logger.warning(
                "%d more of %s from %s were left out", count, kind, name_of(site) or "everywhere"
            )
        self._counts.clear()
        self._left_out.clear()
        self._spent.clear()
        self._reasons.clear()
