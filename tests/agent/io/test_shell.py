"""An agent on nodes of this process: real connections and commands, bridges that only say how they are."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import AsyncMock, Mock

from hedgerow.agent.events import ActingChanged, BrokerFound, BrokerLost
from hedgerow.agent.io.broker_list import read_words
from hedgerow.agent.io.drivers import Driver
from hedgerow.agent.io.events import (
    AgentBridgeDown,
    AgentBridgeUp,
    BrokerRefuses,
    CommandRefused,
    CommandSent,
    to_json,
)
from hedgerow.agent.io.sections import BridgeSettings
from hedgerow.agent.io.shell import AgentSettings, AgentShell
from hedgerow.agent.io.table import make_drivers
from hedgerow.agent.plan import BrokerLink, Ghosts, TopologyPlan, parse_topology
from hedgerow.bridges.topic_line import TopicLine
from tests.agent.io.fakes import FakeNode, fake_nodes
from tests.waiting import until

INTERVAL_S = 0.1
SLACK_S = 1.0  # for a machine with other things to do


class Running:
    """An agent, and what it said."""

    def __init__(self, nodes: list[FakeNode], agent_id: str, settings: AgentSettings, *more: Driver) -> None:
        self.events: list[object] = []
        self.times: list[float] = []
        self.shell = AgentShell(
            settings,
            read_words(node.word for node in nodes),
            self._note,
            lambda context: [*make_drivers(context), *more],
        )

    def _note(self, event: object, now: float) -> None:
        self.events.append(event)
        self.times.append(now)

    def of(self, kind: type) -> list[object]:
        return [event for event in self.events if isinstance(event, kind)]


@asynccontextmanager
async def agent(
    nodes: list[FakeNode],
    *more: Driver,
    topology: str = "star",
    agent_id: str = "m",
    ghosts: Ghosts = Ghosts.DELETE,
    is_silent: bool = False,
    bridges: BridgeSettings | None = None,
) -> AsyncIterator[Running]:
    settings = AgentSettings(
        agent_id,
        parse_topology(topology),
        ghosts,
        INTERVAL_S,
        bridges=bridges or BridgeSettings(),
        is_silent=is_silent,
    )
    running = Running(nodes, agent_id, settings, *more)
    running.shell.start()
    try:
        yield running
    finally:
        await running.shell.stop()


def links(nodes: list[FakeNode]) -> set[tuple[str, str]]:
    return {(node.id, far) for node in nodes for far in node.fars}


async def test_a_star_is_made_and_after_the_hub_has_gone_another_one() -> None:
    async with fake_nodes("a", "b", "c") as nodes, agent(nodes) as running:
        await until(lambda: running.shell.agent.is_done, "a star around c")
        assert links(nodes) == {("a", "c"), ("b", "c")}
        await nodes[2].stop()
        await until(lambda: links(nodes[:2]) == {("a", "b")}, "a star around b, without ghosts")
        (lost,) = running.of(BrokerLost)
        assert isinstance(lost, BrokerLost)
        assert lost.broker == "c"
        # Its port refuses connections, so nobody waits for three probes.
        assert lost.silent_s < 3 * INTERVAL_S
        await nodes[2].start()
        await until(lambda: links(nodes) == {("a", "c"), ("b", "c")}, "the first star again")


async def test_ghosts_may_be_kept() -> None:
    async with fake_nodes("a", "b", "c") as nodes, agent(nodes, ghosts=Ghosts.KEEP) as running:
        await until(lambda: running.shell.agent.is_done, "a star around c")
        await nodes[2].stop()
        await until(lambda: running.shell.agent.is_done and len(running.shell.agent.alive) == 2, "a new star")
        assert links(nodes[:2]) == {("a", "c"), ("b", "c"), ("a", "b")}


async def test_the_section_says_what_was_asked_for() -> None:
    settings = BridgeSettings(
        (TopicLine("site/#", "out", 2),), (("keepalive_interval", "20"), ("restart_timeout", "1 3"))
    )
    async with fake_nodes("a", "b") as nodes, agent(nodes, bridges=settings) as running:
        await until(lambda: running.shell.agent.is_done, "a bridge")
        section = nodes[0].bridges["agent.b"]
        assert [str(line) for line in section.topics] == ["site/# out 2"]
        assert section.keepalive_interval_s == 20
        assert tuple(section.restart_timeout) == (1.0, 3.0)
        assert section.bridge_protocol_version == "mqttv50"
        assert section.replace
        assert section.addresses[0].port == nodes[1].port


async def test_two_agents_agree_and_the_second_takes_over() -> None:
    async with fake_nodes("a", "b", "c") as nodes, agent(nodes, agent_id="y") as second:
        async with agent(nodes, agent_id="x") as first:
            await until(lambda: first.shell.agent.is_done, "the first to act")
            await until(lambda: not second.shell.agent.is_acting, "the second to stand by")
            sent = len(second.of(CommandSent))
        began_at = second.shell.clock()
        await until(lambda: second.shell.agent.is_acting, "the second to take over")
        at = next(
            time
            for event, time in zip(second.events[::-1], second.times[::-1], strict=True)
            if event == ActingChanged(True)
        )
        assert at - began_at < 3 * INTERVAL_S + SLACK_S
        assert len(second.of(CommandSent)) == sent  # All is as it should be.
        await nodes[2].stop()
        await until(lambda: links(nodes[:2]) == {("a", "b")}, "a new star")


async def test_who_only_watches_changes_nothing_and_knows_what_it_would_do() -> None:
    async with fake_nodes("a", "b", "c") as nodes, agent(nodes, topology="line", is_silent=True) as running:
        assert await running.shell.wait_until(lambda: running.shell.is_informed, 10.0)
        assert running.shell.plan() == TopologyPlan((BrokerLink("a", "b"), BrokerLink("b", "c")))
        await until(lambda: running.shell.agent.is_acting, "the time at which it would have acted")
        assert [node.commands for node in nodes] == [[], [], []]


async def test_bridges_that_are_there_are_known_before_anything_is_planned() -> None:
    async with fake_nodes("a", "b", "c") as nodes:
        async with agent(nodes) as running:
            await until(lambda: running.shell.agent.is_done, "a star")
        commands = [list(node.commands) for node in nodes]
        async with agent(nodes) as running:
            await until(lambda: running.shell.agent.is_done, "the agent to find it so")
            assert len(running.of(AgentBridgeUp)) == 2
            assert [node.commands for node in nodes] == commands


async def test_a_refusal_is_told_and_the_command_repeated() -> None:
    async with fake_nodes("a", "b") as nodes:
        nodes[0].refuses = True
        async with agent(nodes) as running:
            await until(lambda: len(running.of(CommandRefused)) >= 2, "two refusals")
            assert running.of(CommandRefused)[0] == CommandRefused("a", "b", "it is not to be")
            nodes[0].refuses = False
            await until(lambda: running.shell.agent.is_done, "a bridge")


async def test_a_pair_that_cannot_be_linked_is_gone_around() -> None:
    async with fake_nodes("a", "b", "c") as nodes, agent(nodes) as running:
        await until(lambda: running.shell.agent.is_done, "a star around c")
        nodes[0].is_cut_from = {nodes[2].port}
        nodes[0].tell("agent.c")
        await until(lambda: ("a", "b") in links(nodes), "a way around the cut")
        assert ("b", "c") in links(nodes)


async def test_a_broker_that_is_found_elsewhere_after_it_was_lost_is_followed() -> None:
    async with fake_nodes("a", "b") as nodes, agent(nodes) as running:
        await until(lambda: running.shell.agent.is_done, "a bridge")
        old = nodes[1].port
        await nodes[1].stop()
        await until(lambda: running.shell.agent.alive == {"a"}, "b to be lost")
        nodes[1].port = 0
        await nodes[1].start()
        assert nodes[1].port != old
        running.shell.discover(*read_words([nodes[1].word]))
        await until(lambda: running.shell.agent.is_done and len(running.shell.agent.alive) == 2, "b again")
        assert nodes[0].bridges["agent.b"].addresses[0].port == nodes[1].port
        running.shell.discover(*read_words(["b=127.0.0.1:1"]))
        assert running.shell.brokers["b"].entry.address.port == nodes[1].port, "it answers where it is"


async def test_a_bridge_to_where_its_far_end_was_is_redirected_though_ghosts_are_kept() -> None:
    async with fake_nodes("a", "b") as nodes:
        async with agent(nodes, ghosts=Ghosts.KEEP) as running:
            await until(lambda: running.shell.agent.is_done, "a bridge")
        await nodes[1].stop()
        nodes[1].port = 0
        await nodes[1].start()
        async with agent(nodes, ghosts=Ghosts.KEEP) as running:
            await until(lambda: running.shell.agent.is_done, "a bridge to the new place")
            assert running.of(CommandSent) == [CommandSent("redirect", "a", "b", "hedgerow")]
        assert nodes[0].bridges["agent.b"].addresses[0].port == nodes[1].port


async def test_one_broker_under_two_names_is_told_and_counts_once() -> None:
    async with fake_nodes("a", "b") as nodes, agent(nodes) as running:
        running.shell.discover(*read_words([f"c=localhost:{nodes[0].port}"]))
        await until(lambda: running.shell.agent.is_done, "a bridge")
        assert links(nodes) == {("a", "b")}
        assert running.of(BrokerRefuses) == [BrokerRefuses("c", "it is the same broker as a")]
        assert running.shell.agent.alive == {"a", "b"}
        await nodes[1].stop()
        await until(lambda: running.shell.agent.alive == {"a"}, "b to be lost")
        await nodes[1].start()
        # Found elsewhere: it was a mistake of whoever announced it.
        running.shell.discover(*read_words([f"c=127.0.0.1:{nodes[1].port}"]))
        await until(lambda: len(running.of(BrokerRefuses)) == 2, "the other one to be told")


async def test_while_this_process_is_stopped_nobody_dies() -> None:
    async with fake_nodes("a", "b", "c") as nodes, agent(nodes) as running:
        await until(lambda: running.shell.agent.is_done, "a star")
        said = len(running.events)
        for _ in range(3):
            time.sleep(4 * INTERVAL_S)  # as SIGSTOP would: nothing of the loop runs
            await asyncio.sleep(INTERVAL_S)
        assert running.events[said:] == []
        assert running.shell.agent.is_acting
        await nodes[2].stop()
        await until(lambda: links(nodes[:2]) == {("a", "b")}, "the watch to go on")


async def test_who_loses_sight_of_all_brokers_keeps_what_it_carries() -> None:
    driver = Mock(stop=AsyncMock())
    driver.bridges.return_value = {}
    async with fake_nodes("a") as nodes, agent(nodes, driver) as running:
        await until(lambda: running.shell.agent.is_acting, "the agent to act")
        await nodes[0].stop()
        await until(lambda: not running.shell.agent.is_acting, "it to see nobody")
        driver.stand_by.assert_not_called()
        await nodes[0].start()
        await until(lambda: running.shell.agent.is_acting, "it to act again")
        running.shell.receive_announcement("a lower one")
        driver.stand_by.assert_called_once_with()


def test_halves_of_characters_can_be_printed() -> None:
    line = to_json(AgentBridgeDown("a", "b", "\ud800"), 0.0)
    assert json.loads(line.encode())["reason"] == "?"


async def test_a_broker_that_is_found_later_takes_its_place_by_its_id() -> None:
    async with fake_nodes("a", "b", "c", "d") as nodes, agent([nodes[0]]) as running:
        for node in (nodes[3], nodes[1], nodes[2]):
            running.shell.discover(*read_words([node.word]))
        assert running.shell.agent.brokers == ("a", "b", "c", "d")
        await until(lambda: links(nodes) == {("a", "d"), ("b", "d"), ("c", "d")}, "a star around d")
        assert len(running.of(BrokerFound)) == 4
