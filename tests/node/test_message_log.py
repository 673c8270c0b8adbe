"""The log of messages: what was committed is there, once, whatever happens to disk and process."""

from __future__ import annotations

import errno
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hedgerow.broker.stored import Run
from hedgerow.errors import StoreError
from hedgerow.log.files import segments
from hedgerow.message import Message, MessageId
from hedgerow.node.message_log import DiskLog, ReadBounds
from tests.full_disks import file_size_limit
from tests.node.test_store import run_python

PLENTY = 1 << 30


def message(position: int, size: int = 8) -> Message:
    return Message(f"t/{position % 3}", b"%0*d" % (size, position), 1, id=MessageId("n", 1, position))


def write(log: DiskLog, first: int, count: int = 1, begins_segment: bool = False, size: int = 8) -> None:
    messages = [message(position, size) for position in range(first, first + count)]
    log.write(messages, first, float(first), begins_segment)


def commit(log: DiskLog, first: int, count: int = 1, begins_segment: bool = False, size: int = 8) -> None:
    write(log, first, count, begins_segment, size)
    log.commit()
    log.confirm()


def read(log: DiskLog, *runs: Run, most_bytes: int = PLENTY, size: int = 8) -> list[int]:
    """Positions that can be read, after checking what is there."""
    found, _ = log.read(runs, most_bytes)
    assert [each.message for each in found] == [message(each.position, size) for each in found]
    return [each.position for each in found]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[DiskLog]:
    opened = DiskLog.open(tmp_path / "log")
    yield opened
    opened.close()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def without_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setattr(os, "fdatasync", lambda file: None)


def reopened(log: DiskLog, next_position: int = 1) -> DiskLog:
    log.close()
    return DiskLog.open(log.directory, next_position, log.bounds)


# Reading


def test_messages_are_read_by_position(log: DiskLog) -> None:
    commit(log, 1, 5)
    commit(log, 6, 5, begins_segment=True)
    commit(log, 11, 2)
    for each in log, reopened(log):
        assert each.next_position == 13
        assert each.segments[0][0] == 1
        assert [first for first, _ in each.segments] == [1, 6]
        assert each.spans == [(1, 6), (6, 13)]
        assert read(each, (1, 12)) == list(range(1, 13))
        assert read(each, (2, 1), (4, 3), (10, 2)) == [2, 4, 5, 6, 10, 11]
        found, end = each.read([(4, 3)], PLENTY)
        assert (end, [each.at for each in found]) == (7, [1.0, 1.0, 6.0])
        assert each.read([], 1) == ([], 0)


def test_what_is_not_there_yet_is_not_read(log: DiskLog) -> None:
    commit(log, 1, 3)
    write(log, 4, 3)
    assert log.read([(1, 1), (3, 9)], PLENTY)[1] == 4
    assert read(log, (3, 9)) == [3]
    assert log.read([(4, 1)], PLENTY) == ([], 4)
    log.commit()
    assert read(log, (3, 9)) == [3, 4, 5, 6]


@pytest.mark.parametrize("frames", [1, 4])
def test_a_page_ends_where_it_has_so_many_bytes(log: DiskLog, frames: int) -> None:
    for first in range(1, 41, 40 // frames):
        commit(log, first, 40 // frames, size=1000)
    for most_bytes, count in (0, 1), (1, 1), (999, 1), (1_100, 2), (4_900, 5), (38_000, 38), (PLENTY, 40):
        found, end = log.read([(1, 40)], most_bytes)
        assert (len(found), end) == (count, count + 1), most_bytes
        found, end = log.read([(each, 1) for each in range(1, 41, 2)], most_bytes)
        assert (len(found), end) == (min(count, 20), 2 * min(count, 20)), most_bytes


def test_large_texts_count(log: DiskLog) -> None:
    messages = [Message("t", b"", properties={"content_type": f"{n}" * 10_000}) for n in range(9)]
    log.write(messages, 1, 1.0)
    log.commit()
    assert [each.message for each in log.read([(1, 9)], 35_000)[0]] == messages[:4]


def test_those_who_read_the_same_share_it(log: DiskLog) -> None:
    commit(log, 1, 1000)
    first, _ = log.read([(1, 1000)], PLENTY)
    again, _ = log.read([(n, 1) for n in range(1, 1001)], PLENTY)
    assert all(one is other for one, other in zip(first, again, strict=True))


def test_memory_is_bounded(tmp_path: Path) -> None:
    log = DiskLog.open(tmp_path / "log", bounds=ReadBounds(20_000, frames_indexed=50, open_files=3))
    for first in range(1, 401):
        commit(log, first, begins_segment=first % 20 == 1)
    log = reopened(log)
    open_before = open_files()
    generator = random.Random(1)
    for first in [*range(1, 400), *(generator.randrange(1, 400) for _ in range(400))]:
        assert read(log, (first, 2)) == [first, first + 1]
    assert sum(page.bytes for page in log.pages.values()) == log.page_bytes <= 20_000
    assert log.frames_indexed <= 50 + 40
    assert open_files() <= open_before + 3
    assert log.damaged == 0
    log.close()
    assert open_files() == open_before


def test_what_cannot_be_read_for_now_is_not_lost(
    log: DiskLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    commit(log, 1, 3)
    commit(log, 4, 3, begins_segment=True)
    assert read(log, (1, 3)) == [1, 2, 3]

    def refuse(*arguments: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        for _ in range(2):
            found, end = log.read([(1, 6)], PLENTY)
            assert (len(found), end) == (3, 4)
    assert caplog.text.count("Too many open files") == 1
    assert read(log, (1, 6)) == [1, 2, 3, 4, 5, 6]
    assert log.damaged == 0


# Writing


def test_a_segment_of_an_earlier_life_is_not_written_again(log: DiskLog) -> None:
    commit(log, 1)
    (first,) = segments(log.directory)
    content = first.path.read_bytes()
    log = reopened(log)
    commit(log, 2)
    assert first.path.read_bytes() == content
    assert [first for first, _ in log.segments] == [1, 2]
    log.close()


def test_positions_are_not_given_twice(log: DiskLog) -> None:
    commit(log, 1, 3)
    with pytest.raises(RuntimeError, match="position 3 was given before"):
        write(log, 3)
    log = reopened(log, next_position=9)
    assert log.next_position == 9
    with pytest.raises(RuntimeError, match="position 8 was given before"):
        write(log, 8)
    commit(log, 12)
    assert read(log, (1, 20)) == [1, 2, 3, 12]
    assert log.damaged == 0
    log.close()


def test_what_is_abandoned_may_come_again(log: DiskLog) -> None:
    commit(log, 1, 2)
    for begins_segment in False, True, False:
        for is_committed in False, True:
            before = log.bytes, log.segments
            log.write([Message("another", b"never", 1)] * 5, 3, 1.0, begins_segment)
            if is_committed:
                log.commit()
                assert log.read([(3, 1)], 1)[0][0].message.topic == "another"
            log.abandon()
            assert (log.bytes, log.segments, log.next_position) == (*before, 3)
            assert read(log, (1, 9)) == [1, 2]
    log.abandon()
    commit(log, 3, 2)
    log.abandon()  # It was confirmed.
    for each in log, reopened(log):
        assert read(each, (1, 9)) == [1, 2, 3, 4]
        assert sum(segment.path.stat().st_size for segment in segments(log.directory)) == each.bytes


def test_what_the_disk_does_not_let_go_of_is_not_read(log: DiskLog, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    commit(log, 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "truncate", refuse)
        log.write([Message("another", b"never", 1)] * 5, 3, 1.0)
        log.commit()
        log.abandon()
    commit(log, 3, 2)
    commit(log, 5)
    for each in log, reopened(log):
        assert read(each, (1, 9)) == [1, 2, 3, 4, 5]
        assert each.damaged == 0


@pytest.mark.parametrize("begins_segment", [False, True])
@pytest.mark.parametrize("call", ["writev", "fdatasync", "open"])
def test_a_disk_that_fails(
    log: DiskLog, monkeypatch: pytest.MonkeyPatch, call: str, begins_segment: bool
) -> None:
    commit(log, 1, 2)
    real = getattr(os, call)

    def fail(file: int, *arguments: Any) -> int:
        if call == "writev":
            real(file, [b"".join(arguments[0])[:100]])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        for attempt in range(3):
            write(log, 3, 2, begins_segment)
            if call == "open" and not begins_segment:
                break
            with pytest.raises(StoreError, match=f"cannot write to {log.directory}: No space left"):
                log.commit()
            log.abandon()
            assert log.next_position == 3, attempt
        else:
            write(log, 3, 2, begins_segment)
    log.commit()
    for each in log, reopened(log):
        assert read(each, (1, 9)) == [1, 2, 3, 4]
        assert each.damaged == 0
        assert len(segments(log.directory)) <= 2


def test_a_file_that_cannot_grow(log: DiskLog) -> None:
    commit(log, 1, 2)
    with file_size_limit(1_000):
        write(log, 3, 100)
        with pytest.raises(StoreError, match="File too large"):
            log.commit()
    commit(log, 3, 100)
    assert read(log, (1, 200)) == list(range(1, 103))


# Removing


def test_segments_wholly_inside_are_removed(log: DiskLog) -> None:
    for first in range(1, 60, 10):
        commit(log, first, 10, begins_segment=True)
    for first, _ in log.segments:
        assert read(log, (first, 1)) == [first]  # All are open.
    log.remove(11, 21)
    log.remove(35, 52)
    assert [first for first, _ in log.segments] == [1, 21, 31, 51]
    assert read(log, (1, 60)) == [*range(1, 11), *range(21, 41), *range(51, 61)]
    log.remove(51, 61)
    assert log.next_position == 61
    commit(log, 61)
    assert read(log, (1, 99)) == [*range(1, 11), *range(21, 41), 61]
    assert log.damaged == 0
    for each in log, reopened(log):
        assert each.bytes == sum(path.stat().st_size for path in log.directory.iterdir())
        assert read(each, (1, 10), (25, 10), (61, 5)) == [*range(1, 11), *range(25, 35), 61]
        assert each.damaged == 0


# Damage


GROUPS = ((1, 2, 3), (4,), (5, 6))


@pytest.fixture
def written(log: DiskLog, without_sync: None) -> tuple[Path, bytes, list[int]]:
    """A segment of three frames: its file, the content, and where each frame ends."""
    ends = []
    for group in GROUPS:
        commit(log, group[0], len(group))
        ends.append(log.bytes)
    (segment,) = segments(log.directory)
    return segment.path, segment.path.read_bytes(), ends


def test_cut_off_at_every_byte(written: tuple[Path, bytes, list[int]]) -> None:
    path, content, ends = written
    for offset in range(len(content)):
        path.write_bytes(content[:offset])
        log = DiskLog.open(path.parent)
        whole = [each for group, end in zip(GROUPS, ends, strict=True) if end <= offset for each in group]
        assert log.next_position == len(whole) + 1
        assert read(log, (1, 9)) == whole
        commit(log, log.next_position, 3)
        assert read(log, (1, 9)) == list(range(1, len(whole) + 4))
        assert log.damaged == 0
        log.remove(len(whole) + 1, len(whole) + 4)
        log.close()


def test_each_byte_changed(written: tuple[Path, bytes, list[int]], caplog: pytest.LogCaptureFixture) -> None:
    path, content, ends = written
    for offset in range(len(content)):
        path.write_bytes(
            content[:offset] + bytes([content[offset] ^ 1 << offset % 8]) + content[offset + 1 :]
        )
        hit = next(number for number, end in enumerate(ends) if offset < end)
        expected = [each for group in GROUPS for each in group if group is not GROUPS[hit]]
        log = DiskLog.open(path.parent, next_position=7)
        commit(log, 7)
        caplog.clear()
        for _ in range(2):
            assert read(log, *((each, 1) for each in range(1, 8))) == [*expected, 7]
            assert read(log, (1, 7)) == [*expected, 7]
        is_end = hit == 2 and not caplog.text  # Then nobody knows how many there were.
        assert log.damaged == (0 if is_end else len(GROUPS[hit]))
        assert len(caplog.records) == (0 if is_end else 1)
        assert is_end or f"{path} is damaged at byte {([0, *ends])[hit]}: " in caplog.text
        log.remove(7, 8)
        log.close()


def test_a_segment_that_is_gone(log: DiskLog, caplog: pytest.LogCaptureFixture) -> None:
    for first in 1, 11, 21:
        commit(log, first, 10, begins_segment=True)
    log = reopened(log)
    segments(log.directory)[1].path.unlink()
    for _ in range(2):
        assert read(log, (1, 30)) == [*range(1, 11), *range(21, 31)]
    assert log.damaged == 10
    assert len(caplog.records) == 1
    log.close()


def test_a_disk_that_cannot_read_a_frame(
    log: DiskLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    commit(log, 1, 5)
    begin = log.bytes
    commit(log, 6, 5)
    real = os.pread

    def refuse(file: int, size: int, offset: int) -> bytes:
        if offset == begin:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(file, size, offset)

    monkeypatch.setattr(os, "pread", refuse)
    assert read(log, (1, 10)) == [1, 2, 3, 4, 5]
    assert log.damaged == 5
    assert f"is damaged at byte {begin}: 5 waiting messages are lost" in caplog.text


def test_a_payload_that_looks_like_a_frame_is_none(log: DiskLog, tmp_path: Path) -> None:
    commit(log, 1, 5)
    forged = segments(log.directory)[0].path.read_bytes()
    other = DiskLog.open(tmp_path / "other")
    other.write([Message("t", forged)], 1, 1.0)
    other.commit()
    commit(other, 2)
    (segment,) = segments(other.directory)
    content = bytearray(segment.path.read_bytes())
    content[0] ^= 1
    segment.path.write_bytes(content)
    other = reopened(other)
    assert read(other, (1, 9)) == [2]
    assert other.damaged == 1
    other.close()


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("in the way")
    with pytest.raises(StoreError, match="cannot use"):
        DiskLog.open(tmp_path / "log")


# Size


def test_many_messages_open_at_once(log: DiskLog, without_sync: None) -> None:
    """Frames of closed segments are not looked at, nor are payloads."""
    payload = bytes(8)
    for first in range(1, 100_000, 5_000):
        messages = [Message("t", payload, 1, id=MessageId("n", 1, each)) for each in range(5_000)]
        log.write(messages, first, 1.0, begins_segment=True)
        log.commit()
        log.confirm()
    log.close()
    reads: list[int] = []
    real = os.pread

    def count(file: int, size: int, offset: int) -> bytes:
        data = real(file, size, offset)
        reads.append(len(data))
        return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pread", count)
        log = DiskLog.open(log.directory)
        assert log.next_position == 100_001
        assert sum(reads) <= log.segments[-1][1] + 65_536 < sum(size for _, size in log.segments) / 5
        found, end = log.read([(50_000, 500)], PLENTY)
    assert (len(found), end) == (500, 50_500)
    log.close()


# Sudden ends


WRITER = """
import sys, pathlib, random
from tests.node.test_message_log import DiskLog, commit
log = DiskLog.open(pathlib.Path(sys.argv[1]))
first = log.next_position
print(first, flush=True)
while True:
    count = random.choice([1, 3, 1500])
    commit(log, first, count, begins_segment=not random.randrange(20))
    first += count
    print(first, flush=True)
"""


def test_what_was_committed_survives_kill(tmp_path: Path) -> None:
    generator = random.Random()
    told = 1
    for _ in range(5):
        with run_python(WRITER, tmp_path / "log") as writer:
            assert writer.stdout is not None
            for _ in range(generator.randint(1, 50)):
                told = int(writer.stdout.readline())
            writer.send_signal(signal.SIGKILL)
            told = max([told, *map(int, writer.stdout.read().splitlines())])
        log = DiskLog.open(tmp_path / "log")
        assert log.next_position >= told
        assert read(log, (1, told - 1)) == list(range(1, told))
        assert log.damaged == 0
        log.close()
