"""Log lines, for people and for programs."""

from __future__ import annotations

import io
import json
import logging
import re
import time
from collections.abc import Iterator

import pytest

from hedgerow.broker.events import ClientConnected
from hedgerow.node import logs

log = logging.getLogger("hedgerow.test")
FACT = ClientConnected("127.0.0.1:5", "sensor", None, 5, "tcp", False)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()  # set_up closes those that it replaces; these are pytest's
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def logged(log_format: str = "text", level: str = "info", stream: io.StringIO | None = None) -> io.StringIO:
    stream = stream or io.StringIO()
    logs.set_up(log_format, level, stream)
    return stream


def test_text_is_time_level_message() -> None:
    stream = logged()
    before = time.time()
    log.info("listening on %s", "mqtt://localhost:1883")
    log.warning("beware")
    first, second = stream.getvalue().splitlines()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} info     listening on mqtt://localhost:1883", first
    )
    assert second.endswith(" warning  beware")
    written = time.mktime(time.strptime(first[:19], "%Y-%m-%d %H:%M:%S"))
    assert int(before) <= written <= time.time()


def test_the_level_is_the_least_that_is_logged() -> None:
    for level, expected in [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)]:
        stream = logged(level=level)
        for write in (log.debug, log.info, log.warning, log.error):
            write("x")
        assert len(stream.getvalue().splitlines()) == expected


def test_colours_are_for_terminals_alone() -> None:
    for stream, expected in [(io.StringIO(), False), (Terminal(), True)]:
        logged(stream=stream)
        log.error("x")
        assert ("\x1b" in stream.getvalue()) is expected


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_client_cannot_forge_a_line_nor_command_a_terminal(log_format: str) -> None:
    stream = logged(log_format, stream=io.StringIO())
    log.info("client %s", "a\nINFO b\r\x1b[2J\x9b\u2028\u202e")
    text = stream.getvalue()
    assert len(text.splitlines()) == 1
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u202e]", text)


def test_json_is_an_object_a_line() -> None:
    stream = logged("json")
    log.warning("no room on %s", "disk", extra={"fields": {"free": 0}})
    log.log(FACT.level, FACT)
    text, fact = map(json.loads, stream.getvalue().splitlines())
    assert text.pop("ts") <= fact.pop("ts")
    assert text == {"level": "warning", "event": "log", "message": "no room on disk", "fields": {"free": 0}}
    assert fact == {
        "level": "info",
        "event": "client_connected",
        "message": str(FACT),
        "fields": {
            "address": "127.0.0.1:5",
            "client_id": "sensor",
            "username": None,
            "protocol_version": 5,
            "transport": "tcp",
            "session_present": False,
        },
    }


def test_json_times_are_utc() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "x", None, None)
    record.created, record.msecs = 86_400.25, 250.0
    assert json.loads(logs.JsonFormatter().format(record))["ts"] == "1970-01-02T00:00:00.250Z"


def test_a_fact_is_text_for_people() -> None:
    stream = logged()
    log.log(FACT.level, FACT)
    assert stream.getvalue().endswith(f" info     {FACT}\n")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_tracebacks_are_kept(log_format: str) -> None:
    stream = logged(log_format)
    try:
        raise ValueError("a bug")
    except ValueError:
        log.exception("this should not happen")
    text = stream.getvalue()
    if log_format == "json":
        text = json.loads(text)["traceback"]
    assert "Traceback (most recent call last)" in text
    assert "ValueError: a bug" in text


def test_what_is_logged_goes_to_the_newest_stream_alone() -> None:
    first, second = logged(), logged()
    log.info("x")
    assert not first.getvalue()
    assert second.getvalue()
