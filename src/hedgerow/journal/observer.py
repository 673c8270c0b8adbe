"""The journal as an observer of the broker's publications.

Every publication to a topic that the journal wants is recorded once, where it enters the broker: with the id
under which the fabric knows it, before anybody gets it. What the broker drops as a duplicate is not recorded.
A publication at QoS 1 or 2 that was recorded is acknowledged when the journal has it on its disk. QoS 0, and
what the node itself publishes, is passed on without being recorded where there is no room.

`transport` is the scheme of the publisher's connection ("mqtt", "mqtts", "ws", "wss"), or else "bridge",
"neighbour", "sensors", "multicast", "mobile", "will" (of a client that is gone) or "node" (what the node
itself says). `client` is the client id; of bridges and neighbours the name of the node at the other end, if
it has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from hedgerow.broker.batch import Batch
from hedgerow.broker.observer import Observer
from hedgerow.message import Message, MessageId
from hedgerow.topics import matches

Source = tuple[str, str | None]
"""Transport and client."""


class Recording(Protocol):
    """What the shell keeps on its disk."""

    @property
    def is_behind(self) -> bool:
        """Is anything that was recorded not durable yet?"""

    def has_room(self, size: int) -> bool:
        """May payloads of so many bytes be recorded at QoS 1 or 2?"""

    def record(self, message: Message, source: Source, now: float) -> bool:
        """One message, which has its id. False: there is no room, and it is counted as missed."""

    def record_run(
        self,
        topic: str,
        payloads: Sequence[bytes],
        first_id: MessageId,
        qos: int,
        source: Source,
        now: float,
    ) -> bool:
        """Messages in a row, without properties and RETAIN; the sequences of their ids count up from that of
        the first. False: there is no room for them, and they are counted as missed."""

    def record_packets(
        self,
        topic: str,
        packets: bytes,
        size: int,
        head: int,
        first_id: MessageId,
        source: Source,
        now: float,
    ) -> bool:
        """As `record_run`, at QoS 0: packets of one size in a row, with so many bytes before each payload."""

    def figures(self) -> Mapping[str, int]:
        """What people see, by its name below `$SYS/broker/journal`."""


class JournalObserver(Observer):
    name = "journal"

    def __init__(
        self, recording: Recording, topic_filters: Sequence[str], interests: Sequence[str] = ()
    ) -> None:
        self._recording = recording
        self._filters = tuple(topic_filters)
        self.interests = tuple(interests)

    def wants(self, topic: str, has_clients: bool) -> bool:
        return any(matches(topic_filter, topic) for topic_filter in self._filters)

    def has_room(self, size: int) -> bool:
        return self._recording.has_room(size)

    @property
    def is_behind(self) -> bool:
        return self._recording.is_behind

    def figures(self) -> Mapping[str, int]:
        return self._recording.figures()

    def observe(self, batch: Batch, now: float) -> bool:
        recording, source = self._recording, batch.source
        if batch.message is not None:
            return recording.record(batch.message, source, now) and batch.qos > 0
        assert batch.origin is not None
        first_id = MessageId(batch.origin, batch.epoch, batch.sequences[0])
        if batch.packets is not None:
            recording.record_packets(
                batch.topic, batch.packets, batch.size, batch.head, first_id, source, now
            )
        else:
            self._record_rows(batch, first_id, source, now)
        return batch.qos > 0

    def _record_rows(self, batch: Batch, first_id: MessageId, source: Source, now: float) -> None:
        """In pieces where the sequences do not count up one by one: some were here before."""
        payloads, sequences, count = batch.payloads, batch.sequences, batch.count
        begin = 0
        is_whole = list(sequences) == list(range(sequences[0], sequences[0] + count))
        while begin < count:
            end = count if is_whole else begin + 1
            first = sequences[begin]
            while end < count and sequences[end] == first + end - begin:
                end += 1
            self._recording.record_run(
                batch.topic, payloads[begin:end], first_id._replace(sequence=first), batch.qos, source, now
            )
            begin = end
