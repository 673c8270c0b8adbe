"""What is to be written to the log with the next batches, and for whom.

A message has one entry for all the sessions that get it one after the other, messages in a row one for all
that get them together. What a session has finished by the time of the batch is not written for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from hedgerow.broker.session import Session
from hedgerow.message import Message
from hedgerow.mqtt.outbox import Delivery

UNWRITTEN = -1  # The position of a delivery whose message waits to be written,
FINISHED = -2  # and of one that was finished before.
RELAYED = "*"  # As a publisher: another broker has passed it on. No owner has this name.
UNWRITTEN_BYTES = 500  # that a message which is to be written takes in memory, beside its own


class UnwrittenMessage:
    """A message that is to be written to the log, and for whom."""

    __slots__ = ("deliveries", "last", "left", "message", "number", "publication", "publisher", "size")

    def __init__(
        self, message: Message, size: int, number: int, publication: int, publisher: str = ""
    ) -> None:
        self.message = message
        self.publisher = publisher  # the owner that it counts for; "": none, or RELAYED
        self.size = size + UNWRITTEN_BYTES
        self.number = self.last = number
        self.publication = publication  # Entries of one are written together; 0: of none
        self.deliveries: list[tuple[Session, Delivery]] = []  # which are in outboxes
        # For sessions that read it from the log when they come to it:
        self.left: list[tuple[Session, Delivery]] = []

    @property
    def sessions_left(self) -> list[Session]:
        return [session for session, _ in self.left]

    def unwritten_for(self, session: Session) -> list[Delivery]:
        """What was left for it."""
        return [delivery for owner, delivery in self.left if owner is session]

    @property
    def is_needed(self) -> bool:
        for session, delivery in self.deliveries:
            if delivery.position == UNWRITTEN and session.stored is not None:
                return True
        return bool(self.left) and any(
            delivery.position == UNWRITTEN and session.stored is not None for session, delivery in self.left
        )

    @property
    def is_finished(self) -> bool:
        """Has everyone acknowledged it, before it was written or since?"""
        return not self.left and all(each.position == FINISHED for _, each in self.deliveries)


class UnwrittenRow:
    """Messages in a row, at QoS 1, and for whom: as an `UnwrittenMessage` for each."""

    __slots__ = ("last", "left", "messages", "number", "on_their_way", "publisher", "size")

    publication = 0

    def __init__(self, messages: Sequence[Message], number: int, publisher: str = "") -> None:
        self.messages = messages
        self.publisher = publisher
        self.number = number  # of the first
        self.last = number + len(messages) - 1
        self.size = sum([each.size for each in messages]) + UNWRITTEN_BYTES * len(messages)
        self.on_their_way: list[tuple[Session, list[Delivery]]] = []  # a delivery for each, in its outbox
        # For sessions that read them from the log: None, or a delivery for each where somebody has asked.
        self.left: dict[Session, list[Delivery] | None] = {}

    @property
    def sessions_left(self) -> list[Session]:
        return list(self.left)

    @property
    def is_needed(self) -> bool:
        return any(
            session.stored is not None and (deliveries is None or _has_unwritten(deliveries))
            for session, deliveries in (*self.on_their_way, *self.left.items())
        )

    @property
    def is_finished(self) -> bool:
        """Has everyone acknowledged the last of them?"""
        return not self.left and all(row[-1].position == FINISHED for _, row in self.on_their_way)

    def is_of(self, messages: Sequence[Message]) -> bool:
        mine = self.messages
        return len(mine) == len(messages) and mine[0] is messages[0] and mine[-1] is messages[-1]

    def unwritten_for(self, session: Session) -> list[Delivery]:
        """What was left for it, as deliveries."""
        if session not in self.left:
            return []
        deliveries = self.left[session]
        if deliveries is None:
            deliveries = [Delivery(each, 1, position=UNWRITTEN) for each in self.messages]
            self.left[session] = deliveries
        return deliveries


def _has_unwritten(row: Sequence[Delivery]) -> bool:
    """They are acknowledged in order: the last one says it nearly always."""
    return row[-1].position == UNWRITTEN or any(each.position == UNWRITTEN for each in row)


class Unwritten:
    """What is to be written to the log, in order."""

    __slots__ = ("bytes", "entries", "last")

    def __init__(self) -> None:
        self.entries: deque[UnwrittenMessage | UnwrittenRow] = deque()
        self.bytes = 0
        self.last = 0  # the number of the last that ever was

    def add(self, entry: UnwrittenMessage | UnwrittenRow) -> None:
        self.entries.append(entry)
        self.bytes += entry.size
        self.last = entry.last

    def take(self, most_bytes: int, room_bytes: float) -> list[UnwrittenMessage | UnwrittenRow]:
        """The first of them: so many bytes, or more if that is one alone and there is room for it.

        Not a part of a publication: what its packet identifier means is stored with all of it.
        """
        entries = self.entries
        if self.bytes <= min(most_bytes, room_bytes):
            taken, self.entries, self.bytes = list(entries), deque(), 0
            return taken
        taken = []
        while entries and (
            entries[0].size <= (min(most_bytes, room_bytes) if taken else room_bytes)
            or (taken and 0 < entries[0].publication == taken[-1].publication)
        ):
            size = entries[0].size
            self.bytes -= size
            most_bytes -= size
            room_bytes -= size
            taken.append(entries.popleft())
        return taken

    @property
    def done(self) -> int:
        """Up to which number nothing is to be written any more."""
        return self.entries[0].number - 1 if self.entries else self.last

    def drop_first(self) -> bool:
        """Those that nobody needs any more. Were there any?"""
        entries = self.entries
        count = len(entries)
        while entries and not entries[0].is_needed:
            self._drop(entries.popleft())
        return len(entries) < count

    def drop_all(self) -> None:
        """The same, wherever they are."""
        entries, self.entries = self.entries, deque()
        for each in entries:
            if each.is_needed:
                self.entries.append(each)
            else:
                self._drop(each)

    def _drop(self, entry: UnwrittenMessage | UnwrittenRow) -> None:
        self.bytes -= entry.size
        if not entry.left:
            return
        for session in entry.sessions_left:
            if session.stored is not None:
                session.stored.pending -= entry.last - entry.number + 1
