"""Mosquittos that are not ours and not changed, federated by sidecars, with clients that know nothing of it.

The sidecars are nodes of this process, but for the one that is killed.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from hedgerow.federation.config import FederationConfig
from hedgerow_workshop.lab.harness.brokers import Mosquitto
from tests.faults.client import PersistentClient
from tests.faults.client import running as clients
from tests.faults.federated import AT_ONCE_S, linked, mosquittos, neighbours, sidecar, url_at
from tests.hosts import Host, network
from tests.node.peers import port_of, running
from tests.paho_sockets import close_sockets
from tests.programs import Node, end, need_program, run_node, wait_until
from tests.waiting import until

HEARD_WITHIN_S = 2.0  # of the subscription


class MosquittoSub:
    """`mosquitto_sub -v`: what it has heard, topic and payload."""

    def __init__(self, port: int, topic_filter: str, output: Path) -> None:
        command = [
            need_program("mosquitto_sub"),
            "-p",
            str(port),
            "-q",
            "1",
            "-t",
            topic_filter,
            "-F",
            "%t %p",
        ]
        self._output = output
        with output.open("wb") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=file)

    @property
    def heard(self) -> list[tuple[str, str]]:
        return [(topic, payload) for topic, _, payload in map(_parted, self._output.read_text().splitlines())]

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def _parted(line: str) -> tuple[str, str, str]:
    return line.partition(" ")


class PahoClient:
    def __init__(self, port: int, topic_filter: str) -> None:
        self.port = port
        self.heard: list[tuple[str, str]] = []
        self._client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv311)
        self._client.on_connect = lambda client, *_: client.subscribe(topic_filter, 1)
        self._client.on_message = lambda _, __, it: self.heard.append((it.topic, it.payload.decode()))
        self.is_subscribed = False
        self._client.on_disconnect = lambda *_: setattr(self, "is_subscribed", False)
        self._client.on_subscribe = lambda *_: setattr(self, "is_subscribed", True)
        self._client.reconnect_delay_set(1, 1)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def publish(self, topic: str, payload: str, retain: bool = False) -> None:
        self._client.publish(topic, payload, 1, retain).wait_for_publish(10)

    def stop(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
        close_sockets(self._client)


async def test_stock_clients_at_three_mosquittos(tmp_path: Path) -> None:
    """Wildcards, retained values and their deletion, QoS 1; and then the broker in the middle is killed."""
    with ExitStack() as programs:
        async with (
            mosquittos(tmp_path, "m1", "m2", "m3") as (m1, m2, m3),
            sidecar("s1", m1.port, m2.port) as s1,
            sidecar("s2", m2.port, m3.port) as s2,
            sidecar("s3", m3.port) as s3,
        ):

            def subscribe(broker: Mosquitto, topic_filter: str) -> PahoClient:
                client = PahoClient(broker.port, topic_filter)
                programs.callback(client.stop)
                return client

            await linked(s1, s2, s3)
            west = subscribe(m1, "field/#")
            west.publish("field/1/soil", "31", retain=True)
            began_at = time.monotonic()
            middle = subscribe(m2, "field/#")
            east = MosquittoSub(m3.port, "field/+/soil", tmp_path / "heard")
            programs.callback(east.stop)
            heard: list[PahoClient | MosquittoSub] = [west, middle, east]
            expected = [("field/1/soil", "31")]
            await until(lambda: all(each.heard == expected for each in heard), "the retained value")
            assert time.monotonic() - began_at < HEARD_WITHIN_S

            for number in range(20):
                west.publish(f"field/{number}/soil", "w")
                middle.publish(f"field/{number}/soil", "m")
                expected += [(f"field/{number}/soil", "w"), (f"field/{number}/soil", "m")]
            middle.publish("field/1/soil", "", retain=True)
            west.publish("field/2/soil", "32", retain=True)
            expected += [("field/1/soil", ""), ("field/2/soil", "32")]
            await until(lambda: all(len(each.heard) >= len(expected) for each in heard), "all of them")
            late = [subscribe(m1, "field/#"), subscribe(m3, "field/+/soil")]
            await until(lambda: all(each.heard for each in late), "the retained value that there is")
            west.publish("field/last/soil", "1")
            expected.append(("field/last/soil", "1"))
            await until(lambda: all(expected[-1] in each.heard for each in (*heard, *late)), "the last one")
            assert [each.heard for each in late] == [[("field/2/soil", "32"), expected[-1]]] * 2
            assert [Counter(each.heard) for each in heard] == [Counter(expected)] * 3

            # A broker that is killed forgets all, and what others told it is told again.
            m2.kill()
            await until(lambda: not middle.is_subscribed, "the end of a broker")
            (tmp_path / "m2/mosquitto.db").unlink(missing_ok=True)
            await m2.start()
            await linked(s1, s2, s3)
            newcomer = subscribe(m2, "field/#")
            await until(lambda: newcomer.heard == [("field/2/soil", "32")], "the retained value")
            await until(lambda: middle.is_subscribed, "its client to be back")
            for publisher in (west, middle):
                sent = ("field/9/soil", f"again from {publisher.port}")
                publisher.publish(*sent)
                await until(lambda s=sent: all(s in each.heard for each in heard), "messages to flow again")  # type: ignore[misc]
                assert all(each.heard.count(sent) == 1 for each in heard)


class SidecarProcess:
    """`hedgerow federate`, which may be killed and started again with what it has kept."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        directory.mkdir()
        self._directory = directory
        self._arguments = arguments
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "hedgerow", "federate", *self._arguments, "--data", "data"]
        with (self._directory / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._directory)

    def kill9(self) -> None:
        assert self.process is not None
        process, self.process = self.process, None
        process.kill()
        process.wait()

    def stop(self) -> None:
        if self.process is not None:
            end(self.process)


async def test_a_sidecar_that_is_killed_gets_what_was_published_meanwhile(tmp_path: Path) -> None:
    with ExitStack() as programs:
        async with (
            mosquittos(tmp_path, "m1", "m2") as (m1, m2),
            sidecar("s2", m2.port) as s2,
        ):
            links = ("--neighbour", f"mqtt://127.0.0.1:{m2.port}")
            s1 = SidecarProcess(
                tmp_path / "s1", "--id", "s1", "--broker", f"mqtt://127.0.0.1:{m1.port}", *links
            )
            programs.callback(s1.stop)
            s1.start()
            await until(lambda: neighbours(s2) == {"s1"}, "the link")
            publisher = PersistentClient(m1.port, "publisher")
            subscriber = PersistentClient(m2.port, "subscriber", subscriptions=(("field/#", 1),))
            back = PersistentClient(m2.port, "back")
            forth = PersistentClient(m1.port, "forth", subscriptions=(("yard/#", 1),))
            async with clients(publisher, subscriber, back, forth):
                await reaches(publisher, subscriber)
                await reaches(back, forth)
                s1.kill9()
                async with asyncio.timeout(AT_ONCE_S):
                    await until(lambda: not neighbours(s2), "its loss")
                numbers = [b"%d" % number for number in range(50)]
                for number in numbers:
                    publisher.publish("field/1", number, 1)
                back.publish("yard/1", b"1", 1)
                await until(lambda: not publisher.outgoing and not back.outgoing, "Mosquitto to have them")
                s1.start()
                await until(lambda: len(subscriber.arrived["field/1"]) >= 50, "what was published meanwhile")
                publisher.publish("field/1", b"after", 1)
                await until(lambda: b"after" in subscriber.arrived["field/1"], "what comes after")
                assert subscriber.arrived["field/1"] == [*numbers, b"after"]
                await until(lambda: forth.arrived["yard/1"] == [b"1"], "what waited for the sidecar")


async def test_a_node_a_mosquitto_and_a_node(tmp_path: Path) -> None:
    """A node dials the Mosquitto, a tunnel, and the Mosquitto's sidecar a node; then both dial each other."""
    async with (
        mosquittos(tmp_path, "m") as (m,),
        running(FederationConfig(neighbours=(url_at(m.port),)), id="n1") as n1,
        running(FederationConfig(enabled=True), id="n2") as n2,
    ):
        for name, dialled in (("one", [port_of(n2)]), ("both", [port_of(n1), port_of(n2)])):
            async with sidecar(name, m.port, *dialled) as s:
                await linked(n1, s, n2)
                await all_hear_all_once(name, port_of(n1), m.port, port_of(n2))


async def all_hear_all_once(name: str, *ports: int) -> None:
    made = [PersistentClient(port, f"{name} at {port}", subscriptions=(("field/+", 1),)) for port in ports]
    async with clients(*made):
        for publisher in made:
            await reaches(publisher, *made)
        for client in made:
            client.publish(f"field/{name}-{client.port}", b"0", 0)
            client.publish(f"field/{name}-{client.port}", b"1", 1)
        topics = [f"field/{name}-{port}" for port in ports]
        await until(
            lambda: all(b"1" in each.arrived[topic] for each in made for topic in topics), "all of it"
        )
        assert all(each.arrived[topic] == [b"0", b"1"] for each in made for topic in topics)


async def reaches(publisher: PersistentClient, *subscribers: PersistentClient) -> None:
    """A sidecar has learned of the subscriptions, and others of that."""
    first = subscribers[0].subscriptions[0][0]
    topic = first.replace("+", "#").replace("#", f"ready-{publisher.port}")

    def is_heard() -> bool:
        publisher.publish(topic, b"", 0)
        return all(topic in each.arrived for each in subscribers)

    await until(is_heard, "the mesh")


async def test_those_who_are_linked_through_a_mosquitto_are_told_of_a_stop(tmp_path: Path) -> None:
    async with (
        mosquittos(tmp_path, "m") as (m,),
        sidecar("s", m.port) as s,
        running(FederationConfig(neighbours=(url_at(m.port),)), id="n1") as n1,
        running(FederationConfig(neighbours=(url_at(m.port),)), id="n2") as n2,
    ):
        await until(lambda: neighbours(s) == {"n1", "n2"}, "the links")
        async with asyncio.timeout(AT_ONCE_S):
            await n1.stop()
            await until(lambda: neighbours(s) == {"n2"}, "the end of one that dialled")
        async with asyncio.timeout(AT_ONCE_S):
            await s.stop()
            await until(lambda: not neighbours(n2), "the end of the sidecar")


def test_nodes_of_one_network_find_each_other(tmp_path: Path) -> None:
    """Also one that has a neighbour already."""
    with network(count=2) as net, ExitStack() as programs:

        def start(name: str, host: Host, *more: str) -> Node:
            (tmp_path / name).mkdir()
            words = ("--id", name, "--mqtt", f"{host.address4}:0", "--anonymous", *more)
            return programs.enter_context(run_node(tmp_path / name, *words, wrapper=host.wrapper))

        shed = start("shed", net.hosts[0], "--federation")
        barn = start("barn", net.hosts[0], "--discover", "--neighbour", shed.urls["mqtt"])
        wait_until(lambda: "shed is a neighbour" in barn.log, "the shed")
        house = start("house", net.hosts[1], "--discover")
        wait_until(lambda: "house is a neighbour" in barn.log, "the house")
        wait_until(lambda: "barn is a neighbour" in house.log, "the barn")
