"""Packets as they came: what stands before their payloads is written, and nobody sees it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.journal import BufferFullError, JournalReader, Writer, check
from hedgerow.log.frame import MAX_ROWS
from hedgerow.message import MessageId
from tests.journal.plain import numbered, read_plain

RUN = st.tuples(st.integers(1, 12), st.integers(0, 5), st.integers(0, 6), st.integers(0, 40))


def packets_of(count: int, head: int, size: int, first: int) -> tuple[bytes, list[bytes]]:
    """Packets, and their payloads."""
    payloads = [b"%*d" % (size, (first + n) % 10 ** max(size, 1)) if size else b"" for n in range(count)]
    return b"".join(b"h" * head + payload for payload in payloads), payloads


@given(st.lists(RUN, min_size=1, max_size=6), st.booleans())
def test_they_are_read_as_messages_in_a_row(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[int, int, int, int]], mixed: bool
) -> None:
    """Runs with heads and without, in one frame and in several; ids that were there are not taken again."""
    directory = tmp_path_factory.mktemp("journal")
    expected: list[tuple[str, int, bytes]] = []
    seen: set[int] = set()
    with Writer(directory, "node-a", gather_s=0) as writer:
        for number, (count, head, size, first) in enumerate(runs):
            if not head + size:
                continue
            packets, payloads = packets_of(count, head, size, first)
            writer.append_packets(
                f"a/{number}",
                packets,
                head + size,
                head,
                transport="mqtt",
                received_at=1.0,
                first_id=MessageId("n", 1, first),
            )
            for shift, payload in enumerate(payloads):
                if first + shift not in seen:
                    seen.add(first + shift)
                    expected.append((f"a/{number}", first + shift, payload))
            if mixed and number % 2:
                writer.append(numbered(number, "single", b"between"), transport="mqtt", received_at=1.0)
                expected.append(("single", number, b"between"))
            elif mixed:
                writer.flush()
    plain = [(row.topic, row.id.sequence, row.payload) for row in read_plain(directory) if row.id is not None]
    assert plain == expected
    assert check(directory).is_whole
    pytest.importorskip("pyarrow", reason="the extra spark is not installed")
    batches = list(JournalReader(directory).batches(0))
    for batch in batches:
        batch.validate(full=True)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [(row["topic"], row["sequence"], row["payload"]) for row in rows] == expected


def test_more_than_a_frame_has_room_for(tmp_path: Path) -> None:
    count = MAX_ROWS + 1_000
    packets, payloads = packets_of(count, 3, 6, 0)
    with Writer(tmp_path, "node-a") as writer:
        end = writer.append_packets("a", packets, 9, 3, transport="mqtt", received_at=1.0, qos=0)
        assert end == count
    assert [row.payload for row in read_plain(tmp_path)] == payloads


def test_without_room_nothing_is_appended(tmp_path: Path) -> None:
    with Writer(tmp_path, "node-a", buffer_bytes=1_000, gather_s=10) as writer:
        writer.append_packets("a", bytes(900), 9, 3, transport="mqtt", received_at=1.0)
        with pytest.raises(BufferFullError):
            writer.append_packets("a", bytes(900), 9, 3, transport="mqtt", received_at=1.0)
        assert writer.next_position == 100
