"""Shared subscriptions (§4.8.2)."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest

from hedgerow.broker.access import Access, Acl
from hedgerow.mqtt.packets import MQTT_3_1_1, Puback, Publish, Pubrec, Unsubscribe
from hedgerow.mqtt.reasons import Reason
from tests.broker.harness import Client, World


def group(world: World, size: int, topic_filter: str = "$share/g/t", **fields: object) -> list[Client]:
    members = [world.connect(f"member-{number}", **fields) for number in range(size)]  # type: ignore[arg-type]
    for member in members:
        member.subscribe(topic_filter, 2)
    return members


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_goes_to_one_member_in_turn(qos: int) -> None:
    world = World()
    members = group(world, 3)
    publisher = world.connect("publisher", MQTT_3_1_1)
    for number in range(30):
        publisher.publish("t", b"%d" % number, qos, number + 1) if qos else publisher.publish(
            "t", b"%d" % number
        )
    shares = [member.take_payloads() for member in members]
    assert [len(share) for share in shares] == [10, 10, 10]
    assert Counter(chain(*shares)) == Counter(b"%d" % number for number in range(30))


def test_groups_and_plain_subscriptions_each_get_a_copy() -> None:
    world = World()
    [first] = group(world, 1, "$share/one/t")
    second, plain = world.connect("second"), world.connect("plain")
    second.subscribe("$share/two/+")
    plain.subscribe("t")
    world.connect("publisher").publish("t", b"x")
    assert first.take_payloads() == second.take_payloads() == plain.take_payloads() == [b"x"]


def test_a_client_may_have_both() -> None:
    world = World()
    [client] = group(world, 1)
    client.subscribe("t", 2)
    client.publish("t", b"x", 2)
    assert [type(packet) for packet in client.take()] == [Publish, Publish, Pubrec]


def test_groups_of_one_name_and_other_filters_are_apart() -> None:
    world = World()
    first, second = world.connect("first"), world.connect("second")
    first.subscribe("$share/g/t/+")
    second.subscribe("$share/g/t/x")
    world.connect("publisher").publish("t/x", b"x")
    assert first.take_payloads() == second.take_payloads() == [b"x"]


def test_a_member_that_leaves_gets_nothing_more() -> None:
    world = World()
    first, second, third = group(world, 3)
    first.send(Unsubscribe(1, ["$share/g/t"]))
    first.take()
    second.lose()
    publisher = world.connect("publisher")
    for _ in range(4):
        publisher.publish("t", b"x")
    assert first.take() == []
    assert third.take_payloads() == [b"x"] * 4


def test_a_member_that_is_away_is_passed_over_while_another_is_there() -> None:
    world = World()
    first, second = group(world, 2, kept=True)
    first.lose()
    publisher = world.connect("publisher")
    for _ in range(3):
        publisher.publish("t", b"x", 1)
    assert second.take_payloads() == [b"x"] * 3


def test_a_member_that_does_not_read_is_passed_over_while_another_does() -> None:
    world = World()
    first, second = group(world, 2)
    first.set_congested(True)
    publisher = world.connect("publisher")
    for _ in range(3):
        publisher.publish("t", b"x")
    assert second.take_payloads() == [b"x"] * 3


def test_when_all_are_away_one_gets_it_when_it_comes_back() -> None:
    """MQTT-4.8.2-4."""
    world = World()
    for member in group(world, 2, kept=True):
        member.lose()
    world.connect("publisher").publish("t", b"x", 2)
    seen = [world.connect(f"member-{number}", kept=True).take_payloads() for number in range(2)]
    assert sorted(seen) == [[], [b"x"]]


def test_a_refused_message_goes_to_nobody_else() -> None:
    """MQTT-4.8.2-6."""
    world = World()
    first, second = group(world, 2)
    world.connect("publisher").publish("t", b"x", 2)
    chosen, other = (first, second) if first.has_bytes else (second, first)
    chosen.take()
    chosen.send(Pubrec(1, Reason.IMPLEMENTATION_SPECIFIC_ERROR))
    assert chosen.take() == other.take() == []


def test_only_who_may_read_takes_part() -> None:
    access = Access(Acl.parse("pattern read %c\npattern write #", "acl"))
    world = World(access=access)
    allowed, denied = world.connect("t"), world.connect("denied")
    allowed.subscribe("$share/g/+")
    denied.subscribe("$share/g/+")
    for _ in range(3):
        denied.publish("t", b"x")
    assert allowed.take_payloads() == [b"x"] * 3
    assert denied.take() == []


def test_nobody_to_take_it_is_no_matching_subscriber() -> None:
    world = World()
    [member] = group(world, 1)
    member.send(Unsubscribe(1, ["$share/g/t"]))
    publisher = world.connect("publisher")
    publisher.publish("t", b"x", 1)
    assert publisher.take() == [Puback(1, Reason.NO_MATCHING_SUBSCRIBERS)]


def test_subscription_identifiers_of_a_shared_subscription_are_sent() -> None:
    world = World()
    client = world.connect("a")
    client.subscribe("$share/g/t", 0, identifier=7)
    client.publish("t", b"x")
    assert client.take() == [Publish("t", b"x", properties={"subscription_identifier": (7,)})]


def test_a_job_whose_worker_is_gone_for_good_goes_to_another_at_qos_1_only() -> None:
    """§4.8.2 and MQTT-4.8.2-5."""
    world = World()
    publisher, first, second = (world.connect(name) for name in ("publisher", "first", "second"))
    first.subscribe("$share/g/jobs", 2)
    publisher.publish("jobs", b"once", 1)
    publisher.publish("jobs", b"exactly once", 2)
    second.subscribe("$share/g/jobs", 2)
    first.lose()
    assert second.take_payloads() == [b"once"]


def test_a_worker_whose_window_is_full_is_passed_over() -> None:
    world = World()
    publisher = world.connect("publisher")
    hung = world.connect("hung", properties={"receive_maximum": 1})
    idle = world.connect("idle")
    for worker in (hung, idle):
        worker.subscribe("$share/g/jobs", 1)
    for number in range(10):
        publisher.publish("jobs", b"%d" % number, 1)
    assert len(hung.take_payloads()) == 1
    assert len(idle.take_payloads()) == 9
