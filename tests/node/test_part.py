"""The life of a node's parts: in which order it goes, and what becomes of one that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from hedgerow.errors import ConfigError
from hedgerow.mqtt.packets import Pingreq, Pingresp
from hedgerow.node.config import Config
from hedgerow.node.part import NEVER, NodeContext, Part, PartEntry
from hedgerow.node.server import Server
from hedgerow.parts import PARTS
from tests.node.peers import NOWHERE, connected, part_of, port_of, running
from tests.waiting import until

happened: list[str] = []


class Told(Part):
    """Says what it is told to do, and does it unless told otherwise."""

    name = "told"
    fails_at = ""

    def __init__(self, node: NodeContext) -> None:
        super().__init__(node)
        self.due_at = NEVER
        self.work = 0
        self._do("make")

    def _do(self, what: str) -> None:
        happened.append(f"{what} {self.name}")
        if what == self.fails_at:
            raise ConfigError(f"cannot {what}")

    async def start(self) -> None:
        self._do("start")

    async def stop(self) -> None:
        self._do("stop")

    async def close(self) -> None:
        self._do("close")

    @property
    def has_work(self) -> bool:
        return self.work > 0

    def serve(self) -> None:
        self._do("serve")
        self.work -= 1

    @property
    def deadline(self) -> float:
        return self.due_at

    def handle_timer(self, now: float) -> None:
        self.due_at = NEVER
        self._do("wake")

    def reload(self, config: Config) -> Callable[[], None]:
        self._do("read")
        return partial(self._do, "put in force")


class First(Told):
    name = "first"


class Second(Told):
    name = "second"


TWO = tuple(
    PartEntry(kind.__name__, f"{__name__}:{kind.__name__}", lambda config: True) for kind in (First, Second)
)


def take() -> list[str]:
    """What has happened since this was last asked."""
    taken = happened.copy()
    happened.clear()
    return taken


@contextmanager
def failing(kind: type[Told], what: str) -> Iterator[None]:
    kind.fails_at = what
    try:
        yield
    finally:
        kind.fails_at = ""


def node_of_two() -> Server:
    take()
    return Server(Config(**NOWHERE), TWO)


async def test_they_start_in_order_and_end_in_reverse() -> None:
    node = node_of_two()
    await node.start()
    assert take() == ["make first", "make second", "start first", "start second"]
    await node.stop()
    assert take() == ["stop second", "stop first", "close second", "close first"]
    await node.stop()
    assert take() == []


@pytest.mark.parametrize(
    ("fails_at", "undone"),
    [("make", ["close first"]), ("start", ["stop first", "close second", "close first"])],
)
async def test_what_was_begun_is_undone(fails_at: str, undone: list[str]) -> None:
    node = node_of_two()
    with failing(Second, fails_at), pytest.raises(ConfigError, match=f"cannot {fails_at}"):
        await node.start()
    done = take()
    assert done[done.index(f"{fails_at} second") + 1 :] == undone


async def test_one_that_does_not_stop_keeps_no_other_from_it(caplog: pytest.LogCaptureFixture) -> None:
    node = node_of_two()
    await node.start()
    take()
    with failing(Second, "stop"):
        await node.stop()
    assert take() == ["stop second", "stop first", "close second", "close first"]
    assert "Second did not stop in order" in caplog.text


async def test_what_is_read_again_is_put_in_force_when_all_of_it_is_right() -> None:
    node = node_of_two()
    await node.start()
    take()
    node.reload()
    assert take() == ["read first", "read second", "put in force first", "put in force second"]
    with failing(Second, "read"):
        node.reload()
    assert take() == ["read first", "read second"]
    await node.stop()


async def test_work_is_done_when_the_node_flushes() -> None:
    node = node_of_two()
    await node.start()
    take()
    part_of(node, First).work = 2
    node.flush()
    node.flush()
    assert take() == ["serve first", "serve first"]
    await node.stop()


async def test_a_deadline_is_kept() -> None:
    node = node_of_two()
    await node.start()
    take()
    second = part_of(node, Second)
    second.due_at = node.clock() + 0.02
    node.wake_at(second.due_at)
    await until(lambda: happened == ["wake second"], "its time")
    await node.stop()


@pytest.mark.parametrize("what", ["serve", "wake"])
async def test_one_that_fails_silences_nobody(what: str, caplog: pytest.LogCaptureFixture) -> None:
    async with running(table=(*TWO, *PARTS)) as node, connected(port_of(node), "client") as client:
        first, second = part_of(node, First), part_of(node, Second)
        with failing(First, what):
            if what == "serve":
                first.work = second.work = 1
            else:
                first.due_at = second.due_at = node.clock()
                node.wake_at(first.due_at)
            client.send(Pingreq())
            assert isinstance(await client.receive(), Pingresp)
            await until(lambda: f"{what} second" in happened, "the other")
            assert happened.count(f"{what} first") == 1, "it is left alone for a moment"
        assert "First failed; it goes on in 1 s" in caplog.text
        take()
        first.work = 1
        node.flush()
        assert take() == []
        async with asyncio.timeout(5):
            while "serve first" not in happened:
                await asyncio.sleep(0.05)


def test_every_line_of_the_table_is_a_part() -> None:
    assert all(issubclass(entry.load(), Part) for entry in PARTS)
    assert len({entry.name for entry in PARTS}) == len(PARTS)
