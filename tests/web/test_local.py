"""What only this node knows: who may see it, how it is searched, and that the broker does not wait for it."""

from __future__ import annotations

import asyncio
import time

from hedgerow.broker.port import Port
from hedgerow.message import Message, Properties
from hedgerow.mqtt.packets import Suback, Subscribe, Subscription
from hedgerow.node.backlog_watch import BacklogWatch
from hedgerow.node.backlogs import LogReader, Look, Room, Watch
from hedgerow.node.server import Server
from hedgerow.web import local
from hedgerow.web.local import LocalRows, topic_test
from hedgerow.web.scan import AT_ONCE
from hedgerow.web.view import MAX_ROWS, Viewer
from tests.node.peers import RawClient, connected, part_of, port_of, running
from tests.waiting import PATIENCE_S

EVERYONE = Viewer()


def said(*pairs: tuple[str, str]) -> Properties:
    return {"user_property": pairs}


def retain(server: Server, topic: str, payload: bytes = b"x") -> None:
    Port(server.broker, "test", lambda _: None).publish(Message(topic, payload, 1, True), server.clock())


async def subscribe(client: RawClient, *topic_filters: str) -> None:
    client.send(Subscribe(1, [Subscription(each, 1) for each in topic_filters]))
    assert isinstance(await client.receive(), Suback)


async def test_backlogs_are_shown_to_whom_they_belong() -> None:
    async with running() as server:
        look = Look()
        look.add(LogReader(user, user, False, False, 1, 1, None) for user in ("ann", "bob"))
        server_watch = part_of(server, BacklogWatch)
        server_watch.backlogs = Watch().conclude(look, Room(2, None), server.clock())

        def names(viewer: Viewer) -> set[str]:
            return {each.reader.name for each in LocalRows(server, viewer).backlogs()}

        assert names(EVERYONE) == {"ann", "bob"}
        assert names(Viewer("ann", sees_clients=False)) == {"ann"}
        assert names(Viewer(sees_clients=False)) == set()
        server_watch.backlogs = None
        assert names(EVERYONE) == set()


async def test_clients_are_shown_with_what_is_known_of_them() -> None:
    async with (
        running() as server,
        connected(port_of(server), "Barn-1") as barn,
        connected(port_of(server), "house"),
    ):
        await subscribe(barn, "farm/#", "$share/workers/jobs/+")
        rows = LocalRows(server, EVERYONE)
        found, total = rows.clients("", 10)
        assert [row.client_id for row in found] == ["Barn-1", "house"]
        assert total == 2
        first = found[0]
        assert (first.protocol, first.connected, first.subscriptions) == ("MQTT 5", True, 2)
        assert first.address.startswith("127.0.0.1")
        assert first.since is not None
        assert 0 <= server.clock() - first.since < PATIENCE_S
        assert [row.client_id for row in rows.clients("bARN", 10)[0]] == ["Barn-1"]
        server.broker.sessions["house"].username = "Anna"
        assert [row.client_id for row in rows.clients("aNNA", 10)[0]] == ["house"]
        assert [row.client_id for row in rows.clients("127.0.0.1", 10)[0]] == ["Barn-1", "house"]
        assert rows.clients("nobody", 10) == ([], 0)
        subscriptions, total = rows.subscriptions("", 10)
        assert [(row.filter, row.shared, row.qos) for row in subscriptions] == [
            ("farm/#", "", 1),
            ("jobs/+", "workers", 1),
        ]
        assert [row.filter for row in rows.subscriptions("FARM", 10)[0]] == ["farm/#"]
        assert len(rows.subscriptions("barn", 10)[0]) == 2  # by the client's name


async def test_clients_that_give_ids_are_shown_and_links_of_other_brokers_are_not() -> None:
    async with (
        running() as server,
        connected(port_of(server), "press", properties=said(("hedgerow-node", "press-4"))) as press,
        connected(
            port_of(server), "far", properties=said(("hedgerow-node", "far"), ("hedgerow-bridge", "b"))
        ),
    ):
        await subscribe(press, "press/#")
        rows = LocalRows(server, EVERYONE)
        assert [row.client_id for row in rows.clients("", 10)[0]] == ["press"]
        assert [row.filter for row in rows.subscriptions("", 10)[0]] == ["press/#"]


async def test_who_is_no_administrator_sees_its_own_clients_alone() -> None:
    async with (
        running() as server,
        connected(port_of(server), "hers") as hers,
        connected(port_of(server), "his"),
    ):
        await subscribe(hers, "secret/hers")
        server.broker.sessions["hers"].username = "anna"
        server.broker.sessions["his"].username = "ben"
        anna = LocalRows(server, Viewer("anna", sees_clients=False, may_read=lambda topic: False))
        assert [row.client_id for row in anna.clients("", 10)[0]] == ["hers"]
        assert [row.filter for row in anna.subscriptions("", 10)[0]] == ["secret/hers"]
        ben = LocalRows(server, Viewer("ben", sees_clients=False))
        assert [row.client_id for row in ben.clients("", 10)[0]] == ["his"]
        assert ben.subscriptions("", 10) == ([], 0)
        nobody = LocalRows(server, Viewer(None, sees_clients=False))
        assert nobody.clients("", 10) == ([], 0)


async def test_filters_and_retained_values_are_shown_to_those_who_may_read_them() -> None:
    def may_read(topic: str) -> bool:
        return topic.startswith("farm/")

    async with running() as server, connected(port_of(server), "client") as client:
        await subscribe(client, "farm/a", "house/b")
        retain(server, "farm/a", b"1")
        retain(server, "house/b", b"2")
        rows = LocalRows(server, Viewer("anna", True, may_read=may_read))
        assert [row.filter for row in rows.subscriptions("", 10)[0]] == ["farm/a"]
        found, total = rows.retained("#", 10)
        assert [(row.topic, row.payload) for row in found] == [("farm/a", b"1")]
        assert total == 1
        assert found[0].age_s is not None
        assert found[0].age_s < 60


async def test_events_are_for_those_who_may_read_the_nodes_status() -> None:
    async with running() as server:
        async with connected(port_of(server), "client"):
            pass
        assert any("client" in event.text for event in LocalRows(server, EVERYONE).events(100))
        assert LocalRows(server, Viewer(may_read=lambda topic: False)).events(100) == ()


def test_topics_are_meant_by_a_filter_or_by_some_of_their_letters() -> None:
    assert topic_test("farm/+")("farm/a")
    assert not topic_test("farm/+")("farm/a/b")
    assert topic_test("ARM")("farm/a")
    assert not topic_test("house")("farm/a")
    assert topic_test("")("farm/a")
    assert not topic_test("#")("$SYS/a")
    assert not topic_test("a#")("a#")  # a filter that is none


async def test_a_hundred_thousand_sessions_do_not_stop_the_loop() -> None:
    async with running() as server:
        for number in range(100_000):
            server.broker.create_session(f"client-{number:06}", None)
        gaps: list[float] = []

        async def beat() -> None:
            while True:
                before = time.perf_counter()
                await asyncio.sleep(0)
                gaps.append(time.perf_counter() - before)

        beating = asyncio.create_task(beat())
        rows = LocalRows(server, EVERYONE)
        await rows.prepare_clients("-099999")
        beating.cancel()
        found, total = rows.clients("-099999", MAX_ROWS)
        server.broker.sessions.clear()
    assert len(gaps) >= 5  # Others had their turn in between.
    assert total >= 1  # It was found, or there is said to be more.
    assert [row.client_id for row in found] in (["client-099999"], [])


async def test_a_session_with_very_many_subscriptions_does_not_stop_the_loop() -> None:
    async with running() as server, connected(port_of(server), "client") as client:
        for number in range(1, 11):
            filters = [Subscription(f"farm/{number}/{each}") for each in range(1_000)]
            client.send(Subscribe(number, filters))
            assert isinstance(await client.receive(), Suback)
        scan = LocalRows(server, EVERYONE).scan_subscriptions("", MAX_ROWS)
        scan.run(slice_s=0.0)
        assert scan.found == AT_ONCE * local.FILTERS_AT_ONCE
        assert not scan.is_done
        while not scan.is_done:
            scan.run()
        assert scan.total == 10_000
