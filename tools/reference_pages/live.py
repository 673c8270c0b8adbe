"""What can only be seen of nodes that run: those that the tests have, with every part that there is.

All are on loopback, on ports that the system chooses. Nothing of this machine gets into what is returned.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.core import Metric

from hedgerow.node.metrics import NodeCollector
from tests.node.whole_fabric import whole_fabric
from tests.waiting import until

LAST_TOLD = {
    "barn": ("$SYS/broker/version", "$SYS/broker/federation/state", "$SYS/broker/hot/scores"),
    "tractor": ("$SYS/broker/hot/fixed",),
}


@dataclass(frozen=True, slots=True)
class Seen:
    metrics: dict[str, Metric]
    """By name."""
    topics: list[str]
    """Of retained messages: nobody but the nodes has published any."""


def look_at_nodes() -> Seen:
    logging.getLogger("hedgerow").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_look(Path(folder)))


async def _look(folder: Path) -> Seen:
    async with whole_fabric(folder) as nodes:
        for name, topics in LAST_TOLD.items():
            told = nodes[name].broker.retained
            for topic in topics:
                await until(lambda told=told, topic=topic: told.get(topic) is not None, topic)  # type: ignore[misc]
        servers = nodes.values()
        metrics = {family.name: family for each in servers for family in NodeCollector(each).collect()}
        topics_seen = {message.topic for each in servers for message in each.broker.retained}
        return Seen(metrics, sorted(topics_seen))
