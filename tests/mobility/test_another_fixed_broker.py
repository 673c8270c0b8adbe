"""A mobile broker whose fixed one is lost, and which has another."""

from __future__ import annotations

import pytest

from hedgerow.mobility.delegation.events import Delegated, Recovered
from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5, MQTT_EXTENDED
from tests.mobility.domain import Domain, MobileHost, Roamer
from tests.mobility.test_durability import Publisher, Subscriber, delegate_cold, make, stored_for_brokers
from tests.mobility.traffic import Traffic, steady


def make_two(*fixed: str, durable: bool = False) -> tuple[Domain, MobileHost]:
    domain = Domain()
    for name in ("f", "g"):
        domain.add_fixed(name, durable=durable)
    mobile = domain.add_mobile("m", *fixed, settings={"move_after_s": 0.5}, durable=durable)
    domain.advance(0.5)
    return domain, mobile


def test_a_fixed_broker_that_is_lost_while_it_is_left_is_given_up() -> None:
    domain, mobile = make_two("f")
    plain = Roamer(domain, "m", "plain", MQTT_3_1_1, "hot", "cold")
    roamer = Roamer(domain, "m", "r", MQTT_5, "cold")
    traffic = Traffic(domain, "m", steady(cold=8.0, hot=50.0))
    domain.wait_for(lambda: roamer.at == "f", 5)
    mobile.node.set_fixed(["mqtt://g:1883"], domain.now)
    mobile.settle()
    domain.wait_for(lambda: len(mobile.node.machine.uplinks) == 2, 5)
    domain.cut("m", "f")
    domain.wait_for(lambda: roamer.at == "g", 20)
    traffic.stop()
    domain.advance(2)
    assert not any(uplink.unsettled for uplink in mobile.node.machine.uplinks.values())
    traffic.check([plain, roamer])


def hand_over(domain: Domain, mobile: MobileHost, guest: Roamer, fixed: str) -> None:
    mobile.node.set_fixed([f"mqtt://{fixed}:1883"], domain.now)
    mobile.settle()
    domain.wait_for(lambda: support_of(mobile) == fixed, 20)
    domain.wait_for(lambda: mobile.delegated == {"cold"}, 5)
    domain.wait_for(lambda: guest.at == fixed, 20)


def support_of(mobile: MobileHost) -> str | None:
    current = mobile.node.machine.current
    return current.fixed_id if current is not None and current.stream.is_open else None


def test_topics_are_delegated_again_to_a_fixed_broker_that_was_lost_and_is_back() -> None:
    """It knows this broker yet, and their streams go on."""
    domain, mobile = make_two("f")
    plain = Roamer(domain, "m", "plain", MQTT_3_1_1, "hot", "cold")
    traffic = Traffic(domain, "m", steady(cold=8.0, hot=50.0))
    domain.wait_for(lambda: bool(mobile.told(Delegated)), 5)
    domain.cut("m", "f")
    domain.wait_for(lambda: not mobile.delegated, 10)
    domain.mend("m", "f")
    domain.wait_for(lambda: mobile.delegated == {"cold"}, 10)
    traffic.stop()
    domain.advance(2)
    traffic.check([plain])


def test_topics_are_delegated_to_a_fixed_broker_to_which_this_one_returns() -> None:
    """It was lost silently, and others had its place meanwhile."""
    domain, mobile = make_two("f")
    domain.add_fixed("h")
    plain = Roamer(domain, "m", "plain", MQTT_3_1_1, "hot", "cold")
    guest = Roamer(domain, "m", "r", MQTT_EXTENDED, "cold")
    inside = Traffic(domain, "m", steady(cold=8.0, hot=50.0))
    outside = Traffic(domain, "f", steady(cold=2.0, hot=3.0))
    domain.wait_for(lambda: bool(mobile.told(Delegated)), 5)
    domain.cut("m", "f")
    domain.advance(2.5)
    hand_over(domain, mobile, guest, "g")
    hand_over(domain, mobile, guest, "h")
    domain.mend("m", "f")
    hand_over(domain, mobile, guest, "f")
    for traffic in (inside, outside):
        traffic.stop()
    domain.advance(2)
    for traffic in (inside, outside):
        traffic.check([plain, guest])
    assert set(mobile.node.machine.uplinks) == {"f"}


def test_topics_are_delegated_again_when_the_broker_to_move_to_is_lost_before() -> None:
    """Clients and topics were called back already, and this broker stays where it is."""
    domain, mobile = make_two("f")
    plain = Roamer(domain, "m", "plain", MQTT_3_1_1, "hot", "cold")
    guest = Roamer(domain, "m", "r", MQTT_5, "cold")
    traffic = Traffic(domain, "m", steady(cold=8.0, hot=50.0))
    domain.wait_for(lambda: guest.at == "f", 5)
    mobile.node.set_fixed(["mqtt://g:1883"], domain.now)
    mobile.settle()
    domain.wait_for(lambda: mobile.node.links.is_moving and not mobile.delegated, 5)
    domain["g"].kill()
    domain.wait_for(lambda: mobile.delegated == {"cold"}, 5)
    assert support_of(mobile) == "f"
    traffic.stop()
    domain.advance(2)
    traffic.check([plain, guest])


def test_a_client_is_sent_to_the_new_one_whatever_the_old_one_says_late() -> None:
    """That it has given the topics back, when the new one has them."""
    domain, mobile = make_two("f")
    Roamer(domain, "m", "plain", MQTT_3_1_1, "hot", "cold")
    roamer = Roamer(domain, "m", "r", MQTT_5, "cold")
    Traffic(domain, "m", steady(cold=8.0, hot=50.0))
    domain.wait_for(lambda: bool(mobile.told(Delegated)), 5)
    mobile.node.set_fixed(["mqtt://g:1883"], domain.now)
    mobile.settle()
    domain.wait_for(lambda: len(mobile.told(Delegated)) == 2, 5)
    assert not mobile.told(Recovered)
    domain.wait_for(lambda: bool(mobile.told(Recovered)), 5)
    domain.wait_for(lambda: roamer.at == "g", 10)


def test_no_client_goes_after_a_topic_that_was_taken_back_and_is_hot_now() -> None:
    domain, mobile = make_two("f", "g")
    Roamer(domain, "m", "plain", MQTT_3_1_1, "a", "b")
    rates = {"a": 50.0, "b": 5.0}
    Traffic(domain, "m", lambda seconds: rates)
    domain.wait_for(lambda: bool(mobile.told(Delegated)), 3)
    domain.cut("m", "f")
    domain.wait_for(lambda: not mobile.delegated, 10)
    rates = {"a": 5.0, "b": 50.0}
    domain.wait_for(lambda: support_of(mobile) == "g" and mobile.delegated == {"a"}, 20)
    roamer = Roamer(domain, "m", "r", MQTT_5, "b")
    domain.advance(10)
    assert roamer.at == "m"


def test_nothing_is_kept_for_a_fixed_broker_that_is_gone() -> None:
    domain, mobile = make_two("f", "g", durable=True)
    plain = Roamer(domain, "m", "plain", MQTT_3_1_1, "hot", "cold")
    traffic = Traffic(domain, "m", steady(cold=8.0, hot=50.0))
    domain.advance(4)
    domain["f"].kill()
    domain.wait_for(lambda: getattr(mobile.node.machine.current, "fixed_id", "") == "g", 20)
    domain.advance(5)
    traffic.stop()
    domain.advance(1)
    assert not stored_for_brokers(domain, "m")
    assert not any(uplink.unsettled for uplink in mobile.node.machine.uplinks.values())
    traffic.check([plain])


def test_what_follows_a_guest_and_is_delegated_too_comes_once_after_a_crash() -> None:
    domain = make(move_after_s=0.5)
    Subscriber(domain, "m", "busy", "hot")
    guest = Subscriber(domain, "m", "a", "cold")
    traffic = Traffic(domain, "m", steady(hot=50.0, cold=5.0))
    domain.wait_for(lambda: guest.at == "f", 5)
    traffic.stop()
    domain.advance(0.5)
    publisher = Publisher(domain, "m")
    domain.cut("m", "f")
    payloads = [publisher.publish("cold")]
    node = domain["m"].node
    node.machine.recover(["cold"], domain.now)
    node.sync_delegated()
    payloads.append(publisher.publish("cold"))
    assert publisher.acknowledged() == payloads
    domain["m"].crash()
    guest.reconnect("m")
    domain.mend("m", "f")
    domain.advance(10)
    assert [guest.tally[payload] for payload in payloads] == [1, 1]


@pytest.mark.parametrize("slow", ["m", "f"])
def test_links_that_come_faster_than_the_disk_writes(slow: str) -> None:
    """What was to be written on one of them is not written on the next."""
    domain = make()
    inside = Subscriber(domain, "m", "a", "cold", "hot")
    delegate_cold(domain)
    domain[slow].commits = False
    Publisher(domain, slow).publish("other")
    for _ in range(2):
        domain.close("m", "f")
        domain.wait_for(lambda: len(domain.between("m", "f")) == 1, 2)
        domain.advance(0.1)
        Publisher(domain, slow).publish("other")
    domain[slow].commits = True
    domain[slow].settle()
    domain.advance(0.5)
    publisher = Publisher(domain, "m")
    payload = publisher.publish("cold")
    domain.advance(0.5)
    assert inside.tally[payload] == 1
