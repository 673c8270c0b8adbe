"""Files of bridge sections."""

from __future__ import annotations

from pathlib import Path

import pytest

from hedgerow.bridges.commands import MAX_BRIDGES
from hedgerow.bridges.io.files import read_bridge_files
from hedgerow.errors import ConfigError

NORTH = "connection north\naddress north.example\ntopic # both 1\n"
SOUTH = NORTH.replace("north", "south")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def names(*texts: str) -> list[str]:
    paths = [Path(f"{number}.conf") for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return [section.name for section in read_bridge_files(paths)]


def test_a_file_holds_any_number_of_sections() -> None:
    assert names(f"# The neighbours.\n\n{NORTH}\n# Far away.\n  {SOUTH}", NORTH.replace("north", "east")) == [
        "north",
        "south",
        "east",
    ]


def test_a_section_may_be_json() -> None:
    assert names('\n{"connection": "north",\n "address": "h", "topic": "#"}\n', SOUTH) == ["north", "south"]


def test_files_of_other_systems_are_read() -> None:
    assert names((NORTH + SOUTH).replace("\n", "\r\n")) == ["north", "south"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (NORTH + "\n" + SOUTH + "qos 1\n", '0.conf:8: "qos" is no option of a bridge'),
        ("# x\nlistener 1883\n" + NORTH, '0.conf:2: "listener" is no option of a bridge'),
        ("address h\n" + NORTH, '0.conf:1: address: stands before "connection"'),
        (NORTH + "connection south\ntopic #\n", '0.conf:4: connection: "south" has no address'),
        (NORTH + NORTH, "0.conf:4: bridge north is in 0.conf:1 already"),
        ("# nothing\n", '0.conf:1: no "connection"'),
        ('{\n"connection": x}', "0.conf:2: column 15: not JSON"),
        (NORTH + "connection\n", "0.conf:4: connection: has no value"),
    ],
)
def test_errors_name_the_file_and_the_line(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        names(text)
    assert str(raised.value).startswith(error)


def test_a_name_in_two_files_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^1\.conf:1: bridge north is in 0\.conf:1 already$"):
        names(NORTH, NORTH)


def test_no_more_bridges_than_a_node_may_have() -> None:
    many = [NORTH.replace("north", f"n{number}") for number in range(MAX_BRIDGES + 1)]
    assert len(names("".join(many[1:]))) == MAX_BRIDGES
    with pytest.raises(ConfigError, match=f"^0.conf:769: there are more than {MAX_BRIDGES} bridges"):
        names("".join(many))
