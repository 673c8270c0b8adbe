"""What the broker asks to be stored, and what it gets back at the next start.

Durability is a message: the broker collects the new state of everything that changed in one
`Changes`, the shell writes it in one transaction and says that it is committed, and only then do
the packets leave that speak of it. New messages go to the log first, then the rest is committed: what is
there refers to positions in the log. But for the messages, changes are state, not operations: within one
batch a later value replaces an earlier one, and None means that the thing is gone. Session keys and
positions are never used twice, so a writer may put first and delete last.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hedgerow.broker.stored import Chunk, Run
from hedgerow.duplicates import PageKey
from hedgerow.message import Message
from hedgerow.mqtt.outbox import Delivery
from hedgerow.mqtt.packets import Subscription, Will


@dataclass(slots=True)
class SessionRecord:
    """A session that outlives its connection, without what hangs on it (see `Snapshot`)."""

    key: int
    client_id: str
    username: str | None
    protocol_version: int
    session_expiry_s: float  # inf: never
    expires_at: float | None  # None while connected
    will: Will | None = None  # to publish if the client does not come back in time
    role: str = "client"  # its name
    owner: str | None = None  # whose quota it counts for


WhoWaits = tuple[tuple[int, int, tuple[int, ...]], ...]
"""(session key, flags, subscription identifiers) of those that wait for a message."""
MAX_WAITING = 16  # Of more it is cheaper to write the chunks.


@dataclass(slots=True)
class SubscriptionRecord:
    subscription: Subscription
    subscription_identifier: int | None = None


@dataclass(slots=True)
class Changes:
    sessions: dict[int, SessionRecord | None] = field(default_factory=dict)
    """By session key. None removes its subscriptions, deliveries and received identifiers too."""
    subscriptions: dict[tuple[int, str], SubscriptionRecord | None] = field(default_factory=dict)
    """By (session key, topic filter as the client wrote it, `$share/…` included)."""
    messages: list[Message] = field(default_factory=list)
    """For the log, at consecutive positions: each message once for all the sessions that it waits for."""
    waiting: list[WhoWaits] = field(default_factory=list)
    """For each of the messages, the sessions that wait for it, as the log notes them: so chunks may be
    written later, and not with each batch. Empty for one that too many wait for."""
    first_position: int = 0
    at: float = 0.0
    """When they were taken, by the node's clock."""
    begins_segment: bool = False
    """They are the first of a new segment of the log."""
    removed: list[tuple[int, int]] = field(default_factory=list)
    """Segments of the log that nobody needs when this is committed: the first position, and where it ends."""
    sparse: list[tuple[int, int, list[Run]]] = field(default_factory=list)
    """Segments of which only these positions are needed when this is committed, and where they begin and end:
    the log may go without the rest. It says later how large they are then (`Broker.segments_shrunk`)."""
    chunks: dict[tuple[int, int], Chunk] = field(default_factory=dict)
    """By (session key, number): which positions a session has not finished. One without any is gone. What of
    this a crash undoes comes once more, at QoS 1."""
    deliveries: dict[tuple[int, int], Delivery | None] = field(default_factory=dict)
    """By (session key, position): QoS 2 in flight, whose packet identifiers and stages must survive; QoS 1
    only as the node ends."""
    received: dict[tuple[int, int], bool] = field(default_factory=dict)
    """By (session key, packet identifier): QoS 2 received from the client and not yet released."""
    retained: dict[str, Message | None] = field(default_factory=dict)
    """By topic: its value, or without payload the tombstone in its place."""
    seen: dict[PageKey, bytes | bytearray | None] = field(default_factory=dict)
    """Pages of the duplicate log: which messages of other nodes were taken at QoS 1 and 2."""
    kept: dict[tuple[str, str], str | None] = field(default_factory=dict)
    """By (part of the node, its own key): what a part has the store keep for it."""

    def __bool__(self) -> bool:
        return self.must_precede or bool(self.seen)

    @property
    def may_wait(self) -> bool:
        """Are the messages, with who waits for them, all that must be stored before packets leave?"""
        others = (
            self.deliveries,
            self.received,
            self.retained,
            self.subscriptions,
            self.sessions,
            self.kept,
            self.seen,
            self.sparse,
        )
        return len(self.waiting) == len(self.messages) and all(self.waiting) and not any(others)

    @property
    def must_precede(self) -> bool:
        """Is there anything that packets wait for? Which messages were seen is not."""
        return bool(
            self.messages
            or self.sparse
            or self.chunks
            or self.deliveries
            or self.received
            or self.retained
            or self.subscriptions
            or self.sessions
            or self.kept
        )


@dataclass(slots=True)
class Snapshot:
    """Everything that was stored, as a broker takes it up again."""

    sessions: list[SessionRecord] = field(default_factory=list)
    subscriptions: list[tuple[int, SubscriptionRecord]] = field(default_factory=list)
    segments: list[tuple[int, int]] = field(default_factory=list)
    """Of the log, in order: the first position, and its bytes."""
    next_position: int = 1
    """Behind every position that was ever given."""
    chunks: list[tuple[int, Chunk]] = field(default_factory=list)
    """(session key, chunk), in the order of their numbers."""
    deliveries: list[tuple[int, Delivery]] = field(default_factory=list)
    """(session key, delivery) of what is in flight, in the order of positions."""
    received: list[tuple[int, int]] = field(default_factory=list)
    retained: list[Message] = field(default_factory=list)
    kept: dict[tuple[str, str], str] = field(default_factory=dict)
    seen: list[tuple[PageKey, bytes]] = field(default_factory=list)
