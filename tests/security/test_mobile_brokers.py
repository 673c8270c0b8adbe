"""A mobile broker that lies about whose clients it has, and where they are at home.

The rogue is a mobile broker as any other, whose machine is made to say what no honest one would. None of the
fixed broker's own clients becomes its guest: their subscriptions stay where they are, what others publish
comes to them, what the rogue makes up does not, and they are sent nowhere.
"""

from __future__ import annotations

import pytest

from hedgerow.broker.access import Access, Acl
from hedgerow.broker.batch import Batch
from hedgerow.broker.ids import alias_of_broker
from hedgerow.broker.observer import Observer
from hedgerow.message import Message, MessageId
from hedgerow.mobility.delegation.events import DelegationRefused, TurnedAway
from hedgerow.mobility.delegation.publications import EventBody, PublicationKind
from hedgerow.mobility.events import FixedNotLinked, HomeNotProved
from hedgerow.mqtt.packets import MQTT_5, MQTT_EXTENDED, Connack, Renew
from tests.mobility.domain import DOMAIN, Domain, FixedHost, MobileHost, Roamer
from tests.mobility.traffic import Traffic, steady

FORGED = b"forged"
MOVING = {"move_after_s": 0.5}
VERSIONS = [MQTT_EXTENDED, MQTT_5]

RULES = f"""
user tractor
topic write $hedgerow/bridge
topic write {DOMAIN}/tractor/#
topic readwrite hot
topic readwrite cold
topic write $hedgerow/guest/alice

user alice
topic readwrite cold
user bob
topic readwrite cold
"""


class Ids(Observer):
    """Of what is published on `t`."""

    def __init__(self) -> None:
        self.ids: list[MessageId | None] = []

    def wants(self, topic: str, has_clients: bool) -> bool:
        return topic == "t"

    def observe(self, batch: Batch, now: float) -> bool:
        self.ids += [message.id for message in batch.messages]
        return False


def rules(more: str = "") -> Access:
    return Access(Acl.parse(RULES + more, "acl"))


def with_rogue(username: str | None = "rogue", **options: object) -> tuple[Domain, FixedHost, MobileHost]:
    domain = Domain()
    fixed = domain.add_fixed("f", verifies_passwords=True, **options)
    rogue = domain.add_mobile("rogue", "f", username=username)
    domain.wait_for(lambda: rogue.node.machine.may_send_clients, 5)
    return domain, fixed, rogue


def announce(domain: Domain, rogue: MobileHost, client_id: str, username: str | None) -> None:
    """What its clients are, only their broker knows."""
    rogue.node.machine.announce(f"{client_id}@rogue", domain.now, username)
    rogue.node.has_work = True
    rogue.settle()
    domain.advance(0.5)


def forge(domain: Domain, rogue: MobileHost, client_id: str, topic: str) -> None:
    uplink = rogue.node.machine.current
    assert uplink is not None
    message = Message(topic, FORGED, 1, id=MessageId("rogue", 1, 10**9))
    event = EventBody(message, ((f"{client_id}@rogue", 1),), is_handed_on=True)
    uplink.stream.put(PublicationKind.EVENT, event, domain.now)
    rogue.node.has_work = True
    rogue.settle()
    domain.advance(0.5)


def renew_topics(domain: Domain, rogue: MobileHost) -> None:
    rogue.node.machine.renew_clients(domain.now)
    rogue.node.has_work = True
    rogue.settle()
    domain.advance(0.5)


def session_present(roamer: Roamer) -> bool:
    answer = roamer.connacks[-1]
    assert isinstance(answer, Connack | Renew)
    return answer.session_present


def check_is_its_own_client(domain: Domain, fixed: FixedHost, rogue: MobileHost, victim: Roamer) -> None:
    assert not session_present(victim)
    assert fixed.broker.sessions[victim.client_id].subscriptions
    forge(domain, rogue, victim.client_id, "t")
    renew_topics(domain, rogue)
    fixed.publish("t", b"real")
    domain.advance(0.5)
    assert victim.payloads == [b"real"]
    assert victim.moves == ["f"]


# Whose clients it may bring


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("claimed", ["alice", "rogue", None])
def test_a_client_of_another_user_is_nobodys_guest(version: int, claimed: str | None) -> None:
    domain, fixed, rogue = with_rogue()
    announce(domain, rogue, "phone", claimed)
    victim = Roamer(domain, "f", "phone", version, "t", username="alice")
    domain.advance(0.5)
    check_is_its_own_client(domain, fixed, rogue, victim)


@pytest.mark.parametrize("version", VERSIONS)
def test_access_rules_say_whose_clients_a_mobile_broker_brings(version: int) -> None:
    access = rules(f"user rogue\ntopic write $hedgerow/bridge\ntopic write {DOMAIN}/rogue/#\n")
    domain, fixed, rogue = with_rogue(access=access)
    announce(domain, rogue, "phone", "alice")
    [refused] = fixed.told(DelegationRefused)
    assert refused.why == "no right to bring clients of 'alice': $hedgerow/guest/alice"
    victim = Roamer(domain, "f", "phone", version, "cold", username="alice")
    domain.advance(0.5)
    assert not session_present(victim)
    assert fixed.broker.sessions["phone"].subscriptions


@pytest.mark.parametrize("version", VERSIONS)
def test_a_right_that_is_taken_away_holds_for_those_on_their_way(version: int) -> None:
    grant = f"user rogue\ntopic write $hedgerow/bridge\ntopic write {DOMAIN}/rogue/#\n"
    domain, fixed, rogue = with_rogue(access=rules(f"{grant}topic write $hedgerow/guest/+\n"))
    announce(domain, rogue, "phone", "alice")
    assert fixed.node.machine.callback_of("phone")
    fixed.broker.access = rules(grant)
    victim = Roamer(domain, "f", "phone", version, "cold", username="alice")
    domain.advance(0.5)
    assert not session_present(victim)
    assert not fixed.node.machine.attached.expected


def test_the_name_of_a_user_is_one_level_of_the_right() -> None:
    grant = f"user rogue\ntopic write $hedgerow/bridge\ntopic write {DOMAIN}/rogue/#\n"
    domain, fixed, rogue = with_rogue(access=rules(f"{grant}topic write $hedgerow/guest/barn%2Falice\n"))
    announce(domain, rogue, "a", "barn/alice")
    announce(domain, rogue, "b", "barn/bob")
    announce(domain, rogue, "c", "+")
    assert list(fixed.node.machine.attached.expected) == ["a"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_that_is_kept_here_stays_its_clients_own(version: int) -> None:
    """It was made here, and has neither a connection nor a subscription just now."""
    domain = Domain()
    fixed = domain.add_fixed("f")
    rogue = domain.add_mobile("rogue", "f")
    domain.wait_for(lambda: rogue.node.machine.may_send_clients, 5)
    victim = Roamer(domain, "f", "phone", version)
    victim.lose()
    announce(domain, rogue, "phone", None)
    [refused] = fixed.told(DelegationRefused)
    assert refused.why == "another 'phone' is here"
    victim.go("f")
    victim.subscribe("t")
    assert fixed.broker.sessions["phone"].subscriptions


@pytest.mark.parametrize("version", VERSIONS)
def test_a_name_that_nobody_verified_is_no_guests(version: int) -> None:
    """The fixed broker asks for no password. The client has one all the same, for another broker."""
    domain = Domain()
    fixed = domain.add_fixed("f")
    rogue = domain.add_mobile("rogue", "f")
    domain.wait_for(lambda: rogue.node.machine.may_send_clients, 5)
    announce(domain, rogue, "phone", None)
    victim = Roamer(domain, "f", "phone", version, "t", username="alice")
    domain.advance(0.5)
    check_is_its_own_client(domain, fixed, rogue, victim)


# The clients of an honest one


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_is_handed_over_as_the_user_that_it_is_at_both(version: int) -> None:
    domain = Domain()
    fixed = domain.add_fixed("f", verifies_passwords=True, access=rules())
    mobile = domain.add_mobile("tractor", "f", username="tractor", settings=MOVING, verifies_passwords=True)
    domain.advance(0.5)
    roamer = Roamer(domain, "tractor", "r", version, "cold", username="alice")
    stays = Roamer(domain, "tractor", "s", version, "cold", username="bob")
    Roamer(domain, "tractor", "p", version, "hot", username="alice")
    traffic = Traffic(
        domain, "tractor", lambda s: {"hot": 50.0, "cold": 8.0} if s < 6 else {"hot": 8.0, "cold": 50.0}
    )
    domain.wait_for(lambda: roamer.at == "f", 5)
    assert session_present(roamer)
    domain.wait_for(lambda: roamer.at == "tractor", 8)
    traffic.stop()
    domain.advance(1)
    traffic.check([roamer, stays])
    assert stays.moves == ["tractor"]
    assert mobile.told(TurnedAway)
    assert {each.why for each in fixed.told(DelegationRefused)} == {
        "no right to bring clients of 'bob': $hedgerow/guest/bob"
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_another_user_does_not_get_the_session_of_a_client_on_its_way(version: int) -> None:
    domain = Domain()
    fixed = domain.add_fixed("f", verifies_passwords=True, access=rules("user bob\ntopic read cold\n"))
    mobile = domain.add_mobile("tractor", "f", username="tractor", settings=MOVING, verifies_passwords=True)
    domain.wait_for(lambda: mobile.node.machine.may_send_clients, 5)
    mobile.node.machine.announce("r@tractor", domain.now, "alice")
    mobile.node.has_work = True
    mobile.settle()
    domain.advance(0.5)
    stranger = Roamer(domain, "f", "r", version, username="bob")
    domain.advance(0.5)
    assert not session_present(stranger)
    assert fixed.node.machine.callback_of("r") is None
    assert [each.callback for each in mobile.told(TurnedAway)] == ["r@tractor"]


def test_a_client_whose_name_nobody_verified_is_not_sent() -> None:
    domain = Domain()
    domain.add_fixed("f")
    domain.add_mobile("m", "f", settings=MOVING)
    domain.advance(0.5)
    named = Roamer(domain, "m", "named", MQTT_5, "cold", username="alice")
    nameless = Roamer(domain, "m", "nameless", MQTT_5, "cold")
    Roamer(domain, "m", "p", MQTT_5, "hot")
    Traffic(domain, "m", steady(hot=50.0, cold=8.0))
    domain.wait_for(lambda: nameless.at == "f", 5)
    domain.advance(2)
    assert named.moves == ["m"]


# Where they are at home


@pytest.mark.parametrize("version", VERSIONS)
def test_guests_are_sent_to_no_third_party(version: int) -> None:
    domain = Domain()
    fixed = domain.add_fixed("f")
    mobile = domain.add_mobile("m", "f", settings=MOVING | {"address": "victim:22"})
    domain.advance(0.5)
    roamer = Roamer(domain, "m", "r", version, "cold")
    Roamer(domain, "m", "p", version, "hot")
    Traffic(domain, "m", steady(hot=50.0, cold=8.0))
    domain.wait_for(lambda: roamer.at == "f", 5)
    [told] = fixed.told(HomeNotProved)
    assert "--mobile-clients-at victim:22" in str(told)
    renew_topics(domain, mobile)
    domain.advance(5)
    assert roamer.moves == ["m", "f"]  # "victim" is no host of this domain: to go there would raise


def test_an_address_that_is_configured_needs_no_proof() -> None:
    domain = Domain()
    fixed = domain.add_fixed("f", homes=frozenset({"home:1883"}))
    domain.add_mobile("m", "f", settings=MOVING | {"address": "home:1883"})
    domain.advance(0.5)
    domain.hosts["home"] = domain["m"]
    roamer = Roamer(domain, "m", "r", MQTT_5, "cold")
    Roamer(domain, "m", "p", MQTT_5, "hot")
    Traffic(domain, "m", lambda s: {"hot": 50.0, "cold": 8.0} if s < 4 else {"hot": 8.0, "cold": 50.0})
    domain.wait_for(lambda: roamer.at == "f", 5)
    domain.wait_for(lambda: roamer.at == "m", 8)
    assert roamer.moves[-1] == "home"
    assert not fixed.told(HomeNotProved)


# Who it is itself


def test_no_mobile_broker_has_the_id_of_the_fixed_one() -> None:
    domain = Domain()
    domain.add_fixed("f")
    domain.hosts["tower"] = domain["f"]
    twin = domain.add_mobile("m", "tower")
    domain["f"].broker.node_id = "m"
    domain.advance(1)
    assert any("the id of this broker itself" in each.reason for each in twin.told(FixedNotLinked))


def test_a_mobile_broker_that_is_away_keeps_its_name() -> None:
    """Its events wait at the fixed broker, which has users and no access rules."""
    domain, fixed, rogue = with_rogue("alice")
    rogue.kill()
    domain.advance(5)
    assert "rogue" in fixed.node.machine.mobiles
    rogue.username = "bob"
    rogue.start()
    domain.advance(2)
    assert any("belongs to another user" in each.reason for each in rogue.told(FixedNotLinked))
    rogue.username = "alice"
    domain.wait_for(lambda: rogue.node.machine.may_send_clients, 60)


def test_no_mobile_broker_claims_the_ids_of_another() -> None:
    """What it forges is published as its own, and what the other publishes later comes to everyone."""
    domain = Domain()
    fixed = domain.add_fixed("f")
    honest, rogue = domain.add_mobile("honest", "f"), domain.add_mobile("rogue", "f")
    domain.wait_for(lambda: all(each.node.machine.may_send_clients for each in (honest, rogue)), 5)
    reader = Roamer(domain, "f", "reader", MQTT_5, "t")
    uplink, begin = rogue.node.machine.current, honest.broker.sequence
    assert uplink is not None
    for sequence in range(begin, begin + 20):
        message = Message("t", FORGED, 1, id=MessageId("honest", honest.broker.epoch, sequence))
        uplink.stream.put(PublicationKind.EVENT, EventBody(message), domain.now)
    rogue.node.has_work = True
    rogue.settle()
    domain.advance(0.5)
    assert reader.payloads == [FORGED] * 20
    for number in range(5):
        honest.publish("t", b"%d" % number)
    domain.advance(0.5)
    assert reader.payloads[20:] == [b"%d" % number for number in range(5)]
    assert fixed.node.is_linked("rogue")


@pytest.mark.parametrize(
    ("origin", "counts_as"),
    [
        ("rogue", "rogue"),
        ("~station", "~station"),  # of an anonymous client: anyone may bring those
        ("granted~station", "granted~station"),
        ("station", "!rogue~station"),
        ("alice~station", None),
        ("!other~station", None),
    ],
)
def test_a_mobile_broker_passes_on_the_ids_of_clients_that_it_may_bring(
    origin: str, counts_as: str | None
) -> None:
    """None: the alias is one of its own, and tells that of alice from that of the station."""
    grants = "".join(
        f"topic write {each}\n"
        for each in ("t", "$hedgerow/bridge", f"{DOMAIN}/rogue/#", "$hedgerow/guest/granted")
    )
    domain, fixed, rogue = with_rogue(access=rules("user rogue\n" + grants))
    taken = Ids()
    fixed.broker.observe(taken)
    uplink = rogue.node.machine.current
    assert uplink is not None
    uplink.stream.put(
        PublicationKind.EVENT, EventBody(Message("t", b"x", 1, id=MessageId(origin, 1, 1))), domain.now
    )
    rogue.node.has_work = True
    rogue.settle()
    domain.advance(0.5)
    (taken_id,) = taken.ids
    expected = counts_as or alias_of_broker("rogue", origin)
    assert taken_id == MessageId(expected or "", 1, 1)
    assert (expected == "!rogue~station") is (origin == "station")


def test_what_a_mobile_broker_has_brought_before_goes_round_no_more() -> None:
    domain, fixed, rogue = with_rogue()
    taken = Ids()
    fixed.broker.observe(taken)
    uplink = rogue.node.machine.current
    assert uplink is not None
    origin: str | None = "station"
    for name in ("rogue", "other", "third"):
        origin = alias_of_broker(name, origin or "")
    assert origin is not None
    message = Message("t", b"x", 1, id=MessageId(origin, 1, 1))
    uplink.stream.put(PublicationKind.EVENT, EventBody(message), domain.now)
    rogue.node.has_work = True
    rogue.settle()
    domain.advance(0.5)
    assert taken.ids == []
