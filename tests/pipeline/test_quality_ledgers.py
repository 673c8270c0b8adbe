"""The ledgers of federated nodes and the journals that they kept tell the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from hedgerow.federation.config import FederationConfig
from hedgerow.journal import JournalReader
from hedgerow.journal.config import JournalConfig
from hedgerow.node.handlers import Request
from hedgerow.node.metrics import metrics
from hedgerow.node.server import Server
from hedgerow.pipeline.jobs.quality import quality
from hedgerow.pipeline.ledgers import Ledger, agreement, read_ledgers
from tests.faults.client import PersistentClient
from tests.faults.client import running as clients
from tests.faults.federated import linked, neighbours, url_at
from tests.node.peers import port_of, running
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def node(name: str, directory: Path, *dialled: Server) -> AbstractAsyncContextManager[Server]:
    """One that journals everything."""
    urls = tuple(url_at(port_of(server)) for server in dialled)
    journal = JournalConfig(topics=("#",), directory=directory / name, is_local=True)
    return running(FederationConfig(neighbours=urls, enabled=True), journal, id=name)


def scrape(*servers: Server) -> list[str]:
    return [metrics(server)(Request("GET", "/metrics", {})).body.decode() for server in servers]


def bronze(spark: SparkSession, directory: Path) -> DataFrame:
    tables = []
    for journal in sorted(directory.iterdir()):
        reader = JournalReader(journal)
        table = pa.Table.from_batches(reader.batches(), reader.schema())
        tables.append(table.add_column(0, "journal", pa.array([reader.journal_id] * len(table), pa.string())))
    return spark.createDataFrame(pa.concat_tables(tables))


async def arrive(client: PersistentClient, topic: str, payloads: Iterable[bytes]) -> None:
    await until(lambda: set(payloads) <= set(client.arrived[topic]), f"{topic} to arrive")


async def lose_some(directory: Path) -> list[str]:
    """Twenty messages from `near` to `far`, ten that nobody is there for, and ten more. What was scraped."""
    topic, scrapes = "field/1", []
    async with node("near", directory) as near:
        publisher = PersistentClient(port_of(near), "publisher")
        async with clients(publisher):
            await until(lambda: publisher.is_connected, "the publisher")
            for is_back in (False, True):
                async with node("far", directory, near) as far:
                    await linked(near, far)
                    wanting = PersistentClient(port_of(far), "app", subscriptions=((topic, 1),))
                    async with clients(wanting):
                        await until(partial(_has, far, "app", topic), "the subscription")
                        await until(partial(_wants, near, "far", topic), "that it is told")
                        numbers = [b"%d" % number for number in (range(30, 40) if is_back else range(20))]
                        for payload in numbers:
                            publisher.publish(topic, payload, 0)
                        await arrive(wanting, topic, numbers)
                    scrapes += scrape(far, near)
                await until(lambda: not neighbours(near), "the end of far")
                if not is_back:
                    for number in range(20, 30):
                        publisher.publish(topic, b"%d" % number, 0)
                    await until(lambda: _away(near, "far") == 10, "what nobody was there for")
        return scrapes + scrape(near)


def _is_between(server: Server, *names: str) -> bool:
    return neighbours(server) == set(names)


def _has(server: Server, client: str, topic: str) -> bool:
    session = server.broker.sessions.get(client)
    return session is not None and topic in (session.subscriptions or ())


def _wants(server: Server, neighbour: str, topic: str) -> bool:
    """Does the neighbour get this topic, and is it linked?"""
    client = f"hedgerow-federation-{neighbour}"
    return _has(server, client, topic) and server.broker.sessions[client].connection is not None


def _away(server: Server, neighbour: str) -> int:
    ledger = server.broker.sessions[f"hedgerow-federation-{neighbour}"].ledger
    return 0 if ledger is None else ledger.away


async def come_by_two_ways(directory: Path) -> list[str]:
    """Twenty messages from `north` to `south`, by `east` and by `west`. What was scraped."""
    topic = "barn/1"
    async with AsyncExitStack() as stack:
        south = await stack.enter_async_context(node("south", directory))
        middle = [await stack.enter_async_context(node(name, directory, south)) for name in ("east", "west")]
        north = await stack.enter_async_context(node("north", directory, *middle))
        for server in (south, north):
            await until(partial(_is_between, server, "east", "west"), "the links")
        # Who has subscribers takes both ways towards the core of a topic; others take one.
        publisher = PersistentClient(port_of(north), "publisher", subscriptions=((topic, 1),))
        app = PersistentClient(port_of(south), "app", subscriptions=((topic, 1),))
        async with clients(publisher, app):
            await until(lambda: publisher.is_connected, "the publisher")
            for name in ("east", "west"):
                await until(partial(_wants, north, name, topic), "both ways")
            for server in middle:
                await until(partial(_wants, server, "south", topic), "both ways to the end")
            numbers = [b"%d" % number for number in range(20)]
            for payload in numbers:
                publisher.publish(topic, payload, 1)
            await arrive(app, topic, numbers)
            await until(lambda: _is_settled(south, middle, north), "the copies")
        return scrape(south, *middle, north)


def _is_settled(south: Server, middle: list[Server], north: Server) -> bool:
    found = read_ledgers(scrape(south, *middle, north))
    arrived = sum(each.published for each in found if each.node == "south" and each.direction == "in")
    return arrived == 40 and not any(each.queued for each in found)


@pytest.fixture(scope="module")
def told(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[Any, Any], list[Ledger]]:
    """The rows of `quality` by kind, source and target, and the ledgers, of both federations."""
    directory = tmp_path_factory.mktemp("journals")
    scrapes = asyncio.run(lose_some(directory)) + asyncio.run(come_by_two_ways(directory))
    rows = [row.asDict() for row in quality(bronze(spark, directory)).collect()]
    by_key = {(row["kind"], row["source"], row["target"]): row for row in rows if row["topic"] is None}
    return by_key, read_ledgers(scrapes)


def find(ledgers: list[Ledger], node: str, far: str, direction: str) -> Ledger:
    (ledger,) = [each for each in ledgers if (each.node, each.far, each.direction) == (node, far, direction)]
    return ledger


def test_what_is_lost_is_what_the_ledger_says(told: Any) -> None:
    rows, ledgers = told
    sent, got = find(ledgers, "near", "far", "out"), find(ledgers, "far", "near", "in")
    for kind in ("link", "hop"):
        row = rows[kind, "near", "far"]
        assert (row["published"], row["delivered"], row["lost"], row["gaps"]) == (40, 30, 10, 1)
        assert row["lost"] == sent.dropped["away"]
        assert row["delivered"] == got.relayed == sent.relayed
        assert row["published"] == sent.published


def test_what_came_twice_is_in_the_ledger_and_once_in_the_journal(told: Any) -> None:
    rows, ledgers = told
    incoming = [find(ledgers, "south", far, "in") for far in ("east", "west")]
    assert sum(each.dropped["duplicates"] for each in incoming) == 20
    link = rows["link", "north", "south"]
    assert (link["delivered"], link["lost"], link["duplicates"]) == (20, 0, 0)
    hops = [
        rows["hop", far, "south"]["delivered"] for far in ("east", "west") if ("hop", far, "south") in rows
    ]
    assert sum(hops) == 20
    assert 0 <= link["delay_p50_s"] <= link["delay_max_s"] < 30


def test_ledgers_and_journals_agree(told: Any) -> None:
    rows, ledgers = told
    assert [str(each) for each in agreement(rows.values(), ledgers)] == []


@pytest.mark.parametrize(
    ("hop", "wrong", "where", "what"),
    [
        (("near", "far"), {"delivered": 29}, "near → far", "delivered"),
        (("near", "far"), {"lost": 11}, "near → far (out)", "lost"),
        (("near", "far"), {"duplicates": 1}, "near → far", "duplicates that were passed on"),
    ],
)
def test_every_difference_is_named(told: Any, hop: Any, wrong: Any, where: str, what: str) -> None:
    rows, ledgers = told
    changed = rows | {("hop", *hop): rows["hop", *hop] | wrong}
    assert [(each.where, each.what) for each in agreement(changed.values(), ledgers)] == [(where, what)]


def test_a_ledger_that_does_not_balance_is_named() -> None:
    right = Ledger("a", "b", "out", published=5, relayed=3, dropped={"away": 1}, queued=1)
    assert agreement([], [right]) == []
    (difference,) = agreement([], [replace(right, relayed=2)])
    assert str(difference) == "a → b (out): published: 5 by the ledger, 4 were passed on, dropped or wait"
    arrived = Ledger("b", "a", "in", published=6, relayed=6)
    assert [each.what for each in agreement([], [right, arrived])] == ["delivered", "sent"]


def test_counts_that_begin_anew_are_added() -> None:
    def text(published: int, relayed: int, duplicates: int) -> str:
        labels = 'neighbour="b",direction="in"'
        return (
            '# TYPE hedgerow_node info\nhedgerow_node_info{id="a"} 1\n'
            "# TYPE hedgerow_federation_messages_published counter\n"
            f"hedgerow_federation_messages_published_total{{{labels}}} {published}\n"
            f"hedgerow_federation_messages_relayed_total{{{labels}}} {relayed}\n"
            f'hedgerow_federation_messages_dropped_total{{{labels},reason="duplicates"}} {duplicates}\n'
        )

    # The second is less in one count alone: a new link has brought more than the former already.
    scrapes = [text(3, 2, 1), text(5, 4, 1), text(6, 6, 0), text(7, 6, 1)]
    assert read_ledgers(scrapes) == [Ledger("a", "b", "in", "federation", 12, 10, {"duplicates": 2})]
