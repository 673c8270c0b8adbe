"""What the kernel knows of a process that runs."""

from __future__ import annotations

import os
from pathlib import Path


def processor_s(pid: int) -> float:
    """Processor time that it has used so far, user and system."""
    # The second field, the program's name, may contain spaces; it ends with the last bracket.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
