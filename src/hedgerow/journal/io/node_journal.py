"""A node's journal on its disk: the `Journal` that the broker records into, and what belongs to it.

Recording appends to the `Writer`'s buffer on the loop's thread; the writer's own thread makes it durable, and
wakes the loop only when acknowledgements wait for that (`expect`). The buffer is bounded. QoS 0 may use half
of it, so that what must be acknowledged finds room for longer: what finds none is *missed*, which is counted,
and told in the log when it begins and when it is over. While the disk takes nothing the writer tries again by
itself. Opening, closing and removing what is old happen in threads: they wait for the disk.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from hedgerow.errors import StoreError, reason_of
from hedgerow.journal import Writer, retain
from hedgerow.journal.io.files import InUseError
from hedgerow.journal.io.writer import BUFFER_BYTES, SEGMENT_BYTES
from hedgerow.message import Message, MessageId

if TYPE_CHECKING:
    from hedgerow.journal.config import JournalConfig
    from hedgerow.journal.observer import Source

logger = logging.getLogger(__name__)

RETAIN_EVERY_S = 30.0
IN_USE_S = 2.0  # A node that is being stopped may hold its journal for so long.
RETRY_S = 0.1
TOO_SLOW = "its disk is slower than what comes"
MIN_PACKETS = 8  # in a row that are written as they came: for fewer, their heads cost the disk more
SEGMENTS_OF_MAX_BYTES = 8
MIN_SEGMENT_BYTES = 64 * 1024


class NodeJournal:
    """`open` makes one. `on_durable` is called on the loop when the position that was expected is durable."""

    def __init__(
        self, config: JournalConfig, node_id: str, loop: asyncio.AbstractEventLoop, buffer_bytes: int
    ) -> None:
        """In a thread: it waits for the disk. Raises StoreError."""
        self.on_durable: Callable[[], None] = lambda: None
        self.missed = 0
        """Messages that were passed on, and not recorded, for want of room."""
        self.bytes = 0
        """Of the payloads that were recorded."""
        self._loop = loop
        self.on_grown: Callable[[], None] = lambda: None
        """Called on the loop when there is more than the position that a reader is at."""
        self._expected: int | None = None
        self._read_until: int | None = None
        self._is_waking = False
        self._is_missing = False
        self._is_closed = False
        self._buffer_bytes = buffer_bytes
        self._retaining: asyncio.Task[None] | None = None
        self.writer = Writer(
            config.directory,
            node_id,
            on_durable=self._was_written,
            segment_bytes=segment_bytes_for(config),
            # The bound is kept here: what the broker was told there is room for goes in, in however many
            # pieces, each of which takes a little more than its payloads.
            buffer_bytes=sys.maxsize,
        )
        self._first_position = self.writer.next_position

    @classmethod
    async def open(cls, config: JournalConfig, node_id: str, buffer_bytes: int = BUFFER_BYTES) -> NodeJournal:
        """Raises StoreError, saying what to do."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + IN_USE_S
        while True:
            opening = asyncio.ensure_future(asyncio.to_thread(cls, config, node_id, loop, buffer_bytes))
            try:
                journal = await asyncio.shield(opening)
            except InUseError:
                if loop.time() > give_up_at:
                    raise
                await asyncio.sleep(RETRY_S)
            except asyncio.CancelledError:
                # The thread goes on, and what it opens stays locked until it is closed.
                with suppress(StoreError):
                    await asyncio.to_thread((await opening).writer.close)
                raise
            else:
                if not config.retains_all:
                    journal._retaining = loop.create_task(retain_for_ever(config))
                return journal

    # What the broker calls

    @property
    def is_behind(self) -> bool:
        return self.writer.durable_position < self.writer.next_position

    def has_room(self, size: int) -> bool:
        held = self.writer.buffered_bytes
        return not held or held + size <= self._buffer_bytes

    def record(self, message: Message, source: Source, now: float) -> bool:
        size = len(message.payload)
        if not self._may_record(size, message.qos, 1):
            return False
        transport, client = source
        self.writer.append(message, transport=transport, received_at=now, client=client)
        self.bytes += size
        return True

    def record_run(
        self,
        topic: str,
        payloads: Sequence[bytes],
        first_id: MessageId,
        qos: int,
        source: Source,
        now: float,
    ) -> bool:
        size = sum(map(len, payloads))
        # At QoS 1 the broker has asked whether there is room for all of them.
        if self._is_closed or (not qos and not self._may_record(size, 0, len(payloads))):
            return False
        transport, client = source
        self.writer.append_run(
            topic, payloads, transport=transport, received_at=now, client=client, first_id=first_id, qos=qos
        )
        self.bytes += size
        return True

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
        count = len(packets) // size
        if count < MIN_PACKETS:
            payloads = [packets[start + head : start + size] for start in range(0, len(packets), size)]
            return self.record_run(topic, payloads, first_id, 0, source, now)
        if not self._may_record(len(packets), 0, count):
            return False
        transport, client = source
        self.writer.append_packets(
            topic, packets, size, head, transport=transport, received_at=now, client=client, first_id=first_id
        )
        self.bytes += count * (size - head)
        return True

    def _may_record(self, size: int, qos: int, count: int) -> bool:
        held = self.writer.buffered_bytes
        half = self._buffer_bytes // 2
        has_room = (not held or held + size <= self._buffer_bytes) and (qos > 0 or held <= half)
        if has_room and not self._is_closed:
            if self._is_missing and held <= half // 2:
                self._is_missing = False
                logger.warning("the journal records everything again; it missed %d messages", self.missed)
            return True
        self.missed += count
        if not self._is_missing and not self._is_closed:
            self._is_missing = True
            why = self.writer.failure or TOO_SLOW
            logger.warning("the journal misses messages, which are passed on all the same: %s", why)
        return False

    def figures(self) -> dict[str, int]:
        writer = self.writer
        return {
            "messages/recorded": writer.next_position - self._first_position,
            "messages/durable": writer.durable_position,
            "messages/duplicates": writer.duplicates,
            "messages/missed": self.missed,
            "bytes/recorded": self.bytes,
            "bytes/buffered": writer.buffered_bytes,
        }

    # What the shell calls

    @property
    def next_position(self) -> int:
        return self.writer.next_position

    @property
    def failure(self) -> str | None:
        """Why not all is recorded, while that lasts."""
        is_missing = self._is_missing and self.writer.buffered_bytes > self._buffer_bytes // 4
        return self.writer.failure or (f"the journal misses messages: {TOO_SLOW}" if is_missing else None)

    def expect(self, position: int) -> bool:
        """Is everything below `position` durable? If not, `on_durable` is called when it is."""
        self._expected = position
        # Asked after it was set: the writer's thread sets the one and asks for the other.
        if self.writer.durable_position < position:
            self.writer.hurry()
            return False
        self._expected = None
        return True

    def wake_beyond(self, position: int) -> None:
        """A reader has everything up to here."""
        read_until = self._read_until
        self._read_until = position if read_until is None else min(position, read_until)
        self.writer.is_followed = True
        if self.writer.next_position > position:
            self.writer.hurry()
        if self.writer.durable_position > position:  # Asked after it was set, as above.
            self._was_written(self.writer.durable_position)

    async def close(self) -> None:
        """When nothing more is published: make durable what can be."""
        self._is_closed = True
        if self._retaining is not None:
            self._retaining.cancel()
            await asyncio.wait((self._retaining,))
        try:
            await asyncio.to_thread(self.writer.close)
        except StoreError as error:
            logger.error("the last messages are not in the journal: %s", error)

    # On the writer's thread

    def _was_written(self, position: int) -> None:
        expected, read_until = self._expected, self._read_until
        with suppress(RuntimeError):  # The loop is closed: nobody waits any more.
            if expected is not None and position >= expected and not self._is_waking:
                self._is_waking = True
                self._loop.call_soon_threadsafe(self._wake)
            if read_until is not None and position > read_until:
                self._read_until = None
                self._loop.call_soon_threadsafe(self._tell_readers)

    def _wake(self) -> None:
        self._is_waking = False
        self.on_durable()

    def _tell_readers(self) -> None:
        self.writer.is_followed = False
        self.on_grown()


async def retain_for_ever(config: JournalConfig, every_s: float = RETAIN_EVERY_S) -> None:
    """Remove what is beyond the limits now, and again and again; to be cancelled."""
    remove = partial(
        retain,
        config.directory,
        max_bytes=config.max_bytes,
        max_age_s=config.max_age_s,
        drop_committed=config.drop_committed,
    )
    while True:
        try:
            removed = await asyncio.to_thread(remove)
        except OSError as error:
            logger.error("cannot remove what is old from the journal: %s", reason_of(error))
        else:
            if removed.untaken:
                text = "removed %d messages of the journal that not every reader had taken"
                logger.warning(text, removed.untaken)
        await asyncio.sleep(every_s)


def segment_bytes_for(config: JournalConfig) -> int:
    """Small enough that the limit of size can be kept: only whole segments go, and never the newest."""
    if config.max_bytes is None:
        return SEGMENT_BYTES
    return max(min(SEGMENT_BYTES, config.max_bytes // SEGMENTS_OF_MAX_BYTES), MIN_SEGMENT_BYTES)
