"""What a recorder knows of its session at the broker, beside the journal itself: the file `recorder` there.

It says to which filters the session is subscribed, so that a recorder that comes back does not subscribe
again (before MQTT 5 the broker would send everything retained once more), which of these subscriptions have
an identifier, and from which position on the journal has messages of this session. Without the file, or with
an older one, nothing is lost.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hedgerow.errors import reason_of
from hedgerow.log.files import replace_file

logger = logging.getLogger(__name__)

FILE = "recorder"


@dataclass(slots=True)
class RecorderState:
    filters: list[str] = field(default_factory=list)
    """In the order in which they were subscribed to."""
    since: int = 0
    """The first position of the session."""
    identified: list[str] = field(default_factory=list)
    """Those of the filters whose subscriptions have an identifier."""


def load(directory: Path) -> RecorderState:
    """What was stored; of a missing or damaged file, nothing."""
    with suppress(OSError, ValueError, TypeError):
        found = json.loads((directory / FILE).read_bytes())
        filters, since, identified = found["filters"], found["since"], found.get("identified", [])
        if isinstance(since, int) and all(isinstance(each, str) for each in (*filters, *identified)):
            return RecorderState(list(filters), since, list(identified))
    return RecorderState()


def store(directory: Path, state: RecorderState) -> None:
    try:
        replace_file(directory / FILE, json.dumps(asdict(state)).encode())
    except OSError as error:
        # Recording goes on: what is not stored costs at most what the broker sends once more.
        logger.warning("cannot write %s: %s", directory / FILE, reason_of(error))
