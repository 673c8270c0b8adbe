"""`delegate/deactivate/no`: a mobile broker without delegation plugs in, and serves subscribers itself."""

from __future__ import annotations

from typing import Any

import pytest

from hedgerow.broker.access import Access, Acl
from hedgerow.message import Message
from hedgerow.mobility.delegation.fixed import FixedSide
from hedgerow.mqtt.extension import Renewal
from hedgerow.mqtt.packets import MQTT_3_1_1, MQTT_5, MQTT_EXTENDED, Renew
from hedgerow.mqtt.reasons import Reason
from tests.mobility.domain import DOMAIN, Domain, Line, Roamer
from tests.mobility.traffic import Traffic, steady

RULES = """\
user tractor
topic write $hedgerow/bridge
topic write farm/sector1/tractor/#
topic readwrite t/+
topic write $hedgerow/guest/alice
user alice
topic readwrite t/+
user bob
topic readwrite t/+
"""


class Watched(Roamer):
    """One that notes by which packet it was sent."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.told: list[object] = []
        super().__init__(*arguments, **options)

    def answer(self, line: Line, packet: Any) -> Any:
        if isinstance(packet, Renew) and packet.code != Renewal.CONNECTION:
            self.told.append((packet.code, packet.address))
        elif type(packet).__name__ == "Disconnect":
            self.told.append((packet.reason_code, packet.properties.get("server_reference")))
        return super().answer(line, packet)


def plug_in(domain: Domain, name: str = "m", **options: Any) -> None:
    domain.add_mobile(name, "f", settings={"delegates": False}, **options)
    domain.advance(3)


def test_subscribers_go_there_and_subscribe_again(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Message] = []
    receive = FixedSide.receive_publication

    def note(side: FixedSide, sender: str, publication: Message, now: float) -> None:
        heard.append(publication)
        receive(side, sender, publication, now)

    monkeypatch.setattr(FixedSide, "receive_publication", note)
    domain = Domain()
    domain.add_fixed("f", allow=frozenset({"m"}))
    extended = Watched(domain, "f", "extended", MQTT_EXTENDED, "t/a")
    modern = Watched(domain, "f", "modern", MQTT_5, "t/a")
    old = Watched(domain, "f", "old", MQTT_3_1_1, "t/a")
    plug_in(domain)
    assert [each.payload for each in heard if each.topic == f"{DOMAIN}/m/delegate/deactivate/no"] == [b""]
    assert extended.told == [(Renewal.RENEW_TOPICS, "m:1883")]
    assert modern.told == [(Reason.SERVER_MOVED, "m:1883")]
    assert [each.at for each in (extended, modern, old)] == ["m", "m", "f"]
    assert domain["m"].broker.sessions["extended"].subscriptions
    traffics = [Traffic(domain, at, steady(**{"t/a": 20.0})) for at in ("f", "m")]
    domain.advance(2)
    for traffic in traffics:
        traffic.stop()
    domain.advance(1)
    for traffic in traffics:
        traffic.check([extended, modern, old])
    assert not domain["m"].broker.subscriptions.inactive


def test_nobody_goes_to_a_broker_that_the_fixed_one_does_not_name() -> None:
    """Clients without a user are in nobody's care."""
    domain = Domain()
    domain.add_fixed("f")
    stays = Watched(domain, "f", "stays", MQTT_5, "t/a")
    plug_in(domain)
    assert (stays.at, stays.told) == ("f", [])


def test_users_go_to_a_broker_that_may_bring_their_clients() -> None:
    domain = Domain()
    domain.add_fixed("f", access=Access(Acl.parse(RULES, "acl")), verifies_passwords=True)
    alice, bob = (Watched(domain, "f", name, MQTT_5, "t/a", username=name) for name in ("alice", "bob"))
    own = Watched(domain, "f", "own", MQTT_5, "t/a", username="tractor")
    plug_in(domain, "tractor", username="tractor", verifies_passwords=True)
    assert [each.at for each in (alice, bob, own)] == ["tractor", "f", "tractor"]
    assert bob.told == []


def test_a_broker_that_delegates_takes_nobody() -> None:
    domain = Domain()
    domain.add_fixed("f", allow=frozenset({"m"}))
    stays = Watched(domain, "f", "stays", MQTT_5, "t/a")
    domain.add_mobile("m", "f")
    domain.advance(3)
    assert (stays.at, stays.told) == ("f", [])


def test_guests_of_another_mobile_broker_stay_its_own() -> None:
    domain = Domain()
    domain.add_fixed("f", allow=frozenset({"m", "n"}))
    domain.add_mobile("n", "f", settings={"move_after_s": 0.3})
    domain.advance(0.5)
    Roamer(domain, "n", "busy", MQTT_3_1_1, "hot")
    guest = Roamer(domain, "n", "guest", MQTT_5, "cold")
    Traffic(domain, "n", steady(hot=50.0, cold=5.0))
    domain.wait_for(lambda: guest.at == "f", 10)
    plug_in(domain)
    assert guest.at == "f"
