from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from hedgerow.errors import StoreError
from hedgerow.journal import BufferFullError, Writer, check
from hedgerow.journal.io import files
from hedgerow.log.files import segments
from hedgerow.log.frame import MAX_ROWS, NO_TIME
from hedgerow.message import Message, MessageId
from tests.journal.plain import numbered, read_plain
from tests.programs import wait_until


def append(writer: Writer, message: Message) -> int:
    return writer.append(message, transport="mqtt", received_at=1.5)


def append_many(writer: Writer, sequences: range) -> None:
    for sequence in sequences:
        append(writer, numbered(sequence))


def payloads(directory: Path) -> list[bytes]:
    return [row.payload for row in read_plain(directory)]


def test_a_message_is_kept_whole(tmp_path: Path) -> None:
    message = Message("ä/b", b"\0\xff", 2, True, {"content_type": "x", "correlation_data": b"\1"})
    message.published_at = 2.25
    with Writer(tmp_path, "node-a") as writer:
        assert writer.append(message, transport="ws", received_at=3.5, client="c") == 1
    (row,) = read_plain(tmp_path)
    assert row == (
        0, None, "node-a", "ws", "c", "ä/b", b"\0\xff", 6, '{"content_type":"x","correlation_data":"AQ=="}',
        2_250_000, 3_500_000,
    )  # fmt: skip


def test_what_flush_waits_for_is_durable_and_told(tmp_path: Path) -> None:
    told: list[int] = []
    with Writer(tmp_path, "node-a", on_durable=told.append) as writer:
        append(writer, numbered(1))
        assert writer.flush() == 1 == writer.durable_position == files.durable_position(tmp_path)
        append(writer, numbered(2))
        assert writer.flush() == 2
        wait_until(lambda: told[-1] == 2, "the last position to be told")
    assert told == [1, 2]


def test_a_callback_that_fails_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(position: int) -> None:
        raise RuntimeError("the loop is closed")

    with Writer(tmp_path, "node-a", on_durable=fail, gather_s=0) as writer:
        for sequence in range(3):
            append(writer, numbered(sequence))
            writer.flush()
    assert len(read_plain(tmp_path)) == 3
    assert "could not be told" in caplog.text


def test_positions_go_on_after_a_restart(tmp_path: Path) -> None:
    for life in range(3):
        with Writer(tmp_path, "node-a") as writer:
            assert writer.next_position == writer.durable_position == life
            assert append(writer, numbered(life)) == life + 1
    assert [(row.position, row.payload) for row in read_plain(tmp_path)] == [(0, b"0"), (1, b"1"), (2, b"2")]


@pytest.mark.parametrize("ids", ["kept", "lost", "damaged"])
def test_duplicates_are_dropped_also_after_a_restart(tmp_path: Path, ids: str) -> None:
    with Writer(tmp_path, "node-a", segment_bytes=1) as writer:
        for sequence in (1, 2, 1, 2):
            append(writer, numbered(sequence))
            writer.flush()
        writer.append_run("r", [b"", b""], transport="mqtt", received_at=1, first_id=MessageId("b", 1, 5))
        assert writer.duplicates == 2
    if ids == "lost":
        (tmp_path / "ids").unlink()
    elif ids == "damaged":
        damaged = bytearray((tmp_path / "ids").read_bytes())
        damaged[30] ^= 1
        (tmp_path / "ids").write_bytes(damaged)
    with Writer(tmp_path, "node-a") as writer:
        before = writer.next_position
        # Behind it once it is durable, wherever the first copy is.
        assert append(writer, numbered(2)) == before
        assert append(writer, Message("r", b"", id=MessageId("b", 1, 6))) == before
        assert append(writer, Message("r", b"", id=MessageId("b", 1, 7))) == before + 1
        assert writer.duplicates == 2


def test_duplicates_are_known_after_their_segments_are_gone(tmp_path: Path) -> None:
    with Writer(tmp_path, "node-a") as writer:
        append(writer, numbered(1))
    for segment in segments(tmp_path):
        segment.path.unlink()
    with Writer(tmp_path, "node-a") as writer:
        assert writer.next_position == 1
        assert append(writer, numbered(1)) == 1
        assert append(writer, numbered(2)) == 2


def test_a_message_that_a_crash_took_is_no_duplicate(tmp_path: Path) -> None:
    """The file of ids is written after what it speaks of: here the second message is never synced."""
    writer = Writer(tmp_path, "node-a", segment_bytes=1, gather_s=0)
    append(writer, numbered(1))
    writer.flush()
    with disk(fdatasync=errno.EIO):
        append(writer, numbered(2))
        wait_until(lambda: writer.failure is not None, "the failure")
        with pytest.raises(StoreError, match="given up"):
            writer.close()
    with Writer(tmp_path, "node-a") as writer:
        append(writer, numbered(1))
        append(writer, numbered(2))
    assert payloads(tmp_path) == [b"1", b"2"]


def test_a_run_is_its_messages(tmp_path: Path) -> None:
    with Writer(tmp_path, "node-a") as writer:
        append(writer, Message("r", b"here", id=MessageId("b", 1, 12)))
        first = MessageId("b", 1, 10)
        end = writer.append_run(
            "r", [b"0", b"", b"2", b"333"], transport="udp", received_at=1, client="c", first_id=first, qos=1
        )
        assert (end, writer.duplicates) == (4, 1)
    rows = read_plain(tmp_path)
    assert [(row.position, row.id and row.id.sequence, row.payload) for row in rows] == [
        (0, 12, b"here"),
        (1, 10, b"0"),
        (2, 11, b""),
        (3, 13, b"333"),
    ]
    assert {(row.topic, row.transport, row.client, row.flags, row.published_at) for row in rows[1:]} == {
        ("r", "udp", "c", 1, NO_TIME)
    }


def test_a_run_longer_than_a_frame(tmp_path: Path) -> None:
    count = 2 * MAX_ROWS + 5
    with Writer(tmp_path, "node-a") as writer:
        append(writer, numbered(1))
        many = [b"%d" % number for number in range(count)]
        writer.append_run("r", many, transport="mqtt", received_at=1, first_id=MessageId("b", 1, 100))
    rows = read_plain(tmp_path, start=1)
    assert [row.payload for row in rows] == many
    assert [row.id and row.id.sequence for row in rows] == list(range(100, 100 + count))
    assert [row.position for row in rows] == list(range(1, 1 + count))


@pytest.mark.parametrize(
    "strange",
    [MessageId("b", 1, 2**63), MessageId("b", -1, 1), MessageId("x" * 300, 1, 1), MessageId("", 1, 1)],
)
def test_an_id_that_no_node_gives_is_left_out(tmp_path: Path, strange: MessageId) -> None:
    with Writer(tmp_path, "node-a") as writer:
        append(writer, Message("t", b"1", id=strange))
        append(writer, Message("t", b"2", id=strange))
        writer.append_run("t", [b"3"], transport="mqtt", received_at=1, first_id=strange)
        assert writer.strange_ids == 3
    assert [(row.id, row.payload) for row in read_plain(tmp_path)] == [
        (None, b"1"),
        (None, b"2"),
        (None, b"3"),
    ]


@pytest.mark.parametrize("at", [float("nan"), float("inf"), -1e15, 1e15])
def test_a_time_that_no_calendar_has_is_none(tmp_path: Path, at: float) -> None:
    with Writer(tmp_path, "node-a") as writer:
        message = numbered(1)
        message.published_at = at
        writer.append(message, transport="mqtt", received_at=at)
    (row,) = read_plain(tmp_path)
    assert row.published_at == row.received_at == NO_TIME


def test_one_writer(tmp_path: Path) -> None:
    with Writer(tmp_path, "node-a"), pytest.raises(StoreError, match=f"pid {os.getpid()}"):
        Writer(tmp_path, "node-b")
    Writer(tmp_path, "node-b").close()


def test_a_closed_journal_takes_nothing(tmp_path: Path) -> None:
    writer = Writer(tmp_path, "node-a")
    writer.close()
    writer.close()
    with pytest.raises(RuntimeError, match="closed"):
        append(writer, numbered(1))


def test_a_journal_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal-9-abc").touch()
    with pytest.raises(StoreError, match="format 9"):
        Writer(tmp_path, "node-a")


@contextmanager
def disk(**failing: int) -> Iterator[None]:
    """These calls of the system fail, a write after half of its bytes."""
    real_write = os.write

    def half_a_write(file: int, parts: Sequence[bytes]) -> int:
        data = b"".join(parts)
        real_write(file, data[: len(data) // 2])
        raise OSError(failing["writev"], os.strerror(failing["writev"]))

    def sync(file: int) -> None:
        raise OSError(failing["fdatasync"], os.strerror(failing["fdatasync"]))

    def truncate(file: int, size: int) -> None:
        raise OSError(failing["ftruncate"], os.strerror(failing["ftruncate"]))

    with pytest.MonkeyPatch.context() as patch:
        if "ftruncate" in failing:
            patch.setattr(os, "ftruncate", truncate)
        if "writev" in failing:
            patch.setattr(os, "writev", half_a_write)
        if "fdatasync" in failing:
            patch.setattr(os, "fdatasync", sync)
        yield


@pytest.mark.parametrize("call", ["writev", "fdatasync"])
def test_a_full_disk(tmp_path: Path, call: str) -> None:
    """Nothing becomes durable, `failure` says why, the buffer has an end; with room it goes on by itself."""
    told: list[str | None] = []
    with Writer(tmp_path, "node-a", buffer_bytes=4_000, gather_s=0, on_failure=told.append) as writer:
        append(writer, numbered(0))
        writer.flush()
        with disk(**{call: errno.ENOSPC}):
            append(writer, numbered(1))
            for _ in range(2):  # also when it is known already
                with pytest.raises(StoreError, match="No space left on device"):
                    writer.flush()
            with pytest.raises(BufferFullError, match="No space left on device"):
                append_many(writer, range(2, 100))
            assert writer.durable_position == 1
            assert payloads(tmp_path) == [b"0"]
        accepted = writer.next_position
        wait_until(lambda: writer.durable_position == accepted, "the journal to go on")
        # What was refused is no duplicate when it comes again.
        append(writer, numbered(accepted))
        writer.flush()
        wait_until(lambda: told[-1] is None, "the failure's end to be told")
    assert len(told) == 2
    assert payloads(tmp_path) == [b"%d" % sequence for sequence in range(accepted + 1)]


@pytest.mark.parametrize("call", ["writev", "fdatasync"])
def test_what_a_failure_leaves_behind_is_not_read(tmp_path: Path, call: str) -> None:
    """A disk that neither syncs nor lets go: the same messages are in two segments then, and read once."""
    with Writer(tmp_path, "node-a", gather_s=0) as writer:
        append(writer, numbered(0))
        writer.flush()
        with disk(**{call: errno.EIO, "ftruncate": errno.EIO}):
            append(writer, numbered(1))
            with pytest.raises(StoreError, match="Input/output error"):
                writer.flush()
        append(writer, numbered(2))
        wait_until(lambda: writer.durable_position == 3, "the disk to work again")
    left, _ = segments(tmp_path)
    left.path.write_bytes(left.path.read_bytes()[:-1] + b"?")  # It was not synced: it may be anything.
    assert payloads(tmp_path) == [b"0", b"1", b"2"]
    report = check(tmp_path)
    assert report.is_whole
    assert report.messages == 3


def test_a_run_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    with Writer(tmp_path, "node-a", buffer_bytes=2_000, gather_s=0) as writer:
        with disk(writev=errno.ENOSPC):
            append(writer, numbered(0))
            run = [bytes(500)] * 5
            with pytest.raises(BufferFullError):
                writer.append_run("r", run, transport="m", received_at=1, first_id=MessageId("b", 1, 0))
        wait_until(lambda: writer.durable_position == 1, "room")
        assert writer.append_run("r", run, transport="m", received_at=1, first_id=MessageId("b", 1, 0)) == 6


def test_segments_begin_where_they_are_full(tmp_path: Path) -> None:
    with Writer(tmp_path, "node-a", segment_bytes=1_000, gather_s=0) as writer:
        for sequence in range(20):
            append(writer, numbered(sequence, payload=bytes(200)))
            writer.flush()
    found = segments(tmp_path)
    assert len(found) > 5
    assert [segment.number for segment in found] == list(range(1, len(found) + 1))
    assert len(read_plain(tmp_path)) == 20


def test_a_segment_that_somebody_removes_takes_nothing_more(tmp_path: Path) -> None:
    with Writer(tmp_path, "node") as writer:
        append(writer, Message("a", b"1"))
        writer.flush()
        (segment,) = segments(tmp_path)
        segment.path.unlink()
        append(writer, Message("a", b"2"))
        wait_until(lambda: writer.durable_position == 2, "a new segment")
    assert payloads(tmp_path) == [b"2"]


def test_a_directory_that_somebody_removes_is_a_failure(tmp_path: Path) -> None:
    place = tmp_path / "journal"
    writer = Writer(place, "node")
    append(writer, Message("a", b"1"))
    writer.flush()
    # At once: the writer's thread may be about to write beside its segment.
    shutil.rmtree(place.rename(tmp_path / "removed"))
    append(writer, Message("a", b"2"))
    with pytest.raises(StoreError, match="cannot write"):
        writer.flush()
    with pytest.raises(StoreError, match="given up"):
        writer.close()


def test_what_else_lies_in_the_directory_is_no_journal(tmp_path: Path) -> None:
    (tmp_path / "journal-old").mkdir()
    with pytest.raises(StoreError, match="holds no journal"):
        check(tmp_path)
    with Writer(tmp_path, "node") as writer:
        append(writer, Message("a", b"1"))
    assert check(tmp_path).messages == 1


@pytest.mark.parametrize("waits", ["qos", "hurry", "reader", "full"])
def test_what_nobody_waits_for_is_gathered(tmp_path: Path, waits: str) -> None:
    """One commit for all of it, as soon as somebody waits for one of them, or a frame is full."""
    with Writer(tmp_path, "node-a", gather_s=3_600) as writer:
        writer.append_run("a", [b""] * 3, transport="mqtt", received_at=1.0)
        writer.append_run("b", [b""] * 3, transport="mqtt", received_at=1.0)
        assert writer.durable_position == 0
        if waits == "qos":
            writer.append_run("c", [b""], transport="mqtt", received_at=1.0, qos=1)
        elif waits == "hurry":
            writer.hurry()
        elif waits == "reader":
            writer.is_followed = True
            writer.hurry()
        else:
            writer.append_run("c", [b""] * MAX_ROWS, transport="mqtt", received_at=1.0)
        wait_until(lambda: writer.durable_position >= 6, "the commit")
        assert check(tmp_path).frames == 1 + (waits == "full")


def test_payloads_of_any_size_are_written_as_they_are(tmp_path: Path) -> None:
    """Large ones from where they are, many of them in several calls of the system; small ones joined."""
    contents = [bytes([number % 256]) * (5_000 + number) for number in range(1_500)] + [b"x"] * 10
    with Writer(tmp_path, "node-a") as writer:
        writer.append_run("a", contents[:1_500], transport="mqtt", received_at=1.0)
        writer.append_run("a", contents[1_500:], transport="mqtt", received_at=1.0)
        writer.flush()
    assert payloads(tmp_path) == contents
    assert check(tmp_path).is_whole
