"""A full disk: what must be stored waits and nobody is told otherwise, and the rest goes on."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.faults.client import PersistentClient, running, until
from tests.programs import Node, run_node

MESSAGE = bytes(2_000)
BATCH = 40  # within the identifiers that the client uses
STUCK_S = 1.5  # without an acknowledgement: several of the store's attempts

MOUNT = 'mount -t tmpfs -o size="$0" tmpfs "$1" && shift && exec "$@"'


@dataclass
class Disk:
    node: Node
    fill: Callable[[], object]
    free: Callable[[], object]


def in_small_file_system(folder: Path, size: str) -> tuple[str, ...]:
    """Before a command: it alone sees the folder as a file system of that size."""
    return ("unshare", "--mount", "--propagation", "private", "sh", "-c", MOUNT, size, str(folder))


@contextmanager
def small_file_system(tmp_path: Path) -> Iterator[Disk]:
    """The node's data directory is a file system of 2 MiB that the node alone sees."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("mounting needs root and unshare")
    data = tmp_path / "data"
    data.mkdir()
    wrapper = in_small_file_system(data, "2m")
    with run_node(tmp_path, "--data", str(data), "--http", "127.0.0.1:0", wrapper=wrapper) as node:
        assert node.process is not None
        ballast = Path(f"/proc/{node.process.pid}/root{data}/ballast")

        def fill() -> None:
            with ballast.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(4096))

        yield Disk(node, fill, ballast.unlink)


@contextmanager
def small_files(tmp_path: Path) -> Iterator[Disk]:
    """The node's files may not grow: what a plain user can do."""
    with run_node(tmp_path, "--data", str(tmp_path / "data"), "--http", "127.0.0.1:0") as node:
        assert node.process is not None
        pid = node.process.pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        # Room enough for the log, and for less than one commit in the store.
        yield Disk(
            node,
            partial(resource.prlimit, pid, resource.RLIMIT_FSIZE, (8_192, hard)),
            partial(resource.prlimit, pid, resource.RLIMIT_FSIZE, (hard, hard)),
        )


@pytest.mark.parametrize("small", [small_file_system, small_files], ids=["file-system", "file-size"])
async def test_what_must_be_stored_waits_for_room_and_the_rest_goes_on(
    small: Callable[[Path], AbstractContextManager[Disk]], tmp_path: Path
) -> None:
    with small(tmp_path) as disk:
        port = disk.node.port()
        away = PersistentClient(port, "away", subscriptions=(("kept/#", 1),))
        async with running(away):
            await until(lambda: away.is_connected, "the subscription")
        publisher = PersistentClient(port, "publisher")
        live = PersistentClient(port, "live", subscriptions=(("live/#", 0),))
        async with running(publisher, live):
            await until(lambda: publisher.is_connected and live.is_connected, "the connections")
            publish_batch(publisher)
            await until(lambda: not publisher.outgoing, "acknowledgements while there is room")
            assert health(disk.node) == 200

            disk.fill()
            await publish_until_stuck(publisher)
            assert "what must be stored first is not acknowledged" in disk.node.log
            assert health(disk.node) == 503
            waiting = dict(publisher.outgoing)
            for number in range(100):
                publisher.publish("live/x", b"%d" % number, 0)
                await until(lambda number=number: len(live.arrived["live/x"]) == number + 1, "QoS 0")  # type: ignore[misc]
            assert publisher.outgoing == waiting
            assert waiting

            disk.free()
            await until(lambda: not publisher.outgoing, "acknowledgements when there is room again")
            assert "the store works again" in disk.node.log
            assert health(disk.node) == 200
            assert publisher.connections == live.connections == 1
        async with running(away):
            expected = publisher.sent["kept/x"]
            await until(lambda: len(away.arrived["kept/x"]) >= len(expected), "what was kept")
            assert away.arrived["kept/x"] == expected
            assert not away.sessions_lost


def publish_batch(publisher: PersistentClient) -> None:
    first = len(publisher.sent["kept/x"])
    for number in range(first, first + BATCH):
        publisher.publish("kept/x", b"%d " % number + MESSAGE, 1)


async def publish_until_stuck(publisher: PersistentClient) -> None:
    """Use up what room there is inside the store's own files."""
    while not publisher.outgoing:
        publish_batch(publisher)
        count = 0
        while publisher.outgoing and count != len(publisher.outgoing):
            count = len(publisher.outgoing)
            with suppress(AssertionError):
                await until(lambda count=count: len(publisher.outgoing) < count, "progress", STUCK_S)  # type: ignore[misc]


def health(node: Node) -> int:
    try:
        with urllib.request.urlopen(f"{node.urls['http']}/health", timeout=10) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_a_disk_that_is_full_from_the_beginning_is_named(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("mounting needs root and unshare")
    data = tmp_path / "data"
    data.mkdir()
    command = [*in_small_file_system(data, "8k"), sys.executable, "-m", "hedgerow", "up"]
    listeners = ["--mqtt", "127.0.0.1:0", "--ws", "off", "--http", "off"]
    done = subprocess.run(
        [*command, *listeners, "--data", str(data)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert done.stderr == f"hedgerow up: cannot create {data / 'hedgerow.db'}: database or disk is full\n"
