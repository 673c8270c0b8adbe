"""A broker machine with a journal in memory, and replays of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hedgerow.broker.broker import Broker
from hedgerow.journal.replay.names import LAST, TIME, Start
from hedgerow.journal.replay.pages import FrameRuns, Page
from hedgerow.journal.replay.source import ReplaySource
from hedgerow.log.frame import HEADER_BYTES, Group, LogFrame
from hedgerow.message import MessageId
from tests.broker.harness import World

MARKER = b"segment1"
ORIGIN = "origin"


def frame_runs(group: Group) -> FrameRuns:
    """A frame as it comes from the disk."""
    head, *payloads = group.encode(MARKER)
    frame = LogFrame.read(head, 0, MARKER)
    assert frame is not None
    return FrameRuns(frame, memoryview(head)[HEADER_BYTES:], memoryview(b"".join(payloads)))


class MemoryJournal:
    """Frames, a page each, which it takes a second question to have; `wake` is called when there is more."""

    journal_id = "journal"

    def __init__(self) -> None:
        self.frames: list[FrameRuns] = []
        self.asked: list[int] = []
        self.awaited: int | None = None

    @property
    def end_position(self) -> int:
        return self.frames[-1].frame.end_position if self.frames else 0

    def add(self, *publications: tuple[str, Sequence[bytes], int]) -> None:
        """A frame of messages in a row: topic, payloads, QoS."""
        group = Group(self.end_position)
        for topic, payloads, qos in publications:
            first_id = MessageId(ORIGIN, 1, group.end_position)
            group.add(payloads, "node", "mqtt", None, topic, None, first_id, 0, 1_000_000, qos)
        self.frames.append(frame_runs(group))

    def page(self, position: int) -> Page | None:
        if position not in self.asked:
            self.asked.append(position)
            return None
        self.asked.remove(position)
        found = next(each for each in self.frames if each.frame.end_position > position)
        return Page(position, found.frame.end_position, (found,), 0, 0)

    def find(self, start: Start, topic_filter: str, found: Callable[[int], None]) -> None:
        assert start.kind not in {TIME, LAST}
        found(min(int(start.number), self.end_position))

    def wake_beyond(self, position: int) -> None:
        self.awaited = position


class JournalledWorld(World):
    def __init__(self, **options: Any) -> None:
        self.journal = MemoryJournal()
        super().__init__(**options)

    def prepare(self, broker: Broker) -> None:
        self.replays = ReplaySource(broker, self.journal)
        broker.serve(self.replays)
        self.replays.restore()

    def record(self, *publications: tuple[str, Sequence[bytes], int]) -> None:
        self.journal.add(*publications)
        self.replays.grown()
        self.settle()

    def settle(self) -> None:
        super().settle()
        while self.replays.serve() or self.journal.asked:
            super().settle()
            if not self.replays.behind:
                break
