"""The section of an agent's bridge: from what is known of its two ends to Mosquitto's words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hedgerow.agent.io.broker_list import BrokerEntry, Option
from hedgerow.bridges.section import Section, read_section
from hedgerow.bridges.topic_line import TopicLine
from hedgerow.errors import ConfigError

NAME_PREFIX = "agent."
"""Of the names of bridges: what begins with it is the agents', everything else is somebody else's."""

DEFAULT_TOPICS = (TopicLine("#", "both", 1),)
REVERSE = {"in": "out", "out": "in", "both": "both"}

# A bridge of an agent is wanted now, and the agent, not a long wait, decides when to give its far end up.
# Ids, which end cycles, travel in MQTT 5 alone.
DEFAULT_OPTIONS: dict[str, str] = {
    "bridge_protocol_version": "mqttv50",
    "restart_timeout": "0.2 2",
    "notifications": "false",
}


@dataclass(frozen=True, slots=True)
class BridgeSettings:
    """What is the same for all bridges of an agent."""

    topics: tuple[TopicLine, ...] = DEFAULT_TOPICS
    """With the lower of the two brokers as the local side."""
    options: tuple[Option, ...] = ()


def mirrored(line: TopicLine) -> TopicLine:
    """The same line, told from the other side."""
    return TopicLine(line.pattern, REVERSE[line.direction], line.qos, line.remote_prefix, line.local_prefix)


def from_local_side(line: TopicLine) -> TopicLine:
    """Of a bridge that is made of two, with a node between them that calls topics as the local side does: the
    line of the one to the local side."""
    return TopicLine(line.local_prefix + line.pattern, REVERSE[line.direction], line.qos)


def bridge_name(far_id: str) -> str:
    return NAME_PREFIX + far_id


def far_of(name: str) -> str | None:
    """The far end of a bridge with this name; None: it is no agent's."""
    return name.removeprefix(NAME_PREFIX) if name.startswith(NAME_PREFIX) else None


def make_section(
    name: str,
    far: BrokerEntry,
    topics: Iterable[TopicLine],
    settings: BridgeSettings,
    *,
    bind: str | None = None,
    further: Iterable[Option] = (),
) -> Section:
    """The section of a bridge to `far`. `further` options come before what people asked for."""
    words = {"connection": name, "address": str(far.far_address), **DEFAULT_OPTIONS, "replace": "true"}
    if far.address.username is not None:
        words["remote_username"] = far.address.username
    if far.address.password is not None:
        words["remote_password"] = far.address.password
    if far.address.scheme.tls:
        words |= _tls_words(far)
    if bind is not None:
        words["bridge_bind_address"] = bind
    words |= dict(further) | dict(settings.options) | dict(far.options)
    if far.address.scheme.tls and not words.keys() & {"bridge_cafile", "bridge_capath"}:
        raise ConfigError("mqtts:// needs ca_file, or the option bridge_cafile or bridge_capath")
    lines = [f"{word} {value}" for word, value in words.items()]
    return read_section("\n".join([*lines, *(f"topic {line}" for line in topics)]))


def check_sections(entries: Iterable[BrokerEntry], settings: BridgeSettings) -> None:
    """Raises ConfigError for options that contradict each other, before any bridge is made."""
    for entry in entries:
        try:
            make_section(bridge_name(entry.id), entry, settings.topics, settings, bind=entry.bind)
        except ConfigError as error:
            raise ConfigError(f"bridges to {entry.id}: {error}") from None


def _tls_words(far: BrokerEntry) -> dict[str, str]:
    words = {
        "bridge_cafile": far.tls.ca_file,
        "bridge_certfile": far.tls.cert_file,
        "bridge_keyfile": far.tls.key_file,
    }
    return {word: value for word, value in words.items() if value is not None}
