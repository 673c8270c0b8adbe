"""The times of the document's wire, and bounds on what whoever speaks it can make grow."""

from __future__ import annotations

MAX_NUMBER = 2**32 - 1  # of all numbers on the wire
LIFETIME_INTERVALS = 3  # A core, or a child, that was not heard for so many intervals is gone.
OVERLAP_S = 2.0  # Children of the last core are those of the next one for so long.
BEACON_S = 15.0  # For so long a client's beacon counts; common federators expect one every 5 s.

# Whoever may publish `federator/#` at this broker may invent topics, cores and children.
MAX_TOPICS = 10_000  # An owner may have as many as it leaves free. So many more are for what is wanted here.
LEAST_TOPICS = 16
MAX_TOPIC_BYTES = 1_024
MAX_CHILDREN = 64  # of one topic
MAX_NEIGHBOURS = 64
MAX_DISTANCE = 65_535

ENTRIES_PER_S = 20_000.0
ENTRIES_BURST_S = 2.0

PROBE_S = 5.0  # between two questions to a neighbour that has not answered
ASK_AGAIN_S = 60.0  # and where someone else speaks as one that has: each goes to all federators there

# Of answers to such questions, to one neighbour. Anybody may ask in its name.
ANSWERS_PER_S = 1.0
ANSWERS_BURST_S = 4.0

# A publication that began at a node of ours may come by our own links, too. Until it is known whether those
# of its origin do, it waits so long for that.
HOLD_S = 0.5
MAX_HELD = 4_096
MAX_HELD_BYTES = 16 * 1024 * 1024
MAX_ORIGINS = 4_096
OURS_S = 600.0  # An origin that was heard by our own links stays one of those.
