"""`hedgerow bridge`: create, delete and list the bridges of a running node.

A thin client of the node's commands: a publication to `$SYS/broker/bridge/new` or `…/del`, and the outcome
that is published in answer. With MQTT 5 the answer comes to a response topic of this client alone; where the
ACL does not let it use one, and with MQTT 3, to the topic on which all outcomes are told.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import hedgerow
from hedgerow.bridges.commands import DELETE_BRIDGE, NEW_BRIDGE, RESULT, state_topic
from hedgerow.bridges.io.files import read_bridges
from hedgerow.bridges.section import Section, read_section
from hedgerow.cli import client_options
from hedgerow.cli.client_options import Target, in_thread
from hedgerow.cli.parsing import UsageError
from hedgerow.errors import ConfigError, HedgerowError, RefusedError, escape_controls, printable
from hedgerow.message import Message, Properties
from hedgerow.mqtt.packets import MQTT_5
from hedgerow.node.values import read_utf8

USAGE = "%(prog)s [URL] new FILE|- | new NAME ADDRESS… -t TOPIC… | del NAME… | list [OPTIONS]"
EXAMPLES = """\
examples:
  hedgerow bridge new bridges.conf                       connection sections, as in mosquitto.conf
  hedgerow bridge new north north.example -t '# both 1'
  hedgerow bridge new north north.example -t '# both 1' -o 'remote_username anna' --replace
  hedgerow bridge mqtt://10.0.0.7 del north
  hedgerow bridge list
"""
WORDS_AFTER = {"new": "FILE"}
"""What a shell completes."""

ANSWER_S = 3.0
QUIET_S = 0.5  # between two states, which come in one go
VERSION = "$SYS/broker/version"
COLUMNS = ("NAME", "STATE", "ADDRESS", "FAR NODE", "SINCE", "QUEUED", "OUT", "IN", "TOPICS", "REASON")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Create, delete and list the bridges of a running node."
    parser.epilog = EXAMPLES
    parser.usage = USAGE
    parser.add_argument("words", nargs="*", metavar="COMMAND", help="new, del or list, and what it is about")
    bridge = parser.add_argument_group("bridge")
    bridge.add_argument(
        "-t",
        "--topic",
        action="append",
        default=[],
        metavar="LINE",
        help="new: PATTERN [DIRECTION [QOS [LOCAL_PREFIX [REMOTE_PREFIX]]]]; may be repeated",
    )
    bridge.add_argument(
        "-o",
        "--option",
        action="append",
        default=[],
        metavar="LINE",
        help="new: any other line of a section, such as 'keepalive_interval 30'; may be repeated",
    )
    bridge.add_argument("--replace", action="store_true", help="new: take the place of one of the same name")
    bridge.add_argument("--json", action="store_true", help="list: the states as the node tells them")
    client_options.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    words = list(arguments.words)
    url = client_options.take_url(words)
    if not words or words[0] not in COMMANDS:
        from hedgerow.cli.mistakes import none_of

        nothing = f"what to do? There are {', '.join(COMMANDS)}"
        raise UsageError(none_of(words[0], COMMANDS) if words else nothing)
    target = Target(arguments, url)
    if not target.url.startswith(("mqtt", "ws")) or target.topic is not None:
        raise ConfigError(f"{target.url}: a node is commanded over MQTT, by a URL without a topic")
    target.arguments["reconnect"] = False
    return client_options.run(COMMANDS[words[0]](arguments, words[1:], target))


# The commands


async def _new(arguments: argparse.Namespace, words: list[str], target: Target) -> int:
    sections = await in_thread(lambda: _read_sections(arguments, words))
    if arguments.replace:
        sections = [replace(section, replace=True) for section in sections]
    commands = [(NEW_BRIDGE, section.name, section.to_text()) for section in sections]
    return await _command(target, commands)


async def _delete(arguments: argparse.Namespace, words: list[str], target: Target) -> int:
    if not words:
        raise UsageError("del NAME: which bridge?")
    return await _command(target, [(DELETE_BRIDGE, name, name) for name in words])


async def _list(arguments: argparse.Namespace, words: list[str], target: Target) -> int:
    if words:
        raise UsageError(f'what is "{words[0]}"? list takes options alone')
    states, version = await _read_states(target)
    if not states and version is not None and not version.startswith("hedgerow"):
        raise HedgerowError(f'{target.url} is no Hedgerow node, but "{printable(version)}"')
    if not states and version is None:
        raise HedgerowError(f"{target.url} told of no bridge in {ANSWER_S:g} s: is it a Hedgerow node?")
    if arguments.json:
        for state in states:
            text = state.decode(errors="replace")
            print(escape_controls(text) if sys.stdout.isatty() else text)
    else:
        print("\n".join(table(states)) if states else "no bridges")
    return 0


COMMANDS = {"new": _new, "del": _delete, "list": _list}


def _read_sections(arguments: argparse.Namespace, words: list[str]) -> list[Section]:
    if len(words) > 1:
        return [_section_of_words(words[0], words[1:], arguments.topic, arguments.option)]
    if not words or arguments.topic or arguments.option:
        raise UsageError("new takes FILE, or - for standard input, or NAME and ADDRESS with -t TOPIC")
    if words[0] == "-":
        return read_bridges([("standard input", sys.stdin.buffer.read().decode(errors="replace"))])
    return read_bridges([(words[0], read_utf8(Path(words[0])))])


def _section_of_words(name: str, addresses: list[str], topics: list[str], options: list[str]) -> Section:
    members: dict[str, Any] = {"connection": name, "address": addresses, "topic": topics}
    for line in options:
        word, _, value = line.strip().partition(" ")
        if word in members:
            raise ConfigError(f"-o {word}: it is given already")
        members[word] = value.strip()
    if not topics:
        raise ConfigError("a bridge carries topics: give them with -t")
    return read_section(json.dumps(members))


# Commands and their outcomes


async def _command(target: Target, commands: list[tuple[str, str, str]]) -> int:
    """Give (topic, name of the bridge, payload) one after the other. Status 1 when one was refused."""
    status = 0
    async with hedgerow.connect(target.url, **target.arguments) as bus:
        for topic, name, payload in commands:
            outcome = await _outcome_of(bus, target, topic, name, payload)
            if outcome["ok"] is True:
                print(f"{name}: {printable(str(outcome['reason']))}")
            else:
                print(f"hedgerow bridge: {name}: {printable(str(outcome['reason']))}", file=sys.stderr)
                status = 1
    return status


async def _outcome_of(
    bus: hedgerow.Bus, target: Target, topic: str, name: str, payload: str
) -> dict[str, Any]:
    try:
        async with asyncio.timeout(ANSWER_S):
            if bus.version == MQTT_5:
                # If it is the response topic that this client may not use, nothing was done.
                with suppress(RefusedError):
                    return await _ask(bus, topic, name, payload, f"hedgerow/answer/{bus.client_id}")
            return await _ask(bus, topic, name, payload, RESULT)
    except RefusedError as error:
        raise HedgerowError(
            f"{target.url}: {error}; either this client may not command it, or it is no Hedgerow node"
        ) from None
    except TimeoutError:
        reason = f"{target.url} did not answer in {ANSWER_S:g} s: is it a Hedgerow node?"
        if bus.version != MQTT_5:
            reason += " Or this client may not command it, which MQTT 3 has no word for"
        raise HedgerowError(reason) from None


async def _ask(bus: hedgerow.Bus, topic: str, name: str, payload: str, answer: str) -> dict[str, Any]:
    properties: Properties = {}
    if bus.version == MQTT_5:
        properties["correlation_data"] = secrets.token_bytes(8)
        if answer != RESULT:
            properties["response_topic"] = answer
    async with bus.subscribe(answer, qos=1) as messages:
        await bus.publish(topic, payload, qos=1, properties=properties)
        async for message in messages:
            outcome = _read_outcome(message, properties, topic.rpartition("/")[2], name)
            if outcome is not None:
                return outcome
    raise HedgerowError("the connection was closed before an answer came")


def _read_outcome(message: Message, asked: Properties, command: str, name: str) -> dict[str, Any] | None:
    """The outcome, if it is that of our command."""
    if message.properties.get("correlation_data") != asked.get("correlation_data"):
        return None
    outcome = _read_object(message.payload)
    if outcome.get("command") != command or outcome.get("connection") not in (name, None):
        return None
    return {"ok": outcome.get("ok"), "reason": outcome.get("reason", "")}


# States


async def _read_states(target: Target) -> tuple[list[bytes], str | None]:
    """What is retained of each bridge, by name, and what the broker says that it is."""
    states: dict[str, bytes] = {}
    version: str | None = None
    # With a wildcard, since a filter without one is refused to whom an ACL does not grant it.
    filters = (state_topic("+"), f"{VERSION}/#")
    async with hedgerow.connect(target.url, **target.arguments) as bus:
        try:
            async with asyncio.timeout(ANSWER_S) as patience, bus.subscribe(*filters) as messages:
                async for message in messages:
                    if message.topic == VERSION:
                        # It was asked for last, so that it is behind all states.
                        version = message.payload.decode(errors="replace")
                        break
                    if message.payload:
                        states[message.topic] = message.payload
                    # For who may not read the version.
                    patience.reschedule(asyncio.get_running_loop().time() + QUIET_S)
        except TimeoutError:
            pass
    return [states[topic] for topic in sorted(states)], version


def table(states: list[bytes]) -> list[str]:
    rows = [COLUMNS, *map(_row, states)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _row(payload: bytes) -> tuple[str, ...]:
    state = _read_object(payload)
    since = state.get("since")
    if isinstance(since, int | float) and 0 <= since < 1e11:
        state["since"] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))
    for direction in ("out", "in"):
        ledger = state.get(direction)
        state[direction] = ledger.get("relayed") if isinstance(ledger, dict) else None
    topics = state.get("topics")
    state["topics"] = ", ".join(map(str, topics)) if isinstance(topics, list) else None
    names = ("connection", "state", "address", "far", "since", "queued", "out", "in", "topics", "reason")
    return tuple("-" if state.get(name) in (None, "") else printable(str(state[name])) for name in names)


def _read_object(payload: bytes) -> dict[str, Any]:
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
