"""The driver for a Mosquitto from 2.1 on whose configuration folder the agent can write.

Such a Mosquitto reads the bridges of its files again when it gets SIGHUP. Each bridge is a file of its own in
the folder that its `include_dir` names; to delete the file is to delete the bridge. Whether a bridge is up is
what Mosquitto says of it, retained, at `$SYS/broker/connection/CLIENT_ID/state`.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from hedgerow.agent.io.broker_list import BrokerEntry
from hedgerow.agent.io.connection import CONNECTION_TOPICS
from hedgerow.agent.io.drivers import MAX_BRIDGES, BridgeState, DriverContext, WatchedBroker, level_between
from hedgerow.agent.io.events import CommandRefused
from hedgerow.agent.io.sections import bridge_name, make_section
from hedgerow.bridges.topic_line import TopicLine
from hedgerow.errors import ConfigError, reason_of

RELOADS_SINCE = (2, 1)
FILE_PREFIX = "hedgerow-agent-"
FILE_SUFFIX = ".conf"
FILE_MODE = 0o640  # It may hold passwords, and Mosquitto, no longer root by then, has to read it.


class MosquittoDriver:
    name = "mosquitto"
    ends_with_agent = False

    def __init__(self, context: DriverContext) -> None:
        self._context = context
        self._is_up: dict[str, dict[str, bool]] = {}  # broker → client identifier
        self._to_reload: dict[str, WatchedBroker] = {}

    def can_carry(self, near: WatchedBroker) -> bool:
        folder = near.entry.config_dir
        return (
            near.kind == "mosquitto"
            and near.version >= RELOADS_SINCE
            and folder is not None
            and os.access(folder, os.W_OK | os.X_OK)
        )

    def prepare(self, near: WatchedBroker) -> None:
        pass

    def create(self, near: WatchedBroker, far: WatchedBroker, topics: Sequence[TopicLine]) -> None:
        further = (
            ("remote_clientid", client_id(near.id, far.id)),
            ("notifications", "true"),
            ("notifications_local_only", "true"),
        )
        settings = self._context.settings
        section = make_section(
            bridge_name(far.id), far.entry, topics, settings, bind=near.entry.bind, further=further
        )
        assert near.entry.config_dir is not None
        try:
            if _write(_path(near.entry.config_dir, far.id), section.to_text(mosquitto=near.version)):
                self._reload(near)
        except OSError as error:
            raise ConfigError(f"{near.entry.config_dir}: {reason_of(error)}") from None

    def delete(self, near: WatchedBroker, far_id: str) -> None:
        assert near.entry.config_dir is not None
        try:
            _path(near.entry.config_dir, far_id).unlink(missing_ok=True)
        except OSError as error:
            self._context.emit(CommandRefused(near.id, far_id, reason_of(error)))
            return
        self._reload(near)

    def bridges(self, near: WatchedBroker) -> Mapping[str, BridgeState]:
        if not self.can_carry(near):
            return {}
        assert near.entry.config_dir is not None
        is_up = self._is_up.get(near.id, {})
        fars = [
            path.name[len(FILE_PREFIX) : -len(FILE_SUFFIX)]
            for path in sorted(near.entry.config_dir.glob(f"{FILE_PREFIX}*{FILE_SUFFIX}"))
        ]
        return {
            far: BridgeState(True)
            if is_up.get(client_id(near.id, far))
            else BridgeState(False, "not connected")
            for far in fars
        }

    def receive_system(self, near: WatchedBroker, topic: str, payload: bytes) -> bool:
        level = level_between(CONNECTION_TOPICS, topic, "/state")
        if level is None or not level.startswith(client_id(near.id, "")):
            return False
        states = self._is_up.setdefault(near.id, {})
        if level in states or len(states) < MAX_BRIDGES:
            states[level] = payload == b"1"
        return True

    def forget(self, near: WatchedBroker) -> None:
        self._is_up.pop(near.id, None)

    def stand_by(self) -> None:
        pass

    async def stop(self) -> None:
        self._send_signals()

    def _reload(self, near: WatchedBroker) -> None:
        """Once for all the files that change in this turn."""
        if not self._to_reload:
            asyncio.get_running_loop().call_soon(self._send_signals)
        self._to_reload[near.id] = near

    def _send_signals(self) -> None:
        brokers, self._to_reload = self._to_reload, {}
        for near in brokers.values():
            try:
                os.kill(find_process(near.entry), signal.SIGHUP)
            except (OSError, ConfigError) as error:
                self._context.emit(CommandRefused(near.id, "any", f"not reloaded: {reason_of(error)}"))
            self._context.on_change(near.id)


def client_id(near_id: str, far_id: str) -> str:
    return f"{near_id}.{bridge_name(far_id)}"


def find_process(entry: BrokerEntry) -> int:
    """Raises ConfigError, or OSError, when there is none."""
    pid = entry.pid
    if pid is None:
        assert entry.pidfile is not None
        text = entry.pidfile.read_text(errors="replace").strip()
        if not (text.isdecimal() and len(text) < 10 and int(text) >= 2):
            raise ConfigError(f"{entry.pidfile} holds no number of a process")
        pid = int(text)
    # A number may be another's by now, and SIGHUP ends most programs.
    command = Path(f"/proc/{pid}/cmdline")
    if command.parent.parent.is_dir() and b"mosquitto" not in command.read_bytes():
        raise ConfigError(f"process {pid} is not Mosquitto")
    return pid


def _path(folder: Path, far_id: str) -> Path:
    return folder / f"{FILE_PREFIX}{far_id}{FILE_SUFFIX}"


def _write(path: Path, text: str) -> bool:
    """Whole or not at all. False: it was there already."""
    with suppress(OSError):
        if path.read_text(errors="replace") == text:
            return False
    # Mosquitto reads what ends in .conf.
    new = path.with_suffix(".new")
    owner = path.parent.stat()
    new.unlink(missing_ok=True)
    new.touch(FILE_MODE)
    with suppress(OSError):
        os.chown(new, owner.st_uid if os.geteuid() == 0 else -1, owner.st_gid)
    new.write_text(text)
    new.replace(path)
    return True
