"""What may stand before the filter of a replay."""

from __future__ import annotations

import pytest

from hedgerow.errors import TopicError
from hedgerow.journal.replay.names import LAST, NEW, POSITION, TIME, Start, read_start, split_name

NOW = 1_763_539_200.0  # 2025-11-19T08:00:00Z


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("all", Start(POSITION, 0)),
        ("new", Start(NEW, 0)),
        ("90s", Start(TIME, NOW - 90)),
        ("15m", Start(TIME, NOW - 900)),
        ("1h", Start(TIME, NOW - 3_600)),
        ("7d", Start(TIME, NOW - 604_800)),
        ("2w", Start(TIME, NOW - 1_209_600)),
        ("2025-11-19T08:00:00Z", Start(TIME, NOW)),
        ("2025-11-19T08:00", Start(TIME, NOW)),
        ("2025-11-19", Start(TIME, NOW - 8 * 3_600)),
        ("@1763539200", Start(TIME, NOW)),
        ("@1763539200.25", Start(TIME, NOW + 0.25)),
        ("position-12345", Start(POSITION, 12_345)),
        ("last-100", Start(LAST, 100)),
    ],
)
def test_beginnings(text: str, start: Start) -> None:
    assert read_start(text, NOW) == start


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "h",
        "1y",
        "-1h",
        "position-",
        "position--1",
        "last-1000001",
        "last",
        "2025-13-01",
        "@",
        "ALL",
        "position-9223372036854775808",
        "9999999999s",
    ],
)
def test_what_is_no_beginning(text: str) -> None:
    with pytest.raises(TopicError, match=r"position-N"):
        read_start(text, NOW)


def test_a_name_is_split_at_its_beginning() -> None:
    assert split_name("$replay/1h/a/+/b") == ("1h", "a/+/b")
    assert split_name("$replay/all/#") == ("all", "#")


@pytest.mark.parametrize(
    "name",
    [
        "$replay/1h",
        "$replay/1h/",
        "$replay//a",
        "$replay/1h/$share/g/a",
        "$replay/1h/$replay/2h/a",
        "$replay/1h/a/#/b",
    ],
)
def test_what_is_no_replay(name: str) -> None:
    with pytest.raises(TopicError):
        split_name(name)
