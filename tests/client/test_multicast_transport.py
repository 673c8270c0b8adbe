"""A bus over `multicast://`: the same API as with a broker, and what differs."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import pytest

import hedgerow
from hedgerow.client.bus import Bus, Subscription
from hedgerow.client.multicast_transport import WAITING_BYTES, MulticastTransport
from hedgerow.client.transport import State, StateChange
from hedgerow.errors import ConfigError, HedgerowError, RefusedError, TopicError
from hedgerow.message import Message
from hedgerow.mqtt.reasons import Reason
from hedgerow.multicast.io.options import MulticastOptions
from hedgerow_workshop.programs import free_udp_port
from tests.multicast.io.members import own_topic
from tests.waiting import PATIENCE_S, take, until


def options(port: int | None = None) -> MulticastOptions:
    return MulticastOptions(("lo",), ip=4, port=port or free_udp_port())


@pytest.fixture
def url() -> str:
    return options().url


async def opened(options: MulticastOptions) -> MulticastTransport:
    transport = MulticastTransport(options)
    await transport.open()
    return transport


class SlowTransport(MulticastTransport):
    """Receivers are thought to be ready when the test says so."""

    ready_at = float("-inf")

    @property
    def wait_s(self) -> float:
        return self.ready_at - self.endpoint.clock()


async def payloads(messages: Subscription, count: int) -> list[bytes]:
    return [message.payload for message in await take(messages, count)]


async def test_publish_and_subscribe_as_with_a_broker(url: str) -> None:
    async with (
        hedgerow.connect(url) as publisher,
        hedgerow.connect(url) as bus,
        bus.subscribe("home/+/status", qos=2) as messages,
    ):
        properties = hedgerow.Properties(content_type="text/plain", user_property=(("k", "v"),))
        await publisher.publish("home/vacuum/status", "done", qos=2, properties=properties)
        await publisher.publish_nowait("home/mop/status", b"\0", qos=1)
        await publisher.publish("home/mop/status", b"zero")
        first, second, third = await take(messages, 3)
    assert (first.topic, first.payload, first.qos, first.retain) == ("home/vacuum/status", b"done", 2, False)
    assert first.properties == properties
    assert (second.topic, second.payload, second.qos) == ("home/mop/status", b"\0", 1)
    assert (third.payload, third.qos) == (b"zero", 0)
    assert first.id is not None
    assert first.id != second.id


async def test_a_bus_hears_itself_unless_it_asks_not_to(url: str) -> None:
    async with (
        hedgerow.connect(url) as bus,
        hedgerow.connect(url) as other,
        bus.subscribe("a") as messages,
        bus.subscribe("a", no_local=True) as of_others,
    ):
        await bus.publish("a", b"own")
        await other.publish("a", b"other")
        assert await payloads(messages, 2) == [b"own", b"other"]
        assert await payloads(of_others, 1) == [b"other"]


async def test_overlapping_subscriptions_get_each_message_once(url: str) -> None:
    async with (
        hedgerow.connect(url) as publisher,
        hedgerow.connect(url) as bus,
        bus.subscribe("a/#", "a/b") as wide,
        bus.subscribe("a/b") as narrow,
    ):
        await publisher.publish("a/b", b"1", qos=1)
        await publisher.publish("a/c", b"2", qos=1)
        await publisher.publish("a/b", b"3", qos=1)
        assert sorted(await payloads(wide, 3)) == [b"1", b"2", b"3"]
        assert await payloads(narrow, 2) == [b"1", b"3"]


async def test_the_qos_of_a_subscription_is_the_highest_that_arrives(url: str) -> None:
    async with (
        hedgerow.connect(url) as publisher,
        hedgerow.connect(url) as bus,
        bus.subscribe("a") as zero,
        bus.subscribe("a", qos=1) as one,
    ):
        await publisher.publish("a", b"x", qos=2)
        assert [each.qos for each in await take(zero, 1)] == [0]
        assert [each.qos for each in await take(one, 1)] == [1]


# Retained messages.


async def test_a_late_subscriber_gets_the_last_value_and_whoever_knows_it_tells(url: str) -> None:
    async with AsyncExitStack() as stack:
        publisher = await stack.enter_async_context(hedgerow.connect(url))
        witness = await stack.enter_async_context(hedgerow.connect(url))
        async with witness.subscribe("a") as live:
            await publisher.publish("a", b"old", qos=1, retain=True)
            await publisher.publish("a", b"new", qos=1, retain=True)
            assert [each.retain for each in await take(live, 2)] == [False, False]
            late = await stack.enter_async_context(hedgerow.connect(url))
            async with late.subscribe("#") as messages:
                (held,) = await take(messages, 1)
                assert (held.payload, held.retain) == (b"new", True)
            await publisher.close()
            latest = await stack.enter_async_context(hedgerow.connect(url))
            async with latest.subscribe("a") as messages:
                assert await payloads(messages, 1) == [b"new"]


async def test_how_retained_messages_are_asked_for(url: str) -> None:
    async with hedgerow.connect(url) as publisher, hedgerow.connect(url) as bus:
        await publisher.publish("a", b"held", qos=1, retain=True)
        async with bus.subscribe("a", qos=1) as first:
            assert await payloads(first, 1) == [b"held"]
            async with (
                bus.subscribe("a", qos=1) as second,
                bus.subscribe("a", qos=1, retain_handling=2) as none,
                bus.subscribe("a", qos=1, retain_as_published=True) as as_published,
            ):
                await publisher.publish("a", b"live", qos=1, retain=True)
                assert [(each.payload, each.retain) for each in await take(second, 2)] == [
                    (b"held", True),
                    (b"live", False),
                ]
                assert await payloads(none, 1) == [b"live"]
                assert [(each.payload, each.retain) for each in await take(as_published, 2)] == [
                    (b"held", True),
                    (b"live", True),
                ]
            # The second subscription's last value was for it alone.
            assert await payloads(first, 1) == [b"live"]


# From open to closed.


async def test_states(url: str) -> None:
    changes: list[StateChange] = []
    async with hedgerow.connect(url, on_state=changes.append) as bus:
        assert bus.state is State.CONNECTED
        assert not bus.closed
    await until(lambda: len(changes) == 3, "the last word")
    assert [change.state for change in changes] == [State.CONNECTING, State.CONNECTED, State.CLOSED]
    assert bus.closed
    await bus.wait_closed()
    await bus.close()
    for use in (bus.publish("a"), bus.unsubscribe("a"), anext(aiter(bus.subscribe("a")))):
        with pytest.raises(HedgerowError, match="closed"):
            await use


async def test_loops_end_with_the_bus_and_with_unsubscribing() -> None:
    transport = await opened(options())
    async with Bus(transport) as bus:
        subscriptions = [bus.subscribe("a", "b"), bus.subscribe("c")]

        async def count(subscription: Subscription) -> int:
            return sum([1 async for _ in subscription])

        loops = [asyncio.ensure_future(count(each)) for each in subscriptions]
        await until(lambda: len(transport.inboxes) == 2, "both to be subscribed")
        await bus.publish("a", b"x")
        await bus.unsubscribe("a")
        assert await loops[0] == 1
        await bus.publish("b", b"nobody")
        assert not loops[1].done()
    assert await loops[1] == 0


async def test_what_was_published_before_closing_arrives(url: str) -> None:
    async with hedgerow.connect(url) as bus, bus.subscribe("a", qos=1) as messages:
        async with hedgerow.connect(url) as publisher:
            for number in range(2_000):
                publisher.publish_nowait("a", bytes(200) + b"%d" % number, qos=1)
        received = await payloads(messages, 2_000)
    assert received == [bytes(200) + b"%d" % number for number in range(2_000)]


# What is refused.


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"username": "u"}, "user names and passwords"),
        ({"password": "p"}, "user names and passwords"),
        ({"will": Message("a", b"")}, "wills"),
        ({"clean_start": False, "client_id": "c"}, "sessions"),
        ({"session_expiry": 10}, "sessions"),
        ({"ca_file": "ca.pem"}, "TLS"),
        ({"tls": ssl.create_default_context()}, "TLS"),
        ({"properties": {"user_property": (("a", "b"),)}}, "properties of CONNECT"),
    ],
)
async def test_what_needs_a_server_is_refused(url: str, options: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"multicast has no server, and so no {reason}"):
        await hedgerow.connect(url, **options)  # type: ignore[arg-type]


async def test_a_wrong_url_or_interface_is_refused(url: str, tmp_path: Path) -> None:
    for wrong, reason in {
        "multicast://nope0": 'no network interface "nope0"',
        "multicast://lo?ttl=3": '"ttl" in a multicast URL',
        f"{url}&key={tmp_path / 'none'}": "none: cannot be read",
    }.items():
        with pytest.raises(ConfigError, match=reason):
            await hedgerow.connect(wrong)


async def test_what_does_not_travel_by_multicast_is_refused(url: str) -> None:
    async with hedgerow.connect(f"{url}&max_payload=1000") as bus:
        for qos in (0, 1):
            with pytest.raises(RefusedError, match="at most") as too_large:
                await bus.publish("a", bytes(1001), qos=qos)
            assert too_large.value.reason_code == Reason.PACKET_TOO_LARGE
            await bus.publish("a", bytes(1000), qos=qos)
            with pytest.raises(RefusedError, match="at most"):
                await bus.publish("a", bytes(1001), qos=qos)
        with pytest.raises(RefusedError, match=r"begin with \$"):
            await bus.publish("$SYS/x", b"")
        with pytest.raises(TopicError):
            await bus.publish("a/+", b"")
        with pytest.raises(RefusedError, match="nobody shares"):
            await anext(aiter(bus.subscribe("$share/group/a")))


# Too fast for someone.


async def test_qos_0_that_a_loop_does_not_take_is_dropped_and_counted(url: str) -> None:
    async with (
        hedgerow.connect(url) as bus,
        bus.subscribe("a", queue_messages=10) as slow,
        bus.subscribe("a") as quick,
    ):
        for number in range(100):
            await bus.publish("a", b"%d" % number)
        await payloads(quick, 100)
        assert slow.dropped == 60
        assert await payloads(slow, 40) == [b"%d" % number for number in range(40)]
        await bus.publish("a", b"again")
        assert await payloads(slow, 1) == [b"again"]


async def test_a_full_subscription_at_qos_1_stops_reading_and_loses_nothing() -> None:
    topic, port = own_topic(), free_udp_port()
    transport = await opened(options(port))
    async with (
        Bus(await opened(options(port))) as publisher,
        Bus(transport) as bus,
        bus.subscribe(topic, qos=1, queue_messages=10) as slow,
    ):
        (inbox,) = transport.inboxes
        numbers = count()

        async def publish(messages: int) -> None:
            for _ in range(messages):
                await publisher.publish(topic, b"%d" % next(numbers) + bytes(1000), qos=1)

        async with asyncio.timeout(PATIENCE_S):
            before = -1
            # While the topic is new its messages also go to the group of all members, which is always read.
            while not inbox.full or inbox.waiting != before:
                before = inbox.waiting
                await publish(10)
                await asyncio.sleep(0.1)
        await publish(450)
        assert inbox.waiting == before
        total = next(numbers)
        received = await payloads(slow, total)
    assert [int(payload.rstrip(b"\0")) for payload in received] == list(range(total))


@pytest.mark.parametrize(
    ("most", "most_bytes", "payload"),
    [(3, 1 << 20, b""), (100, 3 * (WAITING_BYTES + 2) + 500, bytes(100))],
    ids=["messages", "bytes"],
)
async def test_publishing_at_qos_1_waits_for_its_pace(most: int, most_bytes: int, payload: bytes) -> None:
    transport = SlowTransport(options(), max_waiting=most, max_waiting_bytes=most_bytes)
    await transport.open()
    async with Bus(transport) as bus:
        for times in (1, 2):  # What has left takes no room any more.
            ready_at = transport.ready_at = transport.endpoint.clock() + 0.2
            waiting = [bus.publish_nowait("a", b"%d" % number, qos=1) for number in range(2)]
            with pytest.raises(TopicError):
                bus.publish_nowait("a/#", b"", qos=1)
            waiting.append(bus.publish_nowait("a", b"2", qos=1))
            await bus.publish("a", b"not this one")
            assert not any(result.done() for result in waiting)
            with pytest.raises(HedgerowError, match="no room"):
                bus.publish_nowait("a", payload, qos=1)
            await asyncio.gather(*waiting, bus.publish("a", b"behind them", qos=1))
            assert transport.endpoint.clock() >= ready_at
            assert transport.endpoint.member.stats.published == 5 * times


async def test_closing_with_an_error_does_not_wait_for_what_has_not_left() -> None:
    results: list[asyncio.Future[None]] = []

    async def fail(bus: Bus) -> None:
        async with bus:
            results.append(bus.publish_nowait("a", b"", qos=1))
            raise ZeroDivisionError

    transport = SlowTransport(options())
    await transport.open()
    transport.ready_at = float("inf")
    with pytest.raises(ZeroDivisionError):
        await fail(Bus(transport))
    with pytest.raises(HedgerowError, match="closed"):
        await results[0]
