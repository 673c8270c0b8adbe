"""Too much of everything: each limit holds, says so, and costs nobody else a message."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import pytest

from hedgerow.message import Properties
from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Puback,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    Subscription,
)
from hedgerow.mqtt.reasons import Reason
from hedgerow.node.passwords import set_password
from tests.conftest import StartNode
from tests.faults.client import until
from tests.faults.witness import SYS_INTERVAL, resident_bytes, witnessed
from tests.node.peers import RawClient, connected, raw_client

MIB = 1024 * 1024
Item = TypeVar("Item")


def batched(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    return [items[first : first + size] for first in range(0, len(items), size)]


def limits(**values: object) -> list[str]:
    return [word for name, value in values.items() for word in ("--limit", f"{name}={value}")]


def users(folder: Path) -> list[str]:
    """alice and bob, whose hashes cost as much as those that `hedgerow passwd` writes."""
    passwords = folder / "passwords"
    for user in ("alice", "bob"):
        set_password(passwords, user, f"of {user}".encode(), create=not passwords.exists())
    return ["--passwords", str(passwords)]


# Connections


async def test_connections_beyond_the_limit_are_told_and_the_others_stay(hedgerow_node: StartNode) -> None:
    limit, flood = 30, 100
    node = hedgerow_node(*SYS_INTERVAL, *limits(connections=limit))
    async with witnessed(node) as witness:
        codes = []
        async with AsyncExitStack() as open_ones:
            for number in range(flood):
                client = await open_ones.enter_async_context(raw_client(node.port()))
                client.send(Connect(f"flood-{number}"))
                answer = await client.receive()
                assert isinstance(answer, Connack)
                codes.append(answer.reason_code)
        served = limit - len(witness.clients)
        assert codes == [0] * served + [Reason.SERVER_BUSY] * (flood - served)
        await witness.wait_for_log(f"{limit} connections are open")
        await witness.wait_for_counter("connections/refused", flood - served)
        await until(lambda: node.log.count("client flood-0 disconnected") == 1, "the flood to end")
        async with connected(node.port(), "late"):
            pass


async def test_connects_beyond_the_rate_are_closed(hedgerow_node: StartNode) -> None:
    node = hedgerow_node(*SYS_INTERVAL, *limits(connects_per_s=5))  # and a burst of 50
    async with witnessed(node) as witness:
        served = 0
        for number in range(100):
            async with raw_client(node.port()) as client:
                try:
                    client.send(Connect(f"fast-{number}"))
                    served += isinstance(await client.receive(), Connack)
                except ConnectionError:
                    pass
        assert 40 <= served <= 60
        await witness.wait_for_log("more than 5 connections a second")
        await witness.wait_for_counter("connections/refused", 40)


async def test_a_flood_of_wrong_passwords(hedgerow_node: StartNode, tmp_path: Path) -> None:
    # Shorter than all hashes take, and long enough for one on a machine that does ten other things.
    node = hedgerow_node(*SYS_INTERVAL, *limits(connect_timeout_s=2), *users(tmp_path))
    async with witnessed(node, "alice", "of alice") as witness:

        async def guess(number: int) -> int:
            async with raw_client(node.port()) as client:
                client.send(Connect(f"guess-{number}", username="alice", password=b"%d" % number))
                answer = await client.receive()
                assert isinstance(answer, Connack)
                return answer.reason_code

        codes = await asyncio.gather(*map(guess, range(200)))
        refusals = {Reason.BAD_USER_NAME_OR_PASSWORD, Reason.SERVER_BUSY, Reason.CONNECTION_RATE_EXCEEDED}
        assert set(codes) <= refusals
        # Who has waited for a hash too long, on a busy machine perhaps each, hears only that.
        while await guess(len(codes)) == Reason.SERVER_BUSY:
            continue
        await witness.wait_for_log("refused (bad user name or password)")
        await witness.wait_for_counter("connections/refused", 200)


async def test_nobody_takes_the_session_of_another_user(hedgerow_node: StartNode, tmp_path: Path) -> None:
    node = hedgerow_node(*SYS_INTERVAL, *users(tmp_path), "--data", str(tmp_path / "data"))
    async with witnessed(node, "alice", "of alice") as witness:
        for client_id in ("witness-s", "witness-p"):
            for clean_start in (False, True):
                async with raw_client(node.port()) as thief:
                    login = {"username": "bob", "password": b"of bob"}
                    thief.send(Connect(client_id, clean_start=clean_start, **login))  # type: ignore[arg-type]
                    answer = await thief.receive()
                    assert isinstance(answer, Connack)
                    assert answer.reason_code == Reason.NOT_AUTHORIZED
        await witness.wait_for_log("belongs to another user", 4)


# Subscriptions and topics


async def test_thousands_of_subscriptions(hedgerow_node: StartNode) -> None:
    limit = 5_000
    node = hedgerow_node(*SYS_INTERVAL, *limits(subscriptions=limit))
    async with witnessed(node) as witness, connected(node.port(), "hoarder") as client:
        codes: list[int] = []
        for first in range(0, 2 * limit, 500):
            filters = [Subscription(f"hoard/+/{number}/#", 1) for number in range(first, first + 500)]
            client.send(Subscribe(1, filters))
            answer = await client.receive()
            assert isinstance(answer, Suback)
            codes += answer.reason_codes
        assert codes == [1] * limit + [Reason.QUOTA_EXCEEDED] * limit
        await witness.wait_for_counter("subscriptions/count", limit)


@pytest.mark.parametrize("length", [20, 60_000], ids=["many", "long"])
async def test_a_flood_of_invented_topics_is_forgotten_again(hedgerow_node: StartNode, length: int) -> None:
    count = 200_000 if length < 100 else 3_000
    node = hedgerow_node(*SYS_INTERVAL)
    async with witnessed(node) as witness, connected(node.port(), "inventor") as client:
        before = resident_bytes(node)
        for numbers in batched(range(count), 100):
            client.send(*[_publish_bytes(f"{number}".rjust(length, "t"), b"!") for number in numbers])
            await client.writer.drain()
        client.send(Pingreq())
        while not await client.receive():
            pass
        await witness.wait_for_counter("publish/messages/received", count)
        assert resident_bytes(node) - before < 96 * MIB


def _publish_bytes(topic: str, payload: bytes, **options: object) -> bytes:
    return codec.encode(Publish(topic, payload, **options), MQTT_5)  # type: ignore[arg-type]


async def test_filters_in_every_combination_delay_nobody(hedgerow_node: StartNode) -> None:
    # Each new topic matches all of them, so that a small chunk of topics is seconds of looking up.
    filters = ["/".join(levels) + "/+" for levels in itertools.product("a+", repeat=13)]
    topics = ["a/" * 13 + f"{number}" for number in range(2_000)]
    node = hedgerow_node(*SYS_INTERVAL)
    async with witnessed(node), connected(node.port(), "combiner") as client:
        for some in batched(filters, 1_000):
            client.send(Subscribe(1, [Subscription(topic_filter) for topic_filter in some]))
            assert isinstance(await client.receive(), Suback)
        client.send(*[Publish(topic, b"!") for topic in topics])
        for topic in topics[:100]:
            assert await client.receive() == Publish(topic, b"!")


async def test_asking_for_all_that_is_retained_again_and_again_delays_nobody(
    hedgerow_node: StartNode,
) -> None:
    # One packet of 100 kB, and a minute of looking up.
    filters = [Subscription("kept/#"), Subscription("kept/+/nothing")] * 5_000
    node = hedgerow_node(*SYS_INTERVAL)
    async with witnessed(node) as witness, connected(node.port(), "asker") as client:
        client.send(*[Publish(f"kept/{number}", b"!", retain=True) for number in range(10_000)])
        client.send(Subscribe(1, filters))
        await witness.wait_for_counter("subscriptions/count", len(witness.subscriber.subscriptions) + 3)
        arrived = witness.subscriber.arrived["witness/1"]
        count = len(arrived)
        await until(lambda: len(arrived) > count + 100, "the witness to be served meanwhile")
        client.writer.transport.abort()


async def test_a_retained_flood_ends_at_the_limit(hedgerow_node: StartNode) -> None:
    node = hedgerow_node(*SYS_INTERVAL, *limits(retained_bytes="1 MiB"))
    async with witnessed(node) as witness, connected(node.port(), "flood") as client:
        before = resident_bytes(node)
        for number in range(10_000):
            client.send(Publish(f"flood/{number}", bytes(1_000), retain=True))
        client.send(Publish("flood/last", bytes(1_000), 1, retain=True, packet_id=1))
        answer = await client.receive()
        assert isinstance(answer, Puback)
        assert answer.reason_code == Reason.QUOTA_EXCEEDED
        await witness.wait_for_log("no room for more retained messages")
        await witness.wait_for_counter("publish/messages/refused", 8_000)
        assert witness.counter("retained messages/count") < 1_200
        assert resident_bytes(node) - before < 32 * MIB
        # What is there can still be replaced and removed.
        for payload in (bytes(1_000), b""):
            client.send(Publish("flood/0", payload, 1, retain=True, packet_id=1))
            answer = await client.receive()
            assert isinstance(answer, Puback)
            assert answer.reason_code in (Reason.SUCCESS, Reason.NO_MATCHING_SUBSCRIBERS)


async def test_empty_properties_count_too(hedgerow_node: StartNode) -> None:
    node = hedgerow_node(*SYS_INTERVAL, *limits(retained_bytes="1 MiB"))
    nothing = (("", ""),) * 500
    async with witnessed(node) as witness, connected(node.port(), "flood") as client:
        codes = []
        for number in range(200):
            properties: Properties = {"user_property": nothing}
            client.send(Publish(f"flood/{number}", b"!", 1, True, packet_id=1, properties=properties))
            answer = await client.receive()
            assert isinstance(answer, Puback)
            codes.append(answer.reason_code)
        assert codes.count(Reason.QUOTA_EXCEEDED) > 100
        await witness.wait_for_counter("publish/messages/refused", 100)


# Acknowledgements that do not come


async def test_a_qos_2_publisher_that_never_releases(hedgerow_node: StartNode) -> None:
    limit = 100
    node = hedgerow_node(*SYS_INTERVAL, *limits(receive_maximum=limit))
    async with witnessed(node) as witness, connected(node.port(), "keeper") as client:
        for packet_id in range(1, limit + 1):
            client.send(Publish("kept", b"x", 2, packet_id=packet_id))
            assert isinstance(await client.receive(), Pubrec)
        client.send(Publish("kept", b"x", 2, packet_id=limit + 1))
        answer = await client.receive()
        assert isinstance(answer, Disconnect)
        assert answer.reason_code == Reason.RECEIVE_MAXIMUM_EXCEEDED
        await witness.wait_for_log("client keeper from 127.0.0.1 closed (receive maximum exceeded)")


async def test_an_older_qos_2_publisher_that_never_releases_costs_bounded_memory(
    hedgerow_node: StartNode,
) -> None:
    # 3.1.1 has no Receive Maximum, and 65,535 identifiers.
    node = hedgerow_node(*SYS_INTERVAL)
    async with witnessed(node) as witness, raw_client(node.port()) as client:
        before = resident_bytes(node)
        client.send(codec.encode(Connect("keeper", MQTT_3_1_1), MQTT_3_1_1))
        assert await client.reader.readexactly(4) == b"\x20\x02\x00\x00"
        reading = asyncio.create_task(_discard(client))
        with suppress(ConnectionError):
            for numbers in batched(range(1, 65_536), 500):
                client.send(
                    *[codec.encode(Publish("kept", b"x", 2, packet_id=n), MQTT_3_1_1) for n in numbers]
                )
                await client.writer.drain()
        await witness.wait_for_log("client keeper from 127.0.0.1 closed (receive maximum exceeded)")
        assert resident_bytes(node) - before < 16 * MIB
        reading.cancel()


async def _discard(client: RawClient) -> None:
    with suppress(ConnectionError):
        while await client.reader.read(65_536):
            pass


@asynccontextmanager
async def deaf(port: int, *packets: object, **options: object) -> AsyncIterator[RawClient]:
    """A client that sends these packets and never reads their answers."""
    async with connected(port, "deaf", **options) as client:
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(*packets)  # type: ignore[arg-type]
        yield client


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_subscriber_that_never_reads_costs_bounded_memory(hedgerow_node: StartNode, qos: int) -> None:
    node = hedgerow_node(*SYS_INTERVAL, *limits(queue_bytes="1 MiB"))
    payload, count = bytes(10_000), 4_000
    async with witnessed(node) as witness, connected(node.port(), "publisher") as publisher:
        before = resident_bytes(node)
        async with deaf(node.port(), Subscribe(1, [Subscription("flood", qos)])):
            await witness.wait_for_counter("subscriptions/count", len(witness.subscriber.subscriptions) + 2)
            for packet_id in range(1, count + 1):
                publisher.send(Publish("flood", payload, qos, packet_id=packet_id if qos else 0))
                if qos:
                    assert isinstance(await publisher.receive(), Puback)
                elif packet_id % 50 == 0:
                    publisher.send(Pingreq())
                    await publisher.receive()
            await witness.wait_for_counter("publish/messages/dropped", 1_000)
            await witness.wait_for_log("client deaf does not keep up")
            # Its queue, what its transport and socket hold, and the slack of memory that is used again.
            assert resident_bytes(node) - before < 24 * MIB


async def test_a_client_that_asks_and_never_reads_is_no_longer_heard(hedgerow_node: StartNode) -> None:
    node = hedgerow_node(*SYS_INTERVAL)
    pings = codec.encode(Pingreq(), MQTT_5) * 50_000
    async with witnessed(node):
        before = resident_bytes(node)
        async with deaf(node.port()) as client:
            with pytest.raises(TimeoutError):
                await _send_again_and_again(client, pings, 1_000)
            assert resident_bytes(node) - before < 32 * MIB
            client.writer.transport.abort()
        await until(lambda: "client deaf disconnected" in node.log, "the end of it")


async def _send_again_and_again(client: RawClient, data: bytes, times: int) -> None:
    """Raises TimeoutError when the other side does not read on."""
    for _ in range(times):
        client.send(data)
        async with asyncio.timeout(1.5):
            await client.writer.drain()
