"""`hedgerow agent BROKER…`: keep brokers connected by bridges, until it is told to stop.

`--plan` prints what it would do, and changes nothing. `--once` does it, and ends when the brokers confirm it.
The log goes to standard error; `--json` writes each event as one line of JSON to standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from hedgerow.agent.events import AgentEvent
from hedgerow.agent.io.broker_list import (
    BrokerEntry,
    check_entries,
    read_entries,
    read_option,
    read_words,
)
from hedgerow.agent.io.events import ShellEvent, to_json
from hedgerow.agent.io.sections import DEFAULT_TOPICS, BridgeSettings, check_sections
from hedgerow.agent.io.shell import AgentSettings, AgentShell
from hedgerow.agent.plan import PUBLISHED_TOPOLOGIES, Ghosts, Topology, parse_topology
from hedgerow.agent.shapes import TOPOLOGIES
from hedgerow.bridges.topic_line import read_topic_line
from hedgerow.cli import silence
from hedgerow.cli.option_values import by, duration, whole
from hedgerow.cli.parsing import UsageError
from hedgerow.errors import ConfigError, HedgerowError, reason_of
from hedgerow.node import logs
from hedgerow.node.broker_urls import warn_if_readable
from hedgerow.node.eventlog import EventLog
from hedgerow.node.fabric_key import read_key
from hedgerow.node.values import read_directory_path, read_file_path, read_node_id

MAX_MISSES = 1_000

T = TypeVar("T")
Writer = Callable[[AgentEvent | ShellEvent, float], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "brokers", metavar="BROKER", nargs="*", help="ID=HOST:PORT or ID=mqtt://USER:PASSWORD@HOST:PORT"
    )
    parser.add_argument("--file", metavar="FILE", type=Path, help="a TOML file of [[broker]] tables")
    parser.add_argument("--mdns", action="store_true", help="find brokers by multicast DNS")
    parser.add_argument(
        "--topology",
        metavar="SHAPE",
        default="star",
        help="star, line, tree N, ring or redundant K (default: star)",
    )
    parser.add_argument(
        "--ghosts",
        choices=[each.value for each in Ghosts],
        default=Ghosts.DELETE.value,
        help="what becomes of a bridge whose far end is gone (default: delete); published: for star and line",
    )
    parser.add_argument(
        "--probe-interval",
        type=duration(0.01, 3_600),
        metavar="TIME",
        default="0.5",
        help="between probes (default: 0.5 s)",
    )
    parser.add_argument(
        "--probe-misses",
        type=whole(1, MAX_MISSES),
        metavar="N",
        default=3,
        help="probes without answer (default: 3)",
    )
    parser.add_argument(
        "--id",
        type=by(read_node_id),
        metavar="NAME",
        help="this agent's name; the lowest acts (default: random)",
    )
    parser.add_argument(
        "--topic",
        type=read_topic_line,
        metavar="LINE",
        action="append",
        help=f"PATTERN [DIRECTION [QOS [LOCAL REMOTE]]]; may be repeated (default: {DEFAULT_TOPICS[0]})",
    )
    parser.add_argument(
        "--option",
        type=read_option,
        metavar="'WORD VALUE'",
        action="append",
        default=[],
        help="a further line of every bridge's section; may be repeated",
    )
    parser.add_argument(
        "--data",
        type=by(read_directory_path),
        metavar="DIR",
        help="where bridges that the agent itself carries keep what waits",
    )
    parser.add_argument(
        "--key",
        type=by(read_file_path),
        metavar="FILE",
        help="the key that all agents share; without one they believe whoever announces an agent",
    )
    parser.add_argument("--plan", action="store_true", help="print what would be done, and end")
    parser.add_argument("--once", action="store_true", help="do it, and end when it is done")
    parser.add_argument(
        "--timeout",
        type=duration(0.01, 3_600),
        metavar="TIME",
        default="30",
        help="of --once (default: 30 s)",
    )
    parser.add_argument("--json", action="store_true", help="print each event as a line of JSON")
    parser.add_argument(
        "--log-level", choices=logs.LEVELS, default="info", help="debug, info, warning or error"
    )


def run(arguments: argparse.Namespace) -> int:
    settings = read_settings(arguments)
    entries = read_brokers(arguments)
    check_sections(entries, settings.bridges)
    logs.set_up("text", "warning" if arguments.plan else arguments.log_level)
    # The agent connects again and again on purpose, and says itself what that tells.
    logging.getLogger("hedgerow.client.driver").setLevel(logging.ERROR)
    if arguments.plan:
        return asyncio.run(show_plan(settings, entries, arguments.mdns))
    writer = EventWriter(arguments.json)
    if arguments.once:
        return asyncio.run(do_once(settings, entries, arguments.mdns, writer, arguments.timeout))
    asyncio.run(keep(settings, entries, arguments.mdns, writer))
    return 0


# What was asked for


def read_settings(arguments: argparse.Namespace) -> AgentSettings:
    # `--topology tree 3` leaves its number among the brokers, none of which is a number.
    numbers = [word for word in arguments.brokers if word.isdecimal()]
    arguments.brokers = [word for word in arguments.brokers if word not in numbers]
    if arguments.plan and arguments.once:
        raise ConfigError("--plan and --once: one of them")
    topology, ghosts = _read_topology(" ".join([arguments.topology, *numbers])), Ghosts(arguments.ghosts)
    if ghosts is Ghosts.PUBLISHED and topology.name not in PUBLISHED_TOPOLOGIES:
        raise UsageError(f"--ghosts published: for --topology {' or '.join(PUBLISHED_TOPOLOGIES)}")
    return AgentSettings(
        agent_id=arguments.id or secrets.token_hex(6),
        topology=topology,
        ghosts=ghosts,
        probe_interval_s=arguments.probe_interval,
        missed_probes=arguments.probe_misses,
        bridges=BridgeSettings(tuple(arguments.topic or DEFAULT_TOPICS), tuple(arguments.option)),
        data=arguments.data,
        key=_read_key(arguments.key),
        is_once=arguments.once,
        is_silent=arguments.plan,
    )


def _read_key(path: Path | None) -> bytes | None:
    if path is None:
        return None
    warn_if_readable([path])
    return read_key(path)


def read_brokers(arguments: argparse.Namespace) -> list[BrokerEntry]:
    entries = read_words(arguments.brokers)
    if arguments.file is not None:
        entries += read_entries(arguments.file)
    if not entries and not arguments.mdns:
        raise UsageError("no brokers: name them, or give --file FILE or --mdns")
    check_entries(entries)
    return entries


def _read_topology(text: str) -> Topology:
    try:
        return parse_topology(text)
    except ValueError as error:
        from hedgerow.cli.mistakes import did_you_mean

        name = text.partition(" ")[0]
        raise UsageError(f"--topology: {error}{did_you_mean(name, TOPOLOGIES)}") from None


# What is done


class EventWriter:
    """Events to the log, and as JSON to standard output when asked to."""

    def __init__(self, is_json: bool) -> None:
        self._is_json = is_json
        self._log = EventLog(logging.getLogger("hedgerow.agent"))

    def __call__(self, event: AgentEvent | ShellEvent, now: float) -> None:
        self._log.write(event, now)
        if self._is_json:
            try:
                print(to_json(event, now), flush=True)
            except OSError as error:  # Whoever read it has gone; the network is not to suffer for that.
                self._is_json = False
                logging.getLogger("hedgerow.agent").error("--json: no more events: %s", reason_of(error))
                silence(sys.stdout)


@asynccontextmanager
async def running(
    settings: AgentSettings, entries: list[BrokerEntry], mdns: bool, writer: Writer
) -> AsyncIterator[AgentShell]:
    shell = AgentShell(settings, entries, writer)
    browser = None
    try:
        shell.start()
        if mdns:
            from hedgerow.agent.io.discovery import Browser

            browser = Browser(shell.discover)
            await browser.start()
        yield shell
    finally:
        if browser is not None:
            await browser.stop()
        await shell.stop()


async def keep(settings: AgentSettings, entries: list[BrokerEntry], mdns: bool, writer: Writer) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running(settings, entries, mdns, writer):
        await stop.wait()


async def do_once(
    settings: AgentSettings, entries: list[BrokerEntry], mdns: bool, writer: Writer, timeout_s: float
) -> int:
    async with running(settings, entries, mdns, writer) as shell:
        if await shell.wait_until(lambda: shell.agent.is_done or shell.unmade is not None, timeout_s):
            if shell.unmade is None:
                _tell_silent(shell)
                return 0
            reason = "an agent has to carry that bridge while it runs: leave out --once"
            raise HedgerowError(f"{shell.unmade}: {reason}")
        if not shell.agent.alive:
            raise HedgerowError("no broker answers")
        if not shell.agent.is_acting:
            raise HedgerowError("another agent acts")
        raise HedgerowError(f"not done in {timeout_s:g} s: {str(shell.plan()).replace(chr(10), ', ')}")


async def show_plan(settings: AgentSettings, entries: list[BrokerEntry], mdns: bool) -> int:
    async with running(settings, entries, mdns, EventWriter(False)) as shell:
        detection_s = shell.agent.detection_s
        # Who says nothing for that long is not there; who was found late gets to report.
        if mdns or not await shell.wait_until(lambda: shell.is_informed, detection_s):
            await shell.wait_until(lambda: False, detection_s)
        if not shell.agent.alive:
            raise HedgerowError("no broker answers")
        _tell_silent(shell)
        print(shell.plan())
    return 0


def _tell_silent(shell: AgentShell) -> None:
    for broker in shell.agent.brokers:
        if broker not in shell.agent.alive:
            print(f"hedgerow agent: {broker} does not answer", file=sys.stderr)
