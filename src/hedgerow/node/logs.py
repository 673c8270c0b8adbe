"""What a node logs: a line of text for people, or a JSON object for programs, on standard error.

Everything goes through the standard `logging`. A record's message may be an object that states a fact,
such as `ClientConnected`: as text it is its `str()`, as JSON its kind is the event and its dataclass
fields are the fields. A line is always one line: what clients choose to be called cannot forge another
one, nor send commands to a terminal.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import sys
import time
from typing import TextIO

from hedgerow.errors import escape_controls

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_NAMES = {**{level: name for name, level in LEVELS.items()}, logging.CRITICAL: "error"}
_COLOURS = {"debug": "\x1b[2m", "warning": "\x1b[33m", "error": "\x1b[31m"}
_PLAIN = "\x1b[0m"


def set_up(log_format: str = "text", level: str = "info", stream: TextIO | None = None) -> None:
    """Send everything logged from here on to `stream`, standard error by default, and nowhere else."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter(stream.isatty()))
    logging.basicConfig(level=LEVELS[level], handlers=[handler], force=True)


class TextFormatter(logging.Formatter):
    """`2025-01-31 12:00:00.123 warning  the message`, in local time."""

    def __init__(self, in_colour: bool = False) -> None:
        super().__init__()
        self._in_colour = in_colour
        self._second = -1
        self._time = ""

    def format(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._second:  # lines come in bursts, and strftime is the dearest part of one
            self._second, self._time = second, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(second))
        level = _NAMES.get(record.levelno, record.levelname.lower())
        text = escape_controls(record.getMessage())
        line = f"{self._time}.{int(record.msecs):03d} {level:7}  {text}"
        if self._in_colour and level in _COLOURS:
            line = f"{_COLOURS[level]}{line}{_PLAIN}"
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


class JsonFormatter(logging.Formatter):
    """`{"ts": …, "level": …, "event": …, "message": …, "fields": {…}}`, with `ts` in UTC.

    The fields of a record that is plain text are those given as `extra={"fields": …}`.
    """

    def format(self, record: logging.LogRecord) -> str:
        import json

        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        event, fields = _describe(record)
        line: dict[str, object] = {
            "ts": f"{seconds}.{int(record.msecs):03d}Z",
            "level": _NAMES.get(record.levelno, record.levelname.lower()),
            "event": event,
            "message": record.getMessage(),
            "fields": fields,
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def kind_of(fact: object) -> str:
    """The name of its class, or the one under which people know it: `logged_as`, if it has that."""
    return getattr(fact, "logged_as", type(fact).__name__)


def json_name(fact: object) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind_of(fact)).lower()


def _describe(record: logging.LogRecord) -> tuple[str, dict[str, object]]:
    fact: object = record.msg
    if dataclasses.is_dataclass(fact) and not isinstance(fact, type):
        return json_name(fact), {field.name: getattr(fact, field.name) for field in dataclasses.fields(fact)}
    return "log", getattr(record, "fields", {})
