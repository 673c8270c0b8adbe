"""Packet identifiers that are stored with messages, and are no columns of them."""

from __future__ import annotations

from pathlib import Path

from hedgerow.journal import COLUMNS, JournalReader, Writer
from hedgerow.journal.io.deliveries import RecordedDelivery, last_deliveries
from hedgerow.message import Message, MessageId


def write(directory: Path, numbers: range) -> None:
    with Writer(directory, "node-a", gather_s=0) as writer:
        for number in numbers:
            message = Message("a", b"%d" % number, 1)
            writer.append(message, transport="mqtt", received_at=1.0, packet_id=number % 3 and number)
            if number % 10 == 0:
                writer.flush()
        writer.append_run("run", (b"x", b"yy"), transport="mqtt", received_at=1.0)
        # Packets with heads before their payloads.
        first = MessageId("n", 1, 1)
        writer.append_packets("p", b"..p..q", 3, 2, transport="mqtt", received_at=1.0, first_id=first)
        writer.append(Message("b", b"last"), transport="mqtt", received_at=1.0, packet_id=7)


def test_the_last_are_found_in_order_with_topic_and_payload(tmp_path: Path) -> None:
    write(tmp_path, range(100))
    end = 105
    found = last_deliveries(tmp_path, 0, end, 3)
    assert found == [
        RecordedDelivery(97, "node-a", 97, "a", b"97"),
        RecordedDelivery(98, "node-a", 98, "a", b"98"),
        RecordedDelivery(104, "node-a", 7, "b", b"last"),
    ]
    everything = last_deliveries(tmp_path, 0, end, 65_535)
    assert [each.packet_id for each in everything] == [*(n for n in range(100) if n % 3), 7]
    # Few among many: it looks back as far as is needed, and as it may.
    assert len(last_deliveries(tmp_path, 0, end, 60)) == 60
    assert [each.position for each in last_deliveries(tmp_path, 95, end, 60)] == [95, 97, 98, 104]
    assert [each.position for each in last_deliveries(tmp_path, 0, 97, 2)] == [94, 95]


def test_they_are_no_columns(tmp_path: Path) -> None:
    write(tmp_path, range(3))
    (batch,) = JournalReader(tmp_path).batches()
    assert batch.schema.names == list(COLUMNS)
    assert batch.column("payload").to_pylist() == [b"0", b"1", b"2", b"x", b"yy", b"p", b"q", b"last"]


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    assert last_deliveries(tmp_path, 0, 0, 10) == []
