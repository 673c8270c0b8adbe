"""The files of a table, wherever it is: in a directory, or in an object store.

A store's keys and its address come from the environment (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL` and so on),
on the driver and on the executors: they are in no plan, and in no log.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from hedgerow.pipeline.places import is_in_store

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

# pyarrow has one name where Spark and Delta have several.
_ARROWS = {"s3a": "s3", "az": "abfs"}
_OTHER_NAMES = re.compile(f"^({'|'.join(_ARROWS)})(?=:)")


def filesystem_of(location: str) -> FileSystem:
    """Of the files below it, by their names there."""
    from pyarrow.fs import FileSystem, LocalFileSystem, SubTreeFileSystem

    if not is_in_store(location):
        return SubTreeFileSystem(location, LocalFileSystem())
    filesystem, path = FileSystem.from_uri(_OTHER_NAMES.sub(lambda found: _ARROWS[found[1]], location))
    return SubTreeFileSystem(path, filesystem)


def make_room(location: str, name: str) -> None:
    """For a file: in a store there is nothing to make."""
    if not is_in_store(location):
        Path(location, name).parent.mkdir(parents=True, exist_ok=True)


def sync_file(location: str, name: str) -> None:
    """A store has it when the file is closed."""
    if is_in_store(location):
        return
    path = Path(location, name)
    for each in (path, path.parent):
        descriptor = os.open(each, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def read_text(location: str, name: str) -> str:
    """FileNotFoundError: there is none."""
    with filesystem_of(location).open_input_file(name) as file:
        return bytes(file.read()).decode()
