"""The obvious alternative: a paho subscriber that writes Parquet with pyarrow.

    python -m hedgerow_workshop.bench.pipeline.paho_parquet PORT DIRECTORY

It does what such scripts do: a persistent session at QoS 1, a list of rows, a file for each so many rows or
second. Its messages are acknowledged by paho when the callback returns. SIGTERM ends it after its last file.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROWS_PER_FILE = 10_000
FLUSH_S = 1.0


def main() -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from paho.mqtt.client import Client, MQTTMessage
    from paho.mqtt.enums import CallbackAPIVersion

    port, directory = int(sys.argv[1]), Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    rows: list[tuple[str, bytes, float]] = []
    lock = threading.Lock()
    is_over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_over.set())

    def keep(client: Client, userdata: Any, message: MQTTMessage) -> None:
        with lock:
            rows.append((message.topic, bytes(message.payload), time.time()))

    def write(number: int) -> None:
        with lock:
            taken, rows[:] = list(rows), []
        if taken:
            columns = [pa.array(values) for values in zip(*taken, strict=True)]
            table = pa.table(columns, names=["topic", "payload", "received_at"])
            fresh = directory / f"{number}.new"
            pq.write_table(table, fresh)
            fresh.rename(directory / f"{number}.parquet")

    client = Client(CallbackAPIVersion.VERSION2, client_id="paho-parquet", clean_session=False)
    client.on_message = keep
    client.on_subscribe = lambda *_: print("subscribed", flush=True)
    client.connect("127.0.0.1", port)
    client.subscribe("#", qos=1)
    client.loop_start()
    number = 0
    written_at = time.monotonic()
    while not is_over.wait(0.01):
        if len(rows) >= ROWS_PER_FILE or time.monotonic() - written_at > FLUSH_S:
            write(number)
            number, written_at = number + 1, time.monotonic()
    client.loop_stop()
    write(number)


if __name__ == "__main__":
    main()
