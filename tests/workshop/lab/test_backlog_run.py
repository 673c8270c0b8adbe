"""A little of each part, between real nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hedgerow_workshop.lab.backlog.experiment import PARTS, perform
from hedgerow_workshop.lab.backlog.full import why_not
from hedgerow_workshop.lab.backlog.record import FullRecord, LineRecord, SharedRecord
from hedgerow_workshop.lab.backlog.settings import FAST, LINE
from hedgerow_workshop.lab.harness.experiment import Request

LITTLE = replace(
    FAST,
    patience_s=3.0,
    line_messages=900,
    killed_s=0.2,
    stuck_s=1.5,
    shared_sessions=4,
    shared_at_once=2,
    shared_messages=300,
    start_messages=900,
)


@pytest.mark.parametrize("part", [name for name in PARTS if name != "full"])
async def test_all_that_was_acknowledged_comes_once(part: str, tmp_path: Path) -> None:
    records, notes = await perform(LITTLE, tmp_path, Request(parts=[part]))
    assert notes == []
    (record,) = records.values()
    heard = record.heard
    expected = 4 * 300 if part == "shared" else 900
    assert (heard.acknowledged, heard.missing, heard.doubled) == (expected, 0, 0)
    match record:
        case LineRecord():
            assert record.is_killed is (part == "killed")
            assert record.memory.keys() == set(LINE)
        case SharedRecord():
            assert record.message_bytes == 300 * (256 + 9)
            assert record.disk_bytes > 0


@pytest.mark.soak
@pytest.mark.parametrize(("mib", "payload_bytes"), [(32, 4_096), (64, 65_536)])
async def test_a_small_file_system_fills_and_nothing_is_lost(
    mib: int, payload_bytes: int, tmp_path: Path
) -> None:
    """What publishers have in flight of large messages is more than the reserve of the file system."""
    if (reason := why_not(tmp_path)) is not None:
        pytest.skip(reason)
    settings = replace(LITTLE, full_mib=mib, full_bytes=payload_bytes)
    records, _ = await perform(settings, tmp_path, Request(parts=["full"]))
    record = records["full"]
    assert isinstance(record, FullRecord)
    assert (record.has_waited, record.has_continued) == (True, True)
    assert (record.heard.missing, record.heard.doubled) == (0, 0)
