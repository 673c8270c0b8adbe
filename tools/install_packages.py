#!/usr/bin/env python3
"""`pip install`, and what it is doing: `tools/install_packages.py ARGUMENTS OF PIP INSTALL`.

A line for each package that is fetched or built, with the seconds gone by, and below them on a terminal one
that changes: what is being fetched, and how much of it is here. Where lines cannot change that one is said
every ten seconds. All that pip says is in .cache/install.log, and shown when it fails. It needs nothing but
Python.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

LOG = Path(__file__).resolve().parent.parent / ".cache/install.log"
LOOK_S = 0.2
SAY_AGAIN_S = 10.0
MIB = 2**20
CLEAR = "\r\x1b[K"
MAX_COLUMNS = 78
_DOING = re.compile(
    r"^\s*(Downloading|Processing|Building wheel for|Installing collected packages):? (?P<what>.*)$"
)


def describe(line: str) -> str | None:
    """What a line of pip's tells that people want to know; None: nothing."""
    found = _DOING.match(line)
    if found is None:
        return None
    what = found["what"].strip()
    if found[1] == "Installing collected packages":
        count = what.count(",") + 1
        return f"installing {count} packages" if count > 1 else f"installing {what}"
    if found[1] == "Building wheel for":
        return f"building {what.split()[0]}" if "finished" not in what else None
    name, _, size = what.rpartition("/")[2].partition(" (")
    if found[1] == "Processing":
        return f"taking {name}" if name.endswith((".whl", ".tar.gz")) else None
    return f"fetching {name}" + (f" ({size.rstrip(')')})" if size else "")


def size_of(folder: Path) -> int:
    """Of all files below it, while others come and go."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(place) / name).stat().st_size
            except OSError:
                continue
    return total


class Teller:
    """`is_live`: a line may change."""

    def __init__(self, stream: TextIO, is_live: bool) -> None:
        self._stream = stream
        self._is_live = is_live
        self._began_at = self._said_at = time.monotonic()
        self._doing = "looking what there is to fetch"
        self._lock = threading.Lock()

    def begin(self, doing: str) -> None:
        with self._lock:
            self._doing = doing
            self._say(doing)

    def look(self, size: int) -> None:
        with self._lock:
            text = self._doing + (f": {size // MIB} MiB of it here" if size >= MIB else "")
            if self._is_live:
                self._stream.write(f"{CLEAR}{self._time()}  {text}"[:MAX_COLUMNS])
                self._stream.flush()
            elif time.monotonic() - self._said_at >= SAY_AGAIN_S:
                self._say(text)

    def end(self, text: str) -> None:
        with self._lock:
            self._say(text)

    def _say(self, text: str) -> None:
        self._said_at = time.monotonic()
        start = CLEAR if self._is_live else ""
        self._stream.write(f"{start}{self._time()}  {text}\n")
        self._stream.flush()

    def _time(self) -> str:
        return f"{time.monotonic() - self._began_at:5.0f} s"


def read(lines: Iterable[str], teller: Teller, log: TextIO) -> None:
    for line in lines:
        log.write(line)
        doing = describe(line)
        if doing is not None:
            teller.begin(doing)


def install(arguments: list[str], stream: TextIO) -> int:
    teller = Teller(stream, stream.isatty())
    LOG.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    with tempfile.TemporaryDirectory(prefix="hedgerow-install-") as folder, LOG.open("w") as log:
        pip = subprocess.Popen(
            [*command, *arguments],
            env={**os.environ, "TMPDIR": folder, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert pip.stdout is not None
        reader = threading.Thread(target=read, args=(pip.stdout, teller, log))
        reader.start()
        while reader.is_alive():
            teller.look(size_of(Path(folder)))
            reader.join(LOOK_S)
        status = pip.wait()
    if status:
        sys.stderr.write(LOG.read_text())
        teller.end(f"pip failed; all that it said is in {LOG}")
    else:
        teller.end("installed")
    return status


if __name__ == "__main__":
    sys.exit(install(sys.argv[1:], sys.stdout))
