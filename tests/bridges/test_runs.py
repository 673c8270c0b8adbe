"""QoS 1 through a bridge in runs: names, ledgers, and what is sent again after a loss."""

from __future__ import annotations

import pytest

from hedgerow.bridges.sealed_ids import read_sealed
from hedgerow.message import Message, MessageId
from hedgerow.mqtt.packets import Connack, Packet, Pingresp, Puback, Publish
from tests.bridges.harness import Network, Node, balance

FAR = (("hedgerow-node", "far"),)


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def north(network: Network) -> Node:
    return network.add("north")


def run(count: int, size: int = 0) -> list[Packet]:
    return [Publish("a/t", (b"%d" % number).ljust(size), 1, packet_id=number + 1) for number in range(count)]


def numbers(packets: list[Packet]) -> list[int]:
    return [int(each.payload) for each in packets if isinstance(each, Publish) and each.topic == "b/t"]


@pytest.mark.parametrize("size", [10, 300])
def test_a_run_from_client_to_client(network: Network, north: Node, size: int) -> None:
    south = network.add("south")
    bridge = north.bridge("# both 1 a/ b/")
    client, reader = north.connect("client"), south.connect("reader")
    reader.subscribe("b/t", 1)
    for _ in range(2):
        client.send(*run(50, size))
        assert len([each for each in client.take() if isinstance(each, Puback)]) == 50
        assert numbers(reader.take()) == list(range(50))
    assert (bridge.ledger.published, bridge.ledger.relayed) == (100, 100)
    assert balance(bridge.ledger, bridge.session.waiting_count) == 0


@pytest.mark.parametrize("is_foreign", [False, True])
def test_a_run_that_was_not_acknowledged_is_sent_again(
    network: Network, north: Node, is_foreign: bool
) -> None:
    """A foreign broker too, at which what was brought once is not brought by others."""
    scripts = network.script("far")
    north.bridge("# out 1 a/ b/", address="far", restart_timeout="1", notifications=False)
    properties = {} if is_foreign else {"user_property": FAR}
    scripts[0].accept(Connack(properties=properties))  # type: ignore[arg-type]
    network.advance(0.6)  # Nobody else is there.
    scripts[0].send(Pingresp())
    scripts[0].take()
    north.connect("client").send(*run(10))
    sent = scripts[0].take()
    assert numbers(sent) == list(range(10))
    packet_ids = [each.packet_id for each in sent if isinstance(each, Publish) and each.topic == "b/t"]
    scripts[0].send(*[Puback(each) for each in packet_ids[:4]])
    network.lose("north", "far")
    network.advance(1.1)
    again = scripts[1].accept(Connack(session_present=True, properties=properties))  # type: ignore[arg-type]
    network.advance(0.6)
    again += scripts[1].take()
    assert numbers(again) == list(range(4, 10))


@pytest.mark.parametrize("qos", [0, 1])
def test_at_a_foreign_broker_a_run_is_proved_as_its_messages_are(
    network: Network, north: Node, qos: int
) -> None:
    """By which way they leave, as they come or behind others, is nothing that a node there could know of."""
    scripts = network.script("far")
    bridge = north.bridge("# out 1 a/ b/", address="far", notifications=False)
    scripts[0].accept()
    network.advance(0.6)  # Nobody else is there.
    scripts[0].take()
    client, far = north.connect("client"), bridge.connection
    assert far is not None
    assert far.foreign is not None
    sizes = [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 300, 1, 1]
    packets = [
        Publish("a/t", b"%d" % number * size, qos, packet_id=qos * (number + 1))
        for number, size in enumerate(sizes)
    ]
    client.send(*packets)  # The digits of their ids become more on the way.
    if qos:
        far.set_congested(True, north.now)
        client.send(*packets)
        far.set_congested(False, north.now)
        north.settle()
    sent = [each for each in scripts[0].take() if isinstance(each, Publish) and each.topic == "b/t"]
    assert len(sent) == len(packets) * (1 + qos)
    for each in sent:
        message = Message(each.topic, each.payload, each.qos, False, each.properties)
        assert read_sealed(message, "a/t", bridge.key, north.now, far.foreign)
        assert message.id is not None
    assert far.foreign.forged_ids == 0


def test_who_comes_to_a_foreign_broker_later_is_told_of_a_run(network: Network, north: Node) -> None:
    scripts = network.script("far")
    bridge = north.bridge("# out 1 a/ b/", address="far", notifications=False)
    scripts[0].accept()
    network.advance(0.6)  # Nobody else is there.
    north.connect("client").send(*run(10))
    sent = [each for each in scripts[0].take() if isinstance(each, Publish) and each.topic == "b/t"]
    ids = [MessageId.parse(each.properties["user_property"][0][1]) for each in sent]
    assert len(ids) == 10
    assert all(bridge.admission.was_admitted(each) for each in ids)
