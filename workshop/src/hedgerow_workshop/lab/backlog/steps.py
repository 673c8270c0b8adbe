"""What the parts have in common: publishing until all is acknowledged, reading until all has come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from hedgerow_workshop.lab.backlog.clients import Publisher, Reader
from hedgerow_workshop.lab.backlog.numbers import Tally
from hedgerow_workshop.lab.backlog.record import Heard, Reading
from hedgerow_workshop.lab.backlog.settings import BacklogSettings
from hedgerow_workshop.lab.harness.brokers import Hedgerow

POLL_S = 0.05
QUIET_S = 1.0  # what is doubled would come within it
_BLOCK_BYTES = 512  # of st_blocks, whatever the file system has


async def open_publishers(
    settings: BacklogSettings, node: Hedgerow, messages: int, payload_bytes: int, stack: AsyncExitStack
) -> list[Publisher]:
    """`messages`: the most that all of them send together."""
    count = settings.publishers
    shares = [messages // count + (index < messages % count) for index in range(count)]
    publishers = [
        Publisher(index, (node.host, node.port), payload_bytes, settings.window, share)
        for index, share in enumerate(shares)
    ]
    for publisher in publishers:
        stack.push_async_callback(publisher.close)
        await publisher.open()
    return publishers


def make_tally(publishers: Sequence[Publisher]) -> Tally:
    return Tally([len(publisher.acknowledged) for publisher in publishers])


async def publish(publishers: Sequence[Publisher], patience_s: float, check: Callable[[], None]) -> float:
    """Until all is acknowledged, or nothing has been for long. Returns the seconds that it took."""
    began_at = time.monotonic()
    for publisher in publishers:
        publisher.start()
    while not all(publisher.is_done for publisher in publishers) and not is_stuck(publishers, patience_s):
        check()
        await asyncio.sleep(POLL_S)
    for publisher in publishers:
        publisher.stop()
    return max(each.last_at for each in publishers) - began_at


def is_stuck(publishers: Sequence[Publisher], patience_s: float) -> bool:
    """No publisher has been acknowledged anything for so long."""
    return time.monotonic() - max(each.last_at for each in publishers) > patience_s


async def read(
    readers: Sequence[Reader],
    publishers: Sequence[Publisher],
    patience_s: float,
    check: Callable[[], None],
    began_at: float | None = None,
) -> Reading:
    """Until every reader has all that was acknowledged, or nothing more comes. The readers read freely, from
    now on, or since `began_at`, when they had nothing."""
    before = 0
    if began_at is None:
        began_at, before = time.monotonic(), sum(reader.count for reader in readers)
    while True:
        last_at = max(began_at, *(reader.last_at for reader in readers))
        expected = sum(publisher.count for publisher in publishers)
        if all(reader.count >= expected for reader in readers) and not count_missing(readers, publishers):
            break
        if time.monotonic() - last_at > patience_s:
            break
        check()
        await asyncio.sleep(POLL_S)
    return Reading(sum(reader.count for reader in readers) - before, last_at - began_at)


def count_missing(readers: Sequence[Reader], publishers: Sequence[Publisher]) -> int:
    return sum(
        reader.tally.missing(publisher.index, publisher.acknowledged)
        for reader in readers
        for publisher in publishers
    )


def note(heard: Heard, readers: Sequence[Reader], publishers: list[Publisher]) -> None:
    for reader in readers:
        heard.add(publishers, reader.tally)


def disk_bytes(directory: Path) -> int:
    """What the files in it take."""
    return sum(path.stat().st_blocks * _BLOCK_BYTES for path in directory.rglob("*") if path.is_file())
