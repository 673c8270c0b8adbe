"""A terminal whose last line changes in place: how far something is, below what stays."""

from __future__ import annotations

import shutil
from typing import TextIO

CLEAR = "\r\x1b[K"
PLAIN = "\x1b[0m"


class ProgressLine:
    """For a stream that is a terminal. A log may have this as its stream, and is written above the line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._line = ""

    def show(self, text: str, colour: str = "") -> None:
        """In place of the line before, and cut where the terminal ends: what wraps cannot be cleared."""
        text = text[: shutil.get_terminal_size().columns - 1]
        self._line = f"{colour}{text}{PLAIN}" if colour else text
        self._stream.write(f"{CLEAR}{self._line}")
        self._stream.flush()

    def say(self, text: str) -> None:
        """A line that stays, in place of the one that changes."""
        self._line, begin = "", CLEAR if self._line else ""
        self._stream.write(f"{begin}{text}\n")
        self._stream.flush()

    def write(self, text: str) -> None:
        self._stream.write(f"{CLEAR}{text}{self._line if text.endswith(chr(10)) else ''}")

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return True
