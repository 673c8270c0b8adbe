"""A node that is killed and started again while a million messages wait."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

from hedgerow_workshop.lab.backlog.clients import Reader, first_answer, subscribe
from hedgerow_workshop.lab.backlog.record import StartRecord
from hedgerow_workshop.lab.backlog.settings import BacklogSettings
from hedgerow_workshop.lab.backlog.steps import QUIET_S, make_tally, note, open_publishers, publish, read
from hedgerow_workshop.lab.harness.brokers import Hedgerow
from hedgerow_workshop.lab.harness.programs import READY_S, together


async def start(settings: BacklogSettings, directory: Path) -> StartRecord:
    record = StartRecord()
    node = Hedgerow("start", directory / "start")
    async with AsyncExitStack() as stack:
        stack.enter_context(node)
        await node.start()
        publishers = await open_publishers(
            settings, node, settings.start_messages, settings.start_bytes, stack
        )

        def make_reader() -> Reader:
            return Reader("away", (node.host, node.port), make_tally(publishers), settings.start_bytes)

        await subscribe([make_reader()])
        await publish(publishers, settings.patience_s, node.check)
        for publisher in publishers:
            await publisher.close()
        node.kill()

        began_at = time.monotonic()

        async def look() -> None:
            record.seconds = await first_answer((node.host, node.port), READY_S) - began_at

        await together([node.start(), look()])
        reader = make_reader()
        stack.push_async_callback(reader.close)
        began_at = time.monotonic()
        await reader.open()
        record.reading = await read([reader], publishers, settings.patience_s, node.check, began_at)
        await asyncio.sleep(QUIET_S)
        note(record.heard, [reader], publishers)
        record.memory_mib = node.peak_mib()
    return record
