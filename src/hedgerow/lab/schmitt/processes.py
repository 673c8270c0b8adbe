"""Programs that a run starts: each in a directory of its own, with what it says in files there.

A program ends however the block that holds it is left, and the kernel ends it should this process be killed.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from hedgerow.lab.experiments import LabError

READY_S = 20.0
STOP_S = 5.0
POLL_S = 0.01
PR_SET_PDEATHSIG = 1
# Debian puts brokers where a user's PATH does not lead.
SBIN = ("/usr/local/sbin", "/usr/sbin")

_library = ctypes.CDLL(None) if sys.platform == "linux" else None


def find_program(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), *SBIN)))


def ending_with_parent() -> Callable[[], None]:
    """What is to run in a child, between fork and exec."""
    parent = os.getpid()

    def end_with_parent() -> None:
        if _library is not None:
            _library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it died before we could ask
                os._exit(1)

    return end_with_parent


class Program:
    """A process that may be started again. `name` is for people."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
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
        return self.directory / "log"

    @property
    def has_ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def launch(self, command: list[str]) -> None:
        assert self.process is None, f"{self.name} runs already"
        with self.output.open("wb") as output, self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                cwd=self.directory,
                preexec_fn=ending_with_parent(),  # noqa: PLW1509 - it makes two system calls
            )

    async def wait_until(self, is_ready: Callable[[], bool], what: str, patience_s: float = READY_S) -> None:
        give_up_at = time.monotonic() + patience_s
        while not is_ready():
            if self.has_ended:
                raise LabError(f"{self.name} ended before {what}: {self.last_words()}")
            if time.monotonic() > give_up_at:
                raise LabError(f"{self.name}: no {what} within {patience_s:g} s: {self.last_words()}")
            await asyncio.sleep(POLL_S)

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
            self.process.wait(STOP_S)
        self.kill()
