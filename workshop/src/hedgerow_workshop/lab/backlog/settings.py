"""What the parts of the experiment are made of."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024
TOPICS = "backlog/"
FILTER = f"{TOPICS}#"

# The line. Publishers are at the first node, the subscriber at the last.
NEAR, MIDDLE, FAR = "near", "middle", "far"
LINE = (NEAR, MIDDLE, FAR)


@dataclass(frozen=True, slots=True)
class BacklogSettings:
    publishers: int = 3
    window: int = 500
    """A publisher has so many in flight."""
    patience_s: float = 30.0
    """Without anything arriving, before what is missing is given up."""
    line_messages: int = 1_000_000
    """Of all publishers together."""
    line_bytes: int = 64
    """Of a payload."""
    line_rate: float = 2_000.0
    """Messages a second that the slow reader reads until publishing has ended."""
    killed_s: float = 5.0
    full_mib: int = 200
    """The size of the small file system."""
    full_bytes: int = 1_024
    stuck_s: float = 5.0
    """Without an acknowledgement: publishers wait."""
    shared_sessions: int = 1_000
    shared_at_once: int = 50
    """So many sessions have their clients back at a time."""
    shared_messages: int = 100_000
    shared_bytes: int = 256
    start_messages: int = 1_000_000
    start_bytes: int = 64


FAST = BacklogSettings(
    patience_s=5.0,
    line_messages=300_000,
    killed_s=2.0,
    full_mib=64,
    full_bytes=4_096,
    stuck_s=3.0,
    shared_sessions=50,
    shared_messages=30_000,
    start_messages=300_000,
)
