"""Batches for a store: one message each, of which a session keeps the newest, so that all comes and goes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path

from hedgerow.broker.changes import Changes, SessionRecord
from hedgerow.broker.stored import Chunk
from hedgerow.message import Message, MessageId
from hedgerow.mqtt.outbox import Delivery, Stage
from hedgerow.mqtt.packets import MQTT_5
from hedgerow.node.store import Store

WINDOW = 40  # Batches whose messages are kept: batch n gives up the message of batch n - WINDOW.
PAYLOAD_BYTES = 500
SEGMENT = 10  # batches


def message(number: int) -> Message:
    return Message("field", number.to_bytes(4) * (PAYLOAD_BYTES // 4), 2, id=MessageId("node", 1, number))


class Feed:
    """What goes into an open store, batch by batch; the newest message is on its way at QoS 2."""

    def __init__(self, store: Store) -> None:
        self.store = store
        snapshot = store.load()
        self.position = snapshot.next_position
        self.kept = [first for _, chunk in snapshot.chunks for first in positions(chunk)]
        self.begun = [first for first, _ in snapshot.segments]

    def batch(self, number: int) -> Changes:
        changes = Changes(
            sessions={1: SessionRecord(1, "barn", None, MQTT_5, 60.0, None)},
            messages=[message(number)],
            first_position=self.position,
            at=float(number),
            begins_segment=number % SEGMENT == 1,
        )
        kept = [*self.kept, self.position][-WINDOW:]
        chunk = changes.chunks[1, 1] = Chunk(1, kept[0], 2)
        for position in kept:
            chunk.add(position, 1, PAYLOAD_BYTES, float(number))
        if self.kept:
            changes.deliveries[1, self.kept[-1]] = None
        changes.deliveries[1, self.position] = Delivery(
            changes.messages[0], 2, False, (), self.position, 7, Stage.SENT
        )
        changes.removed = [(first, end) for first, end in pairwise(self.begun) if end <= kept[0]]
        return changes

    def finished(self) -> Changes:
        """As if a reader had come so far as it is: a row that is written again, and no message."""
        changes = self.batch(1)
        changes.messages.clear()
        changes.deliveries.clear()
        changes.chunks[1, 1].remove(self.position, 1)
        return changes

    def committed(self, changes: Changes) -> None:
        self.kept = [*self.kept, self.position][-WINDOW:]
        if changes.begins_segment:
            self.begun.append(self.position)
        self.begun = self.begun[len(changes.removed) :]
        self.position += 1

    def commit(self, *numbers: int) -> None:
        for number in numbers:
            changes = self.batch(number)
            self.store.write(changes)
            self.store.commit()
            self.committed(changes)


def positions(chunk: Chunk) -> list[int]:
    return [position for first, count in chunk.runs_from(0) for position in range(first, first + count)]


def last_batch(directory: Path, at: Callable[[int], float] | None = float) -> int:
    """The number of the last batch stored, after checking that all before it are there and whole."""
    with closing(Store.open(directory)) as store:
        snapshot = store.load()
        kept = [first for _, chunk in snapshot.chunks for first in positions(chunk)]
        found, _ = store.log.read([(position, 1) for position in kept], 1 << 30)
        assert [each.position for each in found] == kept
        assert store.log.damaged == 0
        spans = store.log.spans
    numbers = [int.from_bytes(each.message.payload[:4]) for each in found]
    last = numbers[-1] if numbers else 0
    assert numbers == list(range(max(1, last - WINDOW + 1), last + 1))
    assert [each.message for each in found] == [message(number) for number in numbers]
    if at is not None:
        assert [each.at for each in found] == list(map(at, numbers))
    assert [(key, each.position) for key, each in snapshot.deliveries] == [(1, each) for each in kept[-1:]]
    assert [each.message for _, each in snapshot.deliveries] == [message(each) for each in numbers[-1:]]
    # What nobody needs is gone.
    assert all(any(first <= position < end for position in kept) for first, end in spans)
    assert snapshot.segments == [(first, snapshot.segments[at][1]) for at, (first, _) in enumerate(spans)]
    return last
