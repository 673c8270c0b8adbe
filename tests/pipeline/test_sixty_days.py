"""A table that was written once a second for sixty days is as quick as a new one, with a driver of 1 GB."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as sql

from hedgerow.pipeline.jobs.ingest import PARTITIONED_BY, bronze, bronze_schema
from hedgerow.pipeline.lake import to_arrow
from hedgerow.pipeline.tables import append, read_table
from tests.pipeline import sixty_days
from tests.pipeline.rows import SCHEMA, message, messages
from tests.pipeline.sixty_days import LAST, NOW, QUERY, ROWS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST, BATCHES = 3, 40  # The first ones have Spark compile what a batch needs.
MAX_BATCH_S, MAX_READ_S = 2.0, 3.0


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_after_sixty_days_of_a_batch_a_second(spark: SparkSession, tmp_path: Path) -> None:
    assert spark.conf.get("spark.driver.memory") == "1g"
    sixty_days.build(tmp_path, to_arrow(bronze_schema(SCHEMA)))
    took = []
    for number in range(BATCHES):
        at = NOW + timedelta(seconds=number + 1)
        rows = (message((LAST + number) * ROWS + n, received_at=at) for n in range(ROWS))
        batch = bronze(messages(spark, *rows))
        began_at = time.monotonic()
        # The batch after the last one that is there.
        is_new = append(
            batch, LAST + 1 + number, str(tmp_path), "bronze",
            form="delta", query=QUERY, partition_by=PARTITIONED_BY,
        )  # fmt: skip
        took.append(time.monotonic() - began_at)
        assert is_new
    reads = []
    for _ in range(3):
        began_at = time.monotonic()
        since = NOW + timedelta(seconds=BATCHES) - timedelta(hours=1)
        last_hour = read_table(spark, str(tmp_path), "bronze").where(sql.col("received_at") > sql.lit(since))
        found = last_hour.count()
        reads.append(time.monotonic() - began_at)
        assert found == 3_600 * ROWS
    took = sorted(took[FIRST:])
    print(f"batches of {ROWS} rows: median {took[len(took) // 2]:.3f} s, of 95 in 100 at most "
          f"{took[len(took) * 95 // 100]:.3f} s, longest {took[-1]:.3f} s; "
          f"the last hour: {', '.join(f'{each:.3f}' for each in reads)} s")  # fmt: skip
    assert took[len(took) * 95 // 100] <= MAX_BATCH_S
    assert min(reads) <= MAX_READ_S
