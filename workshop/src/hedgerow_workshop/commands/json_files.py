"""`--json FILE`, of commands that take minutes before there is anything to write."""

from __future__ import annotations

from pathlib import Path

from hedgerow.errors import ConfigError


def check_json_file(file: Path | None) -> None:
    """Before the run, and not when its result has nowhere to go."""
    if file is not None and not file.absolute().parent.is_dir():
        raise ConfigError(f"--json {file}: there is no such directory")
    if file is not None and file.is_dir():
        raise ConfigError(f"--json {file}: is a directory, not a file")
