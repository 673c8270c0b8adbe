"""Properties of one connection that somebody puts into a message: no other connection gets them.

A client that is sent a topic alias which it did not allow, or an identifier of a subscription that it does
not have, has to end its connection. What a peer writes into a payload as a message must not bring that about.
"""

from __future__ import annotations

import pytest

from hedgerow.message import Message, MessageId, Properties
from hedgerow.mobility.delegation import codec
from hedgerow.mobility.delegation.publications import EventBody, PublicationKind, StreamHeader
from hedgerow.mqtt import properties
from hedgerow.mqtt.packets import MQTT_5, PUBLISH, Publish
from hedgerow.multicast.frame import FrameError, pack_content, parse_content
from hedgerow.node import store_rows
from tests.mobility.domain import Domain, Line, Roamer

OWN: Properties = {
    "payload_format_indicator": 1,
    "message_expiry_interval": 60,
    "content_type": "text/plain",
    "response_topic": "answers",
    "correlation_data": b"1",
    "user_property": (("a", "b"), ("a", "c")),
}
OF_CONNECTION: Properties = {"topic_alias": 7, "subscription_identifier": (1, 2)}
ALL = OWN | OF_CONNECTION


def message(told: Properties) -> Message:
    return Message("cold", b"forged", 1, False, told, MessageId("m", 1, 10**9))


def test_what_belongs_to_a_message() -> None:
    assert properties.of_message(ALL) == OWN
    assert properties.of_message(OWN) is OWN
    assert properties.of_message({}) == {}


@pytest.mark.parametrize("kind", [PublicationKind.EVENT, PublicationKind.NOTIFY])
def test_between_mobile_and_fixed_brokers(kind: PublicationKind) -> None:
    publication = codec.write("farm", "m", kind, StreamHeader(1, 1, 1, 1, 1), EventBody(message(ALL)))
    assert set(publication.properties) <= {*OWN, "user_property"}
    publication.properties = {**ALL, "user_property": publication.properties["user_property"]}
    _, _, body = codec.read(publication)
    assert isinstance(body, EventBody)
    assert body.message.properties == OWN


def test_a_multicast_message_that_has_them_is_dropped() -> None:
    flags, content = pack_content(message(ALL), "m", None)
    with pytest.raises(FrameError, match="one MQTT connection"):
        parse_content("cold", flags, MessageId("m", 0, 1), content)


def test_in_a_store() -> None:
    encoded = properties.encode(ALL, PUBLISH)
    read = store_rows.message("cold", b"", 1, encoded, "m", 1, 1, 0.0)
    assert read.properties == OWN


class Strict(Roamer):
    """A client that allows no topic alias, and gave no identifier."""

    def take(self, line: Line, packet: object) -> list[object]:  # type: ignore[override]
        assert isinstance(packet, Publish)
        assert properties.of_message(packet.properties) == packet.properties
        return super().take(line, packet)  # type: ignore[return-value]


def test_clients_of_both_brokers_get_a_message_without_them() -> None:
    domain = Domain()
    fixed = domain.add_fixed("f")
    rogue = domain.add_mobile("m", "f")
    domain.wait_for(lambda: rogue.node.machine.may_send_clients, 5)
    listener = Strict(domain, "f", "listener", MQTT_5, "cold")
    uplink = rogue.node.machine.current
    assert uplink is not None
    uplink.stream.put(PublicationKind.EVENT, EventBody(message(ALL)), domain.now)
    rogue.node.has_work = True
    rogue.settle()
    domain.advance(0.5)
    assert listener.payloads == [b"forged"]
    assert listener.moves == ["f"]
    assert fixed.broker.sessions["listener"].connection is not None
