"""Gaps: positions of a journal that cannot be read are logged, and written down once.

A file for each, named by its journal and positions: a batch that is read again finds it there already.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import NamedTuple

from hedgerow.errors import HedgerowError, reason_of
from hedgerow.journal import Gap
from hedgerow.pipeline.files import replace_text

logger = logging.getLogger(__name__)

GAPS = "_gaps"
"""The directory beside the tables to which `hedgerow pipeline` has them written."""


class LocatedGap(NamedTuple):
    """A gap that was written down."""

    journal: str
    start: int
    end: int
    reason: str


def report_gap(directory: str | None, journal: str, gap: Gap) -> None:
    """HedgerowError: it cannot be written to `directory`. A gap that nobody learns of is a silent loss."""
    logger.warning("journal %s, lost: %s", journal, gap)
    if directory is None:
        return
    path = Path(directory) / f"{journal}-{gap.start:020d}-{gap.end:020d}.json"
    try:
        if not path.exists():
            replace_text(path, json.dumps(LocatedGap(journal, *gap)._asdict()))
    except OSError as error:
        raise HedgerowError(f"cannot write a gap to {directory}: {reason_of(error)}") from error


def read_gaps(directory: str) -> list[LocatedGap]:
    """All that were written to `directory`, by journal and position. Of a file that cannot be read, that."""
    return [_read_gap(path) for path in sorted(Path(directory).glob("*.json"))]


def _read_gap(path: Path) -> LocatedGap:
    try:
        return LocatedGap(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        return LocatedGap(path.stem, 0, 0, f"{path.name} cannot be read: {error}")
