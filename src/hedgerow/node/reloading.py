"""What changes when the configuration is read again, and what of that waits for a restart.

Each key says when a change of it takes effect (`Key.takes_effect`). One that names a file is changed, too,
when the file is. What waits for a restart is left as it was, so that it is told at each reload until then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hedgerow.broker.limits import Limits
from hedgerow.digests import blake2b
from hedgerow.node.config import Config
from hedgerow.node.config_keys import FIELDS
from hedgerow.node.files import read_regular
from hedgerow.node.part import PartEntry
from hedgerow.node.values import AT_RESTART, IF_RAISED

MAX_FILE_BYTES = 64 * 2**20
# Everybody may see them in the log.
SHOWN = ("limits.", "log.")

Prints = Mapping[str, tuple[bytes, ...]]
"""Of the files that keys name, by key."""


class ConfigChange(NamedTuple):
    """Of one key."""

    name: str
    how: str

    def __str__(self) -> str:
        return f"{self.name}{self.how}"


class ConfigChanges(NamedTuple):
    now: list[ConfigChange]
    at_restart: list[str]


def find_changes(old: Config, new: Config, table: Collection[PartEntry]) -> ConfigChanges:
    """Of the configuration itself; files are told by their prints."""
    found = ConfigChanges([], [])
    waiting = set(_of_parts_that_come_or_go(old, new, table))
    for name, key in new.keys.items():
        before, after = old.values.get(name), new.values.get(name)
        if before == after:
            continue
        if (
            key.takes_effect == AT_RESTART
            or name in waiting
            or _must_wait(name, old, new)
            or (key.takes_effect == IF_RAISED and _limit(new, name) < _limit(old, name))
        ):
            found.at_restart.append(name)
        else:
            how = f" ({_shown(name, before)}, now {_shown(name, after)})" if name.startswith(SHOWN) else ""
            found.now.append(ConfigChange(name, how))
    return found


def merge(old: Config, new: Config, changes: ConfigChanges) -> Config:
    """What holds from now on, with all the settings of rooms as they are to be: a part takes of its own what
    it can."""
    now = {change.name for change in changes.now}
    changed = {FIELDS[name]: getattr(new, FIELDS[name]) for name in now if name in FIELDS}
    if old.tls is not None and new.tls is not None:
        changed["tls"] = new.tls
    if old.has_users is new.has_users:
        changed |= {"anonymous": new.anonymous, "jwt": new.jwt, "hook": new.hook}
    limits = {name.partition(".")[2]: _limit(new, name) for name in now if name.startswith("limits.")}
    values = {name: value for name, value in new.values.items() if name not in changes.at_restart}
    values |= {name: old.values[name] for name in changes.at_restart if name in old.values}
    return replace(old, **changed, limits=replace(old.limits, **limits), rooms=new.rooms, values=values)


def settle_rooms(old: Config, merged: Config, changes: ConfigChanges, table: Collection[PartEntry]) -> Config:
    """The same, with the old settings of rooms of which something waits."""
    rooms = dict(merged.rooms)
    for entry in table:
        chapter = entry.chapter
        if chapter is not None and any(key.name in changes.at_restart for key in chapter.keys):
            rooms.pop(chapter.settings, None)
            if chapter.settings in old.rooms:
                rooms[chapter.settings] = old.rooms[chapter.settings]
    return replace(merged, rooms=rooms)


def prints_of(config: Config) -> Prints:
    """Of files that are read again."""
    return {
        name: tuple(_print(path) for path in paths)
        for name, key in config.keys.items()
        if key.takes_effect != AT_RESTART and (paths := tuple(_paths(config.values.get(name))))
    }


def changed_files(before: Prints, after: Prints, changes: ConfigChanges) -> list[ConfigChange]:
    """Of keys that are themselves as they were."""
    told = {change.name for change in changes.now}.union(changes.at_restart)
    return [
        ConfigChange(name, " (its file)")
        for name, found in after.items()
        if name not in told and before.get(name) != found
    ]


def _of_parts_that_come_or_go(old: Config, new: Config, table: Collection[PartEntry]) -> Iterator[str]:
    for entry in table:
        if entry.chapter is not None and not (entry.is_wanted(old) and entry.is_wanted(new)):
            yield from (key.name for key in entry.chapter.keys)


def _must_wait(name: str, old: Config, new: Config) -> bool:
    """It would be there for the first time, or no longer: listeners and logins are made at the start."""
    if name.startswith("tls."):
        return old.tls is None or new.tls is None
    if name in ("access.passwords", "access.anonymous") or name.startswith(("jwt.", "hook.")):
        return old.has_users is not new.has_users
    return False


def _limit(config: Config, name: str) -> Any:
    return getattr(config.limits, name.partition(".")[2])


def _shown(name: str, value: object) -> str:
    if value is None and name.startswith("limits."):
        value = getattr(Limits(), name.partition(".")[2])
    return "the default" if value is None else str(value)


def _paths(value: object) -> Iterator[Path]:
    for each in value if isinstance(value, tuple) else (value,):
        if isinstance(each, Path):
            yield each


def _print(path: Path) -> bytes:
    try:
        return blake2b(read_regular(path, MAX_FILE_BYTES), digest_size=16).digest()
    except (OSError, ValueError):
        return b""  # Whoever needs it says what is wrong.
