"""Exactly once, end to end: publishers → broker → journals → Spark → tables, while they are killed.

The broker, the recorder and the driver of Spark are ended with SIGKILL at random moments, and started again.
Publishers give their messages ids and repeat what was not acknowledged. In the end bronze has each message
once for each journal, the recorder's and the broker's own, and misses none that was acknowledged; and each
message is once in either readings or quarantine.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import hedgerow
from hedgerow.journal import JournalReader
from hedgerow.message import MessageId
from hedgerow.pipeline import progress
from hedgerow.pipeline.delta import open_delta
from hedgerow.pipeline.places import state_of
from hedgerow.pipeline.program import Program
from tests.object_store import BUCKET, run_store
from tests.programs import Node
from tests.waiting import until

PUBLISHERS = ("~north", "~south")  # as a node names what anonymous clients give
PAUSE_S = 0.01  # between two messages of one publisher
MAX_UNDISTURBED_S = 0.7
SEED = 7
PATIENCE_S = 120.0  # for Spark, on a machine that does other things too

RULES = "[[reading]]\nfilter = 'fields/north'\nformat = 'number'\n"
"""What comes from the south goes to quarantine."""

Ids = set[MessageId]


class Everything:
    """The three programs, each with its way to be started again."""

    def __init__(self, directory: Path, tables: str | None = None) -> None:
        self.node_journal, self.journal = directory / "node-journal", directory / "journal"
        self.tables = tables or str(directory / "tables")
        self.state = state_of(self.tables)
        self.rules = directory / "rules.toml"
        self.rules.write_text(RULES)
        words = ("--id", "broker", "--data", str(directory / "data"))
        (directory / "node").mkdir()
        self.node = Node(
            directory / "node", *words, "--journal", "#", "--journal-dir", str(self.node_journal)
        )
        self.recorder = Program("recorder", directory / "recorder")
        self.driver = Program("driver", directory / "driver")
        self.kills: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return self.node.urls["mqtt"]

    def start_recorder(self) -> None:
        words = ["record", "--broker", self.url, "--filter", "#", "--journal", str(self.journal)]
        self.recorder.launch([sys.executable, "-m", "hedgerow", *words])

    def start_driver(self) -> None:
        words = ["pipeline", "run", "ingest", "readings", "--tables", self.tables, "--every", "0s"]
        words += ["--rules", str(self.rules)]
        words += ["--journal", str(self.journal), "--journal", str(self.node_journal)]
        words += ["--master", "local[1]"]
        self.driver.launch([sys.executable, "-m", "hedgerow", *words])

    def kill_node(self) -> None:
        self.node.kill9()
        self.node.start()

    def kill_recorder(self) -> None:
        self.recorder.kill()
        self.start_recorder()

    def kill_driver(self) -> None:
        """With it goes its Java: that ends when nobody listens any more."""
        self.driver.kill()
        self.start_driver()

    def batch(self) -> int:
        found = progress.load(self.state).get("ingest")
        return -1 if found is None else found.batch

    def committed(self) -> dict[str, int]:
        """Up to where each journal is in bronze, as the checkpoint says."""
        checkpoint = self.state / "_checkpoints/ingest-delta"
        batches = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")]
        if not batches:
            return {}
        offset = (checkpoint / "offsets" / str(max(batches))).read_text().splitlines()[-1]
        positions: dict[str, int] = json.loads(offset)["journals"]
        return positions

    def sorted(self) -> dict[str, list[MessageId]]:
        """What is in readings, and in quarantine."""
        columns = ["origin", "epoch", "sequence"]
        return {
            name: [MessageId(*row.values()) for row in rows_of(self.tables, name, columns)]
            for name in ("readings", "quarantine")
        }

    def end(self) -> None:
        self.driver.end()
        self.recorder.end()
        self.node.stop()


async def publish(url: str, origin: str, acknowledged: Ids, is_over: asyncio.Event) -> Ids:
    """Until it is over, and what is not acknowledged then until it is. All ids that it gave."""
    given: Ids = set()

    async def publish_one(bus: hedgerow.Bus, message_id: MessageId) -> None:
        await bus.publish(f"fields/{origin[1:]}", b"%d" % message_id.sequence, qos=1, id=message_id)
        acknowledged.add(message_id)

    options = {"origin": origin, "client_id": origin[1:], "keep_trying": True, "reconnect_delay": (0.05, 0.2)}
    async with hedgerow.connect(url, **options) as bus, asyncio.TaskGroup() as group:  # type: ignore[arg-type]
        while not is_over.is_set():
            message_id = MessageId(origin, 1, len(given))
            given.add(message_id)
            group.create_task(publish_one(bus, message_id))
            await asyncio.sleep(PAUSE_S)
    return given


async def disturb(everything: Everything, kills: dict[str, int], chance: random.Random) -> None:
    ways: dict[str, Callable[[], None]] = {
        "node": everything.kill_node,
        "recorder": everything.kill_recorder,
        "driver": everything.kill_driver,
    }
    drivers = kills["driver"]
    others = [name for name in ("node", "recorder") for _ in range(kills[name])]
    chance.shuffle(others)
    shares = [others[number :: drivers + 1] for number in range(drivers + 1)]
    for number, share in enumerate(shares):
        batch = everything.batch()
        for name in share:
            await asyncio.sleep(chance.uniform(0, MAX_UNDISTURBED_S))
            await asyncio.to_thread(ways[name])
            everything.kills[name] += 1
        if number < drivers:
            # It has done something since it was started, and is in the middle of something.
            await until(lambda since=batch: everything.batch() > since, "a batch", PATIENCE_S)  # type: ignore[misc]
            await asyncio.sleep(chance.uniform(0, MAX_UNDISTURBED_S))
            everything.kill_driver()
            everything.kills["driver"] += 1


async def run(everything: Everything, kills: dict[str, int]) -> tuple[Ids, Ids]:
    """(acknowledged, all that were given)"""
    acknowledged: Ids = set()
    is_over = asyncio.Event()
    tasks = [
        asyncio.create_task(publish(everything.url, origin, acknowledged, is_over)) for origin in PUBLISHERS
    ]
    await disturb(everything, kills, random.Random(SEED))
    is_over.set()
    given = set().union(*await asyncio.gather(*tasks))
    await until(
        lambda: JournalReader(everything.journal).end_position >= len(given), "the journal", PATIENCE_S
    )
    return acknowledged, given


def rows_of(tables: str, name: str, columns: list[str]) -> list[dict[str, Any]]:
    """By a reader that is not ours; none where there is no such table yet."""
    table = open_delta(f"{tables}/{name}")
    return [] if table is None else table.to_pyarrow_table(columns=columns).to_pylist()


def bronze(tables: str) -> dict[str, Counter[MessageId]]:
    """By journal, how often each message is there."""
    found: dict[str, Counter[MessageId]] = {}
    for row in rows_of(tables, "bronze", ["journal", "origin", "epoch", "sequence", "payload"]):
        journal, origin, epoch, sequence, payload = row.values()
        assert payload == b"%d" % sequence
        found.setdefault(journal, Counter())[MessageId(origin, epoch, sequence)] += 1
    return found


async def check(everything: Everything, kills: dict[str, int]) -> None:
    async with AsyncExitStack() as stack:
        stack.callback(everything.end)
        everything.node.start()
        everything.start_recorder()
        await until((everything.journal / "lock").exists, "the recorder")
        everything.start_driver()
        acknowledged, given = await run(everything, kills)
        wanted = {
            JournalReader(path).journal_id: JournalReader(path).end_position
            for path in (everything.journal, everything.node_journal)
        }

        def is_complete() -> bool:
            if everything.driver.has_ended:
                pytest.fail(f"the driver ended: {everything.driver.last_words()}")
            return everything.committed() == wanted and sum(map(len, everything.sorted().values())) >= len(
                given
            )

        await until(is_complete, "Spark to have read the journals", PATIENCE_S)
    found = bronze(everything.tables)
    assert everything.kills == kills
    assert acknowledged == given
    assert found.keys() == wanted.keys()
    for times in found.values():
        assert len(given - times.keys()) == 0
        assert [message_id for message_id, count in times.items() if count > 1] == []
    for name, message_ids in everything.sorted().items():
        origin = PUBLISHERS[name == "quarantine"]
        assert sorted(message_ids) == sorted(each for each in given if each.origin == origin)


@pytest.mark.timeout(400)
async def test_each_message_is_in_bronze_once(tmp_path: Path) -> None:
    await check(Everything(tmp_path), {"node": 4, "recorder": 3, "driver": 1})


@pytest.mark.soak
@pytest.mark.timeout(400)
async def test_each_message_is_in_bronze_once_in_an_object_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_store(tmp_path / "store") as environment:
        for name, value in {**environment, "HEDGEROW_STATE": str(tmp_path / "state")}.items():
            monkeypatch.setenv(name, value)
        await check(Everything(tmp_path, f"s3://{BUCKET}/tables"), {"node": 4, "recorder": 3, "driver": 3})


@pytest.mark.soak
async def test_each_message_is_in_bronze_once_however_often(tmp_path: Path) -> None:
    await check(Everything(tmp_path), {"node": 40, "recorder": 40, "driver": 20})
