"""`multicast://` as a `Bus`: the same API as with a broker, and what differs."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import hedgerow
from hedgerow.client.bus import State, StateChange, Subscription
from hedgerow.client.multicast_bus import WAITING_BYTES, MulticastBus
from hedgerow.errors import ConfigError, HedgerowError, RefusedError, TopicError
from hedgerow.message import Message
from hedgerow.mqtt.reasons import Reason
from hedgerow.multicast.io.options import MulticastOptions
from hedgerow.node.programs import free_udp_port
from tests.multicast.io.members import own_topic
from tests.waiting import take, until


@pytest.fixture
def url() -> str:
    return f"multicast://lo:{free_udp_port()}?ip=4"


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


async def test_loops_end_with_the_bus_and_with_unsubscribing(url: str) -> None:
    async with hedgerow.connect(url) as bus:
        subscriptions = [bus.subscribe("a", "b"), bus.subscribe("c")]

        async def count(subscription: Subscription) -> int:
            return sum([1 async for _ in subscription])

        loops = [asyncio.ensure_future(count(each)) for each in subscriptions]
        await until(lambda: len(bus.subscriptions) == 2, "both to be subscribed")
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
        assert not bus.subscriptions


# Too fast for someone.


async def test_qos_0_that_a_loop_does_not_take_is_dropped_and_counted(url: str) -> None:
    async with (
        hedgerow.connect(url) as bus,
        bus.subscribe("a", queue_messages=10) as slow,
        bus.subscribe("a") as quick,
    ):
        for number in range(100):
            await bus.publish("a", b"%d" % number)
        await until(lambda: len(quick._queue) == 100, "those that keep up to get all")
        assert slow.dropped == 60
        assert await payloads(slow, 40) == [b"%d" % number for number in range(40)]
        await bus.publish("a", b"again")
        assert await payloads(slow, 1) == [b"again"]


async def test_a_full_subscription_at_qos_1_stops_reading_and_loses_nothing(url: str) -> None:
    topic = own_topic()
    async with hedgerow.connect(url) as publisher, hedgerow.connect(url) as bus:
        assert isinstance(bus, MulticastBus)
        assert isinstance(publisher, MulticastBus)
        async with bus.subscribe(topic, qos=1, queue_messages=10) as slow:
            await publisher.publish(topic, b"0", qos=1)
            await until(lambda: bool(bus.endpoint._groups.groups_to_hear(topic)), "the topic's own group")
            await until(lambda: publisher.endpoint._groups.group_to_send(topic) is not None, "it to be known")
            publisher.endpoint.member._publisher.outgoing[topic].new_until = 0.0
            for number in range(1, 50):
                await publisher.publish(topic, b"%d" % number + bytes(1000), qos=1)
            await until(lambda: slow.full, "the queue to be full")
            assert not bus.endpoint._receivers._is_reading
            before = len(slow._queue)
            for number in range(50, 500):
                await publisher.publish(topic, b"%d" % number + bytes(1000), qos=1)
            assert len(slow._queue) == before
            received = await payloads(slow, 500)
            assert bus.endpoint._receivers._is_reading
    assert [int(payload.rstrip(b"\0")) for payload in received] == list(range(500))


async def test_publishing_at_qos_1_waits_for_its_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = MulticastBus(MulticastOptions(("lo",), ip=4, port=free_udp_port()))
    await bus.open()
    try:
        pace = bus.endpoint.member._publisher.pace
        ready_at = bus.endpoint.clock() + 0.3
        pace._next_at = ready_at + pace.BURST_S
        waiting = [bus.publish_nowait("a", b"%d" % number, qos=1) for number in range(3)]
        await bus.publish("a", b"not this one")
        with pytest.raises(TopicError):
            bus.publish_nowait("a/#", b"", qos=1)
        assert not any(result.done() for result in waiting)
        monkeypatch.setattr("hedgerow.client.multicast_bus.MAX_WAITING", 3)
        with pytest.raises(HedgerowError, match="no room"):
            bus.publish_nowait("a", b"", qos=1)
        monkeypatch.setattr("hedgerow.client.multicast_bus.MAX_WAITING", 100)
        monkeypatch.setattr("hedgerow.client.multicast_bus.MAX_WAITING_BYTES", 3 * (WAITING_BYTES + 2) + 500)
        with pytest.raises(HedgerowError, match="no room"):
            bus.publish_nowait("a", bytes(100), qos=1)
        await asyncio.gather(*waiting, bus.publish("a", b"behind them", qos=1))
        assert bus.endpoint.clock() >= ready_at
        assert bus.endpoint.member.stats.published == 5
        assert bus._waiting_bytes == 0
    finally:
        await bus.close()


async def test_closing_with_an_error_does_not_wait_for_what_has_not_left(url: str) -> None:
    bus = await hedgerow.connect(url)
    assert isinstance(bus, MulticastBus)
    bus.endpoint.member._publisher.pace._next_at = bus.endpoint.clock() + 3_600
    result = bus.publish_nowait("a", b"", qos=1)
    await bus.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)
    with pytest.raises(HedgerowError, match="closed"):
        await result
