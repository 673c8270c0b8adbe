"""The report: its page is sound, and shows the tables and what is added."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hedgerow.pipeline.jobs import ingest
from hedgerow.pipeline.jobs.anomalies import ANOMALY_SCHEMA
from hedgerow.pipeline.report import html
from hedgerow.pipeline.report.page import MAX_ROWS, PageSection, table_sections
from hedgerow.pipeline.report.report import render, write_report
from hedgerow.pipeline.tables import append
from tests.pipeline.pages import Page
from tests.pipeline.rows import message, messages

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIGURES = (
    "Messages a second, by broker",
    "Latency of links and hops, 95th percentile",
    "Messages lost",
    "mast10: wind, with what stands out",
    "Hot topics of the whole network",
)
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


def table(spark: SparkSession, schema: str, *rows: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(rows), schema)


def a_day(spark: SparkSession) -> dict[str, DataFrame]:
    """Twelve sensors for an hour; one of them has a spike, and one link lost something."""
    began = datetime(2026, 11, 15, 6, 0, 0)  # noqa: DTZ001 - as Spark's Python has it
    minutes = [began + timedelta(minutes=number) for number in range(60)]
    origin = "3fa29b01c4d5e6f7"
    bronze = (
        "received_at timestamp, broker string, origin string, client string, transport string, topic string"
    )
    readings = "sensor string, field string, unit string, value double, at timestamp, clamped string"
    latency = (
        "kind string, source string, target string, start timestamp, delivered long, lost long, "
        "delay_p95_s double"
    )
    return {
        "bronze": table(spark, bronze, *((at, "barn", origin, "station", "mqtt", "t") for at in minutes)),
        "readings": table(
            spark,
            readings,
            *(
                (f"mast{n}", "wind", "m/s", float(n + at.minute % 7), at, None)
                for n in range(12)
                for at in minutes
            ),
        ),
        "anomalies": table(
            spark,
            ANOMALY_SCHEMA,
            (
                "mast10",
                "wind",
                "spike",
                minutes[30],
                minutes[30],
                True,
                1,
                60.0,
                4.0,
                9.0,
                "m/s",
                "60 after 4",
            ),
        ),
        "latency": table(
            spark, latency, *(("link", origin, "house", at, 10, int(at.minute == 9), 0.002) for at in minutes)
        ),
        "hot": table(
            spark,
            "broker string, topic string, events long, calculation_at timestamp",
            *((None, topic, at.minute, at) for at in minutes for topic in ("t", "u")),
        ),
    }


def test_the_report_leads_with_charts_and_folds_long_tables(spark: SparkSession, tmp_path: Path) -> None:
    tables = a_day(spark)
    sections = list(table_sections(str(tmp_path), tables.get, {}))
    text = render(sections)
    (tmp_path / "page.html").write_text(text)
    found = Page(text)
    assert found.faults == []
    assert sections[0].title == "At a glance"
    assert [figure for figure in FIGURES if figure not in found.text] == []
    assert text.count("<svg") == len(FIGURES)
    assert text.index("<svg") < text.index("<table")
    # Ids of sources have the names of their clients.
    assert "station at barn (3fa29b…) → house" in found.text
    # What stands out is a dot of its own, and a table of twelve sensors is in the order of their numbers.
    assert ">spike</text>" in text
    shown = [word for word in found.words if word.startswith("mast") and ":" not in word]
    assert shown[:12] == [f"mast{number}" for number in range(12)]
    # A table of sixty rows is folded behind its first.
    assert "45 more lines" in found.text


def test_what_is_left_out_is_said(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(1_000).selectExpr("id AS source", "1L AS lost")
    (section,) = table_sections(str(tmp_path), {"quality": rows}.get, {})
    assert f"{1_000 - MAX_ROWS:,} more rows are not shown" in "".join(section.parts)
