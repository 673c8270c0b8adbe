"""The obvious alternative under the same load: Mosquitto as its distribution sets it up, and a paho
subscriber that writes Parquet with pyarrow."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hedgerow.pipeline.program import Program
from hedgerow_workshop.bench.peers import BROKERS, Child, running
from hedgerow_workshop.bench.pipeline.live import (
    CAUGHT_UP_S,
    QUIET_S,
    publish_all,
    published,
    publishing,
    stand_still,
    wait_for,
    wait_until_it_stands,
)
from hedgerow_workshop.programs import find_program

NAME = "paho-parquet"
_CONFIGURATION = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence true
persistence_location {directory}/
log_dest none
"""


def is_installed() -> bool:
    return find_program("mosquitto") is not None and importlib.util.find_spec("paho") is not None


def flood(directory: Path, count: int) -> tuple[float, int]:
    """Rows a second that came into files, and how many came."""
    with _writing(directory) as (broker, _):
        began_at = time.monotonic()
        publish_all(broker, count)
        came = wait_until_it_stands(lambda: _rows(directory), count)
        took_s = time.monotonic() - began_at - (QUIET_S if came < count else 0)
    return came / took_s, came


def stall(directory: Path, rate: float, stall_s: float) -> int:
    """Rows that are in no file, of those acknowledged, when the writer stood still for a time."""
    with _writing(directory) as (broker, writer):
        with publishing(broker.port, rate, 2 * stall_s, directory / "publisher") as publisher:
            wait_for(lambda: _rows(directory) > 0, CAUGHT_UP_S, "nothing came into files")
            assert writer.process is not None
            stand_still(writer.process.pid, stall_s)
            count = published(publisher, 2 * stall_s + CAUGHT_UP_S)
        wait_until_it_stands(lambda: _rows(directory), count)
    return count - _distinct(directory)


@contextmanager
def _writing(directory: Path) -> Iterator[tuple[Child, Program]]:
    stock = replace(BROKERS["mosquitto"], command=_command)
    with running(stock, directory / "mosquitto") as broker, Program(NAME, directory / "writer") as writer:
        module = "hedgerow_workshop.bench.pipeline.paho_parquet"
        writer.launch([sys.executable, "-m", module, str(broker.port), str(directory / "files")])
        wait_for(lambda: "subscribed" in writer.output.read_text(), CAUGHT_UP_S, "paho has not subscribed")
        yield broker, writer


def _command(port: int, directory: Path) -> list[str]:
    (directory / "mosquitto.conf").write_text(_CONFIGURATION.format(port=port, directory=directory))
    return [find_program("mosquitto") or "", "-c", str(directory / "mosquitto.conf")]


def _rows(directory: Path) -> int:
    import pyarrow.parquet as pq

    # The last may be being written.
    return sum(pq.read_metadata(path).num_rows for path in _files(directory))


def _distinct(directory: Path) -> int:
    import pyarrow.parquet as pq

    tables = [pq.read_table(path, columns=["payload"]) for path in _files(directory)]
    return len({data for table in tables for data in table.column(0).to_pylist()})


def _files(directory: Path) -> list[Path]:
    return list((directory / "files").glob("*.parquet"))
