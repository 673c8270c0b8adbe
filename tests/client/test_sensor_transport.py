"""The bus over UDP: against a node, and against a plain socket that plays the document's broker."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import hedgerow
from hedgerow.client.bus import Bus
from hedgerow.client.sensor_transport import SensorOptions, SensorTransport
from hedgerow.client.urls import parse_url
from hedgerow.errors import ConfigError, ConnectError, HedgerowError, RefusedError
from hedgerow.message import Message
from hedgerow.sensors.packet import MAX_PAYLOAD_BYTES
from hedgerow_workshop.programs import free_udp_port
from tests.waiting import PATIENCE_S, take, until


class OldBroker:
    """A plain socket; the test does by hand what a broker would."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self.port: int = self.socket.getsockname()[1]
        self.url = f"udp://127.0.0.1:{self.port}"

    async def receive(self) -> tuple[bytes, tuple[str, int]]:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return self.socket.recvfrom(65_535)
                except BlockingIOError:
                    await asyncio.sleep(0.002)


@contextmanager
def old_broker() -> Iterator[OldBroker]:
    broker = OldBroker()
    try:
        yield broker
    finally:
        broker.socket.close()


@contextmanager
def port_where_nobody_listens() -> Iterator[int]:
    """Nor anybody else will, in the meantime: a socket has it that hears one other port alone."""
    with shared_socket(0) as held, shared_socket(0) as other:
        held.connect(other.getsockname())
        yield held.getsockname()[1]


def shared_socket(port: int) -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    opened.bind(("127.0.0.1", port))
    return opened


async def opened(url: str, **options: float) -> SensorTransport:
    transport = SensorTransport(parse_url(url), SensorOptions(**options))  # type: ignore[arg-type]
    await transport.open()
    return transport


async def test_publish_and_subscribe_through_a_node_by_number_and_by_name() -> None:
    async with (
        hedgerow.serve(mqtt="off", udp="127.0.0.1:0") as node,
        hedgerow.connect(node.url) as bus,
    ):
        async with bus.subscribe("01", "temperature", "3") as messages:
            await bus.publish("1", "21.5")
            await bus.publish("temperature", b"22")
            await bus.publish("humidity", "61 %")
            await bus.publish("wind speed", "nobody subscribed")
            await bus.publish("03", "62 %")
            received = []
            async for message in messages:
                received.append((message.topic, message.payload))
                if len(received) == 4:
                    break
        assert received == [
            ("temperature", b"21.5"),
            ("temperature", b"22"),
            ("humidity", b"61 %"),
            ("humidity", b"62 %"),
        ]


async def test_a_sensor_and_an_mqtt_client_meet() -> None:
    config = {"udp": "127.0.0.1:0", "sensors": {"topics": {"07": "farm/soil"}}}
    async with hedgerow.serve(config) as node:
        url = f"{node.urls[-1]}?topics=07=farm/soil"
        async with (
            hedgerow.connect(url) as sensor,
            hedgerow.connect(node.url) as client,
            client.subscribe("farm/+") as at_client,
            sensor.subscribe("farm/soil") as at_sensor,
        ):
            await sensor.publish("farm/soil", "dry")
            assert [(m.topic, m.payload) for m in await take(at_client, 1)] == [("farm/soil", b"dry")]
            await client.publish("farm/soil", "wet")
            got = [(m.topic, m.payload) for m in await take(at_sensor, 2)]
            assert got == [("farm/soil", b"dry"), ("farm/soil", b"wet")]


async def test_the_bytes_are_the_documents() -> None:
    with old_broker() as broker:
        async with hedgerow.connect(broker.url) as bus, bus.subscribe("wind speed") as messages:
            data, source = await broker.receive()
            assert data == b"%05d002" % source[1]
            await bus.publish("humidity", "61 %")
            assert await broker.receive() == (b"%05d10361 %%" % broker.port, source)
            broker.socket.sendto(b"12345102" + b"4 m/s", source)
            (message,) = await take(messages, 1)
            assert (message.topic, message.payload) == ("wind speed", b"4 m/s")


async def test_a_number_that_the_table_lacks_is_a_topic_all_the_same() -> None:
    with old_broker() as broker:
        async with hedgerow.connect(broker.url) as bus, bus.subscribe("42") as messages:
            _, source = await broker.receive()
            broker.socket.sendto(b"12345142x", source)
            (message,) = await take(messages, 1)
            assert (message.topic, message.payload) == ("42", b"x")


async def test_a_port_of_ones_own() -> None:
    port = free_udp_port(1)
    with old_broker() as broker:
        async with hedgerow.connect(f"{broker.url}?port={port}") as bus, bus.subscribe("01"):
            data, source = await broker.receive()
            assert (data, source[1]) == (b"%05d001" % port, port)


async def test_a_new_subscription_is_announced_twice() -> None:
    with old_broker() as broker:
        async with Bus(await opened(broker.url, repeat_s=0.02)) as bus, bus.subscribe("01"):
            first, _ = await broker.receive()
            again, _ = await broker.receive()  # long before it would be renewed
            assert first == again


async def test_subscriptions_are_renewed_again_and_again() -> None:
    with old_broker() as broker:
        bus = Bus(await opened(broker.url, repeat_s=0.02, renew_s=0.02))
        async with bus, bus.subscribe("01"), bus.subscribe("02"):
            numbers = [(await broker.receive())[0][-2:] for _ in range(10)]
            assert sorted(numbers) == [b"01"] * 5 + [b"02"] * 5


async def test_a_subscription_outlives_its_expiry_at_the_broker() -> None:
    config = {"mqtt": "off", "udp": "127.0.0.1:0", "sensors": {"subscription_expiry": 1}}
    async with (
        hedgerow.serve(config) as node,
        Bus(await opened(node.url, repeat_s=0.2, renew_s=0.2)) as bus,
        Bus(await opened(node.url, repeat_s=600.0, renew_s=600.0)) as forgetful,
        bus.subscribe("01") as messages,
        forgetful.subscribe("01") as until_it_expires,
    ):
        await bus.publish("01", "at first")
        await take(messages, 1)
        arrived = asyncio.ensure_future(anext(aiter(until_it_expires)))
        turns = 0
        while arrived in (await asyncio.wait([arrived], timeout=0.5))[0]:
            turns += 1
            await bus.publish("01", f"still here {turns}")
            await take(messages, 1)
            arrived = asyncio.ensure_future(anext(aiter(until_it_expires)))
        arrived.cancel()
        await bus.publish("01", "after that")
        assert [message.payload for message in await take(messages, 1)] == [b"after that"]


async def test_a_broker_that_comes_later_or_again_is_subscribed_to(caplog: pytest.LogCaptureFixture) -> None:
    with port_where_nobody_listens() as port:
        bus = Bus(await opened(f"udp://127.0.0.1:{port}", retry_s=0.02, repeat_s=600.0))
        async with bus, bus.subscribe("01", "02"):
            warning = "nobody listens there; asking every 0.02 s"
            await until(lambda: warning in caplog.text, "the warning")
            with shared_socket(port) as broker:
                broker.setblocking(False)
                for _ in range(2):
                    await until(lambda: _has_packet(broker), "the subscriptions")
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1  # once, however often it was tried


def _has_packet(receiver: socket.socket) -> bool:
    try:
        return bool(receiver.recv(100))
    except BlockingIOError:
        return False


async def test_what_is_no_packet_is_dropped_and_counted() -> None:
    with old_broker() as broker:
        transport = await opened(broker.url)
        async with Bus(transport) as bus, bus.subscribe("01") as messages:
            _, source = await broker.receive()
            for data in (b"", b"short", b"12345901x", b"12345001"):
                broker.socket.sendto(data, source)
            broker.socket.sendto(b"12345102not subscribed", source)
            broker.socket.sendto(b"12345101x", source)
            assert [message.payload for message in await take(messages, 1)] == [b"x"]
            assert transport.malformed == 4


async def test_nobody_but_the_broker_is_heard() -> None:
    with old_broker() as broker, old_broker() as stranger:
        async with hedgerow.connect(broker.url) as bus, bus.subscribe("01") as messages:
            _, source = await broker.receive()
            stranger.socket.sendto(b"12345101forged", source)
            broker.socket.sendto(b"12345101true", source)
            assert [message.payload for message in await take(messages, 1)] == [b"true"]


async def test_a_slow_reader_loses_and_is_told_how_many() -> None:
    with old_broker() as broker:
        async with (
            hedgerow.connect(broker.url) as bus,
            bus.subscribe("01", queue_messages=2) as messages,
        ):
            _, source = await broker.receive()
            for n in range(20):
                broker.socket.sendto(b"12345101%d" % n, source)
            await until(lambda: messages.dropped > 0, "a drop")
            taken = await take(messages, 8)
            assert [message.payload for message in taken] == [b"%d" % n for n in range(8)]


# What the protocol cannot do


@pytest.mark.parametrize(
    ("topic", "options", "reason"),
    [
        ("01", {"qos": 1}, "QoS 0 alone"),
        ("01", {"qos": 2}, "QoS 0 alone"),
        ("01", {"retain": True}, "no retained messages"),
        ("01", {"properties": {"content_type": "text/plain"}}, "no place for MQTT properties"),
        ("soil", {}, 'no topic "soil"; there are 01 temperature, 02 wind speed, 03 humidity'),
        ("100", {}, 'no topic "100"'),
        ("01", {"payload": b"x" * (MAX_PAYLOAD_BYTES + 1)}, "do not fit a datagram"),
    ],
)
async def test_a_publication_that_udp_cannot_carry_is_refused(
    topic: str, options: dict[str, object], reason: str
) -> None:
    with old_broker() as broker:
        async with hedgerow.connect(broker.url) as bus:
            with pytest.raises(RefusedError, match=reason):
                await bus.publish(topic, **{"payload": b"x"} | options)  # type: ignore[arg-type]
            with pytest.raises(RefusedError, match=reason):
                bus.publish_nowait(topic, **{"payload": b"x"} | options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("topic_filter", "options", "reason"),
    [
        ("#", {}, "no wildcards"),
        ("farm/+", {}, "no wildcards"),
        ("01", {"qos": 1}, "QoS 0 alone"),
        ("01", {"no_local": True}, "knows no options"),
        ("soil", {}, 'no topic "soil"'),
    ],
)
async def test_a_subscription_that_udp_cannot_make_is_refused(
    topic_filter: str, options: dict[str, object], reason: str
) -> None:
    with old_broker() as broker:
        async with hedgerow.connect(broker.url) as bus:
            with pytest.raises(RefusedError, match=reason):
                async with bus.subscribe(topic_filter, **options):  # type: ignore[arg-type]
                    pass


@pytest.mark.parametrize(
    ("rest", "options", "reason"),
    [
        ("", {"username": "u"}, "no place for user names and passwords"),
        ("", {"will": Message("01", b"x")}, "no place for a will"),
        ("", {"clean_start": False}, "no place for sessions"),
        ("", {"ca_file": "ca.pem"}, "no place for TLS"),
        ("", {"tls": ssl.create_default_context()}, "no place for TLS"),
        ("/path", {}, "udp:// takes no path"),
        ("?colour=red", {}, '"colour=red" after .*: there are topics='),
        ("?port=0", {}, '"port=0" after'),
        ("?renew=soon", {}, '"renew=soon" after'),
        ("?topics=1=a,01=b", {}, "the table has the number already"),
        ("?topics=x=a", {}, '"x" is not a topic number'),
        ("?topics=1:a", {}, '"1:a" is not NUMBER=TOPIC'),
        ("?topics=1=a/%2B", {}, "wildcard"),
    ],
)
async def test_a_connection_that_udp_cannot_make_is_refused(
    rest: str, options: dict[str, object], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        await hedgerow.connect(f"udp://127.0.0.1:12345{rest}", **options)  # type: ignore[arg-type]


async def test_a_host_that_is_not_found_is_an_error_at_once() -> None:
    with pytest.raises(ConnectError, match="udp://no-such-host.invalid:12345"):
        await hedgerow.connect("udp://no-such-host.invalid")


async def test_one_message_to_nobody_is_told_to_who_asked_for_that() -> None:
    with old_broker() as gone:
        url = gone.url
    async with hedgerow.connect(url, reconnect=False) as bus:
        with pytest.raises(ConnectError, match="nobody listens there"):
            await bus.publish("01", "x")
    async with hedgerow.connect(url) as bus:
        await bus.publish("01", "x")  # a sensor that goes on measuring does not care


async def test_a_closed_bus_is_closed() -> None:
    with old_broker() as broker:
        bus = await hedgerow.connect(broker.url)
        subscription = bus.subscribe("01")
        await subscription.__aenter__()
        await bus.close()
        await bus.close()
        await bus.wait_closed()
        assert [message async for message in subscription] == []
        with pytest.raises(HedgerowError, match="closed"):
            await bus.publish("01", "x")


async def test_unsubscribing_ends_the_loop() -> None:
    with old_broker() as broker:
        async with hedgerow.connect(broker.url) as bus, bus.subscribe("01") as messages:
            await bus.unsubscribe("temperature")
            assert [message async for message in messages] == []
