"""Retained values and deletions of joined brokers, when one of them restarts from a store on the disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hedgerow.broker.changes import Changes, Snapshot
from hedgerow.broker.stored import LoggedMessage, Run
from hedgerow.node.store import Store
from tests.bridges.harness import Network, Node
from tests.broker.harness import FakeStore


class DiskStore(FakeStore):
    """In the place of the one made of dicts."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self.open_store = Store.open(directory)

    def write(self, changes: Changes) -> None:
        self.open_store.write(changes)
        self.open_store.commit()

    def read(self, runs: Sequence[Run], most_bytes: int) -> tuple[list[LoggedMessage], int]:
        return self.open_store.log.read(runs, most_bytes)

    def snapshot(self) -> Snapshot:
        """As the next life finds it."""
        self.open_store.close()
        self.open_store = Store.open(self._directory)
        return self.open_store.load()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """Joined; north has the store. Both have the value x of v, and the link between them is cut."""
    network = Network()
    north, south = network.add("north", durable=True), network.add("south")
    store = DiskStore(tmp_path)
    north.store = store
    north.bridge("# both 1", restart_timeout="1 2")
    north.publish("v", b"x", retain=True)
    network.cut("north", "south")
    network.advance(5)
    assert [value(node) for node in (north, south)] == [b"x", b"x"]
    yield north, south
    store.open_store.close()


def value(node: Node) -> bytes | None:
    message = node.broker.retained.get("v")
    return None if message is None else message.payload


def restart_and_mend(node: Node) -> None:
    node.crash()
    node.network.mend("north", "south")
    node.network.advance(20)
    assert node.is_up


@pytest.mark.parametrize("qos", [0, 1])
def test_a_deletion_outlives_the_process(pair: tuple[Node, Node], qos: int) -> None:
    north, south = pair
    north.publish("v", b"", qos, retain=True)
    restart_and_mend(north)
    assert value(north) is value(south) is None
    (kept,), (told,) = north.broker.retained.tombstones, south.broker.retained.tombstones
    assert kept == told


def test_a_value_that_waits_keeps_its_time(pair: tuple[Node, Node]) -> None:
    north, south = pair
    north.publish("v", b"older", 1, retain=True)
    north.network.advance(5)
    south.publish("v", b"newer", 0, retain=True)
    restart_and_mend(north)
    assert value(north) == value(south) == b"newer"
