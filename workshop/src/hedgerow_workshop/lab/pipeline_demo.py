"""A farm's traffic, every job over it, and the report: `hedgerow pipeline demo`.

The nodes run until the jobs are done, since the plan of hot topics is published to them. At the end bronze is
compared with what was published: each message must be in the journal of its node once.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from hedgerow.errors import ConfigError
from hedgerow.message import MessageId
from hedgerow.pipeline.jobs import anomalies
from hedgerow.pipeline.jobs.quality import HOP_TRANSPORTS
from hedgerow.pipeline.queries import JOBS, QuerySettings
from hedgerow.pipeline.report.report import write_report
from hedgerow.pipeline.rules import load_rules
from hedgerow.pipeline.runner import Runner, Tell
from hedgerow.pipeline.tables import read_table
from hedgerow_workshop.lab.farm import FIELDS, HOUSE, Farm
from hedgerow_workshop.tables import load_rows, reckon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_TOLD = 5
TABLES = ("bronze", "readings", "quarantine", "hot", "anomalies", "quality")

Opening = Callable[[], AbstractContextManager["SparkSession"]]


def run(seconds: float, out: Path, opening: Opening, tell: Tell) -> int:
    """Status 1 when a message was lost or doubled."""
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} is there already; give another directory with --out")
    return asyncio.run(_run(seconds, out.absolute(), opening, tell))


async def _run(seconds: float, out: Path, opening: Opening, tell: Tell) -> int:
    _say(f"a farm: nodes {HOUSE}, {' and '.join(FIELDS)}, each with a journal; {seconds:g} s of weather")
    async with Farm(out, _say) as farm:
        await farm.run(seconds)
        traffic = farm.traffic
        print(
            f"{len(traffic.published)} messages published, {len(traffic.heard)} heard at the {HOUSE}, "
            f"{traffic.lost} lost, {traffic.doubled} doubled",
            flush=True,
        )
        return await asyncio.to_thread(_analyse, farm, out, opening, tell)


def _analyse(farm: Farm, out: Path, opening: Opening, tell: Tell) -> int:
    tables = out / "tables"
    journals = tuple(map(str, farm.journals))
    settings = QuerySettings(journals, str(tables), load_rules(), broker=farm.url, plan_for=FIELDS)
    with opening() as spark:
        Runner(spark, settings, tell).run(tuple(JOBS))
        counted = {name: _count(spark, tables, name) for name in TABLES}
        found = anomalies.episodes(read_table(spark, str(tables), "anomalies")).orderBy("at")
        told = [f"{row.sensor}, {row.field}: {row.explanation}" for row in found.limit(MAX_TOLD).collect()]
        report = out / "report.html"
        write_report(spark, report, tables)
    reckoning = reckon(farm.traffic.published, _found_at_home(str(tables)))
    print("tables: " + ", ".join(f"{name} {count:,}" for name, count in counted.items()))
    print("\n".join([f"anomalies, the first {MAX_TOLD}:", *told] if told else ["no anomalies"]))
    print(f"bronze: {reckoning}")
    print(f"report: {report}")
    return 0 if reckoning.is_even and not farm.traffic.lost and not farm.traffic.doubled else 1


def _found_at_home(tables: str) -> Iterator[tuple[str, MessageId]]:
    """In the journals of the nodes at which they were published."""
    for row in load_rows(tables, "bronze", ("journal", "transport", "origin", "epoch", "sequence")):
        if row["transport"] not in HOP_TRANSPORTS:
            yield row["journal"], MessageId(row["origin"], row["epoch"], row["sequence"])


def _count(spark: SparkSession, tables: Path, name: str) -> int:
    return read_table(spark, str(tables), name).count()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
