"""Clients that are sent to the fixed broker and called back: nothing is lost on the way, nor doubled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5, MQTT_EXTENDED
from tests.mobility.domain import Domain, Roamer
from tests.mobility.traffic import Traffic, alternating, steady

MOVING = {"move_after_s": 0.5}
ROAMING = [MQTT_EXTENDED, MQTT_5]


@pytest.fixture
def domain() -> Domain:
    domain = Domain()
    domain.add_fixed("f")
    domain.add_mobile("m", "f", settings=MOVING)
    domain.advance(0.5)
    return domain


@pytest.mark.parametrize("version", ROAMING)
def test_a_client_whose_topics_are_cold_goes_and_comes_back_when_one_is_hot(
    domain: Domain, version: int
) -> None:
    roamer = Roamer(domain, "m", "r", version, "cold")
    stays = Roamer(domain, "m", "s", version, "hot", "cold")
    plain = Roamer(domain, "m", "p", MQTT_3_1_1, "cold")
    traffic = Traffic(
        domain, "m", lambda s: {"hot": 50.0, "cold": 8.0} if s < 6 else {"hot": 8.0, "cold": 50.0}
    )
    domain.wait_for(lambda: roamer.at == "f", 5)
    domain.advance(1)
    assert (stays.at, plain.at) == ("m", "m")
    domain.wait_for(lambda: roamer.at == "m", 6)
    traffic.stop()
    domain.advance(1)
    traffic.check([roamer, stays, plain])


@pytest.mark.parametrize("version", ROAMING)
def test_topics_that_go_hot_and_cold_all_the_time(domain: Domain, version: int) -> None:
    roamers = [Roamer(domain, "m", f"r{number}", version, "t") for number in range(3)]
    roamers.append(Roamer(domain, "m", "both", version, "t", "rival"))
    roamers.append(Roamer(domain, "m", "plain", MQTT_3_1_1, "t", "rival"))
    traffic = Traffic(domain, "m", alternating("t", "rival", 3.0))
    outside = Traffic(domain, "f", steady(t=5.0))
    domain.advance(30)
    traffic.stop()
    outside.stop()
    domain.advance(3)
    assert min(len(roamer.moves) for roamer in roamers[:3]) >= 5
    traffic.check(roamers)
    outside.check(roamers)


@pytest.mark.parametrize("version", ROAMING)
def test_a_guest_subscribes_at_the_fixed_broker_and_takes_it_home(domain: Domain, version: int) -> None:
    roamer = Roamer(domain, "m", "r", version, "cold")
    other = Roamer(domain, "m", "o", MQTT_3_1_1, "hot")
    Traffic(domain, "m", lambda s: {"hot": 50.0, "cold": 8.0} if s < 8 else {"hot": 8.0, "cold": 50.0})
    domain.wait_for(lambda: roamer.at == "f", 5)
    roamer.subscribe("new")
    domain.advance(0.5)
    domain["f"].publish("new", b"outside")
    domain["m"].publish("new", b"inside")
    domain.advance(0.5)
    assert (roamer.tally[b"outside"], roamer.tally[b"inside"]) == (1, 1)
    domain.wait_for(lambda: roamer.at == "m", 10)
    domain["m"].publish("new", b"home")
    domain.advance(0.5)
    assert roamer.tally[b"home"] == 1
    assert other.at == "m"


@pytest.mark.parametrize("publisher", ["f", "m"])
@pytest.mark.parametrize("version", ROAMING)
def test_what_comes_in_the_very_turn_in_which_a_guest_leaves_follows_it(
    domain: Domain, version: int, publisher: str
) -> None:
    roamer = Roamer(domain, "m", "r", version, "cold")
    Roamer(domain, "m", "o", MQTT_3_1_1, "hot")
    traffic = Traffic(domain, "m", steady(hot=50.0, cold=8.0))
    domain.wait_for(lambda: roamer.at == "f", 5)
    traffic.stop()
    domain.advance(1)
    with domain["f"].turn():
        for payload in b"1", b"2":
            domain[publisher].publish("cold", payload)
        domain.advance(0.1)
        roamer.leave()
    roamer.go("m")
    domain.advance(2)
    assert roamer.payloads[-2:] == [b"1", b"2"]
    traffic.check([roamer])


@pytest.mark.parametrize("version", ROAMING)
def test_the_fixed_broker_dies_with_guests(domain: Domain, version: int) -> None:
    roamer = Roamer(domain, "m", "r", version, "cold")
    plain = Roamer(domain, "m", "p", MQTT_3_1_1, "hot", "cold")
    traffic = Traffic(domain, "m", steady(hot=50.0, cold=10.0))
    domain.wait_for(lambda: roamer.at == "f", 5)
    domain.advance(1)
    domain["f"].kill()
    roamer.lose()
    roamer.go("m")
    domain.advance(8)
    traffic.stop()
    domain.advance(2)
    traffic.check([roamer, plain], may_double=version == MQTT_5)


@pytest.mark.parametrize("version", ROAMING)
def test_the_uplink_is_cut_while_clients_are_at_the_fixed_broker(domain: Domain, version: int) -> None:
    roamer = Roamer(domain, "m", "r", version, "cold")
    plain = Roamer(domain, "m", "p", MQTT_3_1_1, "hot", "cold")
    traffic = Traffic(domain, "m", steady(hot=50.0, cold=10.0))
    domain.wait_for(lambda: roamer.at == "f", 5)
    domain.advance(1)
    domain.cut("m", "f")
    domain.wait_for(lambda: roamer.at == "m", 10)  # The fixed broker sends it home.
    domain.advance(4)
    domain.mend("m", "f")
    domain.advance(12)
    traffic.stop()
    domain.advance(2)
    traffic.check([roamer, plain], may_double=version == MQTT_5)


def test_a_client_that_ends_at_the_fixed_broker_is_forgotten_by_the_mobile_one(domain: Domain) -> None:
    roamer = Roamer(domain, "m", "r", MQTT_EXTENDED, "cold")
    Roamer(domain, "m", "p", MQTT_3_1_1, "hot")
    traffic = Traffic(domain, "m", steady(hot=50.0, cold=10.0))
    domain.wait_for(lambda: roamer.at == "f", 5)
    traffic.stop()
    domain.advance(1)
    roamer.leave()
    domain.advance(320)
    assert "r" not in domain["m"].broker.sessions
    assert "cold" not in domain["m"].node.machine.registries.by_filter


def test_a_stranger_with_the_name_of_a_client_elsewhere_gets_nothing(domain: Domain) -> None:
    Roamer(domain, "m", "r", MQTT_3_1_1, "cold", "hot")
    traffic = Traffic(domain, "m", steady(hot=50.0, cold=10.0))
    domain.advance(3)
    assert "cold" in domain["m"].delegated
    stranger = Roamer(domain, "f", "r", MQTT_5)
    domain.advance(2)
    traffic.stop()
    assert not stranger.payloads


@pytest.mark.parametrize("version", ROAMING)
def test_clients_are_sent_to_the_next_fixed_broker_when_one_is_lost(version: int) -> None:
    domain = Domain()
    domain.add_fixed("f")
    domain.add_fixed("g")
    domain.add_mobile("m", "f", "g", settings=MOVING)
    domain.advance(0.5)
    roamer = Roamer(domain, "m", "r", version, "cold")
    plain = Roamer(domain, "m", "p", MQTT_3_1_1, "hot", "cold")
    traffic = Traffic(domain, "m", steady(hot=50.0, cold=10.0))
    domain.wait_for(lambda: roamer.at == "f", 5)
    domain["f"].kill()
    roamer.lose()
    roamer.go("m")
    domain.wait_for(lambda: roamer.at == "g", 30)
    domain.advance(1)
    traffic.stop()
    domain.advance(2)
    traffic.check([roamer, plain], may_double=version == MQTT_5)


@pytest.mark.parametrize("version", ROAMING)
def test_a_broker_that_delegates_nothing_any_more_has_its_clients_subscribe_again(
    domain: Domain, version: int
) -> None:
    roamer = Roamer(domain, "m", "r", version, "cold")
    Roamer(domain, "m", "p", MQTT_3_1_1, "hot", "cold")
    traffic = Traffic(domain, "m", steady(hot=50.0, cold=10.0))
    domain.wait_for(lambda: roamer.at == "f", 5)
    traffic.stop()
    domain["m"].settings = replace(domain["m"].settings, delegates=False)
    domain["m"].crash(after_s=0.5)
    domain.wait_for(lambda: roamer.at == "m", 5)
    domain.advance(0.5)
    domain["m"].publish("cold", b"home")
    domain.advance(1)
    assert roamer.tally[b"home"] == 1
    assert not domain["m"].delegated
