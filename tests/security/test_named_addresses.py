"""Addresses that others name: whoever answers there has no more rights than anybody who connects here.

`x` is the node under attack. A member, or multicast DNS, names the address `evil`, and x dials it.
"""

from __future__ import annotations

from typing import Any

import pytest

from hedgerow.broker.access import Access, Acl
from hedgerow.federation.config import FederationConfig
from hedgerow.federation.overlay.wire import Peer
from tests.federation.clients import Inbox
from tests.federation.fabric_of_nodes import Fabric

RULES = "user alice\ntopic readwrite #\n"
ANYBODY_MAY_LINK = RULES.replace(
    "user alice", "topic readwrite $hedgerow/bridge\ntopic read public/#\nuser alice"
)
KEY = b"k" * 32


def led_to_evil(rules: str | None = None, *, is_listed: bool = False, **federation: Any) -> Fabric:
    """evil wants all that there is."""
    access = Access(Acl.parse(rules, "acl") if rules is not None else None)
    key = {name: each for name, each in federation.items() if name == "key"}
    fabric = Fabric()
    fabric.add("evil", federation=key)
    fabric.add("x", *(["evil"] if is_listed else []), federation=federation, access=access)
    if not is_listed:
        x = fabric["x"]
        x.federation.overlay.join(Peer("evil", ("mqtt://evil",)), fabric.now)
        x.federation.has_work = True
        x.settle()
    return fabric


def stolen_from(fabric: Fabric) -> list[bytes]:
    thief = fabric["evil"].subscribe("#")
    fabric.advance(3)
    alice = Inbox(fabric["x"], "alice", username="alice")
    alice.publish("secret/1", b"secret")
    alice.publish("public/1", b"public")
    fabric.advance(2)
    payloads: list[bytes] = thief.payloads
    return payloads


@pytest.mark.parametrize(
    ("rules", "takes_strangers"), [(RULES, True), (ANYBODY_MAY_LINK, True), (None, False)]
)
def test_whoever_answers_at_a_named_address_is_no_neighbour(rules: str | None, takes_strangers: bool) -> None:
    """A member that may read little would otherwise have us dial a node of its own, which may read all."""
    fabric = led_to_evil(rules, takes_strangers=takes_strangers)
    assert stolen_from(fabric) == []
    assert not fabric["x"].linked
    assert fabric.dials == []
    assert fabric["x"].federation.identities.doubt("evil", "mqtt://evil") is not None
    assert any("nothing proves who is at mqtt://evil" in str(event) for event in fabric["x"].events)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"rules": RULES, "is_listed": True},
        {"rules": RULES, "key": KEY},
        {"rules": RULES, "is_certified": lambda address: address == "mqtt://evil"},
    ],
    ids=["open to all", "listed", "key", "certificate"],
)
def test_one_that_may_do_everything_anyway_or_has_proved_itself_is(given: dict[str, Any]) -> None:
    assert stolen_from(led_to_evil(**given)) == [b"secret", b"public"]


def test_an_anonymous_neighbour_reads_what_anonymous_clients_may() -> None:
    fabric = Fabric()
    fabric.add("x", access=Access(Acl.parse(ANYBODY_MAY_LINK, "acl")))
    fabric.add("evil", "x")
    assert stolen_from(fabric) == [b"public"]
    assert fabric["x"].linked == {"evil"}


def test_with_the_key_it_is_a_part_of_the_fabric() -> None:
    fabric = Fabric()
    fabric.add("x", access=Access(Acl.parse(ANYBODY_MAY_LINK, "acl")), federation={"key": KEY})
    fabric.add("y", "x", federation={"key": KEY})
    fabric.hosts["evil"] = fabric["y"]
    assert stolen_from(fabric) == [b"secret", b"public"]


@pytest.mark.parametrize(
    ("address", "cafile", "is_certified"),
    [
        ("mqtts://barn", "ca.pem", True),
        ("mqtts://barn", None, False),
        ("mqtt://barn", "ca.pem", False),
        ("?", "ca.pem", False),
    ],
)
def test_an_authority_of_our_own_answers_for_an_address(
    address: str, cafile: Any, is_certified: bool
) -> None:
    assert FederationConfig(cafile=cafile).is_certified(address) is is_certified
