"""What a federator counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class MeshStats:
    sent: Counter[str] = field(default_factory=Counter)
    """Control packets by kind."""
    received: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    """Packets and entries by reason."""
    announcements: int = 0
    """Of this node as a core."""
    evicted: int = 0
    """Cores that had to make room for what another neighbour tells."""
