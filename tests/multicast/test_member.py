"""Members on a virtual network: what an application sees of publish/subscribe without a server."""

from __future__ import annotations

from hedgerow.message import Message, MessageId, Properties
from hedgerow.multicast.keys import Keyring
from hedgerow.multicast.limits import LINGER_S
from tests.multicast.lan import SETTLED_S, Lan
from tests.multicast.scene import ring


def test_one_publisher_three_subscribers_no_server(lan: Lan) -> None:
    publisher = lan.host()
    subscribers = [lan.host() for _ in range(3)]
    for subscriber in subscribers:
        subscriber.subscribe("home/vacuum/status")
    lan.run(SETTLED_S)
    publisher.publish("home/vacuum/status", b"done")
    lan.run(SETTLED_S)
    for subscriber in subscribers:
        assert subscriber.payloads == [b"done"]
        assert subscriber.messages[0].id == MessageId(publisher.member.origin, 0, 1)


def test_a_message_of_another_topic_is_not_delivered(lan: Lan) -> None:
    publisher, subscriber = lan.host(), lan.host()
    subscriber.subscribe("a")
    lan.run(SETTLED_S)
    publisher.publish("b", b"not for a")
    lan.run(SETTLED_S)
    assert subscriber.messages == []


def test_two_topics_at_one_address_are_told_apart_by_their_crc(lan: Lan) -> None:
    publisher, one, other = lan.host(), lan.host(), lan.host()
    one.subscribe("one")
    other.subscribe("other")
    lan.run(SETTLED_S)
    publisher.publish("one", b"1")
    publisher.publish("other", b"2")
    lan.run(SETTLED_S)
    # As if both topics had the same address: each gets the other's datagrams too.
    for topic, data in lan.tapped:
        if topic == "one":
            other.member.receive_datagram(data, lan.now, "other")
        if topic == "other":
            one.member.receive_datagram(data, lan.now, "one")
    lan.drain(one)
    lan.drain(other)
    assert (one.payloads, other.payloads) == ([b"1"], [b"2"])
    assert one.member.stats.other_topic == other.member.stats.other_topic == 1


def test_own_messages_are_heard(lan: Lan) -> None:
    host = lan.host()
    host.subscribe("a/#")
    host.publish("a/b", b"mine")
    lan.run(SETTLED_S)
    assert host.payloads == [b"mine"]


def test_a_message_keeps_properties_qos_retain_and_a_foreign_id(lan: Lan) -> None:
    publisher, subscriber = lan.host(), lan.host()
    subscriber.subscribe("a")
    lan.run(SETTLED_S)
    properties = Properties(content_type="text/plain", user_property=(("k", "v"),), correlation_data=b"c")
    sent = Message("a", b"payload", 2, True, properties, MessageId("broker-1", 1700, 42))
    publisher.send(sent)
    lan.run(SETTLED_S)
    sent.published_at = subscriber.messages[0].published_at
    assert sent.published_at is not None
    assert subscriber.messages == [sent]


def test_who_has_a_key_stays_for_those_who_want_a_proof(lan: Lan) -> None:
    """In clear nobody asks about a message at QoS 0."""
    in_clear, sealed = lan.host(), lan.host(ring())
    for host in (in_clear, sealed):
        host.publish("a", b"last words")
    assert in_clear.member.linger_until(lan.now) <= lan.now
    assert sealed.member.linger_until(lan.now) == lan.now + LINGER_S
    in_clear.publish("a", b"to be repaired", qos=1)
    assert in_clear.member.linger_until(lan.now) == lan.now + LINGER_S


def test_one_with_another_key_or_none_is_told_of_once_it_is_heard() -> None:
    keyring = Keyring.parse(f"1 {'ab' * 32}", "a file")
    other = Keyring.parse(f"1 {'cd' * 32}", "another")
    for keys, stranger_keys, reason in (
        (keyring, None, "it sends without a key"),
        (None, keyring, "it sends sealed, and there is no key here"),
        (keyring, other, "the tag is wrong under key 1"),
    ):
        lan = Lan()
        host = lan.host(keys)
        stranger = lan.host(stranger_keys)
        lan.run(SETTLED_S)
        assert [(each.source, each.reason) for each in host.member.take_events()] == [
            (stranger.number, reason)
        ]
