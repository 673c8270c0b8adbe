"""`check`: reads a whole journal and says what is wrong with it. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hedgerow.journal.io import files
from hedgerow.log import scan
from hedgerow.log.files import segments
from hedgerow.log.frame import Damage
from hedgerow.log.scan import Gap


@dataclass
class Report:
    journal_id: str
    first_position: int
    end_position: int
    segments: int = 0
    bytes: int = 0
    frames: int = 0
    messages: int = 0
    """That can be read."""
    gaps: list[Gap] = field(default_factory=list)
    """What cannot be read, in the order of positions."""
    unused_bytes: int = 0
    """That are no frames: damage, and what writers that were killed have left behind."""

    @property
    def is_whole(self) -> bool:
        return not self.gaps

    def __str__(self) -> str:
        lines = [
            f"journal {self.journal_id}: {self.messages} messages at positions {self.first_position} to "
            f"{self.end_position - 1}, {self.segments} segments, {self.frames} frames, {self.bytes} bytes"
        ]
        lines += [f"lost: {gap}" for gap in self.gaps]
        if self.unused_bytes:
            lines.append(f"{self.unused_bytes} bytes are no frames")
        return "\n".join(lines)


def check(directory: Path) -> Report:
    """StoreError: there is no journal."""
    identity = files.journal_id(directory)
    found = segments(directory)
    told = files.durable_position(directory)
    first = found[0].first_position if found else told or 0
    report = Report(identity, first, first if told is None else told, segments=len(found))
    for segment in found:
        with scan.opened(segment) as file:
            report.bytes += segment.path.stat().st_size
            items = list(file.frames())
            report.unused_bytes += sum(
                item.end_offset - item.offset for item in items if isinstance(item, Damage)
            )
    for segment, file, frame in scan.frames(directory, first, told, report.gaps.append):
        report.frames += 1
        report.end_position = max(report.end_position, frame.end_position)
        if frame.read_meta(file) is None:
            report.gaps.append(scan.damage_in(segment, frame, "description"))
        elif frame.read_payloads(file) is None:
            report.gaps.append(scan.damage_in(segment, frame, "payloads"))
        else:
            report.messages += frame.rows
    return report
