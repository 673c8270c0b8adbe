from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from hedgerow.errors import StoreError
from hedgerow.journal import Gap, Writer, committed_positions, retain, store_committed
from hedgerow.journal.io.times import times_path
from hedgerow.log import scan
from hedgerow.log.files import Segment, segments
from hedgerow.log.frame import SegmentFile
from tests.journal.plain import numbered, read_plain


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Ten segments with two messages each, received at 0, 1, …, 19 s."""
    with Writer(tmp_path, "node-a", segment_bytes=1, gather_s=0) as writer:
        for sequence in range(0, 20, 2):
            with writer.together():
                for number in (sequence, sequence + 1):
                    writer.append(numbered(number), transport="mqtt", received_at=number)
            writer.flush()
    return tmp_path


def positions(directory: Path) -> list[int]:
    gaps: list[Gap] = []
    found = read_plain(directory, segments(directory)[0].first_position, gaps)
    assert not gaps
    return [row.position for row in found]


def test_without_a_limit_nothing_goes(directory: Path) -> None:
    assert retain(directory) == (0, 0, 0, 0)
    assert positions(directory) == list(range(20))


def test_by_size(directory: Path) -> None:
    size = segments(directory)[0].path.stat().st_size
    removed = retain(directory, max_bytes=3 * size + 10)
    assert (removed.segments, removed.first_position, removed.untaken) == (7, 14, 0)
    assert positions(directory) == list(range(14, 20))


def test_by_age(directory: Path) -> None:
    assert retain(directory, max_age_s=10, now=19).first_position == 8
    assert positions(directory) == list(range(8, 20))


def walks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of each segment that is opened to look at it."""
    looked_at: list[int] = []
    opened = scan.opened

    def count(segment: Segment) -> AbstractContextManager[SegmentFile]:
        looked_at.append(segment.number)
        return opened(segment)

    monkeypatch.setattr(scan, "opened", count)
    return looked_at


def test_by_age_no_segment_is_walked_through(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = walks(monkeypatch)
    assert retain(directory, max_age_s=10, now=19).first_position == 8
    assert looked_at == []
    assert len(list(directory.glob("*.times"))) == len(segments(directory)) == 6


def test_by_age_after_a_kill_and_where_the_note_is_damaged(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = segments(directory)[:2]
    killed = tmp_path / "killed"
    with Writer(tmp_path / "live", "node-a") as writer:
        for number in range(4):
            writer.append(numbered(number), transport="mqtt", received_at=number)
        writer.flush()
        # What is being written anew may be gone when it is its turn.
        shutil.copytree(tmp_path / "live", killed, ignore=shutil.ignore_patterns("*.new"))
    with Writer(killed, "node-a") as writer:
        writer.append(numbered(4), transport="mqtt", received_at=100)
    looked_at = walks(monkeypatch)
    assert retain(killed, max_age_s=90, now=92.5).first_position == 0
    assert retain(killed, max_age_s=90, now=100).first_position == 4
    assert looked_at == []

    times_path(first).write_bytes(times_path(first).read_bytes()[:-1] + b"?")
    times_path(second).unlink()
    for _ in range(2):
        assert retain(directory, max_age_s=18, now=18.5).first_position == 0
    assert looked_at == [first.number]
    assert retain(directory, max_age_s=10, now=19).first_position == 8
    assert looked_at == [first.number, second.number]


def test_by_what_all_readers_have_committed(directory: Path) -> None:
    assert retain(directory, drop_committed=True).segments == 0
    store_committed(directory, "bronze", 13)
    store_committed(directory, "hot", 7)
    assert committed_positions(directory) == {"bronze": 13, "hot": 7}
    assert retain(directory).segments == 0
    removed = retain(directory, drop_committed=True)
    assert (removed.segments, removed.first_position, removed.untaken) == (3, 6, 0)


def test_what_nobody_had_taken_is_told(directory: Path) -> None:
    store_committed(directory, "bronze", 5)
    assert retain(directory, max_bytes=0).untaken == 13
    assert positions(directory) == [18, 19]


def test_a_damaged_commit_holds_everything(directory: Path) -> None:
    store_committed(directory, "bronze", 20)
    (directory / "committed-bronze").write_bytes(b"?")
    assert retain(directory, drop_committed=True).segments == 0


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 200, "x.new"])
def test_a_name_that_is_no_file_is_refused(directory: Path, name: str) -> None:
    with pytest.raises(ValueError, match="name of a reader"):
        store_committed(directory, name, 1)


def test_nothing_is_committed_where_there_is_no_journal(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no journal"):
        store_committed(tmp_path, "bronze", 1)


def test_a_writer_goes_on_beside_it(tmp_path: Path) -> None:
    with Writer(tmp_path, "node-a", segment_bytes=1, gather_s=0) as writer:
        for sequence in range(30):
            writer.append(numbered(sequence), transport="mqtt", received_at=sequence)
            writer.flush()
            retain(tmp_path, max_bytes=400)
    assert positions(tmp_path)[-1] == 29
    with Writer(tmp_path, "node-a") as writer:
        assert writer.next_position == 30
