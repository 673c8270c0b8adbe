"""`report`: the lab's experiments, from their journals, and the pipeline's tables, as one HTML page.

The page needs nothing beside it. `experiments` says how an experiment is introduced, by its name; one that is
not named there has its rows, its runs and their delays all the same. What is computed of the runs is in
`lab_runs`, how it looks in `page`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from hedgerow.errors import HedgerowError, reason_of
from hedgerow.pipeline.files import replace_text
from hedgerow.pipeline.report import html
from hedgerow.pipeline.report.page import (
    Describe,
    PageSection,
    describe_plainly,
    experiment_section,
    table_sections,
)
from hedgerow.pipeline.report.results import gather
from hedgerow.pipeline.tables import check_form, read_table, table_place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TITLE = "Hedgerow: experiments and tables"
PAGE = "report.html"
RESULTS_PAGE = "experiments.html"  # An experiment has a report.html of its own.


def report(
    spark: SparkSession,
    tables: str | Path | None,
    results: Sequence[Path] = (),
    *,
    out: Path | None = None,
    experiments: Mapping[str, Describe] | None = None,
    form: str = "parquet",
) -> Path:
    """Write the page, to `out`, or as report.html beside the tables, or as experiments.html beside the first
    of the results, and give its path.

    `tables` and each of the `results` are directories; `form` is that of the bronze table. HedgerowError:
    none is given, or what is given cannot be used.
    """
    if tables is None and not results:
        raise HedgerowError("a report is of tables, or of results of the lab: name one of them")
    sections = []
    for experiment in gather(spark, results):
        describe = (experiments or {}).get(experiment.name, describe_plainly)
        sections.append(experiment_section(experiment, describe))
    if tables is not None:
        sections += table_sections(str(tables), lambda name: _read(spark, str(tables), name, form))
    page = out or (Path(tables) / PAGE if tables is not None else results[0] / RESULTS_PAGE)
    _write(page, render(sections))
    return page


def render(sections: list[PageSection]) -> str:
    now = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
    anchors = [f"section-{index}" for index in range(len(sections))]
    titles = [(anchor, section.title) for anchor, section in zip(anchors, sections, strict=True)]
    parts = [html.paragraph(f"Made at {now}.", is_soft=True)]
    parts.append(html.contents(titles) if sections else html.paragraph("There is nothing to report yet."))
    for anchor, (title, found) in zip(anchors, sections, strict=True):
        parts += [html.heading(title, anchor=anchor), *found]
    return html.page(TITLE, parts)


def _read(spark: SparkSession, tables: str, name: str, form: str) -> DataFrame | None:
    """None: it is not there, or has no file yet. Bronze alone may be of another form than Parquet."""
    check_form(form)
    try:
        if form != "parquet" and name == "bronze":
            return read_table(spark, tables, name, form)
        return spark.read.parquet(table_place(tables, name))
    except (AnalysisException, HedgerowError):
        return None


def _write(page: Path, text: str) -> None:
    try:
        replace_text(page, text)
    except OSError as error:
        raise HedgerowError(f"cannot write {page}: {reason_of(error)}") from error
