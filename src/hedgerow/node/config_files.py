"""TOML files of a configuration: every key of one, with its value and where it stands."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from hedgerow.errors import ConfigError
from hedgerow.node.values import read_utf8


class Written(NamedTuple):
    """A value as somebody wrote it, before its reader has read it."""

    value: object
    where: str
    """"FILE:LINE: KEY" or the flag, to begin an error with."""
    base: Path
    """What a relative path is relative to."""


def read_config_file(path: Path, tables: Collection[str]) -> dict[str, Written]:
    """By key, with that of its table ("tls.key") if it stands in one of `tables`. Raises ConfigError."""
    import tomllib

    text = read_utf8(path)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason, _, position = str(error).partition(" (at ")
        found = re.match(r"line ([0-9]+)", position)  # otherwise: "end of document"
        line = int(found[1]) if found else len(text.rstrip().splitlines())
        raise ConfigError(f"{path}:{line}: {reason}") from None
    except RecursionError:  # by thousands of brackets
        raise ConfigError(f"{path}: nested too deeply") from None
    lines = _key_lines(text)
    written: dict[str, Written] = {}
    for name, value in flatten(document, tables):
        # A key of an inline table stands in the line of that table.
        line_number = lines.get(name) or lines.get(name.partition(".")[0])
        where = f"{path}:{line_number}: {name}" if line_number else f"{path}: {name}"
        written[name] = Written(value, where, path.parent)
    return written


def flatten(document: Mapping[str, object], tables: Collection[str]) -> Iterator[tuple[str, object]]:
    for name, value in document.items():
        if name in tables and isinstance(value, Mapping):
            yield from ((f"{name}.{key}", inner) for key, inner in value.items())
        else:
            yield name, value


def _key_lines(text: str) -> dict[str, int]:
    """The line of each key and table. tomllib does not tell; this reads the usual ways to write them."""
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.match(r"\s*\[+([^\]]+)\]", line):
            section = _normal_key(found[1])
            lines.setdefault(section, number)
            section += "."
        elif found := re.match(r"\s*([A-Za-z0-9_.\"' -]+?)\s*=", line):
            lines.setdefault(section + _normal_key(found[1]), number)
    return lines


def _normal_key(text: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in text.split("."))
