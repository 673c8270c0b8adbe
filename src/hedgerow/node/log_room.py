"""How much of the disk the log of messages may have, and whether the disk has room for more of it.

The log leaves a reserve, so that what makes room can always be stored: how far readers have come, and which
segments go.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from hedgerow.broker.limits import MIB, LogBounds
from hedgerow.errors import reason_of
from hedgerow.node.config import Config
from hedgerow.node.message_log import DiskLog

logger = logging.getLogger(__name__)

INTERVAL_S = 0.9  # A timer that rings a moment early is no reason to wait for the next.
STEP_BYTES = MIB
LEAST_BYTES = 64 * MIB  # of a log that nobody has said a size of, where the disk has so much
RESERVE_BYTES = 8 * MIB
RESERVE_PART = 50  # One in so many bytes of the file system, if that is more; and of a tiny one
TINY_PART = 8  # one in so many at most.


Statvfs = Callable[[Path], os.statvfs_result]


def free_bytes(directory: Path, statvfs: Statvfs = os.statvfs) -> int:
    """What the file system has left for us."""
    found = statvfs(directory)
    return found.f_bavail * found.f_frsize


def log_bounds(config: Config, log: DiskLog, statvfs: Statvfs = os.statvfs) -> LogBounds:
    """Where the configuration says nothing, half of what the log could get."""
    size = config.data_bytes
    if size is None:
        available = free_bytes(log.directory, statvfs) + log.bytes
        size = max(available // 2, min(LEAST_BYTES, available))
    return LogBounds(size, config.data_age_s, config.data_full == "drop-oldest")


class LogRoom:
    """Looked at once a second, and whenever a part of the reserve may have been written, which takes less."""

    def __init__(
        self, directory: Path, statvfs: Statvfs = os.statvfs, interval_s: float = INTERVAL_S
    ) -> None:
        self.directory = directory
        self.has_room = True
        self.free_bytes = 0
        self.batch_bytes = float("inf")
        """What may be written before the next look."""
        self._statvfs = statvfs
        self._interval_s = interval_s
        self._next_at = 0.0
        self._next_bytes = 0
        self._most_bytes = float("inf")
        self._log_bytes = 0

    def check(self, now: float, written_bytes: int = 0, log_bytes: int = 0) -> bool:
        """Has it changed whether there is room? `written_bytes`: by the log, since it was opened, and what it
        has now."""
        self.batch_bytes = self._most_bytes - written_bytes
        has_shrunk, self._log_bytes = log_bytes < self._log_bytes, log_bytes
        if now < self._next_at and written_bytes < self._next_bytes and (self.has_room or not has_shrunk):
            return False
        self._next_at = now + self._interval_s
        self._next_bytes = written_bytes + STEP_BYTES
        try:
            found = self._statvfs(self.directory)
        except OSError as error:  # Whether there is room is seen when something is written.
            logger.warning("cannot ask how full the disk of %s is: %s", self.directory, reason_of(error))
            return False
        self.free_bytes = found.f_bavail * found.f_frsize
        reserve = _reserve(found.f_blocks * found.f_frsize)
        had_room, self.has_room = self.has_room, self.free_bytes > reserve
        self.batch_bytes = self.free_bytes - reserve // 2
        self._most_bytes = self.batch_bytes + written_bytes
        if self.has_room == had_room:
            return False
        if self.has_room:
            logger.warning("the disk of %s has room again", self.directory)
        else:
            free = self.free_bytes / MIB
            logger.error(
                "the disk of %s is full but for a reserve of %.1f MiB; publishers wait", self.directory, free
            )
        return True


def _reserve(total_bytes: int) -> int:
    return min(max(RESERVE_BYTES, total_bytes // RESERVE_PART), total_bytes // TINY_PART)
