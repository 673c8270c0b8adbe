"""The notebook: its code is run as it is, beside a table of readings."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTEBOOK = Path(__file__).parents[2] / "examples/hourly-means.ipynb"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_hourly_means_per_station(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two hours of two stations, a reading every ten minutes; `spark` is the session that it finds."""
    rows = [
        {
            "sensor": sensor,
            "field": "temperature",
            "value": value + number,
            "at": NOON + timedelta(minutes=10 * number),
        }
        for sensor, value in (("north", 10.0), ("south", 20.0))
        for number in range(12)
    ]
    rows.append({"sensor": "north", "field": "wind", "value": 99.0, "at": NOON})
    write_deltalake(tmp_path / "tables/readings", pa.Table.from_pylist(rows))
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    for code in codes:
        # The session was started elsewhere, and reads paths as there.
        here = code.replace("tables/readings", str(tmp_path / "tables/readings"))
        exec(compile(here, str(NOTEBOOK), "exec"), {})
    lines = [line for code in codes for line in code.splitlines() if line and not line.startswith("from ")]
    assert len(lines) <= 5
    found = [line.split("|")[1:4] for line in capsys.readouterr().out.splitlines() if "2026" in line]
    assert [(sensor.strip(), hour.strip(), float(mean)) for sensor, hour, mean in found] == [
        ("north", "2026-03-01 12:00:00", 12.5),
        ("north", "2026-03-01 13:00:00", 18.5),
        ("south", "2026-03-01 12:00:00", 22.5),
        ("south", "2026-03-01 13:00:00", 28.5),
    ]
