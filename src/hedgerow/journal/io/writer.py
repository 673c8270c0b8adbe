"""`Writer`: appends messages to a journal.

Guarantees. Messages get positions in the order in which they are appended, each one more than the last, in
all lives of the journal; a message whose id is there already gets none. What is below `durable_position`
survives `kill -9` and power loss. While the disk takes nothing (`failure` says why) nothing becomes
durable, the buffer fills, and then `append` refuses; as soon as there is room, it goes on by itself.

How. `append` packs the message into a buffer in memory, on the caller's thread, and returns. A thread of
the writer takes whatever has gathered, writes and syncs it while the interpreter's lock is free, and tells.
It does so at once where somebody waits: for the acknowledgement of QoS 1 or 2, or as `hurry` says. Then
groups grow by themselves while the disk is busy. All else waits for 50 ms, or 4 MiB.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from hedgerow.duplicates import DEFAULT_BYTES
from hedgerow.errors import StoreError, reason_of
from hedgerow.journal.io import files
from hedgerow.journal.io.ids import Ids, Pages, store_ids
from hedgerow.journal.io.recovery import recover
from hedgerow.journal.io.times import store_times
from hedgerow.log.appender import Appender
from hedgerow.log.frame import NO_TIME, Group
from hedgerow.message import MAX_NUMBER, MAX_ORIGIN, Message, MessageId, Properties

T = TypeVar("T")

logger = logging.getLogger(__name__)

SEGMENT_BYTES = 64 * 1024 * 1024
BUFFER_BYTES = 64 * 1024 * 1024
# So long messages gather for which nobody waits, or until a frame is full: a commit of a few costs as much as
# writing a thousand.
GATHER_S = 0.05
# And between the beginnings of two commits that somebody waits for: at 5,000 messages a second frames of ten
# messages, not of two.
PROMPT_S = 0.002
FIRST_RETRY_S = 0.1
MAX_RETRY_S = 5.0
_MAX_TIME_S = 253_402_300_800.0  # The year 10000: behind it, or before the year 1, dates cannot be written.
_MIN_TIME_S = -62_135_596_800.0


class BufferFullError(StoreError):
    """The disk has not taken what was appended, and there is no room for more. Nothing was appended."""


class Writer:
    """The one writer of the journal in `directory`, which is made when there is none.

    Without `drop_duplicates` a message is kept as often as it is appended: a subscriber's journal is to show
    what came twice.

    `on_durable(position)` and `on_failure(reason, or None when it works again)` are called on the writer's
    thread. `append` and the rest may be called from any one thread at a time.
    """

    def __init__(
        self,
        directory: Path,
        broker: str,
        *,
        on_durable: Callable[[int], None] = lambda position: None,
        on_failure: Callable[[str | None], None] = lambda reason: None,
        segment_bytes: int = SEGMENT_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        ids_bytes: int = DEFAULT_BYTES,
        gather_s: float = GATHER_S,
        drop_duplicates: bool = True,
    ) -> None:
        self.directory = directory
        self.broker = broker
        self.failure: str | None = None
        """Why the disk does not take what was appended, while that lasts."""
        self.duplicates = 0
        """Messages that were there already."""
        self.strange_ids = 0
        """Messages whose id no node gives, kept without it."""
        self._on_durable = on_durable
        self._on_failure = on_failure
        self._buffer_bytes = buffer_bytes
        self.is_followed = False
        """Somebody reads what is written, as it comes."""
        self._gather_s = gather_s
        self._is_urgent = False
        self._drops_duplicates = drop_duplicates
        self._ids = Ids(ids_bytes)
        self._resources = ExitStack()
        with ExitStack() as resources:
            self.journal_id = resources.enter_context(files.lock_for_writing(directory))
            try:
                found = recover(directory, self._ids)
                self._told = files.open_durable(directory)
                resources.callback(os.close, self._told)
                files.tell_durable(self._told, found.next_position)
            except OSError as error:
                raise StoreError(f"cannot open the journal in {directory}: {error}") from error
            self._resources = resources.pop_all()
        if found.last is not None:  # Whoever wrote it may have been killed before it was full.
            store_times(found.last, found.earliest, found.latest)
        self._appender = Appender(directory, found.next_number, segment_bytes, store_times)
        self._durable_position = found.next_position
        self._group = Group(found.next_position)
        self._full: list[Group] = []  # before `_group`
        self._held_bytes = 0  # of the full, and of those that are being written
        self._closing = False
        self._changed = threading.Condition()
        self._is_waiting = False
        self._thread = threading.Thread(target=self._run, name="hedgerow-journal", daemon=True)
        self._thread.start()

    @property
    def next_position(self) -> int:
        """What the next message gets."""
        return self._group.end_position

    @property
    def durable_position(self) -> int:
        """Every message below it is durable."""
        return self._durable_position

    @property
    def buffered_bytes(self) -> int:
        """What is not durable yet."""
        with self._changed:  # The writer's thread moves a group from the one to the other.
            return self._held_bytes + self._group.bytes

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is appended meanwhile is written in one commit, as far as there is room."""
        with self._changed:
            yield

    def append(
        self,
        message: Message,
        *,
        transport: str,
        received_at: float,
        client: str | None = None,
        packet_id: int = 0,
    ) -> int:
        """The position behind it: once `durable_position` is there, it may be acknowledged.

        That is so too for a message that was here before, and perhaps is not durable yet. `packet_id` is kept
        with the message for `deliveries.last_deliveries`, and is none of its columns.
        """
        message_id = message.id
        if message_id is not None and not _is_ours(message_id):
            self.strange_ids += 1
            message_id = None
        payload = message.payload
        properties = _properties_text(message.properties) if message.properties else None
        published = NO_TIME if message.published_at is None else _microseconds(message.published_at)
        received = _microseconds(received_at)
        flags = message.qos & 3 | message.retain << 2
        with self._changed:
            group = self._group_for(len(payload))
            if message_id is not None and self._drops_duplicates and self._ids.seen(message_id):
                self.duplicates += 1
            else:
                group.add(
                    (payload,), self.broker, transport, client, message.topic, properties, message_id,
                    published, received, flags, packet_id,
                )  # fmt: skip
                if self._is_waiting or (message.qos and not self._is_urgent):
                    self._wake(message.qos)
            return group.first_position + group.rows

    def append_run(
        self,
        topic: str,
        payloads: Sequence[bytes],
        *,
        transport: str,
        received_at: float,
        client: str | None = None,
        first_id: MessageId | None = None,
        qos: int = 0,
        retain: bool = False,
    ) -> int:
        """Messages in a row to one topic; the sequences of their ids count up from that of `first_id`.

        As `append`, for a fraction of the cost.
        """
        count = len(payloads)
        if first_id is not None and not _is_ours(first_id, count):
            self.strange_ids += count
            first_id = None
        received = _microseconds(received_at)
        flags = qos & 3 | retain << 2
        with self._changed:
            self._group_for(sum(map(len, payloads)))
            spans = [(0, count)] if first_id is None else self._new_spans(first_id, count)
            for at, length in self._in_groups(spans):
                shifted = first_id and first_id._replace(sequence=first_id.sequence + at)
                part = payloads if length == len(payloads) else payloads[at : at + length]
                self._group.add(
                    part, self.broker, transport, client, topic, None, shifted, NO_TIME, received, flags
                )
                count -= length
            self.duplicates += count
            if spans and (self._is_waiting or (qos and not self._is_urgent)):
                self._wake(qos)
            return self._group.end_position

    def append_packets(
        self,
        topic: str,
        packets: bytes,
        size: int,
        head: int,
        *,
        transport: str,
        received_at: float,
        client: str | None = None,
        first_id: MessageId | None = None,
        qos: int = 0,
    ) -> int:
        """As `append_run`, for packets of one size as they came, with `head` bytes before each payload: a
        message costs next to nothing. The heads are written too, and nobody sees them."""
        count = total = len(packets) // size
        if first_id is not None and not _is_ours(first_id, count):
            self.strange_ids += count
            first_id = None
        received = _microseconds(received_at)
        with self._changed:
            self._group_for(len(packets))
            spans = [(0, count)] if first_id is None else self._new_spans(first_id, count)
            for at, length in self._in_groups(spans):
                shifted = first_id and first_id._replace(sequence=first_id.sequence + at)
                part = packets if length == total else packets[at * size : (at + length) * size]
                self._group.add_packets(
                    part, length, head, self.broker, transport, client, topic, shifted, received, qos & 3
                )
                count -= length
            self.duplicates += count
            if spans and (self._is_waiting or (qos and not self._is_urgent)):
                self._wake(qos)
            return self._group.end_position

    def hurry(self) -> None:
        """Somebody waits for what was appended."""
        if not self._is_urgent:
            with self._changed:
                self._wake(1)

    def flush(self, timeout_s: float | None = None) -> int:
        """Wait until all that was appended is durable. StoreError: the disk takes nothing, or not in time."""
        with self._changed:
            self._wake(1)
            position = self._group.end_position
            self._changed.wait_for(lambda: self._durable_position >= position or self.failure, timeout_s)
            if self._durable_position >= position:
                return position
            raise StoreError(self.failure or f"the journal in {self.directory} was not written in time")

    def close(self) -> None:
        """Make durable what was appended, and leave the journal to others. StoreError: that could not be."""
        if self._closing:
            return
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._appender.close()
        try:
            if self._durable_position < self._group.end_position:
                raise StoreError(f"given up by the journal in {self.directory}: {self.failure}")
            self._store_ids(self._durable_position, self._ids.pages())
        finally:
            self._resources.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _group_for(self, size: int) -> Group:
        """Where a message goes that has so many bytes, if there is room for it."""
        group = self._group
        held = self._held_bytes + group.bytes
        if held + size > self._buffer_bytes and held:
            why = self.failure or "the disk is slower than what comes"
            raise BufferFullError(f"the journal in {self.directory} has no room to wait for its disk: {why}")
        if self._closing:
            raise RuntimeError("the journal is closed")
        return self._next_group() if group.is_full else group

    def _next_group(self) -> Group:
        self._full.append(self._group)
        self._held_bytes += self._group.bytes
        self._group = Group(self._group.end_position)
        self._changed.notify_all()
        return self._group

    def _new_spans(self, first_id: MessageId, count: int) -> list[tuple[int, int]]:
        return self._ids.take_new(first_id, count) if self._drops_duplicates else [(0, count)]

    def _in_groups(self, spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """The spans, cut so that each fits into the group there is when it comes."""
        for at, length in spans:
            end = at + length
            while at < end:
                room = (self._next_group() if self._group.is_full else self._group).room
                yield at, min(room, end - at)
                at += room

    def _wake(self, qos: int) -> None:
        self._is_waiting = False
        self._is_urgent = self._is_urgent or qos > 0
        self._changed.notify_all()

    # On the writer's thread.

    def _run(self) -> None:
        while True:
            groups, pages = self._take()
            if not groups:
                return
            started_at = time.monotonic()
            if not self._commit(groups):
                return
            if pages is not None:
                self._store_ids(groups[-1].end_position, pages)
            rest_s = min(self._gather_s, PROMPT_S) - (time.monotonic() - started_at)
            if rest_s > 0 and not self._closing:
                time.sleep(rest_s)

    def _take(self) -> tuple[list[Group], Pages | None]:
        """What waits to be written, and the ids up to its end if they are to be stored. Nothing: the end."""
        with self._changed:
            while not self._group.rows and not self._full and not self._closing:
                self._is_waiting = True
                self._changed.wait()
            self._changed.wait_for(self._is_due, self._gather_s)
            self._is_urgent = False
            groups = self._full
            if self._group.rows:
                groups.append(self._group)
                self._group = Group(self._group.end_position)
            self._full = []
            self._held_bytes = sum(group.bytes for group in groups)
            return groups, self._ids.pages() if groups and self._appender.is_new else None

    def _is_due(self) -> bool:
        return self._is_urgent or self.is_followed or bool(self._full) or self._closing

    def _commit(self, groups: list[Group]) -> bool:
        """False: the disk took nothing and the journal is being closed."""
        retry_s = FIRST_RETRY_S
        while True:
            try:
                self._appender.commit(groups)
                break
            except Exception as error:
                # Whatever it is, the messages wait: this thread must not end before they are written.
                unexpected = None if isinstance(error, OSError) else error
                self._failed(
                    f"cannot write to the journal in {self.directory}: {reason_of(error)}", unexpected
                )
            with self._changed:
                if self._changed.wait_for(lambda: self._closing, retry_s):
                    return False
            retry_s = min(2 * retry_s, MAX_RETRY_S)
        position = groups[-1].end_position
        with suppress(OSError):  # The next commit tells again; until then readers wait.
            files.tell_durable(self._told, position)
        worked = self.failure is None
        with self._changed:
            self._held_bytes = sum(group.bytes for group in self._full)
            self._durable_position = position
            self.failure = None
            self._changed.notify_all()
        if not worked:
            logger.warning("the journal in %s works again", self.directory)
            self._call(self._on_failure, None)
        self._call(self._on_durable, position)
        return True

    def _failed(self, reason: str, unexpected: Exception | None) -> None:
        with self._changed:
            is_new, self.failure = self.failure is None, reason
            self._changed.notify_all()
        if is_new:
            logger.error("%s; nothing is durable until that is mended", reason, exc_info=unexpected)
            self._call(self._on_failure, reason)

    def _call(self, callback: Callable[[T], None], value: T) -> None:
        try:
            callback(value)
        except Exception:
            # A loop that is closed already, say: what was appended is still to be written.
            logger.exception("whoever writes the journal in %s could not be told", self.directory)

    def _store_ids(self, position: int, pages: Pages) -> None:
        try:
            store_ids(self.directory, position, pages)
        except OSError as error:
            # The older file and the segments say the same, at the cost of a longer start.
            logger.warning("cannot store the ids of the journal in %s: %s", self.directory, reason_of(error))


def _is_ours(message_id: MessageId, count: int = 1) -> bool:
    """May a node have given this id, and those of the next messages?"""
    origin, epoch, sequence = message_id
    return 0 <= sequence <= MAX_NUMBER - count and 0 <= epoch <= MAX_NUMBER and 0 < len(origin) <= MAX_ORIGIN


def _microseconds(at: float) -> int:
    """Since 1970. A time that no calendar has is none."""
    return round(at * 1e6) if _MIN_TIME_S <= at < _MAX_TIME_S else NO_TIME


def _properties_text(properties: Properties) -> str:
    """As JSON, under the specification's names; bytes as base64."""
    return json.dumps(properties, default=_bytes_text, separators=(",", ":"))


def _bytes_text(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return b64encode(value).decode()
    raise TypeError(f"not a property: {value!r}")
