"""Commands to this node's bridges: publications that create and delete them, answers, and their live state.

`$SYS/broker/bridge/new` takes a section, `$SYS/broker/bridge/del` a name or the line that gives it. Each
command has one outcome, which is published to `$SYS/broker/bridge/result`, and to the command's response
topic if it has one. A command that is refused has changed nothing. A bridge that was created is stored before
anyone hears of it, and is created again at the next start. Who may command is decided where the publication
is taken (`may_publish`).

Neither outcomes nor states hold a password; the store does, as the text of the section.

What reads a section is imported with the first command.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from hedgerow.broker.broker import Broker
from hedgerow.broker.port import Port
from hedgerow.errors import ConfigError, TopicError
from hedgerow.message import Message, Properties
from hedgerow.topics import validate_name

if TYPE_CHECKING:
    from hedgerow.bridges.bridge_set import BridgeSet
    from hedgerow.bridges.section import Section

NEW_BRIDGE = "$SYS/broker/bridge/new"
DELETE_BRIDGE = "$SYS/broker/bridge/del"
STATE_PREFIX = "$SYS/broker/bridge/"
RESULT = "$SYS/broker/bridge/result"

MAX_BRIDGES = 256  # Each holds a socket, a session and a queue; a loop of commands would take all of them.
MAX_DELETE_BYTES = 4_096
MAX_EVENTS = 16  # between two looks at them


@dataclass(slots=True)
class Commanded:
    """A command was carried out, or refused."""

    command: str
    name: str | None
    ok: bool
    reason: str

    @property
    def level(self) -> int:
        return logging.INFO if self.ok else logging.WARNING

    def __str__(self) -> str:
        which = "" if self.name is None else f" {self.name}"
        return f"command {self.command} of bridge{which}{'' if self.ok else ' refused'}: {self.reason}"


@dataclass(slots=True)
class NotRestored:
    """A bridge of the store could not be created again."""

    level: ClassVar[int] = logging.ERROR
    name: str
    reason: str

    def __str__(self) -> str:
        return f"bridge {self.name} was not created again: {self.reason}; deleting it ends this message"


KEPT = "bridges"  # the part of the store that is theirs


def state_topic(name: str) -> str:
    return f"{STATE_PREFIX}{name}/state"


class Commands:
    """`restore`, once the bridges of the configuration are there, creates those of the store."""

    def __init__(self, broker: Broker, bridges: BridgeSet, now: float) -> None:
        self._broker = broker
        self._bridges = bridges
        self._unrestored: set[str] = set()
        self._events: list[Commanded | NotRestored] = []
        self._port = Port(broker, "bridge commands", self._handle_command)
        broker.take_commands((NEW_BRIDGE, DELETE_BRIDGE))
        # They change every few seconds, and are those of a node that runs.
        broker.durability.volatile_prefixes += (STATE_PREFIX,)
        self._port.subscribe(NEW_BRIDGE, now)
        self._port.subscribe(DELETE_BRIDGE, now)

    def restore(self, now: float) -> None:
        for name, text in self._broker.kept_by(KEPT).items():
            try:
                self._create(_read_section(text), now)
            except ConfigError as error:
                self._unrestored.add(name)
                self._report(NotRestored(name, str(error)))

    def has_made(self, name: str) -> bool:
        """Is this bridge one that a publication created?"""
        return name in self._broker.kept_by(KEPT)

    def publish_states(self, now: float) -> None:
        """Tell, retained, what changed in the bridges' states."""
        for name, state in self._bridges.changed(now):
            payload = b"" if state is None else _to_json(state)
            self._port.publish(Message(state_topic(name), payload, 1, True), now)

    def take_events(self) -> list[Commanded | NotRestored]:
        events, self._events = self._events, []
        return events

    @property
    def has_work(self) -> bool:
        """Is there something to write into the log?"""
        return bool(self._events)

    def close(self) -> None:
        self._port.close()

    # One command

    def _handle_command(self, message: Message) -> None:
        self._broker.work += len(message.payload)  # A section is read at a few bytes a microsecond.
        command, run = ("new", self._run_new) if message.topic == NEW_BRIDGE else ("del", self._run_delete)
        outcome = Commanded(command, None, False, "")
        topics = [RESULT]
        try:
            topics += _response_topics(message)
            if message.retain:
                raise ConfigError("a command is not retained")
            run(message.payload, outcome)
            outcome.ok = True
        except ConfigError as error:
            outcome.reason = str(error)
        self._report(outcome)
        # Behind what the command changed: whoever hears that a bridge was created can rely on it.
        properties = _properties(message.properties)
        self._broker.durability.when_committed(lambda: self._answer(outcome, topics, properties))

    def _run_new(self, payload: bytes, outcome: Commanded) -> None:
        section = _read_section(payload)
        outcome.name = section.name
        outcome.reason = self._create(section, self._broker.now)
        self._unrestored.discard(section.name)
        if outcome.reason != "unchanged":
            self._broker.durability.keep(KEPT, section.name, section.to_text())

    def _create(self, section: Section, now: float) -> str:
        if len(self._bridges) >= MAX_BRIDGES and section.name not in self._bridges:
            raise ConfigError(f"this node has {MAX_BRIDGES} bridges, and no room for one more")
        return self._bridges.create(section, now)

    def _run_delete(self, payload: bytes, outcome: Commanded) -> None:
        name = outcome.name = _read_name(payload)
        if name in self._bridges or name not in self._unrestored:
            self._bridges.delete(name, self._broker.now)
        self._unrestored.discard(name)
        self._broker.durability.keep(KEPT, name, None)
        outcome.reason = "deleted"

    def _answer(self, outcome: Commanded, topics: list[str], properties: Properties) -> None:
        if self._port.closed:
            return
        payload = _to_json(
            {
                "command": outcome.command,
                "connection": outcome.name,
                "ok": outcome.ok,
                "reason": outcome.reason,
            }
        )
        for topic in topics:
            self._port.publish(Message(topic, payload, 1, properties=properties))

    def _report(self, event: Commanded | NotRestored) -> None:
        if len(self._events) < MAX_EVENTS:
            self._events.append(event)


def _response_topics(message: Message) -> list[str]:
    """The one that the command names, or none. Raises ConfigError."""
    topic = message.properties.get("response_topic")
    if topic is None:
        return []
    try:
        validate_name(topic)
    except TopicError:
        raise ConfigError("the response topic is not a topic name") from None
    if topic.startswith("$"):
        from hedgerow.bridges.values import quote

        # Answers are the node's own publications, which may go where a client's may not.
        raise ConfigError(f"the response topic {quote(topic)} begins with $")
    return [topic]


def _read_section(payload: bytes | str) -> Section:
    from hedgerow.bridges.section import read_section

    return read_section(payload)


def _read_name(payload: bytes) -> str:
    """From a name, the line of a section that gives it (`connection NAME`), or JSON {"connection": NAME}.

    Raises ConfigError.
    """
    from hedgerow.bridges.options import OPTIONS
    from hedgerow.bridges.values import check_characters

    if len(payload) > MAX_DELETE_BYTES:
        raise ConfigError(f"longer than {MAX_DELETE_BYTES} bytes")
    try:
        text = payload.decode().strip(" \r\n")
    except UnicodeDecodeError:
        raise ConfigError("not UTF-8") from None
    if text.startswith("{"):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise ConfigError("not JSON") from None
        if list(found) != ["connection"] or not isinstance(found["connection"], str):
            raise ConfigError('the JSON is not {"connection": NAME}')
        text = found["connection"]
    else:
        # A name is one word, so the line is never one.
        word, _, rest = text.partition(" ")
        text = rest.strip(" ") if word == "connection" and rest else text
    check_characters(text)
    name: str = OPTIONS["connection"].kind.read(text)
    return name


def _properties(asked: Properties) -> Properties:
    properties: Properties = {"payload_format_indicator": 1, "content_type": "application/json"}
    if "correlation_data" in asked:
        properties["correlation_data"] = asked["correlation_data"]
    return properties


def _to_json(members: Mapping[str, object]) -> bytes:
    return json.dumps(members, ensure_ascii=False).encode()
