"""A mobile broker goes to a fixed broker of another domain, with its clients and their subscriptions."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from hedgerow.message import Message
from hedgerow.mobility.delegation.events import Forgotten, HandedBack, Left
from hedgerow.mobility.delegation.fixed import FixedSide
from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5
from tests.mobility.domain import DOMAIN, Domain, MobileHost, Roamer
from tests.mobility.test_durability import Publisher, Subscriber
from tests.mobility.traffic import Traffic, steady

OTHER = "farm/sector2"


def make(*, durable: bool = False, **settings: object) -> tuple[Domain, MobileHost]:
    domain = Domain()
    domain.add_fixed("f", durable=durable)
    domain.add_fixed("g", domain=OTHER, durable=durable)
    mobile = domain.add_mobile("m", "f", settings=settings or {"moves_clients": False}, durable=durable)
    domain.advance(0.5)
    return domain, mobile


def go(domain: Domain, mobile: MobileHost, *names: str) -> None:
    mobile.node.set_fixed([f"mqtt://{name}:1883" for name in names], domain.now)
    mobile.settle()


def is_with(mobile: MobileHost, name: str) -> bool:
    machine = mobile.node.machine
    return machine.current is not None and machine.current.fixed_id == name and machine.may_send_clients


def written(monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    """What fixed brokers read."""
    heard: list[Message] = []
    receive = FixedSide.receive_publication

    def note(side: FixedSide, sender: str, publication: Message, now: float) -> None:
        heard.append(publication)
        receive(side, sender, publication, now)

    monkeypatch.setattr(FixedSide, "receive_publication", note)
    return heard


@pytest.mark.parametrize("durable", [False, True])
def test_nobody_subscribes_again_and_all_comes_once(monkeypatch: pytest.MonkeyPatch, durable: bool) -> None:
    domain, mobile = make(durable=durable)
    heard = written(monkeypatch)
    roamers = [
        Roamer(domain, "m", "old", MQTT_3_1_1, "hot", "cold"),
        Roamer(domain, "m", "new", MQTT_5, "cold"),
    ]
    traffic = Traffic(domain, "m", steady(hot=50.0, cold=5.0))
    domain.wait_for(lambda: mobile.delegated == {"cold"}, 5)
    go(domain, mobile, "g")
    domain.wait_for(lambda: is_with(mobile, "g"), 10)
    domain.wait_for(lambda: mobile.delegated == {"cold"}, 10)
    domain.advance(0.2)
    there = domain["g"].node.machine
    assert set(there.mobiles["m"].topics) >= {"hot", "cold"}
    assert there.mobiles["m"].topics["cold"].keys() == {"old@m", "new@m"}
    assert not domain["f"].node.machine.mobiles
    outside = Traffic(domain, "g", steady(hot=5.0, cold=5.0))
    domain.advance(2)
    for each in (traffic, outside):
        each.stop()
    domain.advance(1)
    for each in (traffic, outside):
        each.check(roamers)
    assert all(len(roamer.connacks) == 1 for roamer in roamers)
    goodbyes = [(each.topic, each.payload) for each in heard if "/all" in each.topic]
    assert goodbyes[-1] == (f"{DOMAIN}/m/delegate/unsubscription/all", b"")
    assert set(goodbyes[:-1]) == {(f"{DOMAIN}/m/delegate/deactivate/all", b"")}
    assert any(each.topic == f"{OTHER}/m/delegate" for each in heard)
    assert mobile.told(Left)
    assert domain["f"].told(Forgotten)


def test_a_guest_comes_back_and_goes_to_the_other_domain() -> None:
    domain, mobile = make(move_after_s=0.5)
    busy = Roamer(domain, "m", "busy", MQTT_3_1_1, "hot")
    guest = Roamer(domain, "m", "guest", MQTT_5, "cold")
    traffic = Traffic(domain, "m", steady(hot=50.0, cold=8.0))
    domain.wait_for(lambda: guest.at == "f", 10)
    go(domain, mobile, "g")
    domain.wait_for(lambda: guest.at == "g", 20)
    traffic.stop()
    domain.advance(1)
    traffic.check([busy, guest])


def test_there_and_back_and_there_again() -> None:
    domain, mobile = make()
    roamer = Roamer(domain, "m", "r", MQTT_3_1_1, "hot", "cold")
    traffic = Traffic(domain, "m", steady(hot=50.0, cold=5.0))
    for name in ("g", "f", "g"):
        domain.advance(1.5)
        go(domain, mobile, name)
        domain.wait_for(lambda name=name: is_with(mobile, name), 10)  # type: ignore[misc]
    traffic.stop()
    domain.advance(1)
    traffic.check([roamer])


def test_without_a_way_back_what_is_delegated_is_taken_along() -> None:
    """It leaves the coverage of the one before it has heard of the other."""
    domain, mobile = make()
    roamer = Roamer(domain, "m", "r", MQTT_3_1_1, "hot", "cold")
    traffic = Traffic(domain, "m", steady(hot=50.0, cold=5.0))
    domain.wait_for(lambda: mobile.delegated == {"cold"}, 5)
    domain.cut("m", "f")
    go(domain, mobile, "g")
    domain.wait_for(lambda: is_with(mobile, "g"), 20)
    domain.wait_for(lambda: mobile.delegated == {"cold"}, 10)
    traffic.stop()
    domain.advance(1)
    traffic.check([roamer])


def check(subscribers: Iterable[Subscriber], publisher: Publisher) -> None:
    for subscriber in subscribers:
        subscriber.check(publisher.acknowledged(*subscriber.filters))


@pytest.mark.parametrize("killed", ["m", "f", "g"])
@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.3])
def test_a_broker_dies_on_the_way(killed: str, after_s: float) -> None:
    """With stores, nothing is lost that was acknowledged."""
    domain, mobile = make(durable=True)
    subscribers = [Subscriber(domain, "m", "a", "cold"), Subscriber(domain, "m", "b", "hot", "cold")]
    traffic = Traffic(domain, "m", steady(hot=50.0, cold=5.0))
    domain.wait_for(lambda: mobile.delegated == {"cold"}, 5)
    traffic.stop()
    domain.advance(0.2)
    publisher = Publisher(domain, "m")
    for topic in ("hot", "cold", "cold"):
        publisher.publish(topic)
    go(domain, mobile, "g")
    domain.advance(after_s)
    for topic in ("cold", "hot"):
        publisher.publish(topic)
    domain[killed].kill()
    if killed == "m":
        for each in subscribers:
            each.lose()
    domain[killed].start()
    if killed == "m":
        go(domain, mobile, "g")
        for each in subscribers:
            each.reconnect()
        publisher.connect()
    domain.advance(15)
    publisher.publish("cold")
    domain.advance(1)
    check(subscribers, publisher)
    assert is_with(mobile, "g")


def test_a_mobile_broker_that_stores_nothing_has_its_topics_back() -> None:
    """What it had delegated is returned with all subscribers, and nobody subscribes again."""
    domain, mobile = make()
    Roamer(domain, "m", "r", MQTT_5, "hot", "cold")
    traffic = Traffic(domain, "m", steady(hot=50.0, cold=5.0))
    domain.wait_for(lambda: mobile.delegated == {"cold"}, 5)
    traffic.stop()
    domain.advance(0.2)
    mobile.crash(after_s=0.2)
    domain.wait_for(lambda: bool(domain["f"].told(HandedBack)), 10)
    registries = mobile.node.machine.registries
    domain.wait_for(lambda: registries.get("cold") is not None, 5)
    assert list(registries.by_filter["cold"].callbacks) == ["r@m"]
