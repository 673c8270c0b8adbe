"""What the kernel knows of processes that run (Linux)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def processor_s(pid: int) -> float:
    """Processor time that it has used so far, user and system."""
    # The second field, the program's name, may contain spaces; it ends with the last bracket.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def descendants(pid: int) -> Iterator[int]:
    """The processes that it has started, and those that these have."""
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            for child in map(int, file.read_text().split()):
                yield child
                yield from descendants(child)
