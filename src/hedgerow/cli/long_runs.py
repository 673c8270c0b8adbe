"""For commands that run for minutes and start programs."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from hedgerow.cli.stop_signals import ending_signals


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
