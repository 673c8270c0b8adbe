"""Eclipse Paho for Python, in the three protocol versions and over the four transports."""

from __future__ import annotations

from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.interop.conftest import Reach
from tests.interop.paho_peer import PATIENCE_S, VERSIONS, connect_and_vanish, paho, properties
from tests.programs import wait_until

every_version = pytest.mark.parametrize("version", VERSIONS)


@every_version
def test_every_qos_arrives_once_and_in_order(reach: Reach, version: str, name: str) -> None:
    count = 30
    with paho(reach, version, f"{name}-s") as subscriber, paho(reach, version, f"{name}-p") as publisher:
        assert subscriber.subscribe(f"{name}/+", 2) == [2]
        published = [
            publisher.publish(f"{name}/{qos}", f"{number}", qos)
            for number in range(count)
            for qos in (0, 1, 2)
        ]
        publisher.acknowledged(published)
        arrived = subscriber.expect(3 * count)
        for qos in (0, 1, 2):
            mine = [message for message in arrived if message.topic == f"{name}/{qos}"]
            assert [message.payload for message in mine] == [b"%d" % number for number in range(count)]
            assert {message.qos for message in mine} == {qos}


@pytest.mark.parametrize("version", ["3.1.1", "5"])
def test_a_payload_of_a_mebibyte(reach: Reach, version: str, name: str) -> None:
    payload = bytes(range(256)) * 4096
    with paho(reach, version, f"{name}-s") as subscriber, paho(reach, version, f"{name}-p") as publisher:
        subscriber.subscribe(f"{name}/#", 2)
        publisher.acknowledged([publisher.publish(f"{name}/{qos}", payload, qos) for qos in (0, 1, 2)])
        assert all(message.payload == payload for message in subscriber.expect(3))


@every_version
@pytest.mark.parametrize("qos", [1, 2])
def test_a_thousand_in_flight(tcp: Reach, version: str, qos: int, name: str) -> None:
    count = 1_000
    with (
        paho(tcp, version, f"{name}-s") as subscriber,
        paho(tcp, version, f"{name}-p", in_flight=count) as publisher,
    ):
        subscriber.subscribe(name, qos)
        publisher.acknowledged([publisher.publish(name, f"{number}", qos) for number in range(count)])
        arrived = [int(message.payload) for message in subscriber.expect(count)]
        assert arrived == list(range(count))


@every_version
def test_retained_messages_are_kept_replaced_and_removed(tcp: Reach, version: str, name: str) -> None:
    with paho(tcp, version, f"{name}-p") as publisher:
        for value in ("first", "last"):
            publisher.publish_and_wait(f"{name}/kept", value, retain=True)
        publisher.publish_and_wait(f"{name}/gone", "value", retain=True)
        publisher.publish_and_wait(f"{name}/gone", "", retain=True)
        with paho(tcp, version, f"{name}-s") as subscriber:
            subscriber.subscribe(f"{name}/#", 1)
            publisher.publish_and_wait(f"{name}/live", "value")
            found = {(message.topic, message.payload, message.retain) for message in subscriber.expect(2)}
            assert found == {(f"{name}/kept", b"last", True), (f"{name}/live", b"value", False)}


@every_version
def test_a_will_is_published_when_the_connection_is_lost_and_only_then(
    reach: Reach, version: str, name: str
) -> None:
    with paho(reach, version, f"{name}-s") as subscriber:
        subscriber.subscribe(f"{name}/#", 2)
        with paho(reach, version, f"{name}-polite", will=(f"{name}/polite", "gone", 1, False)):
            pass
        connect_and_vanish(reach, version, f"{name}-lost", (f"{name}/lost", "gone", 2, False))
        (message,) = subscriber.expect(1)
        assert (message.topic, message.payload, message.qos) == (f"{name}/lost", b"gone", 2)


@every_version
def test_a_session_keeps_what_came_while_its_client_was_away(tcp: Reach, version: str, name: str) -> None:
    with paho(tcp, version, f"{name}-s", clean=False, expiry_s=60) as subscriber:
        subscriber.subscribe(f"{name}/#", 2)
        assert not subscriber.session_present
    with paho(tcp, version, f"{name}-p") as publisher:
        for number in range(10):
            for qos in (1, 2):
                publisher.publish_and_wait(f"{name}/{qos}", f"{number}", qos)
    with paho(tcp, version, f"{name}-s", clean=False, expiry_s=60) as subscriber:
        arrived = subscriber.expect(20)
        assert subscriber.session_present is (version != "3.1")  # which has no word for it
        for qos in (1, 2):
            numbers = [int(message.payload) for message in arrived if message.topic == f"{name}/{qos}"]
            assert numbers == list(range(10))
    with paho(tcp, version, f"{name}-s", clean=True) as subscriber:
        assert not subscriber.session_present


@every_version
def test_unsubscribed_is_unsubscribed(tcp: Reach, version: str, name: str) -> None:
    with paho(tcp, version, f"{name}-c") as client:
        client.subscribe(f"{name}/a", 1)
        client.subscribe(f"{name}/b", 1)
        client.unsubscribe(f"{name}/a")
        client.publish_and_wait(f"{name}/a", "no")
        client.publish_and_wait(f"{name}/b", "yes")
        assert [message.payload for message in client.expect(1)] == [b"yes"]


@pytest.mark.parametrize("version", ["3.1.1", "5"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_shared_subscription_gives_each_message_to_one_member(
    tcp: Reach, version: str, qos: int, name: str
) -> None:
    count = 60
    with (
        paho(tcp, version, f"{name}-1") as first,
        paho(tcp, version, f"{name}-2") as second,
        paho(tcp, version, f"{name}-p") as publisher,
    ):
        for member in (first, second):
            member.subscribe(f"$share/group/{name}/#", qos)
        publisher.acknowledged([publisher.publish(f"{name}/x", f"{n}", qos) for n in range(count)])
        wait_until(lambda: len(first.inbox) + len(second.inbox) >= count, "all messages", PATIENCE_S)
        numbers = sorted(int(message.payload) for message in first.inbox + second.inbox)
        assert numbers == list(range(count))
        assert len(first.inbox) == len(second.inbox)


# MQTT 5


def test_properties_of_a_publication_pass_through(reach: Reach, name: str) -> None:
    sent = properties(
        PacketTypes.PUBLISH,
        PayloadFormatIndicator=1,
        MessageExpiryInterval=100,
        ContentType="text/plain",
        ResponseTopic=f"{name}/answer",
        CorrelationData=b"\x00\x01",
        UserProperty=[("b", "1"), ("a", "2"), ("b", "3")],
    )
    with paho(reach, "5", f"{name}-s") as subscriber, paho(reach, "5", f"{name}-p") as publisher:
        subscriber.subscribe(f"{name}/#", 1, properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=7))
        for qos in (0, 1):
            publisher.publish_and_wait(f"{name}/x", "value", qos, properties=sent)
        for message in subscriber.expect(2):
            found: Any = message.properties
            assert found.UserProperty == [("b", "1"), ("a", "2"), ("b", "3")]
            assert found.SubscriptionIdentifier == [7]
            assert 0 < found.MessageExpiryInterval <= 100
            assert (found.ContentType, found.ResponseTopic) == ("text/plain", f"{name}/answer")
            assert (found.CorrelationData, found.PayloadFormatIndicator) == (b"\x00\x01", 1)


def test_a_request_is_answered(tcp: Reach, name: str) -> None:
    with paho(tcp, "5", f"{name}-client") as client, paho(tcp, "5", f"{name}-server") as server:
        server.subscribe(f"{name}/request", 1)
        client.subscribe(f"{name}/answer", 1)
        asked = properties(PacketTypes.PUBLISH, ResponseTopic=f"{name}/answer", CorrelationData=b"42")
        client.publish_and_wait(f"{name}/request", "?", properties=asked)
        (request,) = server.expect(1)
        found: Any = request.properties
        answer = properties(PacketTypes.PUBLISH, CorrelationData=found.CorrelationData)
        server.publish_and_wait(found.ResponseTopic, "!", properties=answer)
        (response,) = client.expect(1)
        received: Any = response.properties
        assert (response.payload, received.CorrelationData) == (b"!", b"42")


def test_no_local_and_retain_as_published(tcp: Reach, name: str) -> None:
    with paho(tcp, "5", f"{name}-1") as first, paho(tcp, "5", f"{name}-2") as second:
        first.subscribe_with(f"{name}/#", SubscribeOptions(qos=1, noLocal=True))
        second.subscribe_with(f"{name}/#", SubscribeOptions(qos=1, retainAsPublished=True))
        first.publish_and_wait(f"{name}/1", "mine", retain=True)
        second.publish_and_wait(f"{name}/2", "theirs", retain=True)
        assert [message.topic for message in first.expect(1)] == [f"{name}/2"]
        assert not first.inbox[0].retain
        assert [message.retain for message in second.expect(2)] == [True, True]
        for topic in ("1", "2"):
            first.publish_and_wait(f"{name}/{topic}", "", retain=True)


def test_a_topic_alias_stands_for_its_topic(tcp: Reach, name: str) -> None:
    with paho(tcp, "5", f"{name}-s") as subscriber, paho(tcp, "5", f"{name}-p") as publisher:
        subscriber.subscribe(f"{name}/#", 1)
        alias = properties(PacketTypes.PUBLISH, TopicAlias=1)
        publisher.publish_and_wait(f"{name}/long/name", "0", properties=alias)
        for qos in (0, 1):
            publisher.publish_and_wait("", "1", qos, properties=alias)
        assert [message.topic for message in subscriber.expect(3)] == [f"{name}/long/name"] * 3


def test_an_assigned_client_id_and_the_limits_are_told(tcp: Reach) -> None:
    with paho(tcp, "5", "") as client:
        told = client.connect_properties
        assert told.AssignedClientIdentifier
        assert told.ReceiveMaximum > 0
        assert told.MaximumPacketSize > 0


def test_receive_maximum_of_the_client_is_kept(tcp: Reach, name: str) -> None:
    with (
        paho(tcp, "5", f"{name}-s", ReceiveMaximum=3) as subscriber,
        paho(tcp, "5", f"{name}-p") as publisher,
    ):
        subscriber.subscribe(name, 2)
        publisher.acknowledged([publisher.publish(name, f"{number}", 2) for number in range(50)])
        assert [int(message.payload) for message in subscriber.expect(50)] == list(range(50))
