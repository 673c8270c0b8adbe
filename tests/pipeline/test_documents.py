"""The Python of the pipeline's pages runs, with the Spark of the tests: only places are put in for theirs.

Spark's own working directory is where its Java was started, so that a relative path of a page becomes one in
the test's directory, and the broker's URL that of the test's node. Nothing else is changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from hedgerow.journal import Writer
from hedgerow.pipeline.jobs.rollup import MERGING
from hedgerow.pipeline.merging import Merger
from hedgerow.pipeline.tables import append
from tests.conftest import StartNode
from tests.docs.markdown import read_blocks
from tests.programs import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLACES = (
    "/srv/journals/*",
    "journals/*",
    "d/journal",
    "data/journal",
    "tables/readings",
    "tables",
    "checkpoints/hot",
)
ROWS = 3


@pytest.fixture
def place(tmp_path: Path, spark: SparkSession) -> Iterator[Path]:
    for name in ("d/journal", "journals/barn", "data/journal"):
        with Writer(tmp_path / name, "barn") as writer:
            payloads = [b"31.5 C"] * ROWS
            writer.append_run(
                "farm/temperature", payloads, transport="mqtt", received_at=time.time(), client="c"
            )
    row = ("north/mast", "temperature", 31.5, "C", "2026-11-16 06:00:00")
    readings = spark.createDataFrame(
        [row], "sensor string, field string, value double, unit string, at string"
    )
    Merger(str(tmp_path / "tables"), "rollup", MERGING, files=1)  # makes its tables
    append(readings, 0, str(tmp_path / "tables"), "readings", form="delta", query="q")
    yield tmp_path
    for query in spark.streams.active:
        query.stop()


def run_page(page: str, place: Path, url: str, names: dict[str, Any]) -> dict[str, Any]:
    """All of its Python that the tests of pages do not run, in order, as one program. Returns its names."""
    blocks = [block for block in read_blocks(ROOT / page, page) if block.language == "python"]
    for block in blocks:
        if "no-run" not in block.flags:
            continue
        text = block.text.replace("mqtt://localhost", url).replace("mqtt://tower", url)
        for name in PLACES:
            text = text.replace(f'"{name}"', f'"{place / name.removeprefix("/srv/")}"')
        text = text.replace('checkpointLocation="c"', f'checkpointLocation="{place / "c"}"')
        text = text.replace('"checkpointLocation": "alarms"', f'"checkpointLocation": "{place / "alarms"}"')
        text = text.replace(".awaitTermination()", "")
        text = text.replace("from hedgerow.pipeline.session import open_session\n", "")
        exec(compile(text, block.where, "exec"), names)
    return names


@pytest.mark.parametrize("page", ["docs/pipeline.md", "docs/pipeline-jobs.md", "docs/guides/spark.md"])
def test_the_python_of_a_page_runs(
    page: str, place: Path, spark: SparkSession, hedgerow_node: StartNode
) -> None:
    url = f"mqtt://127.0.0.1:{hedgerow_node().port()}"
    names = run_page(page, place, url, {"spark": spark, "open_session": lambda name: spark})
    (query,) = spark.streams.active
    query.processAllAvailable()  # raises what went wrong; of a sink, that the broker did not acknowledge
    progress = [each["numInputRows"] for each in query.recentProgress]
    assert sum(progress) == (1 if page == "docs/pipeline.md" else ROWS)
    if page == "docs/pipeline.md":
        assert names["messages"].isStreaming
        assert names["since"].count() == ROWS
