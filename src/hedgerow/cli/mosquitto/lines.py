"""The lines of a mosquitto.conf, and of the files that it includes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hedgerow.errors import ConfigError
from hedgerow.node.values import read_utf8

MAX_DEPTH = 10  # as Mosquitto, which counts files that include each other


class OptionLine(NamedTuple):
    file: Path
    number: int
    word: str
    value: str

    @property
    def where(self) -> str:
        """To begin a message with."""
        return f"{self.file}:{self.number}: {self.word}"


def read_lines(file: Path, depth: int = 0) -> Iterator[OptionLine]:
    """Every option, with those of an `include_dir` where that stands. Raises ConfigError."""
    if depth > MAX_DEPTH:
        raise ConfigError(f"{file}: files include each other more than {MAX_DEPTH} levels deep")
    for number, text in enumerate(read_utf8(file).splitlines(), 1):
        text = text.strip()
        if not text or text.startswith("#"):
            continue
        word, _, value = text.partition(" ")
        line = OptionLine(file, number, word, value.strip())
        if word == "include_dir":
            for included in _files_of(line):
                yield from read_lines(included, depth + 1)
        else:
            yield line


def _files_of(line: OptionLine) -> list[Path]:
    folder = line.file.parent / line.value
    if not folder.is_dir():
        raise ConfigError(f"{line.where}: {folder} is not a directory")
    return sorted(folder.glob("*.conf"))
