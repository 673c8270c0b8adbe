"""A mobile and a fixed broker: cold topics are matched there, hot ones here, and each event comes once."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from hedgerow.broker.core import TURN_WORK
from hedgerow.hot.plan import HotPlan
from hedgerow.hot.plan_codec import encode_plan
from hedgerow.message import Message
from hedgerow.mobility.delegation.events import Delegated, DelegationRefused, Recovered, TakenOver
from hedgerow.mobility.events import FixedLinked, FixedNotLinked
from hedgerow.mobility.fixed import OFFER_WORK
from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5
from tests.mobility.domain import Domain, Roamer
from tests.mobility.traffic import Traffic, steady

STAYING = {"moves_clients": False}


@pytest.fixture
def domain() -> Domain:
    domain = Domain()
    domain.add_fixed("f")
    domain.add_mobile("m", "f", settings=STAYING)
    domain.advance(0.5)
    return domain


def hot_and_cold(domain: Domain, at: str = "m") -> Traffic:
    return Traffic(domain, at, steady(hot=50.0, cold=5.0))


def test_the_colder_half_is_delegated_and_everything_comes_once(domain: Domain) -> None:
    roamers = [
        Roamer(domain, "m", "r1", MQTT_3_1_1, "hot", "cold"),
        Roamer(domain, "m", "r2", MQTT_5, "cold"),
    ]
    traffic = hot_and_cold(domain)
    domain.advance(3)
    assert domain["m"].delegated == {"cold"}
    traffic.stop()
    domain.advance(1)
    traffic.check(roamers)
    assert domain["m"].told(Delegated)


def test_a_topic_that_becomes_hot_is_recovered(domain: Domain) -> None:
    roamer = Roamer(domain, "m", "r", MQTT_3_1_1, "a", "b")
    traffic = Traffic(domain, "m", lambda s: {"a": 50.0, "b": 5.0} if s < 3 else {"a": 5.0, "b": 50.0})
    domain.advance(2.9)
    assert domain["m"].delegated == {"b"}
    domain.wait_for(lambda: domain["m"].delegated == {"a"}, 4)
    traffic.stop()
    domain.advance(1)
    traffic.check([roamer])
    assert "b" in {event.topic_filter for event in domain["m"].told(Recovered)}


def test_events_from_outside_come_to_active_and_delegated_subscribers(domain: Domain) -> None:
    roamer = Roamer(domain, "m", "r", MQTT_3_1_1, "hot", "cold")
    inside = hot_and_cold(domain)
    outside = Traffic(domain, "f", steady(hot=10.0, cold=2.0))
    domain.advance(4)
    inside.stop()
    outside.stop()
    domain.advance(1)
    inside.check([roamer])
    outside.check([roamer])


def test_events_from_inside_come_to_subscribers_outside(domain: Domain) -> None:
    roamer = Roamer(domain, "f", "outside", MQTT_5, "hot", "cold")
    Roamer(domain, "m", "inside", MQTT_5, "hot", "cold")
    traffic = hot_and_cold(domain)
    domain.advance(3)
    traffic.stop()
    domain.advance(1)
    traffic.check([roamer])


def test_subscribers_of_two_mobile_brokers(domain: Domain) -> None:
    domain.add_mobile("n", "f", settings=STAYING)
    domain.advance(0.5)
    roamers = [Roamer(domain, at, f"r-{at}", MQTT_3_1_1, "hot", "cold") for at in ("m", "n")]
    loads = [hot_and_cold(domain, "m"), hot_and_cold(domain, "n")]
    domain.advance(4)
    for load in loads:
        load.stop()
    domain.advance(1)
    for load in loads:
        load.check(roamers)


def test_one_subscriber_with_filters_on_both_sides_gets_one_copy(domain: Domain) -> None:
    roamer = Roamer(domain, "m", "r", MQTT_5, "hot", "cold", "+")
    traffic = hot_and_cold(domain)
    domain.advance(3)
    assert domain["m"].delegated == {"cold"}  # "+" matches a hot topic too
    traffic.stop()
    domain.advance(1)
    traffic.check([roamer])


def test_who_asked_not_to_get_its_own_does_not_by_the_fixed_broker_either(domain: Domain) -> None:
    inbox = domain["m"].subscribe("cold", client_id="me", no_local=True)
    other = Roamer(domain, "m", "other", MQTT_5, "cold", "hot")
    traffic = hot_and_cold(domain)
    domain.advance(3)
    assert "cold" in domain["m"].delegated
    inbox.publish("cold", b"mine")
    traffic.stop()
    domain.advance(1)
    assert b"mine" not in inbox.payloads
    assert other.tally[b"mine"] == 1


def test_a_fixed_broker_that_is_gone_loses_nothing_for_who_stayed(domain: Domain) -> None:
    roamers = [Roamer(domain, "m", "r", MQTT_3_1_1, "hot", "cold")]
    traffic = hot_and_cold(domain)
    domain.advance(3)
    domain["f"].kill()
    domain.advance(5)
    assert domain["m"].told(TakenOver)
    assert not domain["m"].delegated
    domain["f"].start(is_empty=True)
    domain.wait_for(lambda: domain["m"].delegated == {"cold"}, 15)
    traffic.stop()
    domain.advance(1)
    traffic.check(roamers)


def test_a_silent_cut_of_the_uplink_loses_nothing_and_doubles_nothing(domain: Domain) -> None:
    roamers = [
        Roamer(domain, "m", "r", MQTT_3_1_1, "hot", "cold"),
        Roamer(domain, "f", "outside", MQTT_5, "hot", "cold"),
    ]
    traffic = hot_and_cold(domain)
    outside = Traffic(domain, "f", steady(hot=3.0, cold=3.0))
    domain.advance(3)
    domain.cut("m", "f")
    domain.advance(9)
    assert not domain["m"].delegated
    domain.mend("m", "f")
    domain.advance(12)
    traffic.stop()
    outside.stop()
    domain.advance(3)
    traffic.check(roamers)
    outside.check(roamers)


def test_a_mobile_broker_that_crashes_gets_back_what_it_delegated(domain: Domain) -> None:
    domain.add_mobile("d", "f", settings=STAYING, durable=True)
    domain.advance(0.5)
    inbox = domain["d"].subscribe("hot", "cold", client_id="kept")
    traffic = hot_and_cold(domain, "d")
    domain.wait_for(lambda: domain["d"].delegated == {"cold"}, 5)
    traffic.stop()
    domain.advance(1)
    inbox.leave()
    domain["d"].crash(after_s=1)
    domain.advance(6)
    domain["f"].publish("cold", b"after")
    domain.advance(1)
    again = domain["d"].subscribe(client_id="kept")
    domain.advance(1)
    assert again.tally[b"after"] == 1


def test_a_mobile_broker_moves_to_another_fixed_broker(domain: Domain) -> None:
    domain.add_fixed("g")
    roamer = Roamer(domain, "m", "r", MQTT_3_1_1, "hot", "cold")
    traffic = hot_and_cold(domain)
    domain.advance(3)
    domain["m"].node.set_fixed(["mqtt://g:1883"], domain.now)
    domain["m"].settle()
    machine = domain["m"].node.machine
    domain.wait_for(lambda: machine.current.fixed_id == "g" and machine.may_send_clients, 10)
    domain.wait_for(lambda: domain["m"].delegated == {"cold"}, 10)
    traffic.stop()
    domain.advance(1)
    traffic.check([roamer])
    assert not domain["f"].node.machine.mobiles
    assert not domain.between("m", "f")


def test_retained_values_outside_come_to_new_subscribers_inside(domain: Domain) -> None:
    domain["f"].publish("state", b"on", retain=True)
    inbox = domain["m"].subscribe("state")
    domain.advance(1)
    assert inbox.payloads == [b"on"]
    assert domain["m"].retained["state"] == b"on"
    later = domain["m"].subscribe("state")
    assert later.payloads == [b"on"]


def test_what_is_retained_is_offered_in_turns(domain: Domain, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mobile broker that asks for all of it keeps no client of the fixed one waiting."""
    host, offered, rounds = domain["f"], Counter[str](), Counter[int]()
    broker, machine = host.broker, host.node.machine
    offer = machine.offer

    def count_offer(mobile_id: str, topic_filter: str, message: Message, now: float) -> None:
        offered[message.topic] += 1
        rounds[broker.round_ends_at] += 1
        offer(mobile_id, topic_filter, message, now)

    monkeypatch.setattr(machine, "offer", count_offer)
    topics = [f"state/{number}" for number in range(3_000)]
    for topic in topics:
        broker.retained.set(Message(topic, b"on", retain=True, published_at=domain.now))
    inbox = domain["m"].subscribe("state/+")
    domain.advance(1)
    assert 0 < max(rounds.values()) <= 2 * TURN_WORK // OFFER_WORK
    assert offered == Counter(topics)
    assert len(inbox.payloads) == len(topics)


def test_a_plan_decides_and_ends(domain: Domain) -> None:
    Roamer(domain, "m", "r", MQTT_3_1_1, "hot", "cold")
    hot_and_cold(domain)
    domain.advance(3)
    assert domain["m"].delegated == {"cold"}
    plan = HotPlan(frozenset({"cold"}), 7, domain.now + 5)
    domain["f"].publish("$hedgerow/plan/m", encode_plan(plan, domain.now), retain=True)
    domain.wait_for(lambda: domain["m"].delegated == {"hot"}, 2)
    domain.advance(3)
    assert domain["m"].delegated == {"hot"}
    domain.wait_for(lambda: domain["m"].delegated == {"cold"}, 6)


def test_who_may_not_delegate_is_refused_and_named(domain: Domain) -> None:
    domain.add_fixed("strict", allow=frozenset({"somebody"}))
    domain.add_mobile("n", "strict", settings=STAYING)
    domain.advance(2)
    refused = domain["strict"].told(DelegationRefused)
    assert refused
    assert refused[0].sender == "n"
    assert domain["n"].told(FixedNotLinked)
    assert not domain["n"].told(FixedLinked)
    inbox = domain["n"].subscribe("t")
    domain["n"].publish("t", b"1")
    assert inbox.payloads == [b"1"]


def test_what_people_see(domain: Domain) -> None:
    Roamer(domain, "m", "r", MQTT_3_1_1, "hot", "cold")
    hot_and_cold(domain)
    domain.advance(4)
    found = domain["m"].broker.retained.match("$SYS/broker/hot/#", domain.now)
    told = {message.topic.removeprefix("$SYS/broker/hot/"): json.loads(message.payload) for message in found}
    assert told["registry/in"]["topics"] == ["hot"]
    assert told["registry/out"]["topics"] == ["cold"]
    assert told["fixed"]["linked"] is True
    assert {"what": "delegated", "which": "cold"}.items() <= told["moves"][-1].items()
