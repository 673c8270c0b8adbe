"""What clients ask for beside a filter and a QoS: they have it wherever they are served."""

from __future__ import annotations

from typing import Any

import pytest

from hedgerow.message import Properties
from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5,
    MQTT_EXTENDED,
    Connect,
    Packet,
    Pubcallback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from tests.mobility.domain import Domain, Line, Roamer
from tests.mobility.traffic import Traffic, steady

ROAMING = [MQTT_EXTENDED, MQTT_5]


@pytest.fixture
def domain() -> Domain:
    domain = Domain()
    domain.add_fixed("f")
    domain.add_mobile("m", "f", settings={"move_after_s": 0.5})
    domain.advance(0.5)
    Roamer(domain, "m", "busy", MQTT_3_1_1, "hot")
    return domain


class Wanting(Roamer):
    """One that leaves a will, and subscribes with all that MQTT 5 has for it."""

    def __init__(self, domain: Domain, version: int, *wanted: Subscription, **options: Any) -> None:
        self.wanted = wanted
        self.identifier: int | None = options.pop("identifier", None)
        self.publications: list[Publish] = []
        self.suback_count = 0
        self.is_deaf = False
        super().__init__(domain, "m", "r", version, *(each.topic_filter for each in wanted))

    def go(self, name: str) -> None:
        line = Line(self, self.domain[name])
        self.lines.append(line)
        self.moves.append(name)
        properties: Properties = {"session_expiry_interval": 300} if self.version == MQTT_5 else {}
        will = Will("will", b"dead", 1)
        line.send(Connect(self.client_id, self.version, False, will=will, properties=properties))

    def _greet(self, packet: Any, session_present: bool) -> list[Packet]:
        self.connacks.append(packet)
        return [] if session_present else [self.request(*self.wanted)]

    def request(self, *wanted: Subscription) -> Subscribe:
        properties: Properties = {"subscription_identifier": (self.identifier,)} if self.identifier else {}
        return Subscribe(next(self._packet_ids), list(wanted), properties)

    def answer(self, line: Line, packet: Packet) -> list[Packet]:
        self.suback_count += isinstance(packet, Suback)
        return super().answer(line, packet)

    def take(self, line: Line, packet: Publish | Pubcallback) -> list[Packet]:
        if isinstance(packet, Publish):
            self.publications.append(packet)
        answers = super().take(line, packet)
        return [] if self.is_deaf else answers


def heat(domain: Domain, cold: float, hot: float) -> Traffic:
    return Traffic(domain, "m", steady(cold=cold, hot=hot))


@pytest.mark.parametrize("version", ROAMING)
def test_a_client_that_is_sent_and_called_back_leaves_no_will(domain: Domain, version: int) -> None:
    mourners = [Roamer(domain, name, f"o-{name}", MQTT_3_1_1, "will") for name in ("m", "f")]
    roamer = Wanting(domain, version, Subscription("cold", 1))
    traffic = heat(domain, 8.0, 50.0)
    domain.wait_for(lambda: roamer.at == "f", 5)
    traffic.stop()
    traffic = heat(domain, 50.0, 8.0)
    domain.wait_for(lambda: roamer.at == "m", 8)
    domain.advance(2)
    traffic.stop()
    assert not any(mourner.payloads for mourner in mourners)
    roamer.lose()
    domain.advance(1)
    assert [mourner.payloads for mourner in mourners] == [[b"dead"], [b"dead"]]


@pytest.mark.parametrize(
    ("wanted", "identifier"),
    [
        (Subscription("cold", 1), 7),
        (Subscription("cold", 1, no_local=True), None),
        (Subscription("cold", 1, retain_as_published=True), None),
    ],
)
def test_a_client_stays_whose_subscription_says_more_than_a_fixed_broker_is_told(
    domain: Domain, wanted: Subscription, identifier: int | None
) -> None:
    roamer = Wanting(domain, MQTT_5, wanted, identifier=identifier)
    plain = Roamer(domain, "m", "plain", MQTT_5, "cold")
    traffic = heat(domain, 8.0, 50.0)
    domain.wait_for(lambda: plain.at == "f", 5)
    roamer.publish("cold", b"own")
    domain["m"].publish("cold", b"kept", retain=True)
    domain.advance(1)
    traffic.stop()
    assert roamer.at == "m"
    assert roamer.tally[b"own"] == (not wanted.no_local)
    [kept] = [each for each in roamer.publications if each.payload == b"kept"]
    assert kept.retain == wanted.retain_as_published
    assert kept.properties.get("subscription_identifier") == ((identifier,) if identifier else None)


@pytest.mark.parametrize(
    ("wanted", "identifier"),
    [
        (Subscription("new", 1), 7),
        (Subscription("new", 1, no_local=True), None),
        (Subscription("new", 1, retain_as_published=True), None),
        (Subscription("$share/group/new", 1), None),
    ],
)
def test_a_guest_goes_home_with_a_subscription_that_says_more(
    domain: Domain, wanted: Subscription, identifier: int | None
) -> None:
    roamer = Wanting(domain, MQTT_5, Subscription("cold", 1))
    traffic = heat(domain, 8.0, 50.0)
    domain.wait_for(lambda: roamer.at == "f", 5)
    domain.advance(0.5)
    roamer.identifier = identifier
    roamer.lines[-1].send(roamer.request(wanted))
    domain.wait_for(lambda: roamer.at == "m", 2)
    assert roamer.suback_count == 2
    domain.advance(2)
    assert roamer.at == "m"
    roamer.publish("new", b"own")
    for host in ("m", "f"):
        domain[host].publish("new", host.encode(), retain=True)
    domain.advance(1)
    assert roamer.tally[b"own"] == (not wanted.no_local)
    came = [each for each in roamer.publications if each.payload in (b"m", b"f")]
    assert len(came) == 2
    for each in came:
        assert each.retain == wanted.retain_as_published
        assert each.properties.get("subscription_identifier") == ((identifier,) if identifier else None)
    roamer.filters[wanted.topic_filter] = 1
    roamer.unsubscribe(wanted.topic_filter)
    domain.wait_for(lambda: roamer.at == "f", 15)
    traffic.stop()


def test_a_guest_ends_a_shared_subscription_before_it_is_home(domain: Domain) -> None:
    roamer = Wanting(domain, MQTT_EXTENDED, Subscription("cold", 1))
    traffic = heat(domain, 8.0, 50.0)
    domain.wait_for(lambda: roamer.at == "f", 5)
    domain.advance(0.5)
    roamer.subscribe("$share/group/new")
    roamer.unsubscribe("$share/group/new")
    domain.advance(2)
    traffic.stop()
    session = domain["m"].broker.sessions["r"]
    assert set(session.subscriptions) == {"cold"}


def test_what_a_guest_has_perhaps_got_comes_to_it_at_home_with_a_mark(domain: Domain) -> None:
    roamer = Wanting(domain, MQTT_5, Subscription("cold", 1))
    traffic = heat(domain, 8.0, 50.0)
    domain.wait_for(lambda: roamer.at == "f", 5)
    domain.advance(0.5)
    roamer.is_deaf = True
    domain["m"].publish("cold", b"sent")
    domain.advance(0.5)
    roamer.lose()
    roamer.is_deaf = False
    roamer.go("m")
    domain.advance(1)
    traffic.stop()
    assert [each.dup for each in roamer.publications if each.payload == b"sent"] == [False, True]
