"""`kill -9` at random moments under load: the broker keeps its word.

What was acknowledged (PUBACK, PUBREC, PUBCOMP) arrives, QoS 2 arrives once, each publisher's order on
a topic holds, and retained values are not older than the last one that was acknowledged.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5
from tests.conftest import StartNode
from tests.faults.client import PersistentClient, running, until
from tests.programs import Node, run_node, wait_until

ROUNDS, MANY_ROUNDS = 5, 60
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


class Company:
    """Everyone who takes part: three publishers, and subscribers that differ in how they listen."""

    def __init__(self, port: int) -> None:
        def subscriber(
            name: str, *subscriptions: tuple[str, int], version: int = MQTT_5, receive_maximum: int = 1_000
        ) -> PersistentClient:
            return PersistentClient(port, name, version, receive_maximum, subscriptions)

        self.publishers = [
            Publisher(port, "a", MQTT_5),
            Publisher(port, "b", MQTT_3_1_1),
            Publisher(port, "c", MQTT_5),
        ]
        self.flaky = subscriber("flaky", *EVERYTHING)  # its connections are lost at other times too
        self.at_most_1 = subscriber("at-most-1", ("one/#", 1), ("two/#", 1))
        self.present = [
            subscriber("steady", *EVERYTHING),
            subscriber("older", *EVERYTHING, version=MQTT_3_1_1),
            subscriber("narrow", *EVERYTHING, receive_maximum=5),
            self.flaky,
            self.at_most_1,
        ]
        self.away = subscriber("away", *EVERYTHING)  # subscribes, and comes back in the end
        self.sharing = [subscriber(f"sharing-{number}", ("$share/group/two/#", 2)) for number in (1, 2)]

    async def wait_for_the_end(self) -> None:
        """Until all that was ever sent has been acknowledged, and has arrived where order shows it."""
        for publisher in self.publishers:
            publisher.say_the_end()
        await until(
            lambda: not any(publisher.outgoing for publisher in self.publishers), "the acknowledgements"
        )
        topics = [topic for publisher in self.publishers for topic in publisher.topics]
        for client in (*self.present, self.away):
            await until(
                lambda client=client: all(END in client.arrived[topic] for topic in topics),  # type: ignore[misc]
                f"the end of {client.client_id}",
            )

    def check(self) -> None:
        everyone = [*self.publishers, *self.present, *self.sharing, self.away]
        assert [client.client_id for client in everyone if client.sessions_lost] == []
        for publisher in self.publishers:
            for topic, qos in publisher.topics.items():
                for client in (*self.present, self.away):
                    exactly_once = qos == 2 and client is not self.at_most_1
                    check_arrivals(publisher, topic, client, exactly_once)

    async def check_sharing(self) -> None:
        """Each message went to one of the two; their order is nobody's."""
        for publisher in self.publishers:
            for topic in (topic for topic, qos in publisher.topics.items() if qos == 2):
                first, second = (client.arrived[topic] for client in self.sharing)
                count = len(publisher.sent[topic])
                await until(lambda: len(first) + len(second) >= count, f"what is shared of {topic}")  # noqa: B023
                assert sorted(first + second) == sorted(publisher.sent[topic])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rounds", [ROUNDS, pytest.param(MANY_ROUNDS, marks=pytest.mark.soak)])
async def test_nothing_acknowledged_is_lost_and_nothing_comes_twice_at_qos_2(
    hedgerow_node: StartNode, tmp_path: Path, rounds: int
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    node = hedgerow_node("--data", str(tmp_path / "data"), "--log-level", "warning")
    company = Company(node.port())
    publishers = company.publishers
    async with running(company.away):
        await until(lambda: company.away.is_connected, "a subscription")
    async with AsyncExitStack() as at_work:
        listening = [*company.present, *company.sharing]
        await at_work.enter_async_context(running(*listening))
        await until(lambda: all(client.is_connected for client in listening), "the subscriptions")
        async with running(*publishers):
            loads = [asyncio.create_task(publisher.load()) for publisher in publishers]
            for _ in range(rounds):
                await one_round(node, chance, company)
            for load in loads:
                load.cancel()
            await asyncio.gather(*loads, return_exceptions=True)
            node.kill9()
        node.start()
        await check_retained(node.port(), publishers)
        await at_work.enter_async_context(running(*publishers, company.away))
        await company.wait_for_the_end()
        company.check()
        await company.check_sharing()
    print(f"{sum(publisher.acknowledged_count for publisher in publishers)} acknowledged")


async def one_round(node: Node, chance: random.Random, company: Company) -> None:
    publishers = company.publishers
    before = [publisher.acknowledged_count for publisher in publishers]
    await until(
        lambda: all(p.acknowledged_count > count for p, count in zip(publishers, before, strict=True)),
        "every publisher to be served",
    )
    load_s = chance.uniform(0, MAX_LOAD_S)
    await asyncio.sleep(load_s / 2)
    if chance.random() < 0.5:
        chance.choice([company.flaky.abort, company.flaky.jump, company.publishers[0].jump])()
    await asyncio.sleep(load_s / 2)
    if chance.random() < 0.25 and node.process is not None:
        node.process.terminate()  # and the kill finds it in the middle of its orderly end
        await asyncio.sleep(chance.uniform(0, 0.02))
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


def check_arrivals(publisher: Publisher, topic: str, client: PersistentClient, exactly_once: bool) -> None:
    arrived, who = client.arrived[topic], client.client_id
    lost = set(publisher.acknowledged[topic]) - set(arrived)
    assert not lost, f"{who} lost {len(lost)} acknowledged messages of {topic}: {sorted(lost)[:5]}"
    first_times = list(dict.fromkeys(arrived))
    assert first_times == publisher.sent[topic], f"{who} has another order of {topic}, or gaps"
    if exactly_once:
        assert len(arrived) == len(first_times), f"{who} has some of {topic} twice"


@pytest.mark.parametrize("kills", [3, pytest.param(60, marks=pytest.mark.soak)])
def test_a_kill_while_the_first_store_is_made_leaves_it_whole_or_not_at_all(
    tmp_path: Path, kills: int
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for number in range(kills):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        command = [
            sys.executable,
            "-m",
            "hedgerow",
            "up",
            "--mqtt",
            "127.0.0.1:0",
            "--ws",
            "off",
            "--http",
            "off",
        ]
        log = folder / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--data", str(folder / "data")], stdout=output, stderr=output
            )
        # From the moment at which there is something to break; the node is up some 30 ms later.
        wait_until((folder / "data").exists, "the data directory")
        time.sleep(chance.uniform(0, 0.04))
        process.kill()
        process.wait()
        with run_node(folder, "--data", str(folder / "data")):
            pass
