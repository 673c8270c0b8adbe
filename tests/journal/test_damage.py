"""Whatever bytes are missing or changed: the journal opens, reads what can be read, and names the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hedgerow.errors import StoreError
from hedgerow.journal import Gap, Writer, check
from hedgerow.journal.io.ids import Ids
from hedgerow.journal.io.recovery import recover
from hedgerow.log import scan
from hedgerow.log.files import segments
from hedgerow.message import MessageId
from tests.journal.plain import numbered, read_plain

GROUPS = ((0, 1, 2), (3,), (4, 5))


@pytest.fixture(autouse=True)
def without_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand journals are opened here, and no power is cut."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setattr(os, "fdatasync", lambda file: None)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three frames in one segment, as a writer that was killed leaves them: no file of ids."""
    directory = tmp_path_factory.mktemp("written")
    with Writer(directory, "node-a", gather_s=0) as writer:
        for group in GROUPS:
            with writer.together():  # one frame
                for sequence in group:
                    writer.append(numbered(sequence), transport="mqtt", received_at=sequence, client="c")
            writer.flush()
    (directory / "ids").unlink()
    return directory


def copies(written: Path, directory: Path) -> Iterator[tuple[int, Path, bytes]]:
    """(offset, segment, its content) for each byte of the segment; each time `directory` is a fresh copy."""
    (name,) = [segment.path.name for segment in segments(written)]
    content = (written / name).read_bytes()
    for offset in range(len(content)):
        fresh_copy(written, directory)
        yield offset, directory / name, content


def fresh_copy(written: Path, directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()
    for path in written.iterdir():
        (directory / path.name).write_bytes(path.read_bytes())


def frame_ends(written: Path) -> list[int]:
    return [frame.offset + frame.size for _, _, frame in scan.frames(written, 0, None, lambda gap: None)]


def test_cut_off_at_every_byte(written: Path, tmp_path: Path) -> None:
    """A writer that was killed: nobody was told that more is durable than there is."""
    ends = frame_ends(written)
    for offset, segment, content in copies(written, tmp_path):
        segment.write_bytes(content[:offset])
        (tmp_path / "durable").unlink()
        whole = [
            sequence for group, end in zip(GROUPS, ends, strict=True) if end <= offset for sequence in group
        ]
        assert [row.payload for row in read_plain(tmp_path)] == [b"%d" % sequence for sequence in whole]
        assert recover(tmp_path, Ids()).next_position == len(whole)
        if offset % 5 and offset not in ends:
            continue
        with Writer(tmp_path, "node-a", gather_s=0) as writer:
            assert writer.next_position == len(whole)
            for sequence in range(7):  # All come again, as from publishers who heard no acknowledgement.
                writer.append(numbered(sequence), transport="mqtt", received_at=sequence, client="c")
            assert writer.duplicates == len(whole)
        rows = read_plain(tmp_path)
        assert [(row.position, row.payload) for row in rows] == [(k, b"%d" % k) for k in range(7)]
        assert check(tmp_path).is_whole


def test_cut_off_behind_what_was_told_to_be_durable(written: Path, tmp_path: Path) -> None:
    """A disk that lost what it had synced: positions that readers know are not given to other messages."""
    ends = frame_ends(written)
    kept = 0
    for offset, segment, content in copies(written, tmp_path):
        segment.write_bytes(content[:offset])
        kept = sum(len(group) for group, end in zip(GROUPS, ends, strict=True) if end <= offset)
        gaps: list[Gap] = []
        assert len(read_plain(tmp_path, gaps=gaps)) == kept
        assert [(gap.start, gap.end) for gap in gaps] == [(kept, 6)]
        assert recover(tmp_path, Ids()).next_position == 6
        report = check(tmp_path)
        assert [(gap.start, gap.end) for gap in report.gaps] == [(kept, 6)]
        assert report.messages == kept
    with Writer(tmp_path, "node-a") as writer:
        writer.append(numbered(9), transport="mqtt", received_at=9)
    assert check(tmp_path).messages == kept + 1


def test_a_bit_flipped_at_every_byte(written: Path, tmp_path: Path) -> None:
    ends = frame_ends(written)
    for offset, segment, content in copies(written, tmp_path):
        segment.write_bytes(
            content[:offset] + bytes([content[offset] ^ 1 << offset % 8]) + content[offset + 1 :]
        )
        hit = next(number for number, end in enumerate(ends) if offset < end)
        lost = GROUPS[hit]
        expected = [sequence for group in GROUPS for sequence in group if group is not lost]
        gaps: list[Gap] = []
        assert [row.position for row in read_plain(tmp_path, gaps=gaps)] == expected
        assert [(gap.start, gap.end) for gap in gaps] == [(lost[0], lost[-1] + 1)]
        assert segment.name in gaps[0].reason
        report = check(tmp_path)
        assert not report.is_whole
        assert report.messages == len(expected)
        assert str(gaps[0].start) in str(report)
        ids = Ids()
        assert recover(tmp_path, ids).next_position == 6
        # What is lost may come again, unless only its payload is: then the id is still there.
        assert all(ids.seen(MessageId("node-a", 1, sequence)) for sequence in expected)


@pytest.mark.parametrize("name", ["durable", "ids", "lock"])
def test_small_files_at_every_byte(written: Path, tmp_path: Path, name: str) -> None:
    Writer(written, "node-a").close()
    content = (written / name).read_bytes()
    for offset in range(len(content)):
        for damaged in (
            content[:offset],
            content[:offset] + bytes([content[offset] ^ 4]) + content[offset + 1 :],
        ):
            fresh_copy(written, tmp_path)
            (tmp_path / name).write_bytes(damaged)
            assert len(read_plain(tmp_path)) == 6
            ids = Ids()
            assert recover(tmp_path, ids).next_position == 6
            assert ids.seen(MessageId("node-a", 1, 5))


def test_a_payload_that_looks_like_a_frame_is_none(written: Path, tmp_path: Path) -> None:
    """After damage the next frame is searched; what a publisher copied from another journal is not it."""
    forged = segments(written)[0].path.read_bytes()
    with Writer(tmp_path, "node-a") as writer:
        writer.append(numbered(77, payload=forged), transport="mqtt", received_at=1)
        writer.flush()
        writer.append(numbered(78), transport="mqtt", received_at=1)
    (segment,) = segments(tmp_path)
    content = bytearray(segment.path.read_bytes())
    content[0] ^= 1
    segment.path.write_bytes(content)
    assert [(row.position, row.payload) for row in read_plain(tmp_path)] == [(1, b"78")]


@pytest.mark.parametrize("shift", range(-9, 10, 3))
def test_the_next_frame_is_found_wherever_it_begins(tmp_path: Path, shift: int) -> None:
    """Also across the end of what is searched at once."""
    overhead = 0
    for directory, size in ((tmp_path / "a", 0), (tmp_path / "b", 65_536 + shift)):
        with Writer(directory, "node-a") as writer:
            writer.append(numbered(1, payload=bytes(size - overhead)), transport="mqtt", received_at=1)
            writer.flush()
            writer.append(numbered(2), transport="mqtt", received_at=1)
        overhead = frame_ends(directory)[0]
    assert overhead == 65_536 + shift
    (segment,) = segments(tmp_path / "b")
    content = bytearray(segment.path.read_bytes())
    content[0] ^= 1
    segment.path.write_bytes(content)
    assert [row.payload for row in read_plain(tmp_path / "b")] == [b"2"]


def test_where_there_is_no_journal(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no journal"):
        check(tmp_path / "missing")


def test_a_report_of_a_whole_journal(written: Path) -> None:
    report = check(written)
    assert (report.messages, report.frames, report.segments, report.unused_bytes) == (6, 3, 1, 0)
    assert (report.first_position, report.end_position) == (0, 6)
    assert "6 messages at positions 0 to 5" in str(report)
