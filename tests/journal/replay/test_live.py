"""Replays at live nodes: the past, then what comes, whoever is killed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import hedgerow
from hedgerow.errors import RefusedError
from hedgerow.journal.config import JournalConfig
from hedgerow.message import Properties
from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from hedgerow.mqtt.reasons import Reason
from tests.node.peers import RawClient, connected, port_of, running
from tests.waiting import take, until

COUNT = 400


async def subscribe(client: RawClient, topic_filter: str, properties: Properties | None = None) -> int:
    """The reason code of SUBACK."""
    client.send(Subscribe(1, [Subscription(topic_filter, 0)], properties or {}))
    answer = await client.receive()
    assert isinstance(answer, Suback)
    return answer.reason_codes[0]


async def receive(client: RawClient, number: int) -> list[tuple[str, bytes]]:
    found = []
    for _ in range(number):
        packet = await client.receive()
        assert isinstance(packet, Publish)
        found.append((packet.topic, packet.payload))
    return found


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
async def test_the_past_and_then_what_comes(tmp_path: Path, qos: int, version: int) -> None:
    """While another client publishes all the time: no gap where the one becomes the other."""
    async with running(JournalConfig(("#",), tmp_path)) as server:
        url = f"mqtt://127.0.0.1:{port_of(server)}"
        async with hedgerow.connect(url) as publisher, hedgerow.connect(url, version=version) as bus:
            for number in range(COUNT):
                publisher.publish_nowait(f"a/{number % 3}", b"%d" % number, qos=1)
            await publisher.publish("b", b"", qos=1)
            async with bus.subscribe("a/#", qos=qos, since="1h") as messages:

                async def publish() -> None:
                    for number in range(COUNT, 2 * COUNT):
                        await publisher.publish(f"a/{number % 3}", b"%d" % number, qos=number % 3)

                publishing = asyncio.ensure_future(publish())
                found = await take(messages, 2 * COUNT)
                await publishing
    assert [int(message.payload) for message in found] == list(range(2 * COUNT))
    assert {(message.topic, int(message.payload) % 3) for message in found} == {
        (f"a/{number}", number) for number in range(3)
    }
    assert {message.qos for message in found[:COUNT]} == {min(qos, 1)}


async def test_beginnings(tmp_path: Path) -> None:
    async with running(JournalConfig(("#",), tmp_path)) as server:
        url = f"mqtt://127.0.0.1:{port_of(server)}"
        async with hedgerow.connect(url) as bus:
            for number in range(5):
                await bus.publish("a", b"%d" % number, qos=1)
            between = datetime.now(UTC)
            for number in range(5, 10):
                await bus.publish("a", b"%d" % number, qos=1)
            beginnings: dict[str | datetime | timedelta, int] = {
                "last-3": 7,
                "position-4": 4,
                "all": 0,
                between: 5,
                timedelta(hours=1): 0,
            }
            for since, first in beginnings.items():
                found = await take(bus.subscribe("a", since=since), 10 - first)
                assert [int(message.payload) for message in found] == list(range(first, 10)), since
            async with bus.subscribe("a", since="new") as messages:
                await bus.publish("a", b"10", qos=1)
                assert [message.payload for message in await take(messages, 1)] == [b"10"]


async def test_what_a_client_may_not_read_now_is_not_replayed(tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text("topic read open/#\ntopic write #\n")
    journal = JournalConfig(("#",), tmp_path / "journal")
    async with running(journal, acl=acl) as server, connected(port_of(server)) as client:
        for number, topic in enumerate(("secret/1", "open/1", "secret/2", "open/2"), 1):
            client.send(Publish(topic, b"", 1, packet_id=number))
            await client.receive()
        assert await subscribe(client, "$replay/all/secret/1") == Reason.NOT_AUTHORIZED
        assert await subscribe(client, "$replay/all/#") == 0
        assert await receive(client, 2) == [("open/1", b""), ("open/2", b"")]
        client.send(Publish("open/3", b"", 1, packet_id=9))
        seen = [await client.receive(), await client.receive()]
        assert [each.topic for each in seen if isinstance(each, Publish)] == ["open/3"]


async def test_a_user_property_is_the_same_as_the_name(tmp_path: Path) -> None:
    property_1h: Properties = {"user_property": (("hedgerow-replay", "1h"),)}
    async with running(JournalConfig(("#",), tmp_path)) as server, connected(port_of(server)) as client:
        client.send(Publish("a/1", b"x", 1, packet_id=1))
        await client.receive()
        assert await subscribe(client, "a/#", property_1h) == 0
        assert await receive(client, 1) == [("a/1", b"x")]
        (session,) = server.broker.sessions.values()
        assert (session.subscriptions or {}).keys() == {"$replay/1h/a/#"}
        for properties, code in ((property_1h, 0), (Properties(), Reason.NO_SUBSCRIPTION_EXISTED)):
            client.send(Unsubscribe(2, ["a/#"], properties))
            answer = await client.receive()
            assert isinstance(answer, Unsuback)
            assert answer.reason_codes == [code]


async def test_what_is_refused(tmp_path: Path) -> None:
    async with running(JournalConfig(("#",), tmp_path)) as server, connected(port_of(server)) as client:
        for name in ("$replay/soon/a", "$replay/1h", "$share/g/$replay/1h/a"):
            assert await subscribe(client, name) == Reason.TOPIC_FILTER_INVALID
        client.send(Publish("$replay/1h/a", b"", 1, packet_id=1))
        answer = await client.receive()
        assert getattr(answer, "reason_code", 0) == Reason.NOT_AUTHORIZED
    async with running() as server:
        url = f"mqtt://127.0.0.1:{port_of(server)}"
        async with hedgerow.connect(url) as bus:
            with pytest.raises(RefusedError, match="the server refused"):
                await take(bus.subscribe("a", since="1h"), 1)


async def test_properties_come_and_what_has_expired_does_not(tmp_path: Path) -> None:
    async with running(JournalConfig(("#",), tmp_path)) as server:
        url = f"mqtt://127.0.0.1:{port_of(server)}"
        async with hedgerow.connect(url) as bus:
            await bus.publish("a", b"1", qos=1, properties={"message_expiry_interval": 1})
            await asyncio.sleep(1.01)  # There is no other way to be too late.
            await bus.publish("a", b"2", qos=1, retain=True, properties={"content_type": "text/plain"})
            found = await take(bus.subscribe("a", since="all", retain_as_published=True), 1)
    assert [(each.payload, each.retain, each.properties) for each in found] == [
        (b"2", True, {"content_type": "text/plain"})
    ]


async def test_a_slow_reader_costs_bounded_memory_and_nobody_else(tmp_path: Path) -> None:
    """It reads nothing: what is made for it is bounded, and another one goes on."""
    payload = bytes(4_096)
    async with running(JournalConfig(("#",), tmp_path)) as server:
        url = f"mqtt://127.0.0.1:{port_of(server)}"
        async with hedgerow.connect(url) as bus, connected(port_of(server), "slow") as slow:
            for _ in range(4_000):
                bus.publish_nowait("a", payload, qos=1)
            await bus.publish("a", payload, qos=1)
            slow.transport.pause_reading()
            slow.send(Subscribe(1, [Subscription("$replay/all/a", 0)]))
            await until(lambda: "slow" in server.broker.sessions, "the session")
            assert len(await take(bus.subscribe("a", since="all"), 4_001)) == 4_001
            connection = server.broker.sessions["slow"].connection
            assert connection is not None
            assert connection.congested
            assert connection.unread_bytes < 256 * 1024
            slow.transport.resume_reading()
            assert isinstance(await slow.receive(), Suback)
            assert len(await receive(slow, 4_001)) == 4_001


async def test_a_kept_session_goes_on_where_it_was(tmp_path: Path) -> None:
    """Also at a node that was stopped in between; what is subscribed to again does not begin again."""
    rooms, data = JournalConfig(("#",), tmp_path / "journal"), tmp_path / "data"
    kept = {"session_expiry_interval": 3600}
    for life in range(2):
        async with running(rooms, data=data) as server, connected(port_of(server), "publisher") as publisher:
            for number in range(10):
                publisher.send(Publish("a", b"%d" % (20 * life + number), 1, packet_id=1))
                await publisher.receive()
            for turn in range(2):
                async with connected(port_of(server), "reader", clean_start=False, properties=kept) as reader:
                    reader.send(Subscribe(1, [Subscription("$replay/all/a", 0)]))
                    found = [await reader.receive() for _ in range(11)]
                    begin = 20 * life + 10 * turn
                    assert sorted(int(each.payload) for each in found if isinstance(each, Publish)) == list(
                        range(begin, begin + 10)
                    )
                if turn == 0:
                    for number in range(10, 20):
                        publisher.send(Publish("a", b"%d" % (20 * life + number), 1, packet_id=1))
                        await publisher.receive()
