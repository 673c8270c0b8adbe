"""`$SYS`: names and units that people's dashboards know."""

from __future__ import annotations

from hedgerow.bridges.fabric_key import FabricKey
from hedgerow.bridges.roles import FarBridgeRole
from hedgerow.message import Properties
from hedgerow.mqtt.packets import Publish
from tests.broker.harness import World


def values(world: World) -> dict[str, str]:
    return {
        message.topic.removeprefix("$SYS/broker/"): message.payload.decode()
        for message in world.broker.retained
    }


def test_sys_topics_are_retained_and_sent_live_when_they_change() -> None:
    world = World(sys_interval_s=10)
    world.settle()
    client = world.connect("a")
    client.subscribe("$SYS/broker/uptime")
    assert client.take() == [Publish("$SYS/broker/uptime", b"0 seconds", retain=True)]
    world.advance(10)
    assert client.take() == [Publish("$SYS/broker/uptime", b"10 seconds")]


def test_a_wildcard_does_not_see_them() -> None:
    world = World(sys_interval_s=10)
    client = world.connect("a")
    client.subscribe("#")
    world.advance(30)
    assert client.take() == []


def test_what_does_not_change_is_not_sent_again() -> None:
    world = World(sys_interval_s=10)
    client = world.connect("a")
    client.subscribe("$SYS/broker/version")
    client.take()
    world.advance(100)
    assert client.take() == []


def test_counters() -> None:
    world = World(sys_interval_s=10)
    client = world.connect("a")
    client.subscribe("t", 1)
    client.subscribe("$share/g/u", 1)
    world.connect("away", kept=True).lose()
    client.publish("t", b"x", 1)
    client.publish("nobody", b"x", retain=True)
    world.advance(10)
    seen = values(world)
    assert seen["version"].startswith("hedgerow version ")
    assert seen["clients/total"] == "2"
    assert seen["clients/connected"] == "1"
    assert seen["clients/disconnected"] == "1"
    assert seen["publish/messages/received"] == "2"
    assert seen["publish/messages/sent"] == "1"
    assert seen["subscriptions/count"] == "2"
    assert seen["shared_subscriptions/count"] == "1"
    assert int(seen["bytes/received"]) > 0
    assert float(seen["load/publish/received/1min"]) > 0


def test_without_an_interval_there_are_none() -> None:
    world = World(sys_interval_s=0)
    world.advance(1_000)
    assert values(world) == {}
    assert world.broker.deadline == float("inf")


def test_clients_that_are_not_connected_yet_are_no_clients() -> None:
    world = World(sys_interval_s=10)
    for _ in range(3):
        world.open()
    world.connect("a")
    world.advance(20)
    assert values(world)["clients/maximum"] == "1"


def test_links_to_other_brokers_are_no_clients() -> None:
    world = World(sys_interval_s=10)
    broker = world.broker
    broker.register(FarBridgeRole(broker, lambda: FabricKey(b"key"), lambda: 1))
    world.connect("a")
    node: Properties = {"user_property": (("hedgerow-node", "far"), ("hedgerow-bridge", "to-here"))}
    world.connect("bridge of far", properties=node, kept=True)
    assert (broker.client_count, broker.link_count) == (1, 1)
    world.advance(10)
    seen = values(world)
    assert (seen["clients/total"], seen["clients/connected"], seen["clients/maximum"]) == ("1", "1", "1")
    assert seen["clients/disconnected"] == "0"
    # Whatever a session was before: the same name may come back as a client, and take over.
    taken = world.connect("bridge of far", kept=True)
    assert (broker.client_count, broker.link_count) == (2, 0)
    taken.lose()
    assert (broker.client_count, broker.link_count) == (1, 0)


def test_clients_that_give_ids_are_clients() -> None:
    world = World(sys_interval_s=10)
    broker = world.broker
    named: Properties = {"user_property": (("hedgerow-node", "press-4"),)}
    press = world.connect("press", properties=named, kept=True)
    assert (broker.client_count, broker.link_count) == (1, 0)
    world.advance(10)
    seen = values(world)
    assert (seen["clients/total"], seen["clients/connected"], seen["clients/maximum"]) == ("1", "1", "1")
    press.lose()
    world.advance(10)
    assert (broker.client_count, broker.link_count) == (0, 0)
    assert values(world)["clients/disconnected"] == "1"


def test_who_may_not_give_ids_is_a_client_whatever_it_says() -> None:
    world = World(sys_interval_s=10)
    world.connect("a", properties={"user_property": (("hedgerow-bridge", "north"),)})
    assert (world.broker.client_count, world.broker.link_count) == (1, 0)
