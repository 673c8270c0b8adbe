"""Peers that multicast does not reach: copies for them, and for nobody else."""

from __future__ import annotations

import pytest

from hedgerow.multicast.frame import Hello
from hedgerow.multicast.limits import GONE_AFTER_S, INTERVAL_S
from hedgerow.multicast.peers import MAX_FILTERS, Peers
from tests.multicast.frames import SENDER
from tests.multicast.lan import REPAIRED_S, SETTLED_S, START_AT, Lan, filtered


@pytest.mark.parametrize("topic_filter", ["a/1", "a/#"])
def test_a_named_peer_is_reached_without_multicast(lan: Lan, topic_filter: str) -> None:
    publisher, subscriber = filtered(lan)
    subscriber.subscribe(topic_filter)
    subscriber.member.add_peer(publisher.number, lan.now)
    lan.drain(subscriber)
    lan.run(SETTLED_S)
    for number in range(5):
        publisher.publish("a/1", b"%d" % number, qos=number % 2)
        publisher.publish("b", b"not asked for")
        lan.run(INTERVAL_S)
    assert subscriber.payloads == [b"%d" % number for number in range(5)]
    publisher.publish("a/1", b"kept", retain=True)
    lan.run(SETTLED_S)
    third = lan.host()
    third.hears_multicast = False
    third.subscribe("a/1")
    third.member.add_peer(publisher.number, lan.now)
    lan.drain(third)
    lan.run(2 * INTERVAL_S)
    assert [each.payload for each in third.held] == [b"kept"]


def test_a_subscription_made_after_the_greeting_is_known_to_the_peer_at_once(lan: Lan) -> None:
    publisher, subscriber = filtered(lan)
    subscriber.member.add_peer(publisher.number, lan.now)
    lan.drain(subscriber)
    lan.run(SETTLED_S)
    subscriber.subscribe("a/#")
    lan.run(0.1)
    publisher.publish("a/1", b"the only one")
    lan.run(SETTLED_S)
    assert subscriber.payloads == [b"the only one"]


def test_loss_is_repaired_without_multicast(lan: Lan) -> None:
    publisher, subscriber = filtered(lan)
    subscriber.subscribe("a")
    subscriber.member.add_peer(publisher.number, lan.now)
    lan.drain(subscriber)
    lan.run(2 * INTERVAL_S)
    subscriber.loss = publisher.loss = 0.1
    for number in range(100):
        publisher.publish("a", b"%d" % number, qos=1)
        lan.run(0.01)
    lan.run(REPAIRED_S)
    assert subscriber.payloads == [b"%d" % number for number in range(100)]


def test_a_peer_heard_before_is_asked_for_copies_when_its_multicast_falls_silent(lan: Lan) -> None:
    publisher, subscriber = lan.host(), lan.host()
    subscriber.subscribe("a")
    lan.run(2 * INTERVAL_S)
    publisher.publish("a", b"by multicast")
    lan.run(SETTLED_S)
    assert publisher.member.stats.copies_sent == 0
    subscriber.hears_multicast = publisher.hears_multicast = False
    lan.run(2 * GONE_AFTER_S)
    publisher.publish("a", b"by copy")
    lan.run(SETTLED_S)
    assert subscriber.payloads == [b"by multicast", b"by copy"]


def test_copies_cease_when_multicast_is_back(lan: Lan) -> None:
    publisher, subscriber = filtered(lan)
    subscriber.subscribe("a")
    subscriber.member.add_peer(publisher.number, lan.now)
    lan.drain(subscriber)
    lan.run(SETTLED_S)
    subscriber.hears_multicast = publisher.hears_multicast = True
    lan.run(3 * GONE_AFTER_S)
    before = publisher.member.stats.copies_sent
    publisher.publish("a", b"once")
    lan.run(SETTLED_S)
    assert subscriber.payloads == [b"once"]
    assert publisher.member.stats.copies_sent == before


def test_a_forged_address_gets_no_copies(lan: Lan) -> None:
    """A HELLO in another's name costs the victim one datagram no larger than itself."""
    publisher, victim, forger = lan.host(), lan.host(), lan.host()
    victim.hears_multicast = False
    lan.run(SETTLED_S)
    forger.subscribe("a")
    forger.member.add_peer(publisher.number, lan.now)
    ((_, hello),) = forger.member.take_to_peers()
    publisher.member.receive_datagram(hello, lan.now, source=victim.number, unicast=True)
    answers = publisher.member.take_to_peers()
    assert [address for address, _ in answers] == [victim.number]
    assert len(answers[0][1]) <= len(hello)
    publisher.publish("a", b"secret")
    assert all(address != victim.number for address, _ in publisher.member.take_to_peers())


# Filters of a peer


def greeted(filter_count: int) -> Peers:
    """Peers of which one wants copies of so many topics."""
    peers = Peers(bytes(32), lambda sender: float("-inf"))
    filters = [f"a/{number}" for number in range(filter_count)]
    assert peers.receive_hello("peer", SENDER, Hello(peers.cookie_for("peer"), True, filters), START_AT)
    return peers


def test_a_peer_gets_copies_of_what_it_named() -> None:
    peers = greeted(MAX_FILTERS)
    assert peers.find_copies(f"a/{MAX_FILTERS - 1}") == ("peer",)
    assert peers.find_copies("b") == ()


def test_a_peer_that_names_too_much_gets_everything() -> None:
    """A filter that is left out would be a message that is lost; to search them all takes time."""
    assert greeted(MAX_FILTERS + 1).find_copies("b") == ("peer",)


@pytest.mark.parametrize(("count", "named"), [(MAX_FILTERS, MAX_FILTERS), (MAX_FILTERS + 1, 1)])
def test_who_has_too_many_filters_asks_for_everything(count: int, named: int) -> None:
    peers = Peers(bytes(32), lambda sender: float("-inf"))
    peers.add("peer", START_AT)
    peers.receive_welcome("peer", SENDER, b"a cookie", START_AT)
    hello = peers.hello_to("peer", [f"a/{number}" for number in range(count)])
    assert hello is not None
    assert len(hello.filters) == named
    assert count == named or hello.filters == ["#"]
