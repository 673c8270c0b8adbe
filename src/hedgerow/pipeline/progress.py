"""How far a running query is: for the terminal, and as data for whoever draws it.

Each job's progress is one small JSON file, `TABLES/_progress/JOB.json`, which is replaced whole, and where a
broker is given a retained message on `$hedgerow/pipeline/JOB` with the same content.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hedgerow.message import Message
from hedgerow.pipeline.files import replace_text

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

DIRECTORY = "_progress"
TOPIC_PREFIX = "$hedgerow/pipeline/"  # A journal of "#" does not have it: it would feed on itself.

_WAITING = "Waiting for next trigger"  # as Spark says it


@dataclass(frozen=True, slots=True)
class Progress:
    job: str
    state: str
    """running, finished, stopped or failed"""
    batch: int = -1
    """The last that is done; -1: none yet."""
    rows: int = 0
    """Of that batch."""
    rows_per_s: float = 0.0
    total_rows: int = 0
    """Since the query was started."""
    behind: int | None = None
    """Rows that the journals have and the query has not; None where that is not known."""
    batch_s: float = 0.0
    late: int = 0
    """Readings that came too late to be judged, since the query was started."""
    unreadable: int = 0
    """Positions of journals that could not be read."""
    reason: str = ""

    def line(self) -> str:
        parts = [f"{self.job}: {self.state}"]
        if self.batch >= 0:
            parts.append(f"batch {self.batch}, {self.rows} rows in {self.batch_s:.1f} s")
            parts.append(f"{self.rows_per_s:,.0f} rows/s, {self.total_rows:,} rows in all")
        if self.behind is not None:
            parts.append(f"{self.behind:,} behind")
        if self.late:
            parts.append(f"{self.late:,} late")
        if self.unreadable:
            parts.append(f"{self.unreadable:,} positions cannot be read")
        if self.reason:
            parts.append(self.reason)
        return ", ".join(parts)


class QueryWatch:
    """One query, looked at from time to time."""

    def __init__(self, job: str, query: StreamingQuery) -> None:
        self.job = job
        self.query = query
        self._total_rows = 0
        self._late = 0
        self._last_batch = -1
        self._progress = Progress(job, "running")

    @property
    def is_under_way(self) -> bool:
        """Has it nothing to do, or done two batches? The first takes long, and a query with a watermark tells
        nothing before the second."""
        status = self.query.status
        if status["message"] == _WAITING and not status["isDataAvailable"]:
            return True
        done = {each["batchId"] for each in self.query.recentProgress if "addBatch" in each["durationMs"]}
        return len(done) > 1

    def look(self) -> Progress:
        """Batches without rows do not show: they are only ticks of the trigger."""
        for reported in self.query.recentProgress:
            batch = int(reported["batchId"])
            # A trigger that found nothing is told under the number of the batch that is to come.
            if batch > self._last_batch and reported["numInputRows"]:
                self._last_batch = batch
                self._total_rows += int(reported["numInputRows"])
                self._late += _late(reported)
                self._progress = replace(_read(self.job, reported, self._total_rows), late=self._late)
        return self._progress


def _read(job: str, reported: Mapping[str, Any], total_rows: int) -> Progress:
    rows = int(reported["numInputRows"])
    batch_s = float(reported["durationMs"].get("triggerExecution", 0)) / 1_000
    return Progress(
        job,
        "running",
        int(reported["batchId"]),
        rows,
        rows / batch_s if batch_s else 0.0,
        total_rows,
        _behind(reported["sources"]),
        batch_s,
    )


def _late(reported: Mapping[str, Any]) -> int:
    observed = reported.get("observedMetrics") or {}
    return int(observed["late"]["rows"] or 0) if "late" in observed else 0


def _behind(sources: list[Mapping[str, Any]]) -> int | None:
    """By the offsets of the data source `hedgerow`; other sources have others."""
    behind = None
    for source in sources:
        latest, end = (_positions(source.get(key)) for key in ("latestOffset", "endOffset"))
        if latest is not None and end is not None:
            behind = (behind or 0) + sum(max(0, at - end.get(journal, 0)) for journal, at in latest.items())
    return behind


def _positions(offset: object) -> dict[str, int] | None:
    document = json.loads(offset) if isinstance(offset, str) else offset
    journals = document.get("journals") if isinstance(document, Mapping) else None
    return {name: int(at) for name, at in journals.items()} if isinstance(journals, Mapping) else None


def message(progress: Progress) -> Message:
    return Message(TOPIC_PREFIX + progress.job, json.dumps(asdict(progress)).encode(), qos=1, retain=True)


def store(progress: Progress, tables: Path) -> None:
    replace_text(tables / DIRECTORY / f"{progress.job}.json", json.dumps(asdict(progress)))


def load(tables: Path) -> dict[str, Progress]:
    """By job; what is damaged or of another version is left out."""
    found = {}
    for path in sorted((tables / DIRECTORY).glob("*.json")):
        try:
            found[path.stem] = Progress(**json.loads(path.read_text()))
        except (ValueError, TypeError):
            continue
    return found
