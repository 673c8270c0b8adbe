"""Looks at what waits for each session, a few sessions at a time.

It tells of it in the status, in the metrics, in the log when the bound is near, and in a file of the data
directory for `hedgerow doctor`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hedgerow.node.backlogs import (
    FILE,
    Backlogs,
    LogReader,
    Look,
    Room,
    Watch,
    encode,
    owner_in_words,
    reader_in_words,
    room_in_words,
)
from hedgerow.node.part import NEVER, NodeContext, Part

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from hedgerow.broker.session import Session

LOOK_S = 5.0
SESSIONS_AT_ONCE = 2_000  # a millisecond
NEXT_S = 0.02
FILE_S = 60.0  # An SD card has only so many writes.


def reader_of(session: Session) -> LogReader | None:
    """None: nothing waits for it."""
    count = session.waiting_count
    if not count:
        return None
    return LogReader(
        session.client_id,
        session.username,
        session.role.is_link,
        session.connection is not None,
        count,
        session.queued_bytes,
        session.stored.oldest_at if session.stored is not None else None,
    )


@dataclass(slots=True)
class BoundNear:
    """What waits takes most of the room that there is for it, or no longer does."""

    history_kind: ClassVar[str] = "full"
    backlogs: Backlogs
    is_near: bool

    @property
    def level(self) -> int:
        return logging.WARNING if self.is_near else logging.INFO

    def __str__(self) -> str:
        room = f"waiting messages take {room_in_words(self.backlogs.room)}"
        if not self.is_near:
            return f"{room}: there is room again"
        owners = [owner_in_words(each) for each in self.backlogs.owners[:1]]
        largest = [reader_in_words(each, self.backlogs.at) for each in self.backlogs.largest[:1]]
        return "; most for ".join([room, *owners, *largest])


class BacklogWatch(Part):
    sessions_at_once = SESSIONS_AT_ONCE
    file_s = FILE_S

    def __init__(self, node: NodeContext) -> None:
        super().__init__(node)
        self.backlogs: Backlogs | None = None
        """As of the last look."""
        self._watch = Watch()
        self._look_at = NEVER
        self._look = Look()
        self._left: Iterator[Session] | None = None  # sessions of a look that has begun
        self._write_at = 0.0
        self._written: Backlogs | None = None
        self._writing: asyncio.Future[None] | None = None

    async def start(self) -> None:
        self._look_at = self.node.clock()

    async def stop(self) -> None:
        self._look_at = NEVER
        if self._writing is not None:
            await self._writing

    @property
    def deadline(self) -> float:
        return self._look_at

    def handle_timer(self, now: float) -> None:
        if self._left is None:
            self._look, self._left = Look(), iter(list(self.node.broker.sessions.values()))
        some = list(islice(self._left, self.sessions_at_once))
        self._look.add(reader for session in some if (reader := reader_of(session)) is not None)
        if len(some) == self.sessions_at_once:
            self._look_at = now + NEXT_S
            return
        self._left, self._look_at = None, now + LOOK_S
        self._conclude(now)

    def room(self) -> Room:
        """What waits, as of this look, and what may."""
        durability = self.node.broker.durability
        if not durability.enabled:
            return Room(self._look.bytes, limit=None)
        return Room(durability.log_bytes, durability.bounds.bytes)

    def _conclude(self, now: float) -> None:
        durability = self.node.broker.durability
        held_bytes = durability.needed.held_bytes(durability.next_position)
        backlogs = self._watch.conclude(self._look, self.room(), now, held_bytes)
        self.backlogs = backlogs
        is_near = self._watch.crossed(backlogs)
        if is_near is not None:
            self.node.event_log.write(BoundNear(backlogs, is_near), now)
        directory = self.node.config.data
        if directory is not None and now >= self._write_at and self._is_news(backlogs):
            self._write_at, self._written = now + self.file_s, backlogs
            loop = asyncio.get_running_loop()
            self._writing = loop.run_in_executor(None, write_file, directory / FILE, encode(backlogs))

    def _is_news(self, backlogs: Backlogs) -> bool:
        """Nothing is written, again and again, of nodes for whose readers nothing waits."""
        written = self._written
        return written is None or bool(backlogs.readers or written.readers)

    # What it shows

    def status(self) -> Mapping[str, Any]:
        return {} if self.backlogs is None else {"backlog": self.backlogs.summary()}

    def metrics(self) -> Iterable[Metric]:
        from hedgerow.node.backlog_metrics import metrics_of

        return metrics_of(self.backlogs, self.node.clock())


def write_file(path: Path, data: bytes) -> None:
    """As a whole or not at all. Where there is no room for it, there are other signs of that."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    with suppress(OSError):
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        unfinished.replace(path)
