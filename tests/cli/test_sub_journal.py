"""`hedgerow sub --journal`: what an application received, under the ids that the fabric knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hedgerow.journal import JournalReader, Writer
from hedgerow.message import Message, MessageId
from tests.cli.test_pub_sub import listening, publish, run
from tests.conftest import StartNode


def rows(directory: Path) -> list[dict[str, Any]]:
    return [row for batch in JournalReader(directory).batches() for row in batch.to_pylist()]


def test_what_arrives_is_kept_with_its_id(hedgerow_node: StartNode, tmp_path: Path) -> None:
    node = hedgerow_node("--id", "barn")
    words = ("-t", "farm/#", "-q", "1", "-i", "app", "-C", "2", "--journal", str(tmp_path / "journal"))
    with listening(tmp_path, node.urls["mqtt"], *words) as listener:
        publish(node.urls["mqtt"], "-t", "farm/1", "-m", "31", "-q", "1")
        publish(node.urls["mqtt"], "-t", "farm/2", "-m", "32")
        assert listener.finish() == b"31\n32\n"
    first, second = rows(tmp_path / "journal")
    assert [first[name] for name in ("transport", "client", "broker", "topic", "payload", "origin")] == [
        "subscriber", "app", "barn", "farm/1", b"31", "barn",
    ]  # fmt: skip
    assert first["sequence"] < second["sequence"]


def test_copies_are_kept(tmp_path: Path) -> None:
    message_id = MessageId("a", 1, 7)
    with Writer(tmp_path, "barn", drop_duplicates=False) as writer:
        for _ in range(2):
            writer.append(Message("t", b"", id=message_id), transport="subscriber", received_at=1.0)
        writer.append_run("t", [b"", b""], transport="subscriber", received_at=1.0, first_id=message_id)
    assert [row["sequence"] for row in rows(tmp_path)] == [7, 7, 7, 8]


def test_without_a_broker_there_are_no_ids(tmp_path: Path) -> None:
    done = run("sub", "udp://127.0.0.1", "t", "--journal", str(tmp_path))
    assert done.returncode != 0
    assert b"messages have ids from a broker alone" in done.stderr
