"""Nodes as gateways: unmodified MQTT clients talk across hosts with no uplink, and devices with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.hosts_multicast.lab import NO_SERVER, Lab, Program, lab, numbered
from tests.programs import Node, need_program, run_node, wait_until

READY = "house/ready"


class Client:
    """A mosquitto_sub that has its subscription. It does not say so itself, but prints a retained message."""

    def __init__(self, farm: Lab, host: int, node: Node, topic_filter: str) -> None:
        publish(farm, host, node, READY, "ready", retain=True)
        words = ["-t", READY, "-t", topic_filter, "-F", "%t %r %p", "-q", "1"]
        self._program = mosquitto(farm, "mosquitto_sub", host, node, *words)
        self._program.wait_for(lambda: f"{READY} 1 ready" in self._program.lines, "its subscription")

    @property
    def messages(self) -> list[str]:
        return [line for line in self._program.lines if not line.startswith(READY)]

    def of(self, topic: str) -> list[str]:
        return [line.removeprefix(f"{topic} ") for line in self.messages if line.startswith(f"{topic} ")]

    def wait_for(self, topic: str, *messages: str) -> None:
        """Exactly these of the topic, in this order, each as `RETAIN PAYLOAD`."""
        self._program.wait_for(lambda: len(self.of(topic)) >= len(messages), f"{len(messages)} of {topic}")
        assert self.of(topic) == list(messages)


def mosquitto(farm: Lab, program: str, host: int, node: Node, *arguments: str) -> Program:
    return farm.run(host, need_program(program), "-p", str(node.port()), "-h", "127.0.0.1", *arguments)


def publish(farm: Lab, host: int, node: Node, topic: str, *payloads: str, retain: bool = False) -> None:
    words = ["-t", topic, "-q", "1", "-l", *(["-r"] if retain else [])]
    publisher = mosquitto(farm, "mosquitto_pub", host, node, *words)
    publisher.say(*payloads)
    publisher.end_input()
    assert publisher.wait() == 0, publisher.errors


@contextmanager
def gateways(farm: Lab, *hosts: int, words: tuple[str, ...] = ()) -> Iterator[list[Node]]:
    with ExitStack() as running:
        nodes = []
        for host in hosts:
            directory = farm.directory / f"node{host}"
            directory.mkdir()
            arguments = ("--multicast", "farm/#", "--data", "data", *words)
            nodes.append(
                running.enter_context(run_node(directory, *arguments, wrapper=farm.hosts[host].wrapper))
            )
        yield nodes


@pytest.mark.parametrize(
    ("ip", "naming"), [(6, "computed"), pytest.param(4, "mdns", marks=pytest.mark.soak), (6, "mdns")]
)
def test_clients_of_two_nodes_and_a_device_hear_each_other_once(tmp_path: Path, ip: int, naming: str) -> None:
    words = ("--multicast-naming", naming)
    with lab(tmp_path, 3, ip=ip) as farm, gateways(farm, 0, 1, words=words) as (north, south):
        clients = [Client(farm, 0, north, "#"), Client(farm, 1, south, "#")]
        [device] = farm.devices(2, url=f"{NO_SERVER}?naming={naming}")
        device.ask("subscribe", filters=["farm/#"], qos=1)
        for word in ("first", "second"):  # A message that came twice would show before the second ones.
            publish(farm, 0, north, "house/private", word)
            publish(farm, 0, north, "farm/north", *numbered(word, 20))
            publish(farm, 1, south, "farm/south", *numbered(word, 20))
            device.ask("publish", topic="farm/device", payloads=numbered(word, 20), qos=1)
        expected = numbered("first", 20) + numbered("second", 20)
        for topic in ("farm/north", "farm/south", "farm/device"):
            for client in clients:
                client.wait_for(topic, *(f"0 {payload}" for payload in expected))
            device.wait_for_payloads(expected, topic)
        assert clients[0].of("house/private") == ["0 first", "0 second"]
        assert len(clients[1].messages) == len(device.messages) == 3 * len(expected)


def test_last_values_pass_both_ways_and_a_killed_node_catches_up(tmp_path: Path) -> None:
    with lab(tmp_path, 3) as farm, gateways(farm, 0, 1) as (north, south):
        publish(farm, 0, north, "farm/gate", "open", retain=True)
        farm.publish(2, NO_SERVER, "farm/pump", "on", "-r", "-q", "1")
        late_device = farm.subscribe(2, NO_SERVER, "farm/#", "-C", "2", "-F", "%t %r %p")
        assert late_device.wait() == 0
        assert sorted(late_device.lines) == ["farm/gate 1 open", "farm/pump 1 on"]
        for host, node in enumerate((north, south)):
            late_client = Client(farm, host, node, "farm/#")
            late_client.wait_for("farm/gate", "1 open")
            late_client.wait_for("farm/pump", "1 on")

        south.kill9()
        publish(farm, 0, north, "farm/gate", "closed", retain=True)
        publish(farm, 0, north, "farm/lamp", "lit", retain=True)
        south.start()
        assert "Traceback" not in south.log
        wait_until(lambda: retained(farm, 1, south) == EXPECTED_RETAINED, "the last values after a restart")
        clients = [Client(farm, 0, north, "farm/news"), Client(farm, 1, south, "farm/news")]
        publish(farm, 0, north, "farm/news", *numbered("north", 20))
        publish(farm, 1, south, "farm/news", *numbered("south", 20))
        for client in clients:
            client.wait_for(
                "farm/news", *(f"0 {each}" for each in numbered("north", 20) + numbered("south", 20))
            )
        assert retained(farm, 0, north) == EXPECTED_RETAINED


EXPECTED_RETAINED = ["farm/gate 1 closed", "farm/lamp 1 lit", "farm/pump 1 on"]


def retained(farm: Lab, host: int, node: Node) -> list[str]:
    """What the broker has, in the order of topics."""
    words = ["-t", "farm/#", "-C", "3", "-W", "1", "-F", "%t %r %p"]
    client = mosquitto(farm, "mosquitto_sub", host, node, *words)
    client.wait()
    return sorted(line for line in client.lines if line)
