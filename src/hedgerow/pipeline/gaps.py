"""Gaps: positions of a journal that cannot be read are logged, and written down once.

A file for each, named by its journal and positions: a batch that is read again finds it there already.
"""

from __future__ import annotations

import json
import logging
import tempfile
from pathlib import Path
from typing import NamedTuple

from hedgerow.errors import HedgerowError, reason_of
from hedgerow.journal import Gap

logger = logging.getLogger(__name__)


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
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".", delete=False) as file:
            json.dump(LocatedGap(journal, *gap)._asdict(), file)
        Path(file.name).replace(path)
    except OSError as error:
        raise HedgerowError(f"cannot write a gap to {directory}: {reason_of(error)}") from error


def read_gaps(directory: str) -> list[LocatedGap]:
    """All that were written to `directory`, by journal and position."""
    paths = sorted(Path(directory).glob("*.json"))
    return [LocatedGap(**json.loads(path.read_text())) for path in paths]
