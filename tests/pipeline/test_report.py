"""The report: its page is sound, and shows the tables and what is added."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from hedgerow.pipeline.jobs import ingest
from hedgerow.pipeline.report import html
from hedgerow.pipeline.report.page import PageSection
from hedgerow.pipeline.report.report import write_report
from hedgerow.pipeline.tables import append
from tests.pipeline.pages import Page
from tests.pipeline.rows import message, messages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVIL = "<script>alert('&')</script>"


def test_the_page_is_sound_and_escapes_what_it_is_given(spark: SparkSession, tmp_path: Path) -> None:
    make_tables(spark, tmp_path)
    added = PageSection(EVIL, [html.paragraph(EVIL), html.items([EVIL]), html.folded(EVIL, [])])
    write_report(spark, tmp_path / "page.html", tmp_path, [added])
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    found = Page(text)
    assert found.faults == []
    assert "<script" not in text
    assert EVIL in found.text
    assert found.tags.count("h2") == 1 + 6
    for words in (
        "Quarantined, by reason", "not JSON", "the frame is torn", "Hot topics", "of another version",
        "prefers-color-scheme: dark",
    ):  # fmt: skip
        assert words in found.text, words


def make_tables(spark: SparkSession, tables: Path) -> None:
    """As the jobs write them, as far as the report looks at them."""
    bronze = (
        "select 'j' journal, 'b1' broker, 'mqtt' transport, ? topic, '2026-11-15' date, 6 hour, null clamped"
    )
    hot = "select 'b1' broker, ? topic, 3L events, timestamp '2026-11-15 06:00:00' calculation_at"
    quarantine = "select 'rule' rule, 'not JSON' reason, ? topic"
    readings = (
        "select ? sensor, 'temperature' field, '°C' unit, 3.5D value, timestamp '2026-11-15 06:00:00' at"
    )
    for name, query in {"bronze": bronze, "hot": hot, "quarantine": quarantine, "readings": readings}.items():
        spark.sql(query, args=[EVIL]).write.parquet(str(tables / name))
    spark.sql("select 'of another version' colour").write.parquet(str(tables / "anomalies"))
    (tables / "_gaps").mkdir()
    gap = {"journal": EVIL, "start": 3, "end": 5, "reason": "the frame is torn"}
    (tables / "_gaps" / "j-3-5.json").write_text(json.dumps(gap))


def test_a_report_of_nothing_says_so(spark: SparkSession, tmp_path: Path) -> None:
    for tables in (tmp_path, None):
        write_report(spark, tmp_path / "page.html", tables)
        found = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
        assert found.faults == []
        assert "There is nothing to report yet." in found.text


def test_bronze_may_have_another_form_than_the_other_tables(spark: SparkSession, tmp_path: Path) -> None:
    rows = ingest.bronze(messages(spark, *map(message, range(3))))
    append(rows, 0, str(tmp_path), "bronze", form="delta", query="q", partition_by=ingest.PARTITIONED_BY)
    spark.sql("select 'n' source, 1L lost").write.parquet(str(tmp_path / "quality"))
    write_report(spark, tmp_path / "page.html", tmp_path, form="delta")
    found = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "3 rows in bronze/." in found.text
    assert "1 rows in quality/." in found.text


def test_a_long_table_is_cut() -> None:
    lines = [["a", "b"], *([str(number), "x" * 1_000] for number in range(html.MAX_LINES + 5))]
    found = Page(html.page("page", [html.table(lines, "long")]))
    assert found.faults == []
    assert "… and 5 more lines" in found.text
    assert "x" * 299 + "…" in found.text
