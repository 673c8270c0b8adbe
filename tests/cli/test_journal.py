"""`hedgerow journal`: what is in a journal, as people ask for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hedgerow import cli
from hedgerow.journal import Writer
from hedgerow.log.files import segments
from hedgerow.message import Message, MessageId

NOON = 1_763_553_600.0  # 2025-11-19T12:00:00Z


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A message a minute from noon on, to two topics in turn, in segments of a few."""
    directory = tmp_path / "journal"
    with Writer(directory, "node", segment_bytes=600, gather_s=0) as writer:
        for number in range(10):
            content = b"\xff" if number == 9 else b"%d" % number
            message = Message(f"farm/{number % 2}", content, 1, id=MessageId("node", 1, number))
            writer.append(message, transport="mqtt", received_at=NOON + 60 * number, client="probe")
            writer.flush()
    return directory


def said(capfd: pytest.CaptureFixture[str], *words: object, status: int = 0) -> str:
    assert cli.main(["journal", *map(str, words)]) == status
    return capfd.readouterr().out


def test_segments_are_listed(journal: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = said(capfd, "ls", journal).splitlines()
    assert lines[1].startswith("positions 0 to 10, ")
    assert len(lines) == 2 + len(segments(journal)) > 4
    assert "2025-11-19T12:00:00Z" in lines[2]
    assert "2025-11-19T12:09:00Z" in lines[-1]


def test_topics_are_counted(journal: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert said(capfd, "ls", journal, "--topics").split() == ["5", "farm/0", "5", "farm/1"]
    assert said(capfd, "ls", journal, "--topics", "--from", 7, "-t", "+/1").split() == ["2", "farm/1"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("-C", "2"), ["0", "1"]),
        (("--last", "3", "-t", "farm/0"), ["4", "6", "8"]),
        (("--last", "2", "-t", "farm/0", "-t", "nothing"), ["6", "8"]),
        (("--from", "7", "-C", "2"), ["7", "8"]),
        (("--since", "2025-11-19T12:05:30Z", "-C", "2"), ["6", "7"]),
        (("--since", "@1763553600", "-C", "1"), ["0"]),
        (("-v", "-C", "1"), ["farm/0 0"]),
        (("-F", "%U %q %t", "-C", "1"), ["1763553600.000000000 1 farm/0"]),
    ],
)
def test_messages_are_chosen_and_printed(
    journal: Path, capfd: pytest.CaptureFixture[str], options: tuple[str, ...], expected: list[str]
) -> None:
    assert said(capfd, "cat", journal, *options).splitlines() == expected


def test_lines_of_json(journal: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "farm.jsonl"
    assert said(capfd, "export", journal, file, "--last", 2) == f"{file}: 2 messages\n"
    first, last = map(json.loads, file.read_text().splitlines())
    assert (first["position"], first["topic"], first["payload"], first["client"]) == (
        8,
        "farm/0",
        "8",
        "probe",
    )
    assert last["payload_base64"] == "/w=="


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_tables(journal: Path, tmp_path: Path, ending: str, capfd: pytest.CaptureFixture[str]) -> None:
    reader = pytest.importorskip(f"pyarrow.{ending}", reason="the extra spark is not installed")
    file = tmp_path / f"farm.{ending}"
    said(capfd, "export", journal, file, "-t", "farm/1", "--since", "2025-11-19T12:04:00Z", "-C", 2)
    read = reader.read_table if ending == "parquet" else reader.read_csv
    assert read(str(file)).column("position").to_pylist() == [5, 7]


def test_damage_is_found(journal: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "10 messages" in said(capfd, "verify", journal)
    path = segments(journal)[1].path
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert "damage in the payloads of the frame" in said(capfd, "verify", journal, status=1)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "what to do? There are ls, cat, export, verify"),
        (("ls",), "ls DIR: which journal?"),
        (("cat", "a", "b"), "one journal at a time"),
        (("export", "a", "b.xls"), "b.xls: ends in none of .jsonl, .parquet, .csv"),
        (("ls", "/nowhere"), "/nowhere holds no journal"),
    ],
)
def test_mistakes(words: tuple[str, ...], text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["journal", *words]) != 0
    assert text in capfd.readouterr().err
