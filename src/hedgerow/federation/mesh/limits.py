"""The times by which federators keep up with each other, and bounds on what a neighbour can make grow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

ANNOUNCE_INTERVAL_S = 5.0
INTERVAL_JITTER = 0.1  # of the interval: cores that started together do not announce together for ever
LIFETIME_INTERVALS = 3  # A core that was not heard for so many of its own intervals is lost.
MAX_LIFETIME_S = 3_600.0

# Announcements out of turn: what changed meanwhile shares the next one.
EARLY_S = 0.1

# A fresh announcement comes by several neighbours, one after the other. Until then the parents of the last
# one stay, so that routes do not change back and forth with each announcement.
SETTLE_S = 0.2

# An announcement that came by a longer way than the last one waits for the shorter one: so long, and a good
# part of how much later that was the last time.
HOLD_S = 0.05
HOLD_LATE = 1.5
MAX_HOLD_S = 1.0

# Since someone asked for an announcement and none came: the way of the question and of the answer.
GRACE_S = 0.15
GRACE_PER_HOP_S = 0.02

# Many brokers may lose their core at the same moment. Who waits a random part of this often hears of a
# smaller id before it has announced its own.
CLAIM_WITHIN_S = 0.05

# The ways of the last core are used so much longer, while the mesh of the next one forms.
OVERLAP_S = 1.0

# Between two steps over this node's own filters (`local_filters.py`) others are served.
SWEEP_S = 0.001

ASK_AGAIN_S = 1.0  # a list that was asked for and did not come

# What changed in a list travels with the announcement, twice over each link, if it is short.
INLINE_BYTES = 512
PART_BYTES = 16 * 1024  # Longer lists are cut into packets of about this size.

MAX_PACKET_BYTES = 256 * 1024  # A part, and in it one filter of the longest kind.
MAX_EXPANDED_BYTES = 1024 * 1024  # Filters share beginnings: two bytes could stand for 65,535.
MAX_ID_BYTES = 255
MAX_DISTANCE = 65_535
MAX_SEQUENCE = (1 << 62) - 1
EPOCH_SHIFT = 28  # Of a sequence, the epoch is what is above; seconds of Unix time do, too.

ENTRIES_PER_S = 20_000.0  # of one neighbour. A link that comes up tells of all cores at once:
ENTRIES_BURST_S = 2.0


# A longer or deeper filter counts as several: 200,000 of 64 KB would take 13 GB.
ORDINARY_CHARS = 256
ORDINARY_LEVELS = 16


def weight_of(topic_filters: Iterable[str]) -> int:
    """As how many ordinary ones they count."""
    return sum(
        1 + max(len(each) // ORDINARY_CHARS, each.count("/") // ORDINARY_LEVELS) for each in topic_filters
    )


class MeshBounds(NamedTuple):
    """Of ordinary filters (`weight_of`)."""

    cores: int = 20_000
    """Cores can be invented: beyond this, the neighbour who told of the most pays."""
    filters: int = 200_000
    """Of all cores together, likewise; and of the lists of which only the beginning has come."""
    memberships: int = 200_000
    """Filters of which one neighbour says that it is a member."""


BOUNDS = MeshBounds()
