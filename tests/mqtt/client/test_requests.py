"""The client's subscriptions: made, answered, refused, and made again after a loss."""

from __future__ import annotations

from itertools import chain

import pytest

from hedgerow.errors import RefusedError, TopicError
from hedgerow.message import Properties
from hedgerow.mqtt.client.events import Disconnected, Subscribed, Unsubscribed
from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
)
from hedgerow.mqtt.reasons import Reason
from tests.mqtt.client.peer import NOW, Peer, connected


def subscribe(peer: Peer, *filters: str, **properties: tuple[int, ...]) -> int:
    found: Properties = {}
    if "identifier" in properties:
        found["subscription_identifier"] = properties["identifier"]
    return peer.client.subscribe([Subscription(topic_filter) for topic_filter in filters], NOW, found)


def filters_of(peer: Peer) -> list[list[str]]:
    return [
        [subscription.topic_filter for subscription in packet.subscriptions]
        for packet in peer.sent()
        if isinstance(packet, Subscribe)
    ]


def test_subscribe_is_these_bytes() -> None:
    peer = connected()
    peer.client.subscribe(
        [Subscription("a/+", 1), Subscription("b", 2, True, True, 2)], NOW, {"subscription_identifier": (5,)}
    )
    expected = "82 0f 0001 02 0b05 0003 612f2b 01 0001 62 2e"
    assert peer.client.take_output() == bytes.fromhex(expected)


def test_subscribe_and_its_answer() -> None:
    peer = connected()
    handle = subscribe(peer, "a", "b")
    assert peer.client.unanswered
    (event,) = peer.answer(Suback(1, [0, Reason.NOT_AUTHORIZED], {"reason_string": "half"}))
    assert event == Subscribed(
        handle, [Subscription("a"), Subscription("b")], [0, Reason.NOT_AUTHORIZED], "half"
    )
    assert not peer.client.unanswered


@pytest.mark.parametrize(
    ("version", "answer", "codes"),
    [(5, Unsuback(1, [0, 0x11]), [0, 0x11]), (MQTT_3_1_1, Unsuback(1), [0, 0])],
)
def test_unsubscribe_and_its_answer(version: int, answer: Unsuback, codes: list[int]) -> None:
    peer = connected(version=version)
    handle = peer.client.unsubscribe(["a", "b"], NOW)
    assert peer.sent() == [Unsubscribe(1, ["a", "b"])]
    assert peer.answer(answer) == [Unsubscribed(handle, ["a", "b"], codes)]


@pytest.mark.parametrize(
    "answer", [Suback(1, [0]), Suback(1, [0, 0, 0]), Unsuback(1, [0, 0]), Suback(9, [0, 0])]
)
def test_an_answer_that_does_not_fit_ends_the_connection(answer: Suback | Unsuback) -> None:
    peer = connected()
    subscribe(peer, "a", "b")
    (event,) = peer.answer(answer)
    assert isinstance(event, Disconnected)
    assert event.reason_code == Reason.PROTOCOL_ERROR


@pytest.mark.parametrize("topic_filter", ["", "a/#/b", "a+", "$share/g", "$share//a"])
def test_a_bad_filter_raises_and_leaves_nothing(topic_filter: str) -> None:
    peer = connected()
    with pytest.raises(TopicError):
        subscribe(peer, "fine", topic_filter)
    assert peer.sent() == []
    assert not peer.client.unanswered


OFFERS: list[tuple[Properties, str, Reason]] = [
    ({"wildcard_subscription_available": 0}, "a/#", Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED),
    ({"shared_subscription_available": 0}, "$share/g/a", Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED),
    ({"subscription_identifier_available": 0}, "a", Reason.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED),
]


@pytest.mark.parametrize(("offer", "topic_filter", "reason_code"), OFFERS)
def test_what_the_server_does_not_offer_is_not_asked_for(
    offer: Properties, topic_filter: str, reason_code: Reason
) -> None:
    peer = connected(offer)
    with pytest.raises(RefusedError) as caught:
        subscribe(peer, topic_filter, identifier=(1,))
    assert caught.value.reason_code == reason_code

    waiting = Peer()
    handle = subscribe(waiting, topic_filter, identifier=(1,))
    _, event = waiting.connect(properties=offer)
    assert isinstance(event, Subscribed)
    assert (event.handle, event.reason_codes) == (handle, [reason_code])
    assert waiting.sent() == []


# Reconnection.


def test_without_the_session_what_stands_is_subscribed_again() -> None:
    peer = connected(session_expiry_s=60)
    subscribe(peer, "a", "refused", "left")
    peer.client.unsubscribe(["left"], NOW)
    peer.answer(Suback(1, [0, Reason.NOT_AUTHORIZED, 0]), Unsuback(2, [0]))
    subscribe(peer, "b", identifier=(7,))
    peer.answer(Suback(3, [0]))
    peer.sent()
    peer.lose()
    peer.connect(session_present=False)
    assert filters_of(peer) == [["a"], ["b"]]
    events = peer.answer(Suback(4, [0]), Suback(5, [Reason.QUOTA_EXCEEDED]))
    assert [event.handle for event in events if isinstance(event, Subscribed)] == [0, 0]
    peer.lose()
    peer.connect(session_present=False)
    assert filters_of(peer) == [["a"]]


def test_with_the_session_nothing_is_subscribed_again() -> None:
    peer = connected(session_expiry_s=60)
    subscribe(peer, "a")
    peer.answer(Suback(1, [0]))
    peer.sent()
    peer.lose()
    peer.connect(session_present=True)
    assert peer.sent() == []


@pytest.mark.parametrize("session_present", [True, False])
def test_what_was_not_answered_is_asked_for_again_once(session_present: bool) -> None:
    peer = connected(session_expiry_s=60)
    handle = subscribe(peer, "a")
    peer.sent()
    peer.lose()
    later = subscribe(peer, "b")
    peer.connect(session_present)
    assert filters_of(peer) == [["a"], ["b"]]
    events = peer.answer(Suback(2, [0]), Suback(3, [0]))
    assert [event.handle for event in events if isinstance(event, Subscribed)] == [handle, later]


def test_a_filter_subscribed_again_with_other_options_stands_with_these() -> None:
    peer = connected()
    subscribe(peer, "a")
    peer.client.subscribe([Subscription("a", 2)], NOW)
    peer.answer(Suback(1, [0]), Suback(2, [2]))
    peer.sent()
    peer.lose()
    peer.connect()
    (packet,) = peer.sent()
    assert isinstance(packet, Subscribe)
    assert packet.subscriptions == [Subscription("a", 2)]


def test_many_subscriptions_are_made_again_in_packets_of_bounded_size() -> None:
    peer = connected()
    names = [f"sensors/{number}/temperature" for number in range(2_000)]
    subscribe(peer, *names)
    peer.answer(Suback(1, [0] * len(names)))
    peer.sent()
    peer.lose()
    peer.connect()
    groups = filters_of(peer)
    assert list(chain.from_iterable(groups)) == names
    assert max(len("".join(group)) for group in groups) < 6_000
