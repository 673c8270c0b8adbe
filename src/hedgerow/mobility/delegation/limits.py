"""Bounds on what the other side can make grow, and times."""

from __future__ import annotations

from dataclasses import dataclass

MAX_CALLBACK_BYTES = 255  # A client id may have 64 KiB, and each stands in every notification.
MAX_BROKER_ID_BYTES = 255
MAX_EVENT_BYTES = 4 * 1024 * 1024  # What is larger is matched where it was published.
MAX_PAYLOAD_BYTES = 32 * 1024 * 1024  # of one publication: such an event, with every callback
MAX_EPOCH = 2**64 - 1

MAX_MOBILE_BROKERS = 1_000  # that one fixed broker helps
MIN_MOBILE_BROKERS = 16  # of one user or address, while there is room; otherwise as many as it leaves free
MAX_REGISTRIES = 100_000  # topic filters of one mobile broker at a fixed one
# Of all, with their subscribers; those of one user or address no more than it leaves free. Counted by their
# number alone, 4,000 of 60 KB took 700 MiB.
MAX_TOPIC_BYTES = 512 * 1024 * 1024
MIN_TOPIC_BYTES = 1024 * 1024
MAX_ENTRIES = 100_000  # subscriptions in them
MAX_EXPECTED = 100_000  # clients that mobile brokers say are on their way to a fixed one
MIN_EXPECTED = 1_000  # of one user or address, while there is room; otherwise as many as it leaves free
ORDINARY_CHARS = 256  # of a client's user: a longer one counts as several clients
MAX_HAD = 2_000  # events of which it is told that a client has got them, when its session goes elsewhere
MAX_UNDONE = 100_000  # changes of topics that a mobile broker's events have yet to catch up with
MAX_HELD = 10_000  # events of one mobile broker that clients at the fixed one have not acknowledged
MAX_FIXED_BROKERS = 4  # that a mobile broker has dealings with: this one, and those that it is leaving
ENTRIES_PER_DELEGATION = 500  # so that a thousand topics are several publications and no long silence

# What waits for the other side while it is away, or slow. Beyond it, what comes is not kept, and counted.
MAX_WAITING = 100_000
MAX_WAITING_BYTES = 64 * 1024 * 1024
OWNER_WAITING = 16  # What waits for mobile brokers of one user or address may be as much as that of so many.
WINDOW_BYTES = 256 * 1024  # of events under way to the other side; behind so many a delegation may wait
LEAST_WINDOW_BYTES = 64 * 1024  # the same, where the link is slow
SLOW_S = 0.15  # So much longer than the quickest: events wait in front of the link.
# Events at QoS 0, for which nobody waits, are acknowledged together.
ACKNOWLEDGE_AFTER_S = 0.03
ACKNOWLEDGE_EVERY = 16
SMALL_EVENT_BYTES = 4 * 1024  # So many of these are a part of what may be under way.
RECORD_BYTES = 500  # what Python takes beside payload and texts

TAKEOVER_AFTER_S = 3.0  # A link that comes back sooner, as after a cell hand-over, changes nothing.
FORGET_AFTER_S = 24 * 3_600.0  # a mobile broker that never came back


@dataclass(slots=True)
class DelegationLimits:
    """Those of one side, as they are unless somebody says otherwise."""

    event_bytes: int = MAX_EVENT_BYTES
    entries: int = MAX_ENTRIES
    expected: int = MAX_EXPECTED
    held: int = MAX_HELD
    waiting: int = MAX_WAITING
    mobile_brokers: int = MAX_MOBILE_BROKERS
    topic_bytes: int = MAX_TOPIC_BYTES
    window_bytes: int = WINDOW_BYTES
    undone: int = MAX_UNDONE
