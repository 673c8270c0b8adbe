"""From a journal through Spark to a mobile broker: its topics move as the plan says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hedgerow
from hedgerow.pipeline.jobs.hot import hot_topics, topic_counts
from hedgerow.pipeline.plan import Planner, to_broker
from tests.conftest import StartNode
from tests.programs import Node, wait_until
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DOMAIN = ("--domain", "farm/sector1")
HOT = ("--hot-every", "50 ms", "--hot-window", "500 ms", "--hot-share", "0.5")
WIND, SOIL = "farm/wind", "farm/soil"


def start_brokers(start: StartNode) -> tuple[Node, Node]:
    tower = start("--id", "tower", "--role", "fixed", *DOMAIN)
    fixed = ("--fixed", tower.urls["mqtt"])
    tractor = start("--id", "tractor", "--role", "mobile", "--no-move-clients", *DOMAIN, *fixed, *HOT)
    wait_until(lambda: "tower at" in tractor.log, "the link")
    return tower, tractor


@asynccontextmanager
async def traffic(url: str, *topics: str) -> AsyncIterator[dict[str, Any]]:
    """At the broker there, to someone who wants all of it; gives what that broker tells of its hot topics."""
    told: dict[str, Any] = {}

    async def listen(bus: hedgerow.Bus) -> None:
        async for message in bus.subscribe("$SYS/broker/hot/#"):
            told[message.topic.removeprefix("$SYS/broker/hot/")] = json.loads(message.payload)

    async def publish(bus: hedgerow.Bus) -> None:
        # A wildcard that matches what is kept would not be delegated.
        async with bus.subscribe(WIND), bus.subscribe(SOIL):
            while True:
                for topic in topics:
                    await bus.publish(topic, "7")
                await asyncio.sleep(0.03)

    async with hedgerow.connect(url) as bus:
        tasks = [asyncio.create_task(listen(bus)), asyncio.create_task(publish(bus))]
        try:
            yield told
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


def plan_from(spark: SparkSession, directory: Path, checkpoint: Path, url: str) -> None:
    """All that is in the journal, as a stream that ends."""
    rows = spark.readStream.format("hedgerow").option("journals", str(directory)).load()
    planner = Planner(to_broker(url), ["tractor"], validity_s=600.0)

    def publish_plans(counts: DataFrame, batch_id: int) -> None:
        planner.publish_plans(hot_topics(counts), batch_id)

    writer = topic_counts(rows, late_s=0.1).writeStream.foreachBatch(publish_plans)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def sides(told: dict[str, Any]) -> tuple[list[str], list[str]]:
    """What it keeps, and what it delegates."""
    kept, delegated = (told.get(f"registry/{side}", {}).get("topics", []) for side in ("in", "out"))
    return kept, delegated


async def test_a_mobile_broker_follows_what_spark_has_seen_elsewhere(
    spark: SparkSession, hedgerow_node: StartNode, tmp_path: Path
) -> None:
    """At the mobile broker one topic is busy, and at another broker, which keeps a journal, the other."""
    tower, tractor = start_brokers(hedgerow_node)
    directory = tmp_path / "journal"
    barn = hedgerow_node("--id", "barn", "--journal", "farm/#", "--journal-dir", str(directory))
    at_tractor = traffic(tractor.urls["mqtt"], WIND, WIND, WIND, SOIL)
    async with at_tractor as told, traffic(barn.urls["mqtt"], SOIL, SOIL, SOIL, WIND):
        await until(lambda: sides(told) == ([WIND], [SOIL]), "its own choice")
        assert told.get("plan") is None
        url = tower.urls["mqtt"]
        await asyncio.to_thread(plan_from, spark, directory, tmp_path / "checkpoint", url)
        await until(lambda: sides(told) == ([SOIL], [WIND]), "the plan's choice")
        assert told["plan"]["topics"] == 1
        what = {("recovered", SOIL), ("delegated", WIND)}
        await until(
            lambda: what <= {(move["what"], move["which"]) for move in told.get("moves", [])}, "moves"
        )
