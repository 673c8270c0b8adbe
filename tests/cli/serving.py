"""A command that serves until it is ended, as a process, for the tests of such commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.programs import end, wait_until


class Serving:
    """A process of `hedgerow`, and what it has printed."""

    def __init__(self, directory: Path, *words: str) -> None:
        self._output, self._log = directory / "output", directory / "log"
        with self._output.open("wb") as output, self._log.open("wb") as log:
            command = [sys.executable, "-m", "hedgerow", *words]
            self.process = subprocess.Popen(command, stdout=output, stderr=log, cwd=directory)

    def wait(self) -> None:
        wait_until(lambda: self.output.endswith("\n") or self.process.poll() is not None, "its line")
        assert self.process.poll() is None, self.log

    @property
    def output(self) -> str:
        return self._output.read_text()

    @property
    def log(self) -> str:
        return self._log.read_text()

    def end(self) -> None:
        if self.process.poll() is None:
            assert end(self.process) == 0
        assert "Traceback" not in self.log
