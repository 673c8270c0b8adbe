"""Segments that are written anew with less in them: what is needed stays, whatever happens meanwhile."""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hedgerow.broker.stored import Run
from hedgerow.log.files import segments
from hedgerow.node.log_shrinking import write_anew
from hedgerow.node.message_log import DiskLog
from tests.node.test_message_log import commit, read, reopened

COUNT = 300  # messages of a segment, in frames of ten


@pytest.fixture
def log(tmp_path: Path) -> Iterator[DiskLog]:
    """Of three segments."""
    opened = DiskLog.open(tmp_path / "log")
    for first in range(1, 3 * COUNT, 10):
        commit(opened, first, 10, begins_segment=first % COUNT == 1, size=100)
    assert len(opened.segments) == 3
    yield opened
    opened.close()


def positions_of(runs: list[Run]) -> list[int]:
    return [position for first, count in runs for position in range(first, first + count)]


def check(log: DiskLog, runs: list[Run]) -> None:
    """What was needed of the first segment, and all of the others."""
    assert read(log, *runs, size=100) == positions_of(runs)
    assert read(log, (COUNT + 1, 2 * COUNT), size=100) == list(range(COUNT + 1, 3 * COUNT + 1))
    assert log.damaged == 0
    assert log.bytes == sum(each.path.stat().st_size for each in segments(log.directory))


@pytest.mark.parametrize("runs", [[(1, 1)], [(7, 30), (111, 1), (290, 11)], [(300, 1)]])
def test_what_is_needed_stays_where_it_was(log: DiskLog, runs: list[Run]) -> None:
    times = [each.at for each in log.read(runs, 1 << 30)[0]]
    before = log.bytes
    size = log.shrink(1, COUNT + 1, runs)
    assert size is not None
    assert log.segments[0] == (1, size)
    assert log.bytes < before - 10_000
    for each in log, reopened(log):
        check(each, runs)
        assert [found.at for found in each.read(runs, 1 << 30)[0]] == times
        assert each.next_position == 3 * COUNT + 1
    smaller = reopened(log)
    assert smaller.shrink(1, COUNT + 1, runs[:1]) in (None, smaller.segments[0][1])
    check(smaller, runs[:1])
    smaller.close()


def test_of_what_was_left_out_nothing_else_is_touched(log: DiskLog) -> None:
    assert log.shrink(COUNT + 1, 2 * COUNT + 1, [(COUNT + 5, 3)])
    assert read(log, (1, COUNT), size=100) == list(range(1, COUNT + 1))
    assert read(log, (COUNT + 5, 3), (2 * COUNT + 1, 5), size=100) == [305, 306, 307, 601, 602, 603, 604, 605]
    log.remove(COUNT + 1, 2 * COUNT + 1)
    assert [first for first, _ in log.segments] == [1, 2 * COUNT + 1]
    commit(log, 3 * COUNT + 1, 5, size=100)
    assert read(log, (3 * COUNT + 1, 5), size=100) == list(range(901, 906))


def test_where_nothing_is_gained_it_stays(log: DiskLog) -> None:
    before = log.segments
    assert log.shrink(1, COUNT + 1, [(1, COUNT)]) is None
    assert log.shrink(1, COUNT + 1, [(11, COUNT - 20)]) is None, "it would be nearly as large"
    assert log.shrink(2 * COUNT + 1, 3 * COUNT + 1, [(601, 1)]) is None, "the newest is being written"
    assert log.shrink(1, COUNT, [(1, 1)]) is None, "it is another"
    assert log.segments == before
    check(log, [(1, COUNT)])


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_disk_that_does_not_take_it_has_the_old_one(
    log: DiskLog, call: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        if call == "replace":
            patch.setattr(Path, "replace", refuse)
        assert log.shrink(1, COUNT + 1, [(5, 2)]) is None
    assert "cannot write" in caplog.text
    check(log, [(1, COUNT)])
    again = reopened(log)
    check(again, [(1, COUNT)])
    assert len(list(again.directory.iterdir())) == 3, "nothing is left of it"
    again.close()


def test_where_a_needed_message_cannot_be_read_now_it_stays(
    log: DiskLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk or a network that fails for a moment costs whoever reads then; nobody else, and not for ever."""
    read_now = os.pread

    def fail_once(file: int, size: int, offset: int) -> bytes:
        if offset > 0:
            monkeypatch.setattr(os, "pread", read_now)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read_now(file, size, offset)

    monkeypatch.setattr(os, "pread", fail_once)
    assert log.shrink(1, COUNT + 1, [(5, 2), (55, 2), (105, 2)]) is None
    assert os.pread is read_now, "it did fail"
    again = reopened(log)
    check(again, [(1, COUNT)])
    again.close()


def test_a_crash_leaves_the_old_one_or_the_new_one(log: DiskLog, tmp_path: Path) -> None:
    runs = [(7, 30)]
    old = segments(log.directory)[0]
    assert write_anew(old, log.read(runs, 1 << 30)[0], 1 << 20)
    shutil.copytree(log.directory, tmp_path / "before")
    assert log.shrink(1, COUNT + 1, runs)
    shutil.copytree(log.directory, tmp_path / "after")
    for name, needed in ("before", [(1, COUNT)]), ("after", runs):
        found = DiskLog.open(tmp_path / name)
        check(found, needed)
        assert len(list(found.directory.iterdir())) == 3
        found.close()


def test_readers_see_the_old_one_or_the_new_one(log: DiskLog) -> None:
    kept = [(11, 5), (100, 5)]
    needed = list(range(1, COUNT + 1))
    done = threading.Event()

    def shrink() -> None:
        dice = random.Random(1)
        rest = [each for each in needed if each not in positions_of(kept)]
        while len(needed) > 40:
            for each in dice.sample(rest, min(len(rest), 40)):
                rest.remove(each)
                needed.remove(each)
            log.shrink(1, COUNT + 1, [(each, 1) for each in needed])
        done.set()

    thread = threading.Thread(target=shrink)
    thread.start()
    while not done.is_set():
        assert read(log, *kept, size=100) == positions_of(kept)
        log.pages.clear()
        log.page_bytes = 0
    thread.join()
    assert read(log, *kept, size=100) == positions_of(kept)
    assert log.damaged == 0
