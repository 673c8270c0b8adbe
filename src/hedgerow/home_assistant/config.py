"""The `[home_assistant]` table of a configuration: under which prefix Home Assistant is told of the node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hedgerow.errors import ConfigError, TopicError
from hedgerow.node.config import Chapter
from hedgerow.node.values import Key, read_text
from hedgerow.topics import validate_name

DEFAULT_PREFIX = "homeassistant"


@dataclass(slots=True, frozen=True)
class HomeAssistantConfig:
    prefix: str | None = None
    """Of Home Assistant's discovery; None: it is told nothing."""


def read_prefix(value: object, base: Path) -> str:
    prefix = read_text(value, base)
    try:
        validate_name(prefix)
    except TopicError as error:
        raise ConfigError(str(error)) from None
    if prefix.startswith("$") or prefix.endswith("/"):
        raise ConfigError(f'"{prefix}" begins with $ or ends with /')
    return prefix


CHAPTER = Chapter(
    HomeAssistantConfig,
    (
        Key(
            "home_assistant.prefix",
            "--home-assistant",
            "PREFIX",
            read_prefix,
            "show this node's health in Home Assistant, whose discovery prefix is "
            f"{DEFAULT_PREFIX} unless given",
            implied=DEFAULT_PREFIX,
        ),
    ),
    lambda given: HomeAssistantConfig(**given.table("home_assistant")),
)
