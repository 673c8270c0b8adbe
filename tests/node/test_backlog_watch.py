"""A node looks at what waits for its sessions, and tells of it."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric

from hedgerow.mqtt.packets import Puback, Publish, Suback, Subscribe, Subscription
from hedgerow.node.backlog_metrics import metrics_of
from hedgerow.node.backlog_watch import BacklogWatch, BoundNear, write_file
from hedgerow.node.backlogs import FILE, MIB, Backlogs, LogReader, Look, Room, Watch, decode
from hedgerow.node.part import NodeContext
from hedgerow.node.server import Server
from hedgerow.node.status import describe
from tests.node.peers import LOOPBACK, connected, part_of, port_of, running, with_part
from tests.waiting import until

FOR_EVER: dict[str, Any] = {"properties": {"session_expiry_interval": 3_600}}


async def leave_waiting(server: Server, client_id: str, count: int) -> None:
    """Messages for a client that is away."""
    async with connected(port_of(server), client_id, **FOR_EVER) as client:
        client.send(Subscribe(1, [Subscription(f"{client_id}/#", 1)]))
        assert isinstance(await client.receive(), Suback)
    async with connected(port_of(server), "publisher") as publisher:
        for number in range(count):
            publisher.send(Publish(f"{client_id}/x", bytes(1_000), 1, packet_id=number + 1))
            assert isinstance(await publisher.receive(), Puback)


def look(server: Server) -> Backlogs:
    watch = part_of(server, BacklogWatch)
    watch.handle_timer(server.clock())
    assert watch.backlogs is not None
    return watch.backlogs


async def test_it_names_for_whom_what_waits(tmp_path: Path) -> None:
    async with running(mqtt=LOOPBACK, data=tmp_path) as server:
        await leave_waiting(server, "office", 3)
        await leave_waiting(server, "field", 1)
        backlogs = look(server)
        assert (backlogs.readers, backlogs.messages) == (2, 4)
        office, field = (each.reader for each in backlogs.largest)
        assert (office.name, office.messages, office.is_connected, office.is_link) == (
            "office", 3, False, False,
        )  # fmt: skip
        assert office.bytes > 3_000 > field.bytes
        told = describe(server)["backlog"]
        assert (told["readers"], told["messages"]) == (2, 4)
        assert "office" not in json.dumps(told)


class FewAtOnce(BacklogWatch):
    """It notes what it knows after each turn."""

    sessions_at_once = 2

    def __init__(self, node: NodeContext) -> None:
        super().__init__(node)
        self.known: list[Backlogs | None] = []

    def handle_timer(self, now: float) -> None:
        super().handle_timer(now)
        self.known.append(self.backlogs)


async def test_many_sessions_are_looked_at_a_few_at_a_time(tmp_path: Path) -> None:
    async with running(mqtt=LOOPBACK, data=tmp_path) as server:
        for name in "abc":
            await leave_waiting(server, name, 1)
    async with running(mqtt=LOOPBACK, data=tmp_path, table=with_part("backlogs", FewAtOnce)) as server:
        watch = part_of(server, FewAtOnce)
        await until(lambda: len(watch.known) > 1, "the rest")
        first, second = watch.known[:2]
        assert first is None
        assert second is not None
        assert second.readers == 3


class OftenInFile(BacklogWatch):
    file_s = 0.0


async def test_a_file_tells_of_it_to_others(tmp_path: Path) -> None:
    async with running(mqtt=LOOPBACK, data=tmp_path, table=with_part("backlogs", OftenInFile)) as server:
        await leave_waiting(server, "office", 3)
        look(server)

        def readers() -> int:
            file = tmp_path / FILE
            return decode(file.read_bytes()).readers if file.exists() else 0

        await until(lambda: readers() == 1, "the file")
        assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_where_no_file_can_be_written_none_is(tmp_path: Path) -> None:
    write_file(tmp_path / "none" / FILE, b"{}")
    assert list(tmp_path.iterdir()) == []


def test_the_log_says_when_the_bound_is_near_and_for_whom() -> None:
    seen = Look()
    seen.add([LogReader("office", None, False, False, 3_000, 85 * MIB, None)])
    backlogs = Watch().conclude(seen, Room(90 * MIB, 100 * MIB), 1.0)
    near, over = BoundNear(backlogs, True), BoundNear(backlogs, False)
    assert str(near) == (
        "waiting messages take 90 MiB of 100 MiB (90%); most for client office (away): 3,000 messages, "
        "85 MiB, 85% of the room"
    )
    assert str(over) == "waiting messages take 90 MiB of 100 MiB (90%): there is room again"
    assert near.level > over.level


class NearlyFull(BacklogWatch):
    def room(self) -> Room:
        return Room(90, 100)


async def test_a_bound_that_is_near_is_an_event(tmp_path: Path) -> None:
    async with running(mqtt=LOOPBACK, data=tmp_path, table=with_part("backlogs", NearlyFull)) as server:
        look(server)
        kinds = [each.kind for each in server.event_log.history.newest(server.clock(), 10)]
        assert kinds.count("full") == 1


def values(metrics: list[Metric]) -> dict[str, float]:
    return {family.name: sample.value for family in metrics for sample in family.samples}


HELD = {"user:ada": 5 * MIB, "user:bea": 85 * MIB}


def test_metrics_are_of_what_is_known() -> None:
    assert values(list(metrics_of(None, 1.0))) == {}
    seen = Look()
    seen.add([LogReader("office", None, False, False, 3_000, 85 * MIB, 100.0)])
    found = values(list(metrics_of(Watch().conclude(seen, Room(90 * MIB, None), 150.0, HELD), 160.0)))
    assert found == {
        "hedgerow_backlog_readers": 1,
        "hedgerow_backlog_messages": 3_000,
        "hedgerow_backlog_stored_bytes": 90 * MIB,
        "hedgerow_backlog_limit_bytes": inf,
        "hedgerow_backlog_oldest_age_seconds": 60,
        "hedgerow_backlog_owner_bytes": 85 * MIB,
        "hedgerow_backlog_full_seconds": inf,
    }
