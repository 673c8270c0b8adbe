"""What is written gets its positions in the log, and each session that it waits for the same in its queue.

One `Placing` is one batch. What a session has finished meanwhile is not written for it, and what all have
finished is not written.
"""

from __future__ import annotations

from collections.abc import Sequence

from hedgerow.broker.changes import MAX_WAITING, Changes
from hedgerow.broker.session import Session
from hedgerow.broker.stored import AGAIN_BIT, MAX_SPAN, RETAIN_BIT, Chunk, StoredQueue
from hedgerow.broker.unwritten import RELAYED, UNWRITTEN, UnwrittenMessage, UnwrittenRow
from hedgerow.mqtt.outbox import Delivery

ENTRY_BYTES = 64  # What a message takes in the log beside topic and payload, at most


class Placing:
    __slots__ = (
        "_behind",
        "_changes",
        "_noted",
        "_now",
        "_publisher",
        "holders",
        "published",
        "references",
        "relayed",
        "size",
    )

    def __init__(self, changes: Changes, behind: dict[Session, None], now: float) -> None:
        """`behind`: gets the sessions for which something is left in the log."""
        self._changes = changes
        self._behind = behind
        self._now = now
        self.references = 0  # positions, of all sessions together
        self.size = 0  # of the messages, in the log
        self._publisher, self._noted = "", 0  # of whom the last are, and from which size on
        self.relayed = 0  # of those that other brokers passed on
        self.holders: dict[str, int] = {}  # positions, by the owner of the sessions
        self.published: dict[str, int] = {}  # bytes, by the owner of the publisher

    def place(self, entries: Sequence[UnwrittenMessage | UnwrittenRow], first: int) -> None:
        """Give what is still wanted its positions, from `first` on."""
        messages = self._changes.messages
        at = 0
        while at < len(entries):
            entry = entries[at]
            position = first + len(messages)
            if isinstance(entry, UnwrittenRow):
                self._put_row(entry, position)
            elif (end := _alike_end(entries, at)) > at + 1:
                self._put_alike(entries[at:end], position)
                at = end - 1
            else:
                self._put(entry, position)
            at += 1
        self._change_publisher("")

    def _put(self, entry: UnwrittenMessage, position: int) -> None:
        changes, message = self._changes, entry.message
        size = message.size
        count = 0
        waiting: list[tuple[int, int, tuple[int, ...]]] = []
        for session, delivery in entry.deliveries:
            if delivery.position != UNWRITTEN or session.stored is None:
                continue
            delivery.position = position
            queue = session.stored
            chunk = self._add(session, queue, delivery, size)
            waiting.append((session.key, chunk.flags, chunk.identifiers))
            if queue.unloaded:  # It is in memory, and behind some that are not.
                queue.unloaded += 1
                queue.ahead.add(position)
            if delivery.packet_id:
                chunk.sent = position
                if delivery.qos == 2:
                    changes.deliveries[session.key, position] = delivery
            count += 1
        for session, delivery in entry.left:
            left = session.stored
            if left is None:
                continue
            left.pending -= 1
            if delivery.position != UNWRITTEN:
                continue
            delivery.position = position
            chunk = self._add(session, left, delivery, size)
            waiting.append((session.key, chunk.flags, chunk.identifiers))
            if not left.unloaded:
                left.cursor = position
            left.unloaded += 1
            self._behind[session] = None
            count += 1
        if not count:
            return  # All of them are done with it.
        changes.messages.append(message)
        changes.waiting.append(tuple(waiting) if count <= MAX_WAITING else ())
        self.references += count
        if entry.publisher is not self._publisher:
            self._change_publisher(entry.publisher)
        self.size += size + ENTRY_BYTES

    def _put_alike(self, entries: Sequence[UnwrittenMessage | UnwrittenRow], position: int) -> None:
        """As `_put` for each, of entries that `_alike_end` has found."""
        messages = self._changes.messages
        first = position
        size = 0
        session: Session | None = None
        for entry in entries:
            assert isinstance(entry, UnwrittenMessage)
            session, delivery = entry.deliveries[0]
            if delivery.position == UNWRITTEN and session.stored is not None:
                if entry.publisher is not self._publisher:
                    self._change_publisher(entry.publisher)
                delivery.position = position
                position += 1
                size += delivery.size
                self.size += delivery.size + ENTRY_BYTES
                messages.append(entry.message)
        count = position - first
        if session is not None and count:
            self._add_run(session, first, count, size, False)
            self._changes.waiting += [((session.key, 1, ()),)] * count
        self.references += count

    def _add(self, session: Session, queue: StoredQueue, delivery: Delivery, size: int) -> Chunk:
        flags = delivery.qos | delivery.retain * RETAIN_BIT | delivery.is_again * AGAIN_BIT
        identifiers, group = delivery.subscription_identifiers, delivery.group
        chunk = queue.add(delivery.position, 1, flags, identifiers, group, size, self._now)
        self._changes.chunks[session.key, chunk.number] = chunk
        owner = queue.owner
        if owner:
            self.holders[owner] = self.holders.get(owner, 0) + 1
        return chunk

    def _hold(self, owner: str, count: int) -> None:
        if owner:
            self.holders[owner] = self.holders.get(owner, 0) + count

    def _change_publisher(self, publisher: str) -> None:
        """What comes from here on is its."""
        size, self._noted = self.size - self._noted, self.size
        before, self._publisher = self._publisher, publisher
        if before == RELAYED:
            self.relayed += size
        elif before and size:
            self.published[before] = self.published.get(before, 0) + size

    def _put_row(self, row: UnwrittenRow, position: int) -> None:
        takers: list[tuple[Session, list[Delivery] | None, bool]] = [
            (session, deliveries, False)
            for session, deliveries in row.on_their_way
            if session.stored is not None
        ]
        for session, left in row.left.items():
            if session.stored is not None:
                session.stored.pending -= len(row.messages)
                takers.append((session, left, True))
        if any(each.position != UNWRITTEN for _, deliveries, _ in takers for each in deliveries or ()):
            self._put_rest(row, takers, position)
            return
        if not takers:
            return
        count = len(row.messages)
        size = sum([each.size for each in row.messages])
        for session, deliveries, is_left in takers:
            if deliveries is not None:
                for number, delivery in enumerate(deliveries, position):
                    delivery.position = number
            self._add_run(session, position, count, size, is_left)
        waiting = tuple((session.key, 1, ()) for session, _, _ in takers)
        self._changes.messages += row.messages
        self._changes.waiting += [waiting if len(takers) <= MAX_WAITING else ()] * count
        self.references += count * len(takers)
        self._change_publisher(row.publisher)
        self.size += size + ENTRY_BYTES * count

    def _put_rest(
        self,
        row: UnwrittenRow,
        takers: Sequence[tuple[Session, Sequence[Delivery] | None, bool]],
        position: int,
    ) -> None:
        """Of a row, one by one, what somebody has not finished by now."""
        for at, message in enumerate(row.messages):
            waiting: list[tuple[int, int, tuple[int, ...]]] = []
            for session, deliveries, is_left in takers:
                if deliveries is not None:
                    if deliveries[at].position != UNWRITTEN:
                        continue
                    deliveries[at].position = position
                self._add_run(session, position, 1, message.size, is_left)
                waiting.append((session.key, 1, ()))
            if waiting:
                self._changes.messages.append(message)
                self._changes.waiting.append(tuple(waiting) if len(waiting) <= MAX_WAITING else ())
                position += 1
                self.references += len(waiting)
                self._change_publisher(row.publisher)
                self.size += message.size + ENTRY_BYTES

    def _add_run(self, session: Session, position: int, count: int, size: int, is_left: bool) -> None:
        queue = session.stored
        assert queue is not None
        self._hold(queue.owner, count)
        if is_left:
            if not queue.unloaded:
                queue.cursor = position
            queue.unloaded += count
            self._behind[session] = None
        elif queue.unloaded:  # As above: they are in memory.
            queue.unloaded += count
            queue.ahead.update(range(position, position + count))
        end = position + count
        while position < end:
            part = min(end - position, MAX_SPAN - 1)
            chunk = queue.add(position, part, 1, (), None, size * part // count, self._now)
            position += part
            if not is_left:
                chunk.sent = position - 1
            self._changes.chunks[session.key, chunk.number] = chunk


def _alike_end(entries: Sequence[UnwrittenMessage | UnwrittenRow], begin: int) -> int:
    """Behind the last of those that are on their way to one session, at QoS 1 and with nothing unusual."""
    session: Session | None = None
    for at in range(begin, len(entries)):
        entry = entries[at]
        if isinstance(entry, UnwrittenRow) or entry.left or len(entry.deliveries) != 1:
            return at
        owner, delivery = entry.deliveries[0]
        if (
            (session is not None and owner is not session)
            or delivery.qos != 1
            or not delivery.packet_id
            or delivery.retain
            or delivery.is_again
            or delivery.subscription_identifiers
            or delivery.group is not None
        ):
            return at
        session = owner
    return len(entries)
