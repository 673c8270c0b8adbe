"""Verbatim copies at foreign brokers: a client there takes a message with its proof, and publishes it again.

Nobody can tell a copy from the message. So whatever becomes of the copy, what was acknowledged comes, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties

from hedgerow.bridges.attendance import CARRIER_TOPIC
from hedgerow.bridges.stamp_codec import Presence, encode_presence
from hedgerow.broker.batch import Batch
from hedgerow.broker.ids import alias_of_topic
from hedgerow.broker.observer import Observer
from hedgerow.message import MAX_ORIGIN, Properties
from hedgerow.mqtt.packets import Connack, Disconnect, Pingresp, Puback, Publish, Subscribe, Subscription
from tests.bridges.harness import Network, Node, Script, sealed
from tests.conftest import StartMosquitto, StartNode
from tests.interop.conftest import Reach
from tests.interop.paho_peer import PATIENCE_S, Paho, paho
from tests.programs import wait_until


class Brokers(Network):
    """Foreign ones, each with the bridges of nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.foreign: list[Script] = []

    def rest(self, seconds: float) -> None:
        """They answer probes meanwhile."""
        for _ in range(round(seconds / 0.2)):
            self.advance(0.2)
            for each in self.foreign:
                each.send(Pingresp())


@pytest.fixture
def network() -> Brokers:
    return Brokers()


@pytest.fixture
def north(network: Brokers) -> Node:
    return network.add("north")


def join(network: Brokers, node: Node, host: str, *lines: str) -> Script:
    """A foreign broker to which this node has a bridge."""
    scripts = network.script(host)
    node.bridge(*lines, name=host, address=host, notifications=False)
    scripts[0].accept(Connack())
    network.foreign += scripts
    network.rest(1)
    scripts[0].take()
    return scripts[0]


def take(far: Script) -> list[Publish]:
    """The messages that came to a foreign broker."""
    packets = [each for each in far.take() if isinstance(each, Publish)]
    return [each for each in packets if not each.topic.startswith("hedgerow/")]


def send_elsewhere(*lines: str, topic: str = "t", count: int = 1, interval: int = 0) -> list[Publish]:
    """What another node of the fabric sends to foreign brokers, one for each line: messages at QoS 1."""
    network = Brokers()
    node = network.add("other")
    brokers = [join(network, node, f"far{number}", line) for number, line in enumerate(lines)]
    client = node.connect("client")
    packets = [Publish(topic, b"%d" % number, 1, packet_id=number + 1) for number in range(count)]
    if interval:
        packets = [replace(each, properties={"message_expiry_interval": interval}) for each in packets]
    client.send(*packets)
    return [each for broker in brokers for each in take(broker)]


def copy(packet: Publish) -> Publish:
    """As a client publishes it, so that it is soon lost."""
    return replace(packet, qos=0, packet_id=0, properties=Properties(**packet.properties))


def bring(broker: Script, packet: Publish, packet_id: int = 7) -> None:
    """As it was sent."""
    broker.send(replace(packet, qos=1, packet_id=packet_id, properties=Properties(**packet.properties)))


def id_of(packet: Publish) -> str:
    return packet.properties["user_property"][0][1]


# For those who are away


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("interval", [0, 600])
def test_a_copy_by_a_line_of_less_qos_is_no_less(
    network: Brokers, north: Node, count: int, interval: int
) -> None:
    """The node that sent it has a line of QoS 0 too, and its line of QoS 1 leads to another broker."""
    genuine = send_elsewhere("t out 1", count=count, interval=interval)
    lesser = send_elsewhere("t out 0", count=count, interval=interval)
    first, second = join(network, north, "a", "t in 1"), join(network, north, "b", "t in 0")
    north.connect("away", kept=True).send(Subscribe(1, [Subscription("t", 1)]), Disconnect())
    second.send(*map(copy, lesser))
    for number, each in enumerate(genuine):
        bring(first, each, number + 1)
    assert len([each for each in first.take() if isinstance(each, Puback)]) == count
    came = [each for each in north.connect("away", kept=True).take() if isinstance(each, Publish)]
    assert [(each.payload, each.qos) for each in came] == [(b"%d" % number, 1) for number in range(count)]
    assert all(each.properties.get("message_expiry_interval", 0) == interval for each in came)


class Journal(Observer):
    """It has no room at first."""

    def __init__(self) -> None:
        self.is_full = True
        self.observed: list[bytes] = []

    def has_room(self, size: int) -> bool:
        return not self.is_full

    def observe(self, batch: Batch, now: float) -> bool:
        self.observed += batch.payloads if not self.is_full else ()
        return False


def test_a_copy_that_cannot_be_recorded_does_not_count(network: Brokers, north: Node) -> None:
    (genuine,) = send_elsewhere("t out 1")
    first, second = join(network, north, "a", "t in 1"), join(network, north, "b", "t in 1")
    journal = Journal()
    north.broker.observe(journal)
    north.listen("t")
    second.send(copy(genuine))
    journal.is_full = False
    bring(first, genuine)
    assert journal.observed == [b"0"]
    assert north.take_heard() == [b"0"]


# Under another topic


def test_a_copy_under_another_topic_here_is_another_message(network: Brokers, north: Node) -> None:
    (genuine,) = send_elsewhere("t out 1")
    first, second = join(network, north, "a", "t in 1"), join(network, north, "b", "t in 1 b/")
    north.listen("#")
    for _ in range(2):
        second.send(copy(genuine))
        bring(first, genuine)
    assert [message.topic for message in north.heard] == ["b/t", "t"]
    copied, came = north.heard
    assert copied.id != came.id
    assert str(came.id) == id_of(genuine)


def test_a_copy_under_the_topic_that_it_has_at_another_broker_is_another_message(
    network: Brokers, north: Node
) -> None:
    """The node that sent it calls it otherwise at each of the two."""
    at_first, at_second = send_elsewhere('t out 1 "" x/', "t out 1")
    first, second = join(network, north, "a", 't in 1 "" x/'), join(network, north, "b", "# in 1")
    north.listen("#")
    second.send(copy(at_first))
    bring(second, at_second, 8)
    bring(first, at_first)
    assert [message.topic for message in north.heard] == ["x/t", "t"]


@pytest.mark.parametrize("change", ["another", "none"])
def test_the_topic_is_sealed(network: Brokers, north: Node, change: str) -> None:
    (genuine,) = send_elsewhere('t out 1 "" x/')
    far = join(network, north, "a", "# in 1")
    north.listen("#")
    pairs = genuine.properties["user_property"]
    assert ("hedgerow-topic", "t") in pairs
    rest = tuple(each for each in pairs if each[0] != "hedgerow-topic")
    changed = (("hedgerow-topic", "x/t"), *rest) if change == "another" else rest
    genuine.properties["user_property"] = (rest[0], *changed[:1], *rest[1:])
    bring(far, genuine)
    network.rest(3)
    (heard,) = north.heard
    assert heard.id is not None
    assert not heard.id.origin.endswith("other")
    assert all(
        not name.startswith("hedgerow") or name == "hedgerow-via"
        for name, _ in heard.properties.get("user_property", ())
    )


@pytest.mark.parametrize("line", ['t in 1 "" x/', "x/t in 1", "t in 1 y/ x/"])
@pytest.mark.parametrize("topic", ["t", "x/t"])
def test_what_comes_by_two_brokers_comes_once(network: Brokers, topic: str, line: str) -> None:
    """And has one id at every node that has one topic for it."""
    sending = 't out 1 "" x/' if topic == "t" else "x/t out 1"
    at_first, at_second = send_elsewhere(sending, sending, topic=topic)
    heard = []
    for name in ("north", "south"):
        node = network.add(name)
        first, second = join(network, node, "a", line), join(network, node, "b", line)
        node.listen("#")
        bring(first, at_first)
        bring(second, at_second)
        bring(second, at_first, 8)
        (message,) = node.heard
        heard.append(message)
    assert heard[0].id == heard[1].id
    (taken,) = {message.topic for message in heard}
    assert (str(heard[0].id) == id_of(at_first)) is (taken == topic)


def test_a_message_has_its_id_where_it_has_its_topic_again(network: Brokers, north: Node) -> None:
    """A node between two brokers that keeps the topics of the first apart from its own."""
    (genuine,) = send_elsewhere("t out 1")
    between = network.add("between")
    first, second = join(network, between, "a", "# in 1 a/"), join(network, between, "b", "# out 1 a/")
    bring(first, genuine)
    (passed_on,) = take(second)
    far = join(network, north, "c", "# in 1")
    north.listen("#")
    bring(far, passed_on)
    bring(far, genuine, 8)
    assert [(message.topic, str(message.id)) for message in north.heard] == [("t", id_of(genuine))]


TOPICS = st.lists(st.sampled_from(["", "a", "b", "~", "@" + "0" * 32, "x" * 90]), min_size=1, max_size=4).map(
    "/".join
)
ORIGINS = st.sampled_from(["n", "n" * 200, "!to:l@m~n", "!as:#a/~n"])


@given(TOPICS, TOPICS, TOPICS, ORIGINS)
def test_a_message_has_another_id_under_each_topic(was: str, one: str, other: str, origin: str) -> None:
    if was in (one, other):
        return
    aliases = alias_of_topic(was, one, origin), alias_of_topic(was, other, origin)
    assert None in aliases or (aliases[0] == aliases[1]) is (one == other)
    assert all(alias is None or (alias != origin and len(alias) <= MAX_ORIGIN) for alias in aliases)


@given(TOPICS, TOPICS)
def test_a_topic_that_comes_back_brings_the_origin_back(was: str, now: str) -> None:
    alias = alias_of_topic(was, now, "n")
    assert alias is not None
    assert was == now or alias_of_topic(now, was, alias) == "n"


# For the clients of the broker that has the copy


@pytest.mark.parametrize("how", ["QoS", "expiry", "both lines", "whole"])
@pytest.mark.parametrize("is_alone", [True, False])
def test_a_copy_does_not_stand_for_the_message_where_it_was_published(
    network: Brokers, north: Node, how: str, is_alone: bool
) -> None:
    """Its clients that are away do not get it: so the node brings it there, as if no copy had been."""
    (genuine,) = send_elsewhere("t out 1", interval=600)
    lines = "t both 0" if how == "both lines" else "t both 1"
    far = join(network, north, "b", lines)
    if not is_alone:  # Of two the first decides what is brought.
        place = CARRIER_TOPIC + "z-later"
        far.send(Publish(place, sealed(place, encode_presence(Presence(99, 9, True, ("#",))), network.now)))
        network.rest(0.4)
        far.take()
    copied = copy(genuine) if how in ("QoS", "both lines") else replace(genuine, packet_id=5)
    if how == "expiry":
        copied.properties["message_expiry_interval"] = 1
    far.send(copied)
    network.rest(0.2)
    brought: Sequence[Publish] = take(far)
    if how in ("whole", "both lines"):
        assert not brought
        return
    assert [(each.payload, each.qos) for each in brought] == [(b"0", 1)]
    assert brought[0].properties["message_expiry_interval"] in (599, 600)
    assert id_of(brought[0]) == id_of(genuine)


# Two real Mosquittos


def write_section(folder: Path, name: str, port: int, line: str) -> str:
    """As `--bridge` and the topic for commands take it."""
    text = f"connection {name}\naddress 127.0.0.1:{port}\ntopic {line}\nnotifications false\n"
    (folder / f"{name}.conf").write_text(text)
    return text


def copy_to(broker: Paho, found: MQTTMessage) -> None:
    properties: Any = PahoProperties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    told: Any = found.properties
    for pair in told.UserProperty:
        properties.UserProperty = pair
    broker.publish(found.topic, bytes(found.payload), 0, properties=properties)


def test_a_client_of_two_mosquittos_weakens_nothing(
    hedgerow_node: StartNode, mosquitto: StartMosquitto, tmp_path: Path
) -> None:
    """The message waits at one for the bridge of a node. Its copy comes by the other, at QoS 0."""
    first, second = mosquitto(), mosquitto()
    at_first = write_section(tmp_path, "first", first, "t in 1")
    write_section(tmp_path, "second", second, "t in 0")
    write_section(tmp_path, "there", first, "t out 1")
    known = hedgerow_node("--id", "here", "--bridge", str(tmp_path / "first.conf"))
    there = hedgerow_node("--id", "there", "--bridge", str(tmp_path / "there.conf"))
    with paho(Reach("mqtt", known.port(), tmp_path), client_id="watcher") as watcher:
        watcher.subscribe("$SYS/broker/bridge/first/state", 1)
        wait_until(lambda: any(b'"up"' in each.payload for each in watcher.inbox), "the bridge", PATIENCE_S)
    known.stop()
    here = hedgerow_node("--id", "here", "--bridge", str(tmp_path / "second.conf"))
    reach = Reach("mqtt", here.port(), tmp_path)
    with paho(reach, client_id="away", clean=False, expiry_s=600) as away:
        away.subscribe("t", 1)
    with (
        paho(reach, client_id="commander") as commander,
        paho(Reach("mqtt", first, tmp_path), client_id="mallory") as mallory,
        paho(Reach("mqtt", second, tmp_path), client_id="mallory") as accomplice,
        paho(Reach("mqtt", there.port(), tmp_path), client_id="writer") as writer,
    ):
        commander.subscribe("t", 1)
        commander.subscribe("$SYS/broker/bridge/+/state", 1)

        def is_up(name: str) -> bool:
            said = [each.payload for each in commander.inbox if each.topic.endswith(f"/{name}/state")]
            return bool(said) and b'"up"' in said[-1]

        wait_until(lambda: is_up("second"), "the bridge to the second", PATIENCE_S)
        mallory.subscribe("t", 1)
        writer.publish_and_wait("t", "genuine")
        (found,) = mallory.expect(1)
        copy_to(accomplice, found)
        wait_until(lambda: any(each.topic == "t" for each in commander.inbox), "the copy", PATIENCE_S)
        commander.publish("$SYS/broker/bridge/new", at_first, 1)
        wait_until(lambda: is_up("first"), "the bridge to the first", PATIENCE_S)
    with paho(reach, client_id="away", clean=False, expiry_s=600) as away:
        away.subscribe("end", 1)
        away.publish("end", "", 1)
        came = away.expect(2)
        assert [(each.payload, each.qos) for each in came[:1]] == [(b"genuine", 1)]
