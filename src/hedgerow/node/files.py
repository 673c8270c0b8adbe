"""Files that somebody names: configuration, certificates, keys, passwords, access rules. Only regular ones,
of bounded size.

A node reads them in its event loop, when it starts, when it reloads, and when a command names one. A FIFO
would hold the loop, SIGTERM included, until somebody writes into it; opening a device may start it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MAX_FILE_BYTES = 64 * 2**20  # Passwords of 400,000 users; a file without end would take all the memory.


def read_regular(path: Path | str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """The bytes of a regular file. Raises OSError, whose `strerror` says what is wrong, for any other."""
    _check(Path(path).stat(), max_bytes)  # Before it is opened: /dev/watchdog restarts the machine.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)  # Another may have taken its place.
        _check(found, max_bytes)
        # What the kernel makes up while it is read (/proc/kmsg) has no size, and may wait for more.
        return file.read(found.st_size)


def _check(found: os.stat_result, max_bytes: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    if found.st_size > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes:,} bytes")
