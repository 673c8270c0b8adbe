"""`report`: the pipeline's tables as one HTML page, with the sections that other packages add (`sections`).

The page needs nothing beside it. How tables look is in `page`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException

from hedgerow.errors import HedgerowError, reason_of
from hedgerow.pipeline.files import replace_text
from hedgerow.pipeline.report import html
from hedgerow.pipeline.report.page import PageSection, table_sections
from hedgerow.pipeline.report.sections import added_sections
from hedgerow.pipeline.tables import check_form, form_of, read_table, table_place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TITLE = "Hedgerow: report"
PAGE = "report.html"
"""Beside the tables, where no other place is named."""


def write_report(
    spark: SparkSession,
    page: Path,
    tables: str | Path | None,
    added: Iterable[PageSection] = (),
    form: str | None = None,
) -> None:
    """Write the page: what was added, then the tables in the directory `tables`, if there is one. `form` is
    that of the bronze table, None: that which it has. HedgerowError: the page cannot be written."""
    sections = list(added)
    if tables is not None:
        more = {name: shown for each in added_sections() for name, shown in each.tables().items()}
        sections += table_sections(str(tables), lambda name: _read(spark, str(tables), name, form), more)
    try:
        replace_text(page, render(sections))
    except OSError as error:
        raise HedgerowError(f"cannot write {page}: {reason_of(error)}") from error


def render(sections: list[PageSection]) -> str:
    now = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
    anchors = [f"section-{index}" for index in range(len(sections))]
    titles = [(anchor, section.title) for anchor, section in zip(anchors, sections, strict=True)]
    parts = [html.paragraph(f"Made at {now}.", is_soft=True)]
    parts.append(html.contents(titles) if sections else html.paragraph("There is nothing to report yet."))
    for anchor, (title, found) in zip(anchors, sections, strict=True):
        parts += [html.heading(title, anchor=anchor), *found]
    return html.page(TITLE, parts)


def _read(spark: SparkSession, tables: str, name: str, form: str | None) -> DataFrame | None:
    """None: it is not there, or has no file yet."""
    if form is not None:
        check_form(form)
    try:
        found = form if form is not None and name == "bronze" else form_of(tables, name)
        if found in ("delta", "iceberg"):
            return read_table(spark, tables, name, found)
        return spark.read.parquet(table_place(tables, name))
    except (AnalysisException, HedgerowError):
        return None
