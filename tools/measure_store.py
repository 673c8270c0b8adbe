"""Prints the figures of docs/decisions/0003-durable-store.md, on a disk of your choice.

    .venv/bin/python tools/measure_store.py [DIRECTORY]

Each message is put with one delivery in one batch and removed with it in the next, which is what a
QoS 1 message to one subscriber costs the store in its whole life.
"""

from __future__ import annotations

import sqlite3
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
from hedgerow.message import Message, MessageId, Properties
from hedgerow.mqtt.outbox import Delivery
from hedgerow.mqtt.packets import MQTT_5
from hedgerow.node import store as store_module
from hedgerow.node import store_rows
from hedgerow.node.store import Store

PAYLOAD = bytes(range(64))
PROPERTIES: Properties = {"content_type": "text/plain", "user_property": (("unit", "K"),)}


def batches(
    size: int, sessions: int = 1, backlog: int = 1, properties: Properties | None = None
) -> Iterator[Changes]:
    """Batches without end of `size` new messages, each removing those of `backlog` batches before."""
    first = 1
    while True:
        changes = Changes(
            sessions={k: SessionRecord(k, f"{k}", None, MQTT_5, 60.0, None) for k in range(sessions)}
        )
        for key in range(first, first + size):
            message = Message(
                "farm/field/7/moisture", PAYLOAD, 1, False, properties or {}, MessageId("node-1a2b", 1, key)
            )
            changes.messages[key] = message
            changes.deliveries[key % sessions, key] = Delivery(
                message, 1, key=key, packet_id=key % 65_535 + 1, stage=1
            )
        for key in range(max(1, first - backlog * size), first - (backlog - 1) * size):
            changes.messages[key] = None
            changes.deliveries[key % sessions, key] = None
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


def binding(values: tuple[object, ...], name: str) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE t (key INTEGER PRIMARY KEY, a, b, c)")
        rows = [(key, *values) for key in range(1000)]
        statement = "INSERT OR REPLACE INTO t VALUES (?, ?, ?, ?)"
        times = [timed(lambda: connection.executemany(statement, rows)) for _ in range(50)]
    print(f"{name:44}{median(times) * 1e3:8.2f} µs a row")


def opening(directory: Path, messages: int) -> None:
    with tempfile.TemporaryDirectory(dir=directory) as data:
        with closing(Store.open(Path(data))) as store:
            store.write(next(batches(messages)))
            store.commit()
        size = (Path(data) / "hedgerow.db").stat().st_size
        seconds = timed(lambda: Store.open(Path(data)).close())
    print(f"{f'opening with {messages} messages queued':44}{seconds:8.2f} s, file of {size / 2**20:.0f} MiB")


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.gettempdir())
    for size, rounds in (1, 500), (10, 300), (100, 200), (1000, 200):
        cycle(directory, f"{size} messages a batch", size, rounds)
    cycle(directory, "1000, for ten sessions in turn", 1000, 100, sessions=10)
    cycle(directory, "1000, with two properties", 1000, 100, properties=PROPERTIES)
    cycle(directory, "1000, behind a backlog of 100000", 1000, 100, backlog=100)
    with patch.object(store_module, "_CHECKPOINT_PAGES", 4000):
        cycle(directory, "1000, checkpoint at 16 MiB, not 4 MiB", 1000, 200)
    with patch.object(store_rows, "_runs", lambda keys: ((key, key) for key in keys)):
        cycle(directory, "1000, each row deleted by a statement", 1000, 100)
    binding((b"payload", None, None), "bytes, None, None bound")
    binding((bytearray(b"payload"), bytearray(), float("inf")), "bytearray, bytearray, float bound")
    for switch_interval_s in 0.005, 0.0005:
        for split in False, True:
            beside_a_busy_loop(directory, split, switch_interval_s)
    opening(directory, 100_000)


if __name__ == "__main__":
    main()
