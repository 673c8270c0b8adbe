"""Which bridges a node creates at its start: the `bridges` of a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hedgerow.node.config import Chapter
from hedgerow.node.values import AT_RELOAD, Key, read_file_paths


@dataclass(slots=True, frozen=True)
class BridgesConfig:
    bridges: tuple[Path, ...] = ()
    """Files of sections, as `io.files` reads them."""
    texts: tuple[tuple[str, str], ...] = ()
    """Sections that stand elsewhere: what to call the place, and their text."""


CHAPTER = Chapter(
    BridgesConfig,
    (
        Key(
            "bridges",
            "--bridge",
            "FILE",
            read_file_paths,
            "create the bridges whose sections this file has; may be repeated",
            repeated=True,
            takes_effect=AT_RELOAD,
        ),
    ),
    lambda given: BridgesConfig(given.values["bridges"]),
)
