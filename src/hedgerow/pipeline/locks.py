"""One driver at a time works for a job of one directory of tables: two would write over each other."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress

from hedgerow.errors import HedgerowError, reason_of
from hedgerow.pipeline.places import state_of
from hedgerow.pipeline.tables import CHECKPOINTS

PATIENCE_S = 5.0  # A driver that was told to stop may still be ending.
_POLL_S = 0.1


class Lock:
    """Held from when it is made until `release`, or the end of the process however that ends.

    HedgerowError: another process has it, and which.
    """

    def __init__(self, place: str, job: str, patience_s: float = PATIENCE_S) -> None:
        path = state_of(place) / CHECKPOINTS / f"{job}.lock"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise HedgerowError(f"cannot write below {place}: {reason_of(error)}") from error
        give_up_at = time.monotonic() + patience_s
        while not self._try():
            if time.monotonic() >= give_up_at:
                holder = os.pread(self._file, 20, 0).decode(errors="replace").strip() or "unknown"
                os.close(self._file)
                raise HedgerowError(
                    f"another process (pid {holder}) runs {job} on the tables in {place}; stop it first, or "
                    "give this one tables of its own"
                )
            time.sleep(_POLL_S)
        with suppress(OSError):  # On a full disk nobody learns the pid; the lock holds all the same.
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, b"%d\n" % os.getpid(), 0)

    def release(self) -> None:
        os.close(self._file)

    def _try(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
