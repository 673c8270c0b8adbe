"""Subscribers of all kinds: what they receive is counted, and they follow where they can be told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import hedgerow
from hedgerow.mobility.renewals import renew
from hedgerow.mqtt import codec
from hedgerow.mqtt.extension import Renewal
from hedgerow.mqtt.packets import MQTT_5, Disconnect
from hedgerow.mqtt.reasons import Reason
from hedgerow.node.server import Server
from hedgerow_workshop.lab.harness.brokers import Hedgerow
from hedgerow_workshop.lab.storm.follower import Ended
from hedgerow_workshop.lab.storm.gmqtt_subscriber import read_disconnect
from hedgerow_workshop.lab.storm.record import SubscriberKind, Tally
from hedgerow_workshop.lab.storm.stage import SubscribersProgram
from hedgerow_workshop.lab.storm.subscribers import MODULES
from hedgerow_workshop.programs import processor_s
from tests.mobility.fake_mobility import FakeMobility
from tests.node.peers import port_of, running
from tests.waiting import until

FOLLOWERS = (SubscriberKind.PAHO_5, SubscriberKind.GMQTT_5)
TOPIC = "t"


@asynccontextmanager
async def two_servers() -> AsyncIterator[tuple[Server, Server]]:
    async with running() as one, running() as two:
        for server in one, two:
            FakeMobility().install(server.broker)
        yield one, two


@asynccontextmanager
async def subscribed(kind: SubscriberKind, server: Server) -> AsyncIterator[Tally]:
    tally = Tally("s", kind, TOPIC)
    subscriber: Any = await import_module(MODULES[kind]).open_subscriber(tally, url_of(server))
    try:
        yield tally
    finally:
        await subscriber.close()


def url_of(server: Server) -> str:
    return f"mqtt://127.0.0.1:{port_of(server)}"


async def send(server: Server, to: Server) -> None:
    """As a broker sends its client to another one; returns when it is there."""
    connection = server.broker.sessions["s"].connection
    assert connection is not None
    assert renew(connection, Renewal.ACTIVE_TOPICS, f"127.0.0.1:{port_of(to)}")
    server.flush()
    await until(lambda: has_subscriber(to), "the subscriber at the other server")


def has_subscriber(server: Server) -> bool:
    session = server.broker.sessions.get("s")
    return session is not None and session.connection is not None and bool(session.subscriptions)


async def publish(server: Server, *numbers: int) -> None:
    async with hedgerow.connect(url_of(server)) as bus:
        for number in numbers:
            await bus.publish(TOPIC, f"{number}    ", qos=1)


@pytest.mark.parametrize("kind", [SubscriberKind.EXTENSION, *FOLLOWERS])
async def test_it_goes_where_it_is_sent_and_comes_back(kind: SubscriberKind) -> None:
    async with two_servers() as (one, two), subscribed(kind, one) as tally:
        await publish(one, 0, 1)
        await until(lambda: tally.numbers == [0, 1], "the first publications")
        await send(one, to=two)
        await publish(two, 2)
        await until(lambda: tally.distinct == 3, "a publication at the other server")
        await send(two, to=one)
        await publish(one, 3)
        await until(lambda: tally.numbers == [0, 1, 2, 3], "a publication at the first server")
        await until(lambda: len(tally.connections) == 3, "three connections")


@pytest.mark.parametrize("kind", FOLLOWERS)
async def test_what_waits_in_the_session_comes_without_another_subscription(kind: SubscriberKind) -> None:
    async with two_servers() as (one, two), subscribed(kind, one) as tally:
        await send(one, to=two)
        await publish(one, 0)  # It waits in the session there.
        await send(two, to=one)
        await until(lambda: tally.numbers == [0], "what waited")
        way = [url_of(one), url_of(two), url_of(one)]
        await until(lambda: [address for _, address in tally.connections] == way, "the way to be told")


@pytest.mark.parametrize("kind", FOLLOWERS)
async def test_one_whose_server_is_gone_goes_back_to_where_it_began(kind: SubscriberKind) -> None:
    async with running() as one:
        async with running() as two:
            subscriber = subscribed(kind, one)
            tally = await subscriber.__aenter__()
            await send(one, to=two)
        await until(lambda: has_subscriber(one), "the subscriber where it began")
        await publish(one, 0)
        await until(lambda: tally.numbers == [0], "a publication")
        await subscriber.__aexit__(None, None, None)


@pytest.mark.parametrize("kind", SubscriberKind)
async def test_a_process_of_subscribers_tells_what_they_have(kind: SubscriberKind, tmp_path: Path) -> None:
    broker = Hedgerow("b", tmp_path)
    subscribers = SubscribersProgram(kind, tmp_path, "", [TOPIC, TOPIC, "u"])
    with broker, subscribers:
        await broker.start()
        subscribers.url = broker.url
        subscribers.start()
        await subscribers.wait_until_ready()
        assert subscribers.have == (0, 0)
        async with hedgerow.connect(broker.url) as bus:
            for payload in ("0   ", "1   ", "1   "):
                await bus.publish(TOPIC, payload, qos=1)
        await until(lambda: subscribers.have == (6, 4), "all of them")
        tallies = await subscribers.take_tallies()
        assert [(tally.topic, tally.numbers) for tally in tallies] == [
            (TOPIC, [0, 1, 1]),
            (TOPIC, [0, 1, 1]),
            ("u", []),
        ]
        assert all(len(tally.connections) == 1 for tally in tallies)
        assert subscribers.process is not None
        assert processor_s(subscribers.process.pid) > 0


def test_the_body_of_a_disconnect_is_read() -> None:
    packet = Disconnect(Reason.USE_ANOTHER_SERVER, {"server_reference": "192.0.2.1:1883"})
    body = codec.encode(packet, MQTT_5)[2:]
    assert read_disconnect(body) == Ended(Reason.USE_ANOTHER_SERVER, "192.0.2.1:1883")
    assert read_disconnect(b"") == read_disconnect(b"\x9c\xff") == Ended()


async def test_a_subscriber_that_cannot_connect_keeps_trying() -> None:
    async with running() as server:
        url = url_of(server)
    tally = Tally("s", SubscriberKind.PAHO_5, TOPIC)
    subscriber = import_module(MODULES[SubscriberKind.PAHO_5]).PahoSubscriber(tally, url)
    opening = asyncio.create_task(subscriber.open())
    await asyncio.sleep(0)
    await asyncio.wait({opening}, timeout=0.3)
    assert not opening.done()
    opening.cancel()
    await subscriber.close()
