"""Many durable sessions with the same wildcard, for all of which the same messages wait."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

from hedgerow_workshop.lab.backlog.clients import Reader, subscribe, topic_of
from hedgerow_workshop.lab.backlog.record import SharedRecord
from hedgerow_workshop.lab.backlog.settings import BacklogSettings
from hedgerow_workshop.lab.backlog.steps import (
    disk_bytes,
    make_tally,
    note,
    open_publishers,
    publish,
    read,
)
from hedgerow_workshop.lab.harness.brokers import Hedgerow

STORED_S = 1.0  # after the last acknowledgement


async def share(settings: BacklogSettings, directory: Path) -> SharedRecord:
    record = SharedRecord()
    node = Hedgerow("shared", directory / "shared")
    data = node.directory / "data"
    async with AsyncExitStack() as stack:
        stack.enter_context(node)
        await node.start()
        publishers = await open_publishers(
            settings, node, settings.shared_messages, settings.shared_bytes, stack
        )
        names = [f"shared-{number}" for number in range(settings.shared_sessions)]
        groups = [
            names[first : first + settings.shared_at_once]
            for first in range(0, len(names), settings.shared_at_once)
        ]

        def readers(group: list[str]) -> list[Reader]:
            address = node.host, node.port
            return [Reader(name, address, make_tally(publishers), settings.shared_bytes) for name in group]

        for group in groups:
            await subscribe(readers(group))
        before = disk_bytes(data)
        await publish(publishers, settings.patience_s, node.check)
        await asyncio.sleep(STORED_S)
        record.disk_bytes = disk_bytes(data) - before
        count = sum(publisher.count for publisher in publishers)
        record.message_bytes = count * (len(topic_of(0)) + settings.shared_bytes)

        for group in groups:
            found = readers(group)
            async with AsyncExitStack() as group_stack:
                for reader in found:
                    group_stack.push_async_callback(reader.close)
                began_at = time.monotonic()
                await asyncio.gather(*(reader.open() for reader in found))
                reading = await read(found, publishers, settings.patience_s, node.check, began_at)
            record.reading.count += reading.count
            record.reading.seconds += reading.seconds
            note(record.heard, found, publishers)
        record.memory_mib = node.peak_mib()
    return record
