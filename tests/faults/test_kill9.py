"""`kill -9` at random moments under load: the broker keeps its word.

What was acknowledged (PUBACK, PUBREC, PUBCOMP) arrives, QoS 2 arrives once, each publisher's order on
a topic holds, and retained values are not older than the last one that was acknowledged.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path

from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5
from tests.conftest import StartNode
from tests.faults.client import PersistentClient, running, until
from tests.programs import Node

ROUNDS = 20
MAX_LOAD_S = 0.3  # of a round, from the moment at which everyone is served again
IN_FLIGHT = 40  # per publisher; the rest waits for acknowledgements
END = b"end"

EVERYTHING = (("one/#", 2), ("two/#", 2))


class Publisher(PersistentClient):
    """Counts up on its own topics: `one/NAME` at QoS 1, `two/NAME` at QoS 2, and a retained one."""

    def __init__(self, port: int, name: str, version: int) -> None:
        super().__init__(port, f"publisher-{name}", version)
        self.topics = {f"one/{name}": 1, f"two/{name}": 2}
        self.retained_topic = f"retained/{name}"
        self._count = 0

    async def load(self) -> None:
        """Publish for as long as it is let, within the window. QoS 1 and 2 take turns."""
        while True:
            if not self.is_connected or len(self.outgoing) >= IN_FLIGHT:
                await asyncio.sleep(0.001)
                continue
            self._count += 1
            for topic, qos in self.topics.items():
                self.publish(topic, b"%d" % self._count, qos)
            if self._count % 10 == 0:
                self.publish(self.retained_topic, b"%d" % self._count, 1, retain=True)

    def say_the_end(self) -> None:
        for topic, qos in self.topics.items():
            self.publish(topic, END, qos)

    @property
    def acknowledged_count(self) -> int:
        return sum(map(len, self.acknowledged.values()))


async def test_nothing_acknowledged_is_lost_and_nothing_comes_twice_at_qos_2(
    hedgerow_node: StartNode, tmp_path: Path
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    node = hedgerow_node("--data", str(tmp_path / "data"), "--log-level", "warning")
    port = node.port()
    publishers = [
        Publisher(port, "a", MQTT_5),
        Publisher(port, "b", MQTT_3_1_1),
        Publisher(port, "c", MQTT_5),
    ]
    steady = PersistentClient(port, "steady", MQTT_5, subscriptions=EVERYTHING)
    older = PersistentClient(port, "older", MQTT_3_1_1, subscriptions=EVERYTHING)
    narrow = PersistentClient(port, "narrow", MQTT_5, receive_maximum=5, subscriptions=EVERYTHING)
    flaky = PersistentClient(port, "flaky", MQTT_5, subscriptions=EVERYTHING)
    away = PersistentClient(port, "away", MQTT_5, subscriptions=EVERYTHING)
    at_most_1 = PersistentClient(port, "at-most-1", MQTT_5, subscriptions=(("one/#", 1), ("two/#", 1)))
    sharing = [
        PersistentClient(port, f"sharing-{number}", MQTT_5, subscriptions=(("$share/group/two/#", 2),))
        for number in (1, 2)
    ]
    subscribers = [steady, older, narrow, flaky, at_most_1, *sharing]

    async with running(away):  # subscribes, and then is away until the end
        await until(lambda: away.is_connected, "a subscription")
    async with AsyncExitStack() as at_work:
        await at_work.enter_async_context(running(*subscribers))
        await until(lambda: all(client.is_connected for client in subscribers), "the subscriptions")
        async with running(*publishers):
            loads = [asyncio.create_task(publisher.load()) for publisher in publishers]
            for _ in range(ROUNDS):
                await one_round(node, chance, publishers, flaky)
            for load in loads:
                load.cancel()
            await asyncio.gather(*loads, return_exceptions=True)
            node.kill9()
        node.start()
        await check_retained(port, publishers)

        await at_work.enter_async_context(running(*publishers, away))
        for publisher in publishers:
            publisher.say_the_end()
        await until(lambda: not any(publisher.outgoing for publisher in publishers), "the acknowledgements")
        topics = [topic for publisher in publishers for topic in publisher.topics]
        for client in (steady, older, narrow, flaky, away, at_most_1):
            await until(
                lambda client=client: all(END in client.arrived[topic] for topic in topics),  # type: ignore[misc]
                f"the end of {client.client_id}",
            )
        expected = sum(
            len(set(publisher.sent[f"two/{name}"])) for publisher, name in zip(publishers, "abc", strict=True)
        )
        await until(
            lambda: sum(map(len, (*sharing[0].arrived.values(), *sharing[1].arrived.values()))) >= expected,
            "the shared subscription's messages",
        )

    everyone = [*publishers, *subscribers, away]
    assert [client.client_id for client in everyone if client.sessions_lost] == []
    for publisher in publishers:
        assert publisher.acknowledged_count > ROUNDS
        for topic, qos in publisher.topics.items():
            for client in (steady, older, narrow, flaky, away, at_most_1):
                exactly_once = qos == 2 and client is not at_most_1
                check_arrivals(publisher, topic, client.arrived[topic], exactly_once, client.client_id)
            if qos == 2:
                both = sorted(sharing[0].arrived[topic] + sharing[1].arrived[topic])
                assert both == sorted(publisher.sent[topic]), f"shared {topic}"
    print(f"{sum(publisher.acknowledged_count for publisher in publishers)} acknowledged")


async def one_round(
    node: Node, chance: random.Random, publishers: list[Publisher], flaky: PersistentClient
) -> None:
    before = [publisher.acknowledged_count for publisher in publishers]
    await until(
        lambda: all(p.acknowledged_count > count for p, count in zip(publishers, before, strict=True)),
        "every publisher to be served",
    )
    load_s = chance.uniform(0, MAX_LOAD_S)
    await asyncio.sleep(load_s / 2)
    if chance.random() < 0.5:
        flaky.abort()
    await asyncio.sleep(load_s / 2)
    node.kill9()
    await asyncio.to_thread(node.start)


async def check_retained(port: int, publishers: list[Publisher]) -> None:
    """Before the publishers are back: what the store alone knows."""
    reader = PersistentClient(port, "reader", subscriptions=(("retained/#", 1),))
    async with running(reader):
        for publisher in publishers:
            topic = publisher.retained_topic
            await until(lambda topic=topic: bool(reader.arrived[topic]), topic)  # type: ignore[misc]
            (value,) = reader.arrived[topic]
            assert int(publisher.acknowledged[topic][-1]) <= int(value) <= int(publisher.sent[topic][-1])


def check_arrivals(
    publisher: Publisher, topic: str, arrived: list[bytes], exactly_once: bool, who: str
) -> None:
    lost = set(publisher.acknowledged[topic]) - set(arrived)
    assert not lost, f"{who} lost {len(lost)} acknowledged messages of {topic}: {sorted(lost)[:5]}"
    first_times = list(dict.fromkeys(arrived))
    assert first_times == publisher.sent[topic], f"{who} has another order of {topic}, or gaps"
    if exactly_once:
        assert len(arrived) == len(first_times), f"{who} has some of {topic} twice"
