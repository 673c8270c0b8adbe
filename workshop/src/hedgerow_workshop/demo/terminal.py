"""What the demo says: lines that stay, and on a terminal one below them that changes."""

from __future__ import annotations

import os
import time
from typing import TextIO

from hedgerow.cli.progress_line import PLAIN, ProgressLine

_BOLD, _GREEN, _DIM = "\x1b[1m", "\x1b[32m", "\x1b[2m"
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_TURNS_PER_S = 10


class Terminal:
    """`is_live`: in colour, unless NO_COLOR is set, and with a line that changes."""

    def __init__(self, stream: TextIO, is_live: bool) -> None:
        self.is_live = is_live
        self._line = ProgressLine(stream)
        self._has_colours = is_live and not os.environ.get("NO_COLOR")

    def say(self, text: str) -> None:
        self._line.say(text)

    def head(self, text: str) -> None:
        """Something to be found again."""
        self._line.say(self._in(_BOLD, text))

    def step(self, number: str, at_s: float, text: str) -> None:
        """What a step of the story has come to."""
        label, clock = self._in(_GREEN, f"[{number}]"), self._in(_DIM, f"{at_s:5.1f} s")
        self._line.say(f"{label} {clock}  {text}")

    def progress(self, text: str) -> None:
        """In place of the one before. Nothing where lines cannot change."""
        if self.is_live:
            turn = SPINNER[int(time.monotonic() * _TURNS_PER_S) % len(SPINNER)]
            self._line.show(f"{turn} {text}", _DIM if self._has_colours else "")

    def _in(self, colour: str, text: str) -> str:
        return f"{colour}{text}{PLAIN}" if self._has_colours else text
