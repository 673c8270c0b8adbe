"""A small file system that fills with what waits for a subscriber that is away."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from hedgerow_workshop.lab.backlog.clients import Publisher, Reader, subscribe
from hedgerow_workshop.lab.backlog.record import FullRecord
from hedgerow_workshop.lab.backlog.settings import MIB, BacklogSettings
from hedgerow_workshop.lab.backlog.steps import (
    POLL_S,
    QUIET_S,
    is_stuck,
    make_tally,
    note,
    open_publishers,
    read,
)
from hedgerow_workshop.lab.harness.brokers import Hedgerow

TOO_MUCH = 2  # times the file system acknowledged, and nobody waits: it was dropped
CONTINUED = 0.1  # of the file system acknowledged, after the subscriber is back

_MOUNT = 'mount -t tmpfs -o size="$0" tmpfs "$1" && shift && exec "$@"'


def small_file_system(directory: Path, mib: int) -> tuple[str, ...]:
    """Before a command: it alone sees the directory as a file system of that size."""
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    unshare = ("unshare", *user, "--mount", "--propagation", "private")
    return (*unshare, "sh", "-c", _MOUNT, f"{mib}m", str(directory))


def why_not(directory: Path) -> str | None:
    """Why there can be no small file system here; None: there can be one."""
    if shutil.which("unshare") is None:
        return "unshare is not on PATH"
    tried = subprocess.run(
        [*small_file_system(directory, 1), "true"], capture_output=True, text=True, check=False
    )
    return None if tried.returncode == 0 else tried.stderr.strip() or "it cannot be mounted"


async def fill(settings: BacklogSettings, directory: Path) -> FullRecord:
    record = FullRecord()
    node = Hedgerow("small", directory / "small")
    data = node.directory / "data"
    data.mkdir()
    node.wrapper = small_file_system(data, settings.full_mib)
    size = settings.full_mib * MIB
    async with AsyncExitStack() as stack:
        stack.enter_context(node)
        await node.start()
        publishers = await open_publishers(
            settings, node, 2 * TOO_MUCH * size // settings.full_bytes, settings.full_bytes, stack
        )

        def make_reader() -> Reader:
            return Reader("away", (node.host, node.port), make_tally(publishers), settings.full_bytes)

        await subscribe([make_reader()])

        for publisher in publishers:
            publisher.start()
        while not (record.has_waited or acknowledged_bytes(publishers, settings) > TOO_MUCH * size):
            node.check()
            await asyncio.sleep(POLL_S)
            record.has_waited = is_stuck(publishers, settings.stuck_s)
        record.filled_bytes = acknowledged_bytes(publishers, settings)

        reader = make_reader()
        stack.push_async_callback(reader.close)
        await reader.open()
        enough = record.filled_bytes + CONTINUED * size
        while not record.has_continued and time.monotonic() < reader.last_at + settings.patience_s:
            node.check()
            await asyncio.sleep(POLL_S)
            record.has_continued = acknowledged_bytes(publishers, settings) > enough
        for publisher in publishers:
            publisher.stop()
        await read([reader], publishers, settings.patience_s, node.check)
        await asyncio.sleep(QUIET_S)
        note(record.heard, [reader], publishers)
        record.memory_mib = node.peak_mib()
    return record


def acknowledged_bytes(publishers: Sequence[Publisher], settings: BacklogSettings) -> int:
    return settings.full_bytes * sum(publisher.count for publisher in publishers)
