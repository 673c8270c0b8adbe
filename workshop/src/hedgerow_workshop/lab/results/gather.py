"""The results of experiments in a directory: which there are, and their figures, computed with Spark.

An experiment is a directory with `journals/RUN` (one journal a run), `rows.json` (the experiment's own rows
and notes), or both, anywhere below the results. Journals that are not of the lab are passed over; a file that
cannot be read becomes a note.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as sql

from hedgerow.errors import HedgerowError, StoreError
from hedgerow.journal import JournalReader
from hedgerow_workshop.lab.harness.journals import HAPPENED, JOURNALS, ROWS, RUN
from hedgerow_workshop.lab.results import deliveries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

MAX_JOURNALS = 2_000  # A directory that was named by mistake, such as a home, is not read for hours.
MAX_HAPPENED = 200  # of a run


@dataclass(frozen=True, slots=True)
class Figures:
    """As `deliveries.summarise` has them."""

    expected: int = 0
    delivered: int = 0
    lost: int = 0
    doubled: int = 0
    repeated: int = 0
    measured: int = 0
    mean_ms: float | None = None
    deviation_ms: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    most_ms: float | None = None


@dataclass(frozen=True, slots=True)
class PartOfRun:
    """One subscriber and topic; or one group of subscribers, and then neither is named."""

    group: str
    subscriber: str
    topic: str
    figures: Figures


@dataclass(slots=True)
class ReportRun:
    name: str
    settings: Mapping[str, str] = field(default_factory=dict)
    published: int = 0
    figures: Figures = field(default_factory=Figures)
    parts: list[PartOfRun] = field(default_factory=list)
    groups: list[PartOfRun] = field(default_factory=list)
    happened: list[tuple[float, str]] = field(default_factory=list)
    """Seconds since the first publication, and what."""
    percentiles: list[float] = field(default_factory=list)
    """Of the delays, 0, 1 … 100; empty where there is none."""
    course: list[tuple[float, float, float]] = field(default_factory=list)
    """Seconds since the first publication; mean and longest delay of what was published then, in ms."""


@dataclass(slots=True)
class Experiment:
    name: str
    directory: str
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    """The experiment's own: name, unit, ours, published."""
    notes: list[str] = field(default_factory=list)
    runs: list[ReportRun] = field(default_factory=list)


def gather(spark: SparkSession, results: Iterable[Path]) -> list[Experiment]:
    """Every experiment below these directories. HedgerowError: there is no such one, or it holds too much."""
    experiments: dict[Path, Experiment] = {}
    journals: dict[str, tuple[Path, ReportRun]] = {}
    for place in results:
        if not place.is_dir():
            raise HedgerowError(f"{place} is no directory; name the one that lab runs wrote to (--out)")
        for path in sorted(place.rglob(ROWS)):
            experiment = _read_rows(path)
            if experiment is not None:
                experiments.setdefault(path.parent.resolve(), experiment)
        for name, journal, run in _find_runs(place):
            if journal.journal_id in journals:  # a copy, or a directory that was named twice
                continue
            journals[journal.journal_id] = journal.directory, run
            if len(journals) > MAX_JOURNALS:
                raise HedgerowError(f"there are more than {MAX_JOURNALS:,} runs; name a smaller directory")
            directory = journal.directory.parent.parent
            experiment = experiments.setdefault(directory.resolve(), Experiment(name, str(directory)))
            experiment.runs.append(run)
    if journals:
        _fill(spark, journals)
    return sorted(experiments.values(), key=lambda each: (each.name, each.directory))


def _read_rows(path: Path) -> Experiment | None:
    """None: the file is of somebody else."""
    directory = str(path.parent)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return Experiment(directory, directory, notes=[f"{path.name} cannot be read: {error}"])
    if not isinstance(document, dict) or not isinstance(document.get("experiment"), str):
        return None
    rows, notes = (
        found if isinstance(found := document.get(name), list) else [] for name in ("rows", "notes")
    )
    named: list[Mapping[str, Any]] = [row for row in rows if isinstance(row, dict) and "name" in row]
    return Experiment(document["experiment"], directory, named, list(map(str, notes)))


def _find_runs(place: Path) -> Iterator[tuple[str, JournalReader, ReportRun]]:
    """The experiment's name, and each run with its journal."""
    for directory in sorted(place.rglob(f"{JOURNALS}/*/")):
        if directory.name.startswith("."):  # it is being written
            continue
        try:
            journal = JournalReader(directory)
            about = _first_payload(journal)
        except (StoreError, OSError):
            continue
        if about is not None:
            name, run = _read_about(about)
            yield name, journal, run


def _first_payload(journal: JournalReader) -> bytes | None:
    """What a run of the lab says of itself. None: it is another journal."""
    for batch in journal.batches(0, 1, ("topic", "payload"), topic_filters=[RUN]):
        for payload in batch.column(1).to_pylist():
            return bytes(payload)
    return None


def _read_about(text: bytes) -> tuple[str, ReportRun]:
    try:
        about = json.loads(text)
        settings = {str(name): str(value) for name, value in about["settings"].items()}
        return str(about["experiment"]), ReportRun(str(about["run"]), settings)
    except (ValueError, KeyError, TypeError, AttributeError):
        return "unknown", ReportRun("a run that does not say which")


# With Spark


def _fill(spark: SparkSession, found: Mapping[str, tuple[Path, ReportRun]]) -> None:
    """`found`: journal id → its directory, and the run that is to have its figures."""
    runs = {journal: run for journal, (_, run) in found.items()}
    rows = deliveries.read_journals(spark, [directory for directory, _ in found.values()]).persist()
    detail = deliveries.deliveries(rows).persist()
    try:
        _fill_counts(runs, rows)
        _fill_figures(runs, detail)
    finally:
        detail.unpersist()
        rows.unpersist()


def _fill_counts(runs: Mapping[str, ReportRun], rows: DataFrame) -> None:
    begins: dict[str, int] = {}
    counted = deliveries.publications(rows).groupBy("journal")
    for row in counted.agg(
        sql.count("*").alias("count"), sql.min(sql.unix_micros("published_at")).alias("begin_us")
    ).collect():
        runs[row["journal"]].published = row["count"]
        begins[row["journal"]] = row["begin_us"] or 0
    moments = rows.where(sql.col("topic") == HAPPENED).select(
        "journal",
        sql.unix_micros("received_at").alias("at_us"),
        sql.col("payload").cast("string").alias("what"),
    )
    for row in moments.orderBy("journal", "at_us").limit(MAX_HAPPENED * len(runs)).collect():
        happened = runs[row["journal"]].happened
        if row["at_us"] is not None and len(happened) < MAX_HAPPENED:
            happened.append(((row["at_us"] - begins.get(row["journal"], 0)) / 1e6, row["what"]))


def _fill_figures(runs: Mapping[str, ReportRun], detail: DataFrame) -> None:
    levels = (["journal"], ["journal", "subscribers"], ["journal", "subscribers", "subscriber", "topic"])
    for row in deliveries.summarise(detail, *levels).collect():
        run, figures, group = runs[row["journal"]], _figures(row), row["subscribers"] or ""
        if row["level"] == 0:
            run.figures = figures
            run.percentiles = list(row["percentiles"] or [])
        elif row["level"] == 2:
            run.parts.append(PartOfRun(group, row["subscriber"], row["topic"], figures))
        elif group:
            run.groups.append(PartOfRun(group, "", "", figures))
    for run in runs.values():
        run.groups.sort(key=lambda part: part.group)
        run.parts.sort(key=lambda part: (part.group, part.subscriber, part.topic))
    for row in deliveries.course(detail).orderBy("journal", "at_s").collect():
        runs[row["journal"]].course.append((row["at_s"], row["mean_ms"], row["most_ms"]))


def _figures(row: Row) -> Figures:
    return Figures(**{name: row[name] for name in Figures.__dataclass_fields__})
