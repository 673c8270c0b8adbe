"""A broker that does not run for a while (SIGSTOP), and one that is asked to end (SIGTERM)."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5
from hedgerow.mqtt.reasons import Reason
from tests.conftest import StartNode
from tests.faults.client import PersistentClient, running, until

IN_FLIGHT = 40
EVERYTHING = (("load/#", 2),)


async def load(publisher: PersistentClient) -> None:
    """Publish at QoS 1 and 2 in turn, as fast as it is acknowledged."""
    number = 0
    while True:
        while publisher.is_connected and len(publisher.outgoing) < IN_FLIGHT:
            number += 1
            publisher.publish(f"load/{publisher.client_id}/{number % 2 + 1}", b"%d" % number, number % 2 + 1)
        await asyncio.sleep(0.001)


def check(publishers: list[PersistentClient], subscriber: PersistentClient) -> None:
    """All that was sent arrived, and in order; at QoS 2 once."""
    for publisher in publishers:
        assert publisher.sent
        for topic, sent in publisher.sent.items():
            arrived = subscriber.arrived[topic]
            assert list(dict.fromkeys(arrived)) == sent
            assert len(arrived) == len(sent) or not topic.endswith("/2")


@pytest.mark.parametrize(
    "durable", [pytest.param(False, marks=pytest.mark.soak), True], ids=["memory", "store"]
)
async def test_nothing_is_lost_while_the_broker_is_stopped(
    hedgerow_node: StartNode, tmp_path: Path, durable: bool
) -> None:
    node = hedgerow_node(*(("--data", str(tmp_path / "data")) if durable else ()))
    assert node.process is not None
    # The keep-alive is shorter than the stop: clients that went on pinging must not pay for it.
    publishers = [
        PersistentClient(node.port(), "new", MQTT_5, keep_alive=1),
        PersistentClient(node.port(), "old", MQTT_3_1_1, keep_alive=1),
    ]
    subscriber = PersistentClient(node.port(), "subscriber", subscriptions=EVERYTHING, keep_alive=1)
    clients = [subscriber, *publishers]
    async with running(*clients):
        await until(lambda: all(client.is_connected for client in clients), "the connections")
        loads = [asyncio.create_task(load(publisher)) for publisher in publishers]
        for _ in range(2):
            arrived = sum(map(len, subscriber.arrived.values()))
            await until(lambda n=arrived: sum(map(len, subscriber.arrived.values())) > n + 100, "load")  # type: ignore[misc]
            node.process.send_signal(signal.SIGSTOP)
            for _ in range(5):
                await asyncio.sleep(0.5)
                for client in clients:
                    client.ping()
            node.process.send_signal(signal.SIGCONT)
        for task in loads:
            task.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
        await until(lambda: not any(publisher.outgoing for publisher in publishers), "the acknowledgements")
        expected = sum(len(sent) for publisher in publishers for sent in publisher.sent.values())
        await until(lambda: sum(map(len, subscriber.arrived.values())) >= expected, "all messages")
        check(publishers, subscriber)
        assert [client.connections for client in clients] == [1, 1, 1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_orderly_end_under_load_loses_nothing(
    hedgerow_node: StartNode, tmp_path: Path, number: signal.Signals
) -> None:
    node = hedgerow_node("--data", str(tmp_path / "data"))
    port = node.port()
    publishers = [PersistentClient(port, "new", MQTT_5), PersistentClient(port, "old", MQTT_3_1_1)]
    subscriber = PersistentClient(port, "subscriber", subscriptions=EVERYTHING)
    clients = [subscriber, *publishers]
    async with running(*clients):
        await until(lambda: all(client.is_connected for client in clients), "the connections")
        loads = [asyncio.create_task(load(publisher)) for publisher in publishers]
        for _ in range(3):
            arrived = sum(map(len, subscriber.arrived.values()))
            await until(lambda n=arrived: sum(map(len, subscriber.arrived.values())) > n + 200, "load")  # type: ignore[misc]
            assert node.process is not None
            process, node.process = node.process, None
            process.send_signal(number)
            assert await asyncio.to_thread(process.wait, 15) == 0
            assert "has stopped" in node.log
            await asyncio.to_thread(node.start)
        for task in loads:
            task.cancel()
        await asyncio.gather(*loads, return_exceptions=True)
        await until(lambda: not any(publisher.outgoing for publisher in publishers), "the acknowledgements")
        expected = {topic: sent[-1] for publisher in publishers for topic, sent in publisher.sent.items()}
        await until(
            lambda: all(subscriber.arrived[topic][-1:] == [last] for topic, last in expected.items()),
            "the last messages",
        )
    check(publishers, subscriber)
    assert not any(client.sessions_lost for client in clients)
    for client in (subscriber, publishers[0]):
        assert client.disconnect_reasons == [Reason.SERVER_SHUTTING_DOWN] * 3
