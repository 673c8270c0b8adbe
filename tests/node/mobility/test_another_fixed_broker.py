"""A mobile broker whose fixed one is lost, and which has another."""

from __future__ import annotations

import pytest

from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5
from tests.node.mobility.domain import Domain, MobileHost, Roamer
from tests.node.mobility.test_durability import Publisher, Subscriber, delegate_cold, make, stored_for_brokers
from tests.node.mobility.traffic import Traffic, steady


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
