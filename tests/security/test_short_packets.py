"""Packets without a body, or with too little of one, at every position: no bytes raise out of a machine.

All first bytes, remaining lengths 0 to 4, each followed by every first byte: from clients of 3.1.1 and of
MQTT 5, from a publisher that gives ids, and from the far broker of a bridge.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from hedgerow.broker.connection import Connection, State
from hedgerow.errors import ProtocolError
from hedgerow.message import Properties
from hedgerow.mqtt import codec
from hedgerow.mqtt.ids import NODE_PROPERTY
from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5, Connack, Connect, Pingreq, Publish, Will
from tests.bridges.harness import Network
from tests.broker.harness import World

FIRST_BYTES = range(256)
BODIES = [(b"\0\1" * 2)[:length] for length in range(5)]  # a topic of one byte, an identifier, or half of it
OF_NODE: Properties = {"user_property": ((NODE_PROPERTY, "other"),)}


def test_a_publish_without_a_body_is_refused_wherever_it_stands() -> None:
    world = World()
    listener = world.connect("listener")
    listener.subscribe("will", 0)
    broken = world.connect("broken", will=Will("will", b"gone"))
    broken.send_bytes(codec.encode(Pingreq(), MQTT_5) * 50 + b"\x32\x00\x32")
    assert broken.closed
    assert listener.take_payloads() == [b"gone"]


@pytest.mark.parametrize("cut", range(1, 4))
def test_a_short_packet_in_any_split_ends_the_same(cut: int) -> None:
    client = World().connect("c")
    data = b"\x32\x00\x32"
    client.send_bytes(data[:cut])
    client.send_bytes(data[cut:])
    assert client.closed
    assert not [each for each in client.take() if isinstance(each, Publish)]


def send_all_pairs(open_connection: Callable[[], Connection]) -> int:
    """Every short packet before every other; how many there were."""
    count = 0
    connection = open_connection()
    for first in FIRST_BYTES:
        for body in BODIES:
            short = bytes((first, len(body))) + body
            for following in FIRST_BYTES:
                count += 1
                if connection.state is not State.CONNECTED:
                    connection = open_connection()
                # As `receive_data` does, but a mistake does not cost a new connection each time.
                with suppress(ProtocolError):
                    connection.broker.begin_turn()
                    connection._receive_packets(short + bytes((following,)))
            connection.out.clear()
            connection.broker.dirty.clear()
            connection.broker.events.clear()
    return count


@pytest.mark.parametrize(("version", "properties"), [(MQTT_3_1_1, {}), (MQTT_5, {}), (MQTT_5, OF_NODE)])
def test_no_short_packet_of_a_client_raises(version: int, properties: Properties) -> None:
    world = World()
    world.connect("listener").subscribe("#", 1)

    def connect() -> Connection:
        client = world.open()
        client.send(Connect("c", version, properties=properties))
        return client.connection

    assert send_all_pairs(connect) == 256 * 5 * 256


@pytest.mark.parametrize(("version", "name"), [(MQTT_3_1_1, "mqttv311"), (MQTT_5, "mqttv50")])
@pytest.mark.parametrize("properties", [{}, OF_NODE])
def test_no_short_packet_of_a_far_broker_raises(version: int, name: str, properties: Properties) -> None:
    if properties and version != MQTT_5:
        pytest.skip("3.1.1 has no properties")
    network = Network()
    network.script("south")
    bridge = network.add("north").bridge("# both 1", bridge_protocol_version=name)

    def connect() -> Connection:
        connection = bridge.open(bridge.section.addresses[0], network.now)
        connection.receive_data(codec.encode(Connack(False, 0, properties), version), network.now)
        return connection

    assert send_all_pairs(connect) == 256 * 5 * 256
