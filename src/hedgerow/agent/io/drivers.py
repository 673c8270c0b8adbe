"""Who carries a bridge, and how it is told to.

A `Driver` makes the bridges of one kind of broker. `table.py` has all of them, in the order of preference:
the first whose `can_carry` takes one of the two ends carries the bridge there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from hedgerow.agent.io.broker_list import BrokerEntry
from hedgerow.agent.io.connection import BRIDGE_TOPICS, BrokerConnection
from hedgerow.agent.io.events import CommandRefused, ShellEvent
from hedgerow.agent.io.sections import BridgeSettings, bridge_name, far_of, make_section
from hedgerow.bridges.topic_line import TopicLine
from hedgerow.errors import ConfigError

MAX_BRIDGES = 256  # of one broker: what it says that it has is kept
MAX_REASON = 300  # characters of what a broker says, for the log

Version = tuple[int, int]


class BridgeState(NamedTuple):
    is_up: bool
    reason: str = ""
    is_told_twice: bool = False
    """The other end reports the same bridge."""
    address: str = ""
    """Where it leads to, if that is told."""


@dataclass(slots=True)
class WatchedBroker:
    """What the agent knows of one broker."""

    entry: BrokerEntry
    connection: BrokerConnection
    product: str = ""
    version: Version = (0, 0)
    is_complete: bool = False
    """What is retained there about its bridges has been heard on this connection."""
    answers: int = 0
    """Since the connection was made."""

    @property
    def id(self) -> str:
        return self.entry.id

    @property
    def kind(self) -> str:
        return self.entry.kind or self.product


class DriverContext(NamedTuple):
    """What a driver is made with."""

    settings: BridgeSettings
    data: Path | None
    emit: Callable[[ShellEvent], None]
    on_change: Callable[[str], None]
    """A bridge of the broker with this id has changed by itself."""


class Driver(Protocol):
    name: str
    ends_with_agent: bool
    """Its bridges are there as long as the agent runs, and no longer."""

    def can_carry(self, near: WatchedBroker) -> bool: ...

    def prepare(self, near: WatchedBroker) -> None:
        """What kind of broker it is has been heard."""

    def create(self, near: WatchedBroker, far: WatchedBroker, topics: Sequence[TopicLine]) -> None:
        """Twice is as once. Raises ConfigError with the reason why it cannot be done."""

    def delete(self, near: WatchedBroker, far_id: str) -> None: ...

    def bridges(self, near: WatchedBroker) -> Mapping[str, BridgeState]:
        """Far end → how it fares."""

    def receive_system(self, near: WatchedBroker, topic: str, payload: bytes) -> bool:
        """A message below `$SYS`. Did it change `bridges`?"""

    def forget(self, near: WatchedBroker) -> None:
        """The connection was lost: what it said is retained, and will be heard again."""

    def stand_by(self) -> None:
        """Another agent acts from now on."""

    async def stop(self) -> None: ...


class HedgerowDriver:
    """A node carries its bridges itself, and takes commands as publications."""

    name = "hedgerow"
    ends_with_agent = False

    def __init__(self, context: DriverContext) -> None:
        self._context = context
        self._states: dict[str, dict[str, BridgeState]] = {}

    def can_carry(self, near: WatchedBroker) -> bool:
        return near.kind == "hedgerow"

    def prepare(self, near: WatchedBroker) -> None:
        pass

    def create(self, near: WatchedBroker, far: WatchedBroker, topics: Sequence[TopicLine]) -> None:
        name = bridge_name(far.id)
        section = make_section(name, far.entry, topics, self._context.settings, bind=near.entry.bind)
        self._command(near, far.id, "new", section.to_text())

    def delete(self, near: WatchedBroker, far_id: str) -> None:
        self._command(near, far_id, "del", bridge_name(far_id))

    def _command(self, near: WatchedBroker, far_id: str, word: str, payload: str) -> None:
        def refused(reason: str) -> None:
            self._context.emit(CommandRefused(near.id, far_id, reason))

        near.connection.command(f"{BRIDGE_TOPICS}{word}", payload.encode(), refused)

    def bridges(self, near: WatchedBroker) -> Mapping[str, BridgeState]:
        return self._states.get(near.id, {})

    def receive_system(self, near: WatchedBroker, topic: str, payload: bytes) -> bool:
        if topic == f"{BRIDGE_TOPICS}result":
            self._receive_result(near, payload)
            return False
        name = level_between(BRIDGE_TOPICS, topic, "/state")
        far_id = None if name is None else far_of(name)
        if far_id is None:
            return False
        states = self._states.setdefault(near.id, {})
        if not payload:
            return states.pop(far_id, None) is not None
        state = read_state(_read_object(payload))
        if state is None or state == states.get(far_id):
            return False
        if far_id in states or len(states) < MAX_BRIDGES:
            states[far_id] = state
        return True

    def _receive_result(self, near: WatchedBroker, payload: bytes) -> None:
        result = _read_object(payload)
        name, reason = result.get("connection"), result.get("reason")
        far_id = far_of(name) if isinstance(name, str) else None
        if far_id is not None and result.get("ok") is False and isinstance(reason, str):
            self._context.emit(CommandRefused(near.id, far_id[:MAX_REASON], reason[:MAX_REASON]))

    def forget(self, near: WatchedBroker) -> None:
        self._states.pop(near.id, None)

    def stand_by(self) -> None:
        pass

    async def stop(self) -> None:
        pass


def choose_driver(
    drivers: Sequence[Driver], near: WatchedBroker, far: WatchedBroker
) -> tuple[Driver, WatchedBroker, WatchedBroker]:
    """The driver, and the pair with the end that carries first."""
    for driver in drivers:
        for pair in ((near, far), (far, near)):
            if driver.can_carry(pair[0]):
                return (driver, *pair)
    raise ConfigError(f"nobody can carry a bridge between {near.id} and {far.id}")


def read_version(text: str) -> tuple[str, Version] | None:
    """`mosquitto version 2.0.11` → ("mosquitto", (2, 0))."""
    found = re.match(r"[A-Za-z]+", text)
    if found is None:
        return None
    numbers = re.search(r"([0-9]{1,6})\.([0-9]{1,6})", text)
    return found[0].lower(), (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def level_between(before: str, topic: str, after: str) -> str | None:
    """The one level between two parts of a topic."""
    if topic.startswith(before) and topic.endswith(after):
        level = topic[len(before) : len(topic) - len(after)]
        if level and "/" not in level:
            return level
    return None


def read_state(found: Mapping[str, object]) -> BridgeState | None:
    """A state as a node publishes it. A lazy bridge that waits for traffic is as good as one that is up."""
    state, reason, address = found.get("state"), found.get("reason"), found.get("address")
    if not isinstance(state, str):
        return None
    is_up = state in ("up", "idle")
    text = reason if isinstance(reason, str) else ""
    place = address if isinstance(address, str) else ""
    return BridgeState(is_up, "" if is_up else (text or state)[:MAX_REASON], address=place)


def _read_object(payload: bytes) -> dict[str, object]:
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
