"""`hedgerow convert mosquitto.conf`: write the configuration of a node, and say what is not honoured."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from hedgerow.cli.mosquitto.conversion import PATHS, Converted, convert
from hedgerow.errors import ConfigError
from hedgerow.node.config_files import Written

CONFIGURATION = "hedgerow.toml"
BRIDGES = "bridges.conf"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="the mosquitto.conf")
    parser.add_argument(
        "--to",
        metavar="DIR",
        type=Path,
        help=f"write {CONFIGURATION} here, and {BRIDGES} if there are bridges; without it, print the first",
    )


def run(arguments: argparse.Namespace) -> int:
    converted = convert(arguments.file)
    if arguments.to is None:
        if converted.bridges:
            raise ConfigError(
                f"{arguments.file} has bridges, which become a file of their own: give --to DIR"
            )
        print(to_toml(converted), end="")
    else:
        _write(arguments.to / CONFIGURATION, to_toml(converted))
        if converted.bridges:
            _write(arguments.to / BRIDGES, converted.bridges)
        print(f"wrote {arguments.to / CONFIGURATION}")
    for line in converted.ignored:
        print(line, file=sys.stderr)
    return 0


def _write(file: Path, text: str) -> None:
    """For its owner alone: bridges have passwords."""
    try:
        number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f"{file} exists already; remove it, or name another folder") from None
    with os.fdopen(number, "w", encoding="utf-8") as output:
        output.write(text)


def to_toml(converted: Converted) -> str:
    values = {name: _from_anywhere(name, written) for name, written in converted.written.items()}
    if converted.bridges:
        values["bridges"] = BRIDGES
    return "\n".join(_lines(values)) + "\n"


def _from_anywhere(name: str, written: Written) -> object:
    """A path means the same from the folder that the new file is in."""
    is_path = name in PATHS or (name.startswith("tls.") and isinstance(written.value, str))
    return str((written.base / str(written.value)).resolve()) if is_path else written.value


def _lines(values: dict[str, object]) -> Iterator[str]:
    """A table's keys stand together, behind those of no table."""
    table = ""
    for name in sorted(values, key=lambda name: ("." in name, name)):
        head, _, key = name.rpartition(".")
        if head != table:
            table = head
            yield f"\n[{table}]"
        # A string, number, boolean or list in JSON is the same in TOML.
        yield f"{key} = {json.dumps(values[name])}"
