"""What `bench` and `lab run` share: they take minutes, start programs, and may write a file at the end."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from hedgerow.cli.stop_signals import ending_signals
from hedgerow.errors import ConfigError


def check_json_file(file: Path | None) -> None:
    """Before the run, and not when its result has nowhere to go."""
    if file is not None and not file.absolute().parent.is_dir():
        raise ConfigError(f"--json {file}: there is no such directory")
    if file is not None and file.is_dir():
        raise ConfigError(f"--json {file}: is a directory, not a file")


@contextmanager
def signals_as_exceptions() -> Iterator[None]:
    """Be ended as by an exception, so that whatever was started is ended too."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    numbers = ending_signals(signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
