"""A journal is an interest: what is published at any node of the federation comes to it, and is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

import hedgerow
from hedgerow.client.urls import parse_url
from hedgerow.federation.config import FederationConfig
from hedgerow.federation.part import FederationPart
from hedgerow.journal.config import JournalConfig
from hedgerow.journal.io.recorder import Recorder, RecorderOptions
from hedgerow.mqtt.packets import Puback, Publish, Subscribe, Subscription
from hedgerow.node.server import Server
from tests.faults.federated import linked, mosquittos, sidecar, url_at
from tests.journal.plain import read_plain
from tests.node.peers import connected, part_of, port_of, running
from tests.waiting import take, until

COUNT = 500
PAIR, LINE = pytest.param("ab", id="a pair"), pytest.param("abc", id="a line")


@asynccontextmanager
async def line_of(names: str, journal: JournalConfig) -> AsyncIterator[list[Server]]:
    """The last one has the journal."""
    nodes: list[Server] = []
    async with AsyncExitStack() as stack:
        for name in names:
            neighbours = tuple(url_at(port_of(node)) for node in nodes[-1:])
            rooms: list[object] = [FederationConfig(enabled=True, neighbours=neighbours)]
            rooms += [journal] if name == names[-1] else []
            nodes.append(await stack.enter_async_context(running(*rooms, id=name)))
        await linked(*nodes)
        yield nodes


def filters_for_others(server: Server) -> set[str]:
    """What the node sends to any neighbour."""
    sessions = part_of(server, FederationPart).machine.neighbour_sessions()
    return {topic_filter for _, session in sessions for topic_filter in session.subscriptions or ()}


async def publish(port: int, topic: str, count: int = COUNT) -> list[bytes]:
    """At QoS 0 and 1 in turn; when this returns all of QoS 1 are acknowledged."""
    sent = [b"%s %d" % (topic.encode(), number) for number in range(count)]
    async with connected(port, f"publisher of {topic}") as client:
        for number, payload in enumerate(sent):
            qos = number % 2
            client.send(Publish(topic, payload, qos, packet_id=number + 1 if qos else 0))
        for _ in range(count // 2):
            assert isinstance(await client.receive(), Puback)
    return sent


async def recorded(directory: Path, payloads: Sequence[bytes]) -> None:
    def rows() -> list[bytes]:
        return sorted(row.payload for row in read_plain(directory))

    await until(lambda: len(rows()) >= len(payloads), "the journal")
    assert rows() == sorted(payloads)


@pytest.mark.parametrize("names", [PAIR, LINE])
async def test_what_is_published_at_the_other_end_is_in_the_journal_once(names: str, tmp_path: Path) -> None:
    journal = JournalConfig(("x/#",), tmp_path / "journal")
    async with line_of(names, journal) as nodes:
        first, *_ = nodes
        await until(lambda: filters_for_others(first) == {"x/#"}, "the journal's interest")
        sent = await publish(port_of(first), "x/y")
        await publish(port_of(first), "z")
        await recorded(journal.directory, sent)
        # Behind what nobody wants.
        sent += await publish(port_of(first), "x", 2)
        await recorded(journal.directory, sent)
        assert all(filters_for_others(node) == {"x/#"} for node in nodes[:-1])
        assert not filters_for_others(nodes[-1])
        for node in nodes[:-1]:  # Each passed on that and nothing else.
            ledgers = [
                session.ledger for _, session in part_of(node, FederationPart).machine.neighbour_sessions()
            ]
            assert sum(ledger.published for ledger in ledgers if ledger is not None) == len(sent)


async def test_a_replay_has_what_was_published_at_another_node(tmp_path: Path) -> None:
    """And goes on with it: nobody but the replay wants it at the node with the journal, which has `local`."""
    journal = JournalConfig(("x/#",), tmp_path / "journal", is_local=True)
    async with line_of("ab", journal) as (first, last):
        async with hedgerow.connect(f"mqtt://127.0.0.1:{port_of(last)}") as bus:
            await bus.publish("x", b"at the journal's", qos=1)
            async with bus.subscribe("x/#", since="all", qos=1) as messages:
                await until(lambda: filters_for_others(first) == {"x/#"}, "the replay's interest")
                await publish(port_of(first), "x/y", 2)
                found = await take(messages, 3)
        assert [message.payload for message in found] == [b"at the journal's", b"x/y 0", b"x/y 1"]
        await until(lambda: not filters_for_others(first), "the end of it")


async def test_a_local_journal_attracts_nothing(tmp_path: Path) -> None:
    journal = JournalConfig(("x/#",), tmp_path / "journal", is_local=True)
    async with line_of("ab", journal) as (a, b), connected(port_of(b), "subscriber") as subscriber:
        subscriber.send(Subscribe(1, [Subscription("x/wanted", 1)]))
        await until(lambda: filters_for_others(a) == {"x/wanted"}, "the interest")
        await publish(port_of(a), "x/y", 2)
        sent = await publish(port_of(a), "x/wanted", 2)
        await recorded(journal.directory, sent)


async def test_the_interest_goes_with_the_journal(tmp_path: Path) -> None:
    """The node is started again without it."""
    async with running(FederationConfig(enabled=True), id="a") as a:
        dials_a = FederationConfig(neighbours=(url_at(port_of(a)),))
        async with running(dials_a, JournalConfig(("x/#",), tmp_path / "journal"), id="b"):
            await until(lambda: filters_for_others(a) == {"x/#"}, "the journal's interest")
        async with running(dials_a, id="b") as b:
            await linked(a, b)
            await until(lambda: not filters_for_others(a), "its end")


@asynccontextmanager
async def recording(url: str, directory: Path, *filters: str) -> AsyncIterator[Recorder]:
    recorder = Recorder(RecorderOptions(parse_url(url), JournalConfig(filters, directory)))
    running = asyncio.ensure_future(recorder.run())
    try:
        await until(lambda: recorder.is_recording or running.done(), "the recorder")
        yield recorder
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_a_recorder_at_a_node_attracts_too(tmp_path: Path) -> None:
    local = JournalConfig(("none",), tmp_path / "none", is_local=True)
    async with (
        line_of("abc", local) as (a, _, c),
        recording(f"mqtt://127.0.0.1:{port_of(c)}", tmp_path / "journal", "x/#"),
    ):
        await until(lambda: filters_for_others(a) == {"x/#"}, "the recorder's interest")
        sent = await publish(port_of(a), "x/y")
        await recorded(tmp_path / "journal", sent)


async def test_a_recorder_at_a_mosquitto_with_a_federator_attracts_too(tmp_path: Path) -> None:
    async with (
        mosquittos(tmp_path, "m") as (broker,),
        running(FederationConfig(enabled=True), id="a") as a,
        sidecar("federator", broker.port, port_of(a)) as federator,
    ):
        await linked(a, federator)
        async with recording(broker.url, tmp_path / "journal", "x/#"):
            await until(lambda: filters_for_others(a) == {"x/#"}, "the recorder's interest")
            sent = await publish(port_of(a), "x/y")
            await recorded(tmp_path / "journal", sent)
        assert filters_for_others(a) == {"x/#"}  # The session waits at the broker for what comes meanwhile.
