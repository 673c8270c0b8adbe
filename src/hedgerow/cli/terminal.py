"""A program that has the terminal to itself: the other screen, keys one by one, resizing, Ctrl-Z.

Whatever ends it, an exception, a signal that asyncio handles or a key, the terminal is as it was.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

from hedgerow.cli.client_options import write_out

ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"  # the other screen, no cursor, no wrapping
LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"

# The terminal has gone, or Ctrl-\ was typed. `nohup` takes standard output away too: nothing is drawn then.
_ENDING = (signal.SIGHUP, signal.SIGQUIT)


def can_draw() -> bool:
    """Is standard output a terminal that has a cursor to move?"""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


class Screen:
    """The terminal's other screen, and its keys one by one, until it is left: then all is as it was."""

    def __init__(self, on_resize: Callable[[], None], on_keys: Callable[[str], None]) -> None:
        self._on_resize = on_resize
        self._on_keys = on_keys
        self._loop = asyncio.get_running_loop()
        self._input = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._before: list[Any] | None = None
        self._has_colours = not os.environ.get("NO_COLOR")

    def __enter__(self) -> Screen:
        if self._input is not None:
            self._before = termios.tcgetattr(self._input)
        try:
            self._take()
            if self._input is not None:
                self._loop.add_reader(self._input, self._read)
            self._loop.add_signal_handler(signal.SIGWINCH, self._on_resize)
            self._loop.add_signal_handler(signal.SIGTSTP, self._suspend)
            for number in _ENDING:
                self._loop.add_signal_handler(number, self._on_keys, "q")
        except BaseException:
            self._give_back()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._input is not None:
            self._loop.remove_reader(self._input)
        for number in (signal.SIGWINCH, signal.SIGTSTP, *_ENDING):
            self._loop.remove_signal_handler(number)
        self._give_back()

    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        try:
            size = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            return 80, 24
        return size.columns or 80, size.lines or 24

    async def draw(self, lines: list[tuple[str, str]]) -> None:
        """Lines, each with the sequence that gives it its colour, or none; no more than fit."""
        text = "\r\n".join(f"{self._coloured(*line)}\x1b[K" for line in lines)
        await write_out(f"\x1b[H{text}\x1b[J".encode(errors="replace"))

    def _coloured(self, text: str, colour: str) -> str:
        return f"{colour}{text}\x1b[0m" if colour and self._has_colours else text

    def _take(self) -> None:
        if self._input is not None:
            tty.setcbreak(self._input)
        _say(ENTER)

    def _give_back(self) -> None:
        with suppress(OSError):  # it may have gone
            _say(LEAVE)
        if self._input is not None and self._before is not None:
            with suppress(termios.error):
                termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)

    def _suspend(self) -> None:
        """Ctrl-Z: the shell gets its terminal back, until it lets us go on."""
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()
        self._on_resize()

    def _read(self) -> None:
        assert self._input is not None
        data = os.read(self._input, 1_024)
        # Nothing: the terminal has gone, as when a connection over SSH ends.
        self._on_keys(data.decode(errors="replace") if data else "q")


def _say(text: str) -> None:
    os.write(sys.stdout.fileno(), text.encode())
