"""What becomes of a part that fails: it is left alone, for longer each time, and the others go on.

A failure is counted, and has one traceback in the log for each kind, which is where it happened. A part that
fails whenever it is asked must neither fill the disk nor take the loop for itself.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Hashable

logger = logging.getLogger(__name__)

FIRST_S = 1.0
MAX_S = 60.0
MAX_KINDS = 200  # One that fails elsewhere each time, as a peer may have it, has so many tracebacks in all.


class Failures:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """By the name of the part."""
        self.left_alone: dict[Hashable, float] = {}  # whom to leave alone, and until when
        self._pauses: dict[Hashable, tuple[float, float]] = {}  # how long the last one was, and when it ended
        self._kinds: set[tuple[str, str]] = set()

    def note(self, name: str, error: Exception, what_next: str = "the node goes on") -> None:
        """Count it, and log it if it is the first of its kind."""
        self.counts[name] += 1
        kind = (name, _place_of(error))
        if kind not in self._kinds and len(self._kinds) < MAX_KINDS:
            self._kinds.add(kind)
            logger.error("%s failed; %s", name, what_next, exc_info=error)

    def leave_alone(self, part: Hashable, name: str, error: Exception, now: float) -> float:
        """The part failed at its work; until when it is left alone."""
        pause_s, ended_at = self._pauses.get(part, (0.0, now))
        # One that was well for as long as it had been left alone begins anew.
        is_again = pause_s > 0 and now <= ended_at + pause_s
        pause_s = min(2 * pause_s, MAX_S) if is_again else FIRST_S
        self.note(name, error, f"it goes on in {pause_s:g} s")
        self.left_alone[part] = again_at = now + pause_s
        self._pauses[part] = pause_s, again_at
        return again_at

    def is_left_alone(self, part: Hashable) -> bool:
        return part in self.left_alone

    def again_at(self, part: Hashable) -> float | None:
        return self.left_alone.get(part)

    def handle_timer(self, now: float) -> None:
        if self.left_alone:
            self.left_alone = {part: at for part, at in self.left_alone.items() if at > now}


def _place_of(error: Exception) -> str:
    """The kind of the error, and the line that raised it."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f"{place.tb_frame.f_code.co_filename}:{place.tb_lineno}" if place is not None else ""
    return f"{type(error).__name__} {where}"
