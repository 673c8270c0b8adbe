"""A program that runs beside this one, and is always ended.

It has a directory of its own, with what it says in files there. It is ended however the block that holds it
is left, and should this process itself be killed, the kernel ends it (Linux).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

STOP_S = 5.0
_PR_SET_PDEATHSIG = 1

_library = ctypes.CDLL(None) if sys.platform == "linux" else None


def ending_with_parent() -> Callable[[], None]:
    """What is to run in a child, between fork and exec."""
    parent = os.getpid()

    def end_with_parent() -> None:
        if _library is not None:
            _library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it died before we could ask
                os._exit(1)

    return end_with_parent


def default_signals() -> None:
    """To run in a child that begins a session, between fork and exec: it is as if a terminal had started it.

    Whoever started us may ignore these (`nohup`, shells without job control), and that is inherited. No
    signal of our terminal reaches another session, so nothing is to be ignored there.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


class Program:
    """A process that may be started again. `name` is for people."""

    def __init__(self, name: str, directory: Path, stop_s: float = STOP_S) -> None:
        self.name = name
        self.directory = directory
        self._stop_s = stop_s
        self.process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def output(self) -> Path:
        """Its standard output since it was last started."""
        return self.directory / "output"

    @property
    def log(self) -> Path:
        """Its standard error, of all starts."""
        return self.directory / "log"

    @property
    def has_ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def launch(self, command: Sequence[str], start_in: Path | None = None) -> None:
        """Start it, in its own directory unless told otherwise."""
        assert self.process is None, f"{self.name} runs already"
        end_with_parent = ending_with_parent()

        def prepare() -> None:
            default_signals()
            end_with_parent()

        with self.output.open("wb") as output, self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                cwd=start_in or self.directory,
                start_new_session=True,  # Ctrl-C is for us, who end it in order
                preexec_fn=prepare,  # noqa: PLW1509 - it makes a few system calls
            )

    def last_words(self) -> str:
        for file in (self.log, self.output):
            lines = file.read_text(errors="replace").strip().splitlines() if file.exists() else []
            if lines:
                return lines[-1]
        return "it said nothing"

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """As a power cut would: it gets to do nothing more."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def end(self) -> None:
        """In order where it can; a stopped process cannot hear of it."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(self._stop_s)
        self.kill()
