"""A store that cannot be used: `hedgerow up` says why, ends, and leaves every byte as it was."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import StartNode
from tests.faults.client import PersistentClient, running, until
from tests.forks import start_hedgerow
from tests.programs import Node, run_node

PATIENCE_S = 30.0


def up(data: Path) -> tuple[int, str]:
    """The exit status of a node with this data directory, and what it printed."""
    words = ["up", "--mqtt", "127.0.0.1:0", "--ws", "off", "--http", "off", "--data", str(data)]
    output, errors = data.parent / "output", data.parent / "errors"
    with output.open("wb") as stdout, errors.open("wb") as stderr:
        process = start_hedgerow(words, stdout=stdout, stderr=stderr, cwd=data.parent)
    try:
        status = process.wait(PATIENCE_S)
    finally:
        process.kill()
    assert "listening" not in output.read_text()
    assert "Traceback" not in errors.read_text()
    return status, errors.read_text()


def contents(data: Path) -> list[bytes]:
    """What is stored: the file and its log. SQLite makes an empty log and an index even for a reader."""
    paths = data / "hedgerow.db", data / "hedgerow.db-wal"
    return [path.read_bytes() if path.exists() else b"" for path in paths]


async def fill(node: Node) -> None:
    """A session with messages that wait for it."""
    away = PersistentClient(node.port(), "away", subscriptions=(("kept/#", 1),))
    publisher = PersistentClient(node.port(), "publisher")
    async with running(away):
        await until(lambda: away.is_connected, "the subscription")
    async with running(publisher):
        for number in range(100):
            publisher.publish("kept/x", b"%d " % number + bytes(1_000), 1)
        await until(lambda: not publisher.outgoing, "the acknowledgements")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a node that has stopped, to be copied."""
    directory = tmp_path_factory.mktemp("filled")
    with run_node(directory, "--data", str(directory / "data")) as node:
        asyncio.run(fill(node))
    return directory / "data"


def overwrite_the_middle(store: Path) -> None:
    with store.open("r+b") as file:
        file.seek(2 * 4096)
        file.write(b"\xff" * (store.stat().st_size - 3 * 4096))


def overwrite_the_beginning(store: Path) -> None:
    with store.open("r+b") as file:
        file.write(bytes(100))


def cut_off_the_end(store: Path) -> None:
    os.truncate(store, store.stat().st_size // 2 // 4096 * 4096)


def lose_a_row(store: Path) -> None:
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        connection.execute("DELETE FROM node")


def write_a_newer_format(store: Path) -> None:
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        connection.execute("PRAGMA user_version = 99")


def replace_by_another_program(store: Path) -> None:
    store.unlink()
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE somebody_elses (value)")


def replace_by_text(store: Path) -> None:
    store.write_text("Dear diary, today nothing happened.\n" * 200)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (overwrite_the_middle, "is damaged"),
        (overwrite_the_beginning, "its beginning is damaged"),
        (cut_off_the_end, "is damaged"),
        (lose_a_row, "is damaged"),
        (write_a_newer_format, "has format 99, written by a newer Hedgerow"),
        (replace_by_another_program, "is not a Hedgerow store"),
        (replace_by_text, "is not a Hedgerow store"),
    ],
)
def test_a_store_that_cannot_be_read_is_refused_and_left_as_it_is(
    filled: Path, tmp_path: Path, harm: Callable[[Path], None], reason: str
) -> None:
    data = tmp_path / "data"
    shutil.copytree(filled, data)
    harm(data / "hedgerow.db")
    before = contents(data)
    for _ in range(2):
        status, text = up(data)
        assert status == 1
        assert text.startswith("hedgerow up: ")
        assert text.count("\n") == 1
        assert reason in text
        assert str(data / "hedgerow.db") in text
        assert "was left as it is" in text
    assert contents(data) == before


async def test_a_store_in_use_is_refused_and_its_node_goes_on(
    hedgerow_node: StartNode, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    node = hedgerow_node("--data", str(data))
    assert node.process is not None
    status, text = up(data)
    assert status == 1
    assert text.startswith(f"hedgerow up: {data} is in use by another process (pid {node.process.pid})")
    await fill(node)
    # A killed node leaves no lock behind.
    node.kill9()
    node.start()
    await fill(node)


def test_a_data_directory_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a directory")
    status, text = up(file)
    assert status == 2
    complaint, *example = text.splitlines()
    assert complaint == f"hedgerow up: --data: {file} is not a directory"
    assert [line.partition(":")[0] for line in example] == ["for example"]
    assert file.read_text() == "not a directory"
