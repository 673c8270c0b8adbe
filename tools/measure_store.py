"""Prints the figures of docs/decisions/0003-durable-store.md, on a disk of your choice.

    .venv/bin/python tools/measure_store.py [DIRECTORY]

Each message is written to the log with a position of one session in one batch, and is finished in the next,
which is what a QoS 1 message to one subscriber costs the store in its whole life.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from unittest.mock import patch

from hedgerow.broker.changes import Changes, SessionRecord
from hedgerow.broker.stored import StoredQueue
from hedgerow.message import Message, MessageId, Properties
from hedgerow.mqtt.packets import MQTT_5
from hedgerow.node import store as store_module
from hedgerow.node.store import Store

PAYLOAD = bytes(range(64))
PROPERTIES: Properties = {"content_type": "text/plain", "user_property": (("unit", "K"),)}
SEGMENT_BYTES = 8 * 1024 * 1024
SIZE = 160  # of a message in the log, at most


def batches(
    size: int, sessions: int = 1, topics: int = 1, backlog: int = 1, properties: Properties | None = None
) -> Iterator[Changes]:
    """Batches without end of `size` new messages, each finishing those of `backlog` batches before."""
    first = 1
    queues = [StoredQueue() for _ in range(sessions)]
    begun = [1]
    while True:
        changes = Changes(
            sessions={k: SessionRecord(k, f"{k}", None, MQTT_5, 60.0, None) for k in range(sessions)},
            first_position=first,
            at=time.time(),
        )
        if (first - begun[-1]) * SIZE > SEGMENT_BYTES:
            changes.begins_segment = True
            begun.append(first)
        for position in range(first, first + size):
            message = Message(
                f"farm/field/{position % topics}/moisture",
                PAYLOAD,
                1,
                False,
                properties or {},
                MessageId("node-1a2b", 1, position),
            )
            changes.messages.append(message)
        for session, queue in enumerate(queues):
            for position in range(first + (session - first) % sessions, first + size, sessions):
                chunk = queue.add(position, 1, 1, (), None, len(PAYLOAD), changes.at)
                changes.chunks[session, chunk.number] = chunk
            old = first - backlog * size
            for chunk, _ in queue.remove(old, size) if old > 0 else ():
                changes.chunks[session, chunk.number] = chunk
        while len(begun) > 1 and begun[1] <= first - (backlog - 1) * size:
            changes.removed.append((begun[0], begun[1]))
            del begun[0]
        first += size
        yield changes


def timed(action: Callable[[], object]) -> float:
    started_at = time.perf_counter()
    action()
    return time.perf_counter() - started_at


def cycle(directory: Path, name: str, size: int, rounds: int, backlog: int = 1, **options: object) -> None:
    writes, commits = [], []
    with tempfile.TemporaryDirectory(dir=directory) as data, closing(Store.open(Path(data))) as store:
        source = batches(size, backlog=backlog, **options)  # type: ignore[arg-type]
        for _ in range(backlog + 2):
            store.write(next(source))
            store.commit()
        for _ in range(rounds):
            changes = next(source)
            writes.append(timed(partial(store.write, changes)))
            commits.append(timed(store.commit))
    print(
        f"{name:44}{median(writes) / size * 1e6:8.1f} µs a message"
        f"{median(commits) * 1e3:8.2f} ms a commit, {max(commits) * 1e3:.1f} the slowest"
    )


def beside_a_busy_loop(directory: Path, split: bool, switch_interval_s: float) -> None:
    """1000 messages a batch while the main thread runs Python; `split` leaves the statements to it."""
    times, size = [], 1000
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(switch_interval_s)
    with tempfile.TemporaryDirectory(dir=directory) as data, closing(Store.open(Path(data))) as store:

        def write_and_commit(changes: Changes) -> None:
            store.write(changes)
            store.commit()

        source = batches(size)
        for _ in range(50):
            changes = next(source)
            started_at = time.perf_counter()
            if split:
                store.write(changes)
                thread = threading.Thread(target=store.commit)
            else:
                thread = threading.Thread(target=write_and_commit, args=(changes,))
            thread.start()
            while thread.is_alive():
                sum(range(100))
            times.append(time.perf_counter() - started_at)
    sys.setswitchinterval(usual_s)
    where = f"{'commit' if split else 'all'} in the helper, switching at {switch_interval_s * 1e3} ms"
    print(f"{where:44}{median(times) * 1e3:8.1f} ms a batch of {size}")


def waiting(directory: Path, messages: int, topics: int) -> None:
    """Opening with so much waiting, and reading all of it in pages."""
    with tempfile.TemporaryDirectory(dir=directory) as data:
        with closing(Store.open(Path(data))) as store:
            source = batches(1000, topics=topics, backlog=messages)
            for _ in range(messages // 1000):
                store.write(next(source))
                store.commit()
            size = store.log.bytes
        started_at = time.perf_counter()
        store = Store.open(Path(data))
        opened_s = time.perf_counter() - started_at
        position, read = 1, 0
        started_at, cpu_s = time.perf_counter(), time.process_time()
        while position <= messages:
            page, position = store.log.read([(position, min(500, messages + 1 - position))], 256 * 1024)
            read += len(page)
        seconds, cpu_s = time.perf_counter() - started_at, time.process_time() - cpu_s
        store.close()
    name = f"{messages} waiting, {topics} topics"
    print(
        f"{name:44}{opened_s * 1e3:8.1f} ms to open, {size / messages:.0f} bytes a message; reading "
        f"{read / seconds / 1e3:.0f} k messages/s, {cpu_s / read * 1e6:.1f} µs of CPU each"
    )


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.gettempdir())
    for size, rounds in (1, 500), (10, 300), (100, 200), (1000, 200):
        cycle(directory, f"{size} messages a batch", size, rounds)
    cycle(directory, "1000, to 100 topics", 1000, 100, topics=100)
    cycle(directory, "1000, to 100 topics, for ten sessions", 1000, 100, topics=100, sessions=10)
    cycle(directory, "1000, with two properties", 1000, 100, properties=PROPERTIES)
    cycle(directory, "1000, behind a backlog of 100000", 1000, 100, backlog=100)
    with patch.object(store_module, "_CHECKPOINT_PAGES", 4000):
        cycle(directory, "1000, checkpoint at 16 MiB, not 4 MiB", 1000, 200)
    for switch_interval_s in 0.005, 0.0005:
        for split in False, True:
            beside_a_busy_loop(directory, split, switch_interval_s)
    for topics in 1, 100:
        waiting(directory, 1_000_000, topics)


if __name__ == "__main__":
    main()
