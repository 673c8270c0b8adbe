"""Files of bridges: connection sections in Mosquitto's words, one behind the other, or one section as JSON.

`bridges` in the configuration names them, and `hedgerow bridge new` reads one. A mistake raises ConfigError
with the file, the line and the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from hedgerow.bridges.commands import MAX_BRIDGES
from hedgerow.bridges.section import Section, read_section
from hedgerow.errors import ConfigError
from hedgerow.node.values import read_utf8


def read_bridge_files(paths: Iterable[Path], texts: Iterable[tuple[str, str]] = ()) -> list[Section]:
    """The bridges of all these files, in their order, and of `texts` as `read_bridges` takes them."""
    return read_bridges([*((str(path), read_utf8(path)) for path in paths), *texts])


def read_bridges(texts: Iterable[tuple[str, str]]) -> list[Section]:
    """The bridges of (name, text) of each file."""
    found: dict[str, tuple[str, Section]] = {}
    for source, text in texts:
        for first_line, section_text in _split(text):
            section = _read(source, first_line, section_text)
            place = f"{source}:{first_line}"
            if section.name in found:
                raise ConfigError(f"{place}: bridge {section.name} is in {found[section.name][0]} already")
            found[section.name] = place, section
            if len(found) > MAX_BRIDGES:
                raise ConfigError(f"{place}: there are more than {MAX_BRIDGES} bridges")
    return [section for _, section in found.values()]


def _split(text: str) -> Iterator[tuple[int, str]]:
    """(number of its first line, text) of each section. What stands before the first belongs to it."""
    lines = text.split("\n")
    begins = [number for number, line in enumerate(lines) if line.strip(" \r").split(" ")[0] == "connection"]
    if text.lstrip().startswith("{") or not begins:
        yield 1, text
        return
    for begin, end in zip([0, *begins[1:]], [*begins[1:], len(lines)], strict=True):
        yield begin + 1, "\n".join(lines[begin:end])


def _read(source: str, first_line: int, text: str) -> Section:
    try:
        return read_section(text)
    except ConfigError as error:
        found = re.match("line ([0-9]+): ", str(error))
        line = first_line + (int(found[1]) - 1 if found else 0)
        reason = str(error)[found.end() :] if found else str(error)
        raise ConfigError(f"{source}:{line}: {reason}") from None
