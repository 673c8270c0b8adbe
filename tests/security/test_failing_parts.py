"""A part of the node that fails, wherever it is asked: the others, the clients and the timer go on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from hedgerow.broker.retained import TOMBSTONE_S
from hedgerow.message import Message
from hedgerow.mqtt.packets import Pingreq, Pingresp, Puback, Publish
from hedgerow.node.config import Config
from hedgerow.node.failures import FIRST_S, MAX_S, Failures
from hedgerow.node.metrics import NodeCollector
from hedgerow.node.part import NEVER, NodeContext, Part, PartEntry
from hedgerow.node.server import Server
from hedgerow.node.status import describe
from hedgerow.parts import PARTS
from tests.node.peers import connected, part_of, port_of, running
from tests.waiting import until


class Failing(Part):
    """Fails where it is told to, until it is told to stop."""

    def __init__(self, node: NodeContext) -> None:
        super().__init__(node)
        self.fails_at = ""
        self.calls = 0
        self.due_at = NEVER
        self.in_force = 0

    def _do(self, what: str) -> None:
        if what == self.fails_at:
            self.calls += 1
            raise RuntimeError(f"a mistake in {what}")

    @property
    def has_work(self) -> bool:
        self._do("has_work")
        return self.fails_at == "serve"

    def serve(self) -> None:
        self._do("serve")

    @property
    def deadline(self) -> float:
        self._do("deadline")
        return self.due_at

    def handle_timer(self, now: float) -> None:
        self._do("handle_timer")

    @property
    def problem(self) -> str | None:
        self._do("problem")
        return None

    def status(self) -> Mapping[str, Any]:
        self._do("status")
        return {}

    def metrics(self) -> Iterable[Any]:
        self._do("metrics")
        return ()

    def reload(self, config: Config) -> Callable[[], None]:
        self._do("reload")
        return lambda: self._do("in force")


class Other(Part):
    def __init__(self, node: NodeContext) -> None:
        super().__init__(node)
        self.ticks = 0
        self.in_force = 0
        self.due_at = 0.0

    @property
    def deadline(self) -> float:
        return self.due_at

    def handle_timer(self, now: float) -> None:
        self.ticks += 1
        self.due_at = now + 0.005

    def reload(self, config: Config) -> Callable[[], None]:
        def put() -> None:
            self.in_force += 1

        return put


TABLE = (
    PartEntry("failing", f"{__name__}:Failing", lambda config: True),
    PartEntry("other", f"{__name__}:Other", lambda config: True),
    *PARTS,
)


async def check_served(node: Server) -> None:
    async with connected(port_of(node), "client") as client:
        client.send(Pingreq(), Publish("t", b"", 1, packet_id=1))
        assert isinstance(await client.receive(), Pingresp)
        assert isinstance(await client.receive(), Puback)


@pytest.mark.parametrize("what", ["serve", "has_work", "deadline", "handle_timer"])
async def test_one_that_fails_while_it_works_silences_nobody(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(table=TABLE) as node:
        failing, other = part_of(node, Failing), part_of(node, Other)
        failing.fails_at, failing.due_at = what, 0.0
        node.wake_at(0.0)
        node.flush()
        await until(lambda: failing.calls > 0, "the failure")
        before = other.ticks
        await until(lambda: other.ticks > before + 20, "the other's time")
        await check_served(node)
        assert failing.calls < 5, "it is left alone for a while"
        assert node.failures.counts["Failing"] == failing.calls
        told = [each for each in caplog.records if each.levelno >= logging.ERROR]
        assert len(told) == 1, "a kind of failure has one traceback"
        assert told[0].exc_info is not None
        failing.fails_at = ""


async def test_one_that_cannot_tell_of_itself_hides_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async with running(table=TABLE) as node:
        failing = part_of(node, Failing)
        for what in ("status", "metrics", "problem"):
            failing.fails_at = what
            for _ in range(3):
                assert describe(node)["node"] == node.node_id
                names = {metric.name for metric in NodeCollector(node).collect()}
                assert "hedgerow_part_failures" in names
                assert "hedgerow_commits" in names or len(names) > 20
                assert node.problem is None
        failing.fails_at = ""
        await check_served(node)
    assert len([each for each in caplog.records if each.levelno >= logging.ERROR]) == 1


async def test_one_that_cannot_reload_leaves_the_old_in_force() -> None:
    async with running(table=TABLE) as node:
        failing, other = part_of(node, Failing), part_of(node, Other)
        failing.fails_at = "reload"
        node.reload()
        assert other.in_force == 0
        failing.fails_at = "in force"
        node.reload()
        assert other.in_force == 1
        failing.fails_at = ""


async def test_the_broker_s_own_timer_goes_on() -> None:
    calls = 0

    def fail(topic: str) -> None:
        nonlocal calls
        calls += 1
        raise RuntimeError("a mistake of ours")

    async with running(table=TABLE) as node:
        now = node.clock()
        deletions = node.broker.retained.tombstones
        for number in range(1_000):  # All are over in a moment, and to forget one fails.
            deletion = Message(f"gone/{number}", b"", published_at=now - TOMBSTONE_S + 0.1)
            assert deletions.set(deletion, now)
        deletions.on_forget = fail
        node.broker.purge_later(deletions.ends_at, now)
        node.flush()
        await until(lambda: calls > 0, "the failure")
        other = part_of(node, Other)
        before = other.ticks
        await until(lambda: other.ticks > before + 20, "the other's time")
        await check_served(node)
        assert calls <= other.ticks + 5, "it does not take the loop for itself"


async def test_what_waits_for_the_store_is_answered_though_a_callback_fails(tmp_path: Any) -> None:
    async with running(table=PARTS, data=tmp_path) as node, connected(port_of(node), "client") as client:

        def fail() -> None:
            raise RuntimeError("a mistake of ours")

        for number in range(1, 4):
            node.broker.durability.keep("test", "key", str(number))
            node.broker.durability.when_committed(fail)
            client.send(Publish("t", b"x", 1, True, packet_id=number))
            packet = await client.receive()
            assert isinstance(packet, Puback)
            assert packet.packet_id == number


def test_it_is_left_alone_for_longer_each_time() -> None:
    failures, part = Failures(), object()
    now, pauses = 1_000.0, []
    for _ in range(10):
        again_at = failures.leave_alone(part, "P", RuntimeError("again"), now)
        pauses.append(again_at - now)
        now = again_at
        failures.handle_timer(now)
        assert not failures.is_left_alone(part)
    assert pauses[:4] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S, 8 * FIRST_S]
    assert pauses[-1] == MAX_S
    assert (
        failures.leave_alone(part, "P", RuntimeError("later"), now + 3 * MAX_S) == now + 3 * MAX_S + FIRST_S
    )
