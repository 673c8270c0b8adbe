"""A bus over MQTT: publishing, subscribing, back-pressure, lost links, sessions that outlive a process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import hedgerow
from hedgerow.client.bus import Bus
from hedgerow.client.mqtt_transport import MAX_UNCLAIMED
from hedgerow.client.transport import State, StateChange
from hedgerow.message import Message
from hedgerow.mqtt.client.events import MessageReceived
from hedgerow.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Unsubscribe,
)
from hedgerow.mqtt.reasons import Reason
from tests.client.scripted import cable_to, open_mqtt, polite, scripted
from tests.conftest import StartMosquitto
from tests.waiting import PATIENCE_S, until

QUICKLY: dict[str, Any] = {"reconnect_delay": (0.01, 0.05)}


@pytest.fixture
async def url(mosquitto: StartMosquitto) -> str:
    return f"mqtt://127.0.0.1:{mosquitto('max_queued_messages 0', 'max_inflight_messages 0')}"


async def take(messages: AsyncIterator[Message], count: int) -> list[bytes]:
    async with asyncio.timeout(PATIENCE_S):
        return [(await anext(messages)).payload for _ in range(count)]


# The API of the design.


async def test_publish_then_subscribe(url: str) -> None:
    async with hedgerow.connect(url) as bus:
        await bus.publish("home/vacuum/status", "done", qos=1, retain=True)
        async for message in bus.subscribe("home/+/status"):
            assert (message.topic, message.payload, message.retain) == ("home/vacuum/status", b"done", True)
            break


async def test_properties_travel(url: str) -> None:
    async with hedgerow.connect(url) as bus, bus.subscribe("a", qos=1) as messages:
        properties: hedgerow.Properties = {
            "content_type": "text/plain",
            "correlation_data": b"\0\1",
            "response_topic": "answers",
            "message_expiry_interval": 100,
            "user_property": (("k", "1"), ("k", "2")),
        }
        await bus.publish("a", "x", properties=properties)
        message = await anext(aiter(messages))
        assert message.properties == properties
        assert message.expires_at is not None


async def test_overlapping_subscriptions_each_get_their_messages(url: str) -> None:
    async with (
        hedgerow.connect(url) as bus,
        bus.subscribe("farm/#") as everything,
        bus.subscribe("farm/+/temperature", qos=1) as temperatures,
        bus.subscribe("farm/#", qos=1) as again,
        bus.subscribe("$share/group/barn/#", qos=1) as shared,
    ):
        for topic in ("farm/a/temperature", "farm/a/humidity", "barn/x", "elsewhere"):
            await bus.publish(topic, topic, qos=1)
        assert await take(aiter(everything), 2) == [b"farm/a/temperature", b"farm/a/humidity"]
        assert await take(aiter(temperatures), 1) == [b"farm/a/temperature"]
        assert await take(aiter(again), 2) == [b"farm/a/temperature", b"farm/a/humidity"]
        assert await take(aiter(shared), 1) == [b"barn/x"]


@pytest.mark.parametrize("version", [4, 5])
async def test_a_subscription_with_overlapping_filters_gets_each_message_once(url: str, version: int) -> None:
    """Mosquitto sends one copy for each filter in MQTT 5, and one for all in 3.1.1."""
    async with (
        hedgerow.connect(url, version=version) as bus,
        bus.subscribe("farm/#", "farm/+/b", "barn", "farm/a/b", qos=1) as messages,
        bus.subscribe("farm/a/+", qos=2) as others,
    ):
        for topic in ("farm/a/b", "barn", "farm", "farm/a/b", "farm/a/end"):
            await bus.publish(topic, topic, qos=1)
        got = await take(aiter(messages), 5)
        assert got == [b"farm/a/b", b"barn", b"farm", b"farm/a/b", b"farm/a/end"]
        assert await take(aiter(others), 3) == [b"farm/a/b", b"farm/a/b", b"farm/a/end"]


async def test_retained_messages_do_not_come_again_because_of_another_subscription(url: str) -> None:
    async with hedgerow.connect(url) as bus:
        await bus.publish("farm/a", "kept", qos=1, retain=True)
        async with bus.subscribe("farm/#") as first, bus.subscribe("farm/+") as second:
            await bus.publish("farm/a", "new", qos=1)
            assert await take(aiter(first), 2) == [b"kept", b"new"]
            assert await take(aiter(second), 2) == [b"kept", b"new"]


async def test_unsubscribing_from_one_filter_of_several_ends_the_subscription() -> None:
    async with scripted() as server, hedgerow.connect(server.url) as bus:
        async with bus.subscribe("a", "b") as messages, bus.subscribe("b"):
            await bus.unsubscribe("a")
            assert [message async for message in messages] == []
            (packet,) = server.of(Unsubscribe)
            assert isinstance(packet, Unsubscribe)
            assert packet.topic_filters == ["a"]
        await server.until_received(Unsubscribe, 2)


async def test_leaving_the_loop_unsubscribes() -> None:
    async with scripted() as server:
        transport = await open_mqtt(server.url)
        bus = Bus(transport)
        async with bus.subscribe("a"), bus.subscribe("a"):
            pass
        await server.until_received(Unsubscribe)
        assert len(server.of(Unsubscribe)) == 1  # when the last one with this filter was left

        async def listen() -> None:
            async for _ in bus.subscribe("b"):
                break

        listening = asyncio.ensure_future(listen())
        await server.until_received(Subscribe, 3)
        server.send(Publish("b"))
        await listening
        await server.until_received(Unsubscribe, 2)
        async with bus.subscribe("kept", keep=True):
            pass
        await bus.publish("a", qos=1)
        assert len(server.of(Unsubscribe)) == 2
        assert not transport.inboxes
        await bus.close()


async def test_unsubscribe_ends_the_loops(url: str) -> None:
    async with hedgerow.connect(url) as bus, bus.subscribe("a") as messages:
        await bus.publish("a", "x", qos=1)
        await bus.unsubscribe("a")
        assert [message.payload async for message in messages] == [b"x"]


async def test_batches(url: str) -> None:
    async with hedgerow.connect(url) as bus, bus.subscribe("a", qos=1) as messages:
        await asyncio.gather(*(bus.publish("a", b"%d" % number, qos=1) for number in range(500)))
        got: list[bytes] = []
        async for batch in messages.batches():
            got += [message.payload for message in batch]
            if len(got) == 500:
                break
        assert got == [b"%d" % number for number in range(500)]


async def test_thousands_in_flight_in_order(url: str) -> None:
    async with hedgerow.connect(url) as bus, bus.subscribe("a", qos=2) as messages:
        results = [bus.publish_nowait("a", b"%d" % number, qos=1 + number % 2) for number in range(5_000)]
        await asyncio.gather(*results)
        got = await take(aiter(messages), 5_000)
        assert sorted(got, key=int) == [b"%d" % number for number in range(5_000)]
        assert [payload for payload in got if int(payload) % 2] == [b"%d" % n for n in range(1, 5_000, 2)]


async def test_publications_that_wait_for_the_server_are_bounded() -> None:
    def answer(packet: Packet) -> list[Packet] | None:
        return [] if isinstance(packet, Publish) else polite(packet)

    async with scripted(answer) as server, Bus(await open_mqtt(server.url, max_unacknowledged=2)) as bus:
        results = [bus.publish_nowait("a", qos=1) for _ in range(2)]
        with pytest.raises(hedgerow.HedgerowError, match="no room"):
            bus.publish_nowait("a", qos=1)
        third = asyncio.create_task(bus.publish("a", b"third", qos=1))
        await server.until_received(Publish, 2)
        server.answer = polite
        server.send(Puback(1), Puback(2))
        await asyncio.gather(*results, third)
        assert [each.payload for each in server.received if isinstance(each, Publish)] == [b"", b"", b"third"]


async def test_what_was_published_at_qos_0_leaves_before_the_bus_is_closed(url: str) -> None:
    async with hedgerow.connect(url) as listener, listener.subscribe("a") as messages:
        async with hedgerow.connect(url) as bus:
            for number in range(3_000):
                bus.publish_nowait("a", b"%d" % number)
        assert len(await take(aiter(messages), 3_000)) == 3_000


async def test_what_was_published_without_waiting_is_acknowledged_before_the_bus_is_closed() -> None:
    async with scripted() as server:
        async with hedgerow.connect(server.url) as bus:
            result = bus.publish_nowait("a", qos=2)
        assert result.done()
        assert result.exception() is None


# Refusals.


async def test_a_refused_publication_raises() -> None:
    def answer(packet: Packet) -> list[Packet] | None:
        if isinstance(packet, Publish):
            return [Puback(packet.packet_id, Reason.NOT_AUTHORIZED, {"reason_string": "not yours"})]
        return polite(packet)

    async with scripted(answer) as server, hedgerow.connect(server.url) as bus:
        with pytest.raises(hedgerow.RefusedError, match="not yours") as caught:
            await bus.publish("a", qos=1)
        assert caught.value.reason_code == Reason.NOT_AUTHORIZED


async def test_a_refused_subscription_raises() -> None:
    def answer(packet: Packet) -> list[Packet] | None:
        if isinstance(packet, Subscribe):
            return [Suback(packet.packet_id, [Reason.NOT_AUTHORIZED])]
        return polite(packet)

    async with scripted(answer) as server:
        transport = await open_mqtt(server.url)
        async with Bus(transport) as bus:
            with pytest.raises(hedgerow.RefusedError, match="refused the subscription to secret/#"):
                async for _ in bus.subscribe("secret/#"):
                    pass
            assert not transport.inboxes


async def test_misuse_raises(url: str) -> None:
    async with hedgerow.connect(url) as bus:
        with pytest.raises(hedgerow.TopicError):
            await bus.publish("a/#")
        with pytest.raises(hedgerow.TopicError):
            bus.subscribe("a#")
        with pytest.raises(ValueError, match="QoS is 3"):
            await bus.publish("a", qos=3)
        with pytest.raises(ValueError, match="QoS is 3"):
            bus.subscribe("a", qos=3)
        await bus.publish("a", qos=1)


async def test_a_closed_bus_says_so(url: str) -> None:
    transport = await open_mqtt(url)
    async with Bus(transport) as bus:
        loop = asyncio.ensure_future(_collect(bus, "a"))
        await until(lambda: bool(transport.inboxes), "the subscription")
    assert bus.closed
    assert await loop == []
    for qos in (0, 1):
        with pytest.raises(hedgerow.HedgerowError, match="closed"):
            await bus.publish("a", qos=qos)
    with pytest.raises(hedgerow.HedgerowError, match="closed"):
        await _collect(bus, "a")
    await bus.wait_closed()


async def _collect(bus: Bus, topic_filter: str) -> list[bytes]:
    return [message.payload async for message in bus.subscribe(topic_filter)]


# Back-pressure.


async def test_a_slow_loop_stops_the_server_and_loses_nothing() -> None:
    total = 60_000

    def answer(packet: Packet) -> list[Packet] | None:
        answers = polite(packet)
        if isinstance(packet, Subscribe):
            answers += [Publish("a", b"%06d" % number + bytes(200)) for number in range(total)]
        return answers

    async with scripted(answer) as server:
        transport = await open_mqtt(server.url)
        async with Bus(transport) as bus, bus.subscribe("a", queue_messages=100) as messages:
            stream = aiter(messages)
            assert await take(stream, 1)
            assert server.writer is not None
            output = server.writer.transport
            (inbox,) = transport.inboxes
            await until(lambda: inbox.full, "the queue to be full")
            waiting = output.get_write_buffer_size()
            await asyncio.sleep(0.05)  # nothing to wait for: that nothing moves is the point
            assert output.get_write_buffer_size() == waiting > 0
            got = await take(stream, total - 1)
            assert [int(payload[:6]) for payload in got] == list(range(1, total))
            assert messages.dropped == 0


async def test_a_slow_loop_holds_back_qos_1_acknowledgements() -> None:
    """While an answer is awaited reading goes on, and only the server's own window stops it."""

    def answer(packet: Packet) -> list[Packet] | None:
        return [] if isinstance(packet, Publish) else polite(packet)

    def burst(first: int) -> list[Packet]:
        return [Publish("a", b"%d" % number, 1, packet_id=number) for number in range(first, first + 10)]

    async with (
        scripted(answer) as server,
        hedgerow.connect(server.url) as bus,
        bus.subscribe("a", qos=1, queue_messages=5) as messages,
    ):
        server.send(*burst(1))
        await server.until_received(Puback, 10)
        result = bus.publish_nowait("b", qos=1)
        await server.until_received(Publish)
        server.send(*burst(11), *(polite(packet)[0] for packet in server.of(Publish)))
        async with asyncio.timeout(PATIENCE_S):
            await result
        assert len(server.of(Puback)) == 10
        assert len(await take(aiter(messages), 20)) == 20
        await server.until_received(Puback, 20)


async def test_a_loop_that_publishes_with_a_full_queue_does_not_wait_for_itself() -> None:
    """Reading is stopped while the queue is full, but the loop waits for a PUBACK that must be read."""
    async with scripted() as server:
        transport = await open_mqtt(server.url)
        async with Bus(transport) as bus, bus.subscribe("in", queue_messages=10) as messages:
            server.send(*(Publish("in", b"%d" % number) for number in range(200)))
            stream = aiter(messages)
            (inbox,) = transport.inboxes
            await until(lambda: inbox.full, "the queue to be full")
            async with asyncio.timeout(PATIENCE_S):
                seen = 0
                while seen + messages.dropped < 200:
                    message = await anext(stream)
                    await bus.publish("out", message.payload, qos=1)
                    seen += 1
        assert seen >= 10


# Lost links.


async def test_publications_and_subscriptions_survive_a_cut(url: str) -> None:
    seen: list[StateChange] = []
    async with (
        cable_to(int(url.rsplit(":", 1)[1])) as cable,
        hedgerow.connect(cable.url, on_state=seen.append, **QUICKLY) as bus,
        bus.subscribe("a", qos=2) as messages,
    ):
        stream = aiter(messages)
        numbers = iter(range(1_000))
        expected = []
        for _ in range(5):
            batch = [next(numbers) for _ in range(40)]
            results = [bus.publish_nowait("a", b"%d" % number, qos=2) for number in batch]
            cable.cut()
            expected += batch
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*results)
        got = await take(stream, len(expected))
        assert [int(payload) for payload in got] == expected
        resumed = [change.session_present for change in seen if change.state is State.CONNECTED]
        assert resumed == [False, True, True, True, True, True]


async def test_publishing_goes_on_while_the_link_is_closing(url: str) -> None:
    """Between the end of a transport and the word of it, calls must find nothing to stumble over."""
    async with (
        cable_to(int(url.rsplit(":", 1)[1])) as cable,
        hedgerow.connect(cable.url, **QUICKLY) as bus,
        bus.subscribe("a", qos=1) as messages,
    ):
        results = []
        for number in range(200):
            if number % 20 == 10:
                await until(lambda: bus.state is State.CONNECTED, "the next link")
                cable.cut()
            results.append(bus.publish_nowait("a", b"%d" % number, qos=1))
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*results)
        got = await take(aiter(messages), 200)
        assert {int(payload) for payload in got} <= set(range(200))


async def test_a_silent_cut_is_found_and_nothing_is_lost(url: str) -> None:
    async with (
        cable_to(int(url.rsplit(":", 1)[1])) as cable,
        hedgerow.connect(cable.url, keep_alive=1, **QUICKLY) as bus,
        bus.subscribe("a", qos=1) as messages,
    ):
        cable.muted = True
        result = bus.publish_nowait("a", "through", qos=1)
        await until(lambda: bus.state is not State.CONNECTED, "the dead link to be found")
        cable.muted = False
        async with asyncio.timeout(PATIENCE_S):
            await result
        assert await take(aiter(messages), 1) == [b"through"]


async def test_a_server_that_forgot_the_session_is_subscribed_to_again() -> None:
    async with (
        scripted() as server,
        hedgerow.connect(server.url, **QUICKLY) as bus,
        bus.subscribe("a", qos=1) as messages,
    ):
        assert server.writer is not None
        server.writer.transport.abort()
        await server.until_received(Subscribe, 2)
        server.send(Publish("a", b"again"))
        assert await take(aiter(messages), 1) == [b"again"]


async def test_a_link_that_is_slow_to_close_does_not_disturb_the_next_one() -> None:
    """The server says DISCONNECT and leaves its side open; when that link ends, we are back."""
    async with scripted() as server, hedgerow.connect(server.url, **QUICKLY) as bus:
        server.lingers = True
        server.send(Disconnect(Reason.SERVER_BUSY))
        await server.until_received(Connect, 2)
        server.lingers = False
        await until(lambda: bool(server.lingering), "the end of the first link's other side")
        server.close()
        for _ in range(3):  # The last comes surely after the end of the first link.
            await bus.publish("a", qos=1)
        assert server.connections == 2


async def test_a_subscription_that_is_refused_when_made_again_ends_its_loop() -> None:
    answers: Iterator[list[int]] = iter([[0], [Reason.NOT_AUTHORIZED]])

    def answer(packet: Packet) -> list[Packet] | None:
        if isinstance(packet, Subscribe):
            return [Suback(packet.packet_id, next(answers))]
        return polite(packet)

    async with (
        scripted(answer) as server,
        hedgerow.connect(server.url, **QUICKLY) as bus,
        bus.subscribe("a") as messages,
    ):
        assert server.writer is not None
        server.writer.transport.abort()
        with pytest.raises(hedgerow.RefusedError, match="not authorized"):
            await take(aiter(messages), 1)


async def test_qos_0_waits_for_the_link_to_come_back() -> None:
    async with scripted() as server, hedgerow.connect(server.url, **QUICKLY) as bus:
        assert server.writer is not None
        server.writer.transport.abort()
        await until(lambda: bus.state is not State.CONNECTED, "the loss")
        with pytest.raises(hedgerow.ConnectError, match="not connected"):
            bus.publish_nowait("a")
        await bus.publish("a", "x")
        await server.until_received(Publish)


@pytest.mark.parametrize(
    "refusal", [Reason.BAD_USER_NAME_OR_PASSWORD, Reason.NOT_AUTHORIZED, Reason.CLIENT_IDENTIFIER_NOT_VALID]
)
async def test_a_refusal_that_trying_again_cannot_mend_ends_the_bus(refusal: Reason) -> None:
    answers = iter([Connack(), Connack(False, refusal)])

    def answer(packet: Packet) -> list[Packet] | None:
        return [next(answers)] if isinstance(packet, Connect) else polite(packet)

    async with scripted(answer) as server, hedgerow.connect(server.url, **QUICKLY) as bus:
        loop = asyncio.ensure_future(_collect(bus, "a"))
        await server.until_received(Subscribe)
        assert server.writer is not None
        server.writer.transport.abort()
        with pytest.raises(hedgerow.ConnectError, match="refused the connection"):
            await bus.wait_closed()
        with pytest.raises(hedgerow.ConnectError, match="refused the connection") as caught:
            await loop
        assert caught.value.reason_code == refusal
        for qos in (0, 1):
            with pytest.raises(hedgerow.ConnectError, match="refused the connection"):
                await bus.publish("a", qos=qos)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({}, Reason.SESSION_TAKEN_OVER), ({"reconnect": False}, Reason.SERVER_SHUTTING_DOWN)],
)
async def test_when_not_to_come_back(options: dict[str, Any], reason: Reason) -> None:
    async with scripted() as server, hedgerow.connect(server.url, **QUICKLY, **options) as bus:
        server.send(Disconnect(reason, {"server_reference": "elsewhere"}))
        with pytest.raises(hedgerow.ConnectError, match=r"\(see elsewhere\)") as caught:
            await bus.wait_closed()
        assert caught.value.reason_code == reason
        assert server.connections == 1


async def test_a_bus_closed_while_it_waits_to_connect_again() -> None:
    async with scripted() as server:
        bus = await hedgerow.connect(server.url, reconnect_delay=(60.0, 60.0))
        result = bus.publish_nowait("a", qos=1)
        await result
        assert server.writer is not None
        server.writer.transport.abort()
        await until(lambda: bus.state is State.WAITING, "the loss")
        result = bus.publish_nowait("a", qos=1)
        await bus.close()
        with pytest.raises(hedgerow.HedgerowError, match="closed"):
            await result


async def test_a_cancelled_publication_disturbs_nobody() -> None:
    released = False

    def answer(packet: Packet) -> list[Packet] | None:
        return [] if isinstance(packet, Publish) and not released else polite(packet)

    async with scripted(answer) as server, Bus(await open_mqtt(server.url, max_unacknowledged=1)) as bus:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await bus.publish("a", qos=1)
        released = True
        server.send(Puback(1))
        await bus.publish("b", qos=1)
        await bus.publish_nowait("c", qos=1)  # There is room for one: nothing waits any more.


# Sessions that outlive the process.


async def test_messages_kept_while_away_wait_for_whoever_subscribes(url: str) -> None:
    options: dict[str, Any] = {"client_id": "recorder", "clean_start": False}
    async with hedgerow.connect(url, **options) as bus, bus.subscribe("a/#", qos=1, keep=True):
        pass
    async with hedgerow.connect(url) as other:
        for number in range(100):
            await other.publish("a/b", b"%d" % number, qos=1)
    async with hedgerow.connect(url, **options) as bus:
        await bus.publish("other", qos=1)  # They were sent before its answer, and have arrived.
        async with bus.subscribe("a/#", qos=1, keep=True) as messages:
            assert await take(aiter(messages), 100) == [b"%d" % number for number in range(100)]


async def test_what_nobody_claims_is_bounded() -> None:
    def answer(packet: Packet) -> list[Packet] | None:
        return [Connack(session_present=True)] if isinstance(packet, Connect) else polite(packet)

    async with scripted(answer) as server, hedgerow.connect(server.url, clean_start=False) as bus:
        extra = 5
        server.send(*(Publish("a", b"%d" % number) for number in range(MAX_UNCLAIMED + extra)))
        await bus.publish("x", qos=1)  # They were sent before its answer, and have arrived.
        async with bus.subscribe("a") as messages:
            assert await take(aiter(messages), 1) == [b"%d" % extra]


async def test_what_was_not_acknowledged_by_hand_comes_again(url: str) -> None:
    options: dict[str, Any] = {"client_id": "recorder", "clean_start": False, "manual_acknowledgement": True}
    async with hedgerow.connect(url, **options) as bus, bus.subscribe("a", qos=1, keep=True):
        pass
    async with hedgerow.connect(url) as other:
        for number in range(4):
            await other.publish("a", b"%d" % number, qos=1)
    async with hedgerow.connect(url, **options) as bus:
        async for message in bus.subscribe("a", qos=1, keep=True):
            assert isinstance(message, MessageReceived)
            if message.payload == b"2":
                break
            bus.acknowledge(message)
        await bus.publish("other", qos=1)  # the server has read the acknowledgements too
        await bus.close()
    async with hedgerow.connect(url, **options) as bus, bus.subscribe("a", qos=1, keep=True) as messages:
        assert await take(aiter(messages), 2) == [b"2", b"3"]


async def test_an_error_in_the_block_still_says_goodbye() -> None:
    async def fail(url: str) -> None:
        async with hedgerow.connect(url) as bus:
            bus.publish_nowait("a", qos=1)
            raise ZeroDivisionError

    async with scripted() as server:
        with pytest.raises(ZeroDivisionError):
            await fail(server.url)
        await server.until_received(Disconnect)
