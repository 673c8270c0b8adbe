"""A line that changes, read as a terminal would show it."""

from __future__ import annotations

import io
import logging
import re

import pytest

from hedgerow.cli.progress_line import ProgressLine


@pytest.fixture(autouse=True)
def width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")


def seen(stream: io.StringIO) -> list[str]:
    """The lines of the screen: after a clear, only what follows it is there. Colours are left out."""
    text = re.sub(r"\x1b\[\d*m", "", stream.getvalue())
    return [line.rpartition("\r\x1b[K")[2] for line in text.split("\n")]


def test_each_line_is_in_place_of_the_one_before() -> None:
    stream = io.StringIO()
    line = ProgressLine(stream)
    line.show("1 message")
    line.show("2 messages", "\x1b[2m")
    assert seen(stream) == ["2 messages"]
    line.show("")
    assert seen(stream) == [""]


def test_what_is_longer_than_the_terminal_is_cut_before_it_wraps() -> None:
    stream = io.StringIO()
    ProgressLine(stream).show("x" * 100)
    assert seen(stream) == ["x" * 19]


def test_a_line_that_stays_replaces_it() -> None:
    stream = io.StringIO()
    line = ProgressLine(stream)
    line.say("first")
    line.show("50 %")
    line.say("done")
    line.show("1 %")
    assert seen(stream) == ["first", "done", "1 %"]


def test_a_log_stands_above_it() -> None:
    stream = io.StringIO()
    line = ProgressLine(stream)
    handler = logging.StreamHandler(line)
    line.show("50 %")
    for text in ("one", "two"):
        handler.emit(logging.makeLogRecord({"msg": text}))
    assert seen(stream) == ["one", "two", "50 %"]
