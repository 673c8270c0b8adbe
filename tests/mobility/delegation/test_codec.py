"""Topics and payloads between the brokers: round trips, and nothing but CodecError for the rest."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.message import Message, MessageId, Properties
from hedgerow.mobility.delegation import addresses, codec
from hedgerow.mobility.delegation.addresses import CallbackError
from hedgerow.mobility.delegation.codec import CodecError
from hedgerow.mobility.delegation.publications import (
    ACTIONS,
    EVENTS,
    AddressChanges,
    Body,
    EmptyBody,
    EventBody,
    Filters,
    GuestSubscription,
    HelloBody,
    PublicationKind,
    Registration,
    Registrations,
    Roaming,
    RoamingStep,
    Serving,
    StreamHeader,
    Unsubscription,
)
from hedgerow.mobility.delegation.subscriber_sets import packed
from hedgerow.mqtt import codec as mqtt_codec
from hedgerow.mqtt.decoder import read_header
from hedgerow.mqtt.packets import MQTT_5, Pubcallback

HEADER = StreamHeader(7, 5, 3, 12, 9, 8, 4, 2)


def split_packet(data: bytes) -> tuple[int, bytes]:
    found = read_header(data, 0)
    assert found is not None
    return data[0], data[found[0] :]


names = st.one_of(
    st.text(max_size=20).map(lambda client: addresses.of_client(client, "m1")),
    st.sampled_from(["@m1", "192.0.2.7:1883", "[2001:db8::7]:8883"]),
)
levels = st.integers(0, 2)
filters = st.sampled_from(["a", "a/+", "#", "field/1/#"])
plain = st.builds(
    lambda topic_filter, chosen: Registration(topic_filter, tuple(chosen.items())),
    filters,
    st.dictionaries(names, levels, max_size=9),
)
FIELD = tuple(f"sensor-{number:03}@m1" for number in range(80))
sets = st.builds(
    lambda topic_filter, chosen: packed(Registration(topic_filter, tuple(chosen.items())), FIELD),
    filters,
    st.dictionaries(st.sampled_from(FIELD), levels, max_size=40),
)
registrations = plain | sets
numbers = st.integers(0, 2**32 - 1)
messages = st.builds(
    Message,
    st.sampled_from(["a", "field/1"]),
    st.binary(max_size=20),
    levels,
    st.booleans(),
    st.sampled_from([Properties(), Properties(content_type="text/plain", user_property=(("a", "b"),))]),
    st.builds(MessageId, st.sampled_from(["m1", "a/b"]), numbers, numbers),
)
pairs = st.dictionaries(names, levels, max_size=5).map(lambda found: tuple(found.items()))
events = st.builds(
    EventBody,
    messages,
    pairs,
    st.lists(names, unique=True, max_size=5).map(tuple),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
guest_filters = filters | filters.map("$share/name/{}".format)
lists = st.builds(Registrations, st.lists(registrations, max_size=5).map(tuple))
clients = st.text(min_size=1, max_size=20).map(lambda client: addresses.of_client(client, "m1"))
roaming = clients.flatmap(
    lambda client: st.builds(
        Roaming,
        st.just(client),
        st.sampled_from(RoamingStep),
        st.integers(0, 2**64 - 1),
        st.none() | st.text(st.characters(categories=["L"]), max_size=9),
        st.booleans(),
        numbers,
        st.lists(
            st.builds(GuestSubscription, guest_filters, st.just(client), levels, identifier=st.none()),
            max_size=4,
        ).map(tuple),
        st.lists(st.builds(MessageId, st.sampled_from(["m1", "a/b"]), numbers, numbers), max_size=3).map(
            tuple
        ),
        st.integers(0, 2**64 - 1),
    )
)
BODIES: dict[PublicationKind, st.SearchStrategy[Body]] = {
    PublicationKind.HELLO: st.builds(HelloBody, numbers, st.integers(0, 2**64 - 1), numbers),
    PublicationKind.DELEGATE: lists,
    PublicationKind.ADDRESSES: st.builds(
        AddressChanges, *(st.lists(names, unique=True, max_size=5).map(tuple) for _ in range(2))
    ),
    PublicationKind.RECOVERED: lists,
    PublicationKind.RECOVER: st.builds(Filters, st.lists(filters, max_size=5).map(tuple)),
    PublicationKind.UNSUBSCRIPTION_SINGLE: st.builds(Unsubscription, filters, names),
    PublicationKind.SERVING: st.builds(Serving, names, st.booleans(), st.none() | names),
    PublicationKind.EVENT: events,
    PublicationKind.NOTIFY: events,
    PublicationKind.SUBSCRIPTION: st.builds(
        GuestSubscription,
        guest_filters,
        names,
        st.integers(0, 2),
        st.booleans(),
        st.booleans(),
        st.none() | st.integers(1, 268_435_455),
    ),
    PublicationKind.UNSUBSCRIPTION: st.builds(Unsubscription, guest_filters, names),
    PublicationKind.ROAMING: roaming,
}
written = st.sampled_from(PublicationKind).flatmap(
    lambda kind: st.tuples(st.just(kind), BODIES.get(kind, st.just(EmptyBody())))
)


@given(written)
def test_bytes_and_back(item: tuple[PublicationKind, Body]) -> None:
    kind, body = item
    publication = codec.write("farm", "m1", kind, HEADER, body)
    assert codec.read(publication) == (kind, HEADER, body)
    if kind in EVENTS:
        packet = codec.as_pubcallback(publication)
        again = mqtt_codec.decode(*split_packet(mqtt_codec.encode(packet, MQTT_5)), MQTT_5, True)
        assert isinstance(again, Pubcallback)
        assert codec.read(codec.from_pubcallback(again)) == (kind, HEADER, body)


@settings(max_examples=300)
@given(written, st.data())
def test_damaged_bytes_are_refused_or_something_else(
    item: tuple[PublicationKind, Body], data: st.DataObject
) -> None:
    kind, body = item
    publication = codec.write("farm", "m1", kind, HEADER, body)
    payload = bytearray(publication.payload)
    for _ in range(data.draw(st.integers(1, 3)) if payload else 0):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    publication.payload = bytes(payload[: data.draw(st.integers(0, len(payload)))])
    pairs = list(publication.properties["user_property"])
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(pairs) - 1))
        name, text = pairs[at]
        cut = data.draw(st.integers(0, len(text)))
        pairs[at] = name, text[:cut] + data.draw(st.text(max_size=3)) + text[cut + 1 :]
    publication.properties["user_property"] = tuple(pairs)
    try:
        codec.read(publication)
    except CodecError:
        return


def test_a_long_list_of_callbacks() -> None:
    """More than a text of MQTT holds."""
    entries = tuple((addresses.of_client(f"client-{index:05}", "m1"), 1) for index in range(6_000))
    body = Registrations((Registration("a", entries),))
    for kind, each in (
        (PublicationKind.DELEGATE, body),
        (PublicationKind.NOTIFY, EventBody(Message("a", b"x", id=MessageId("m", 1, 1)), entries)),
    ):
        assert codec.read(codec.write("farm", "m1", kind, HEADER, each)) == (kind, HEADER, each)


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("dit.upm.es/rmb1/delegate", ("dit.upm.es", "rmb1", "delegate")),
        ("dit.upm.es/fbroker1/recover", ("dit.upm.es", "fbroker1", "recover")),
        ("f/y/rmb1/delegate/unsubscription/single", ("f/y", "rmb1", "delegate/unsubscription/single")),
        ("farm_x/rmb1/delegate/unsubscription/all", ("farm_x", "rmb1", "delegate/unsubscription/all")),
        ("farm_x/rmb1/delegate/deactivate/all", ("farm_x", "rmb1", "delegate/deactivate/all")),
        ("farm_x/rmb1/delegate/deactivate/no", ("farm_x", "rmb1", "delegate/deactivate/no")),
    ],
)  # fmt: skip
def test_the_documents_topics(topic: str, expected: tuple[str, str, str]) -> None:
    assert codec.split_topic(topic) == expected
    domain, broker_id, action = expected
    assert any(
        codec.topic_of(domain, broker_id, kind) == topic
        for kind in PublicationKind
        if ACTIONS[kind] == action
    )


@pytest.mark.parametrize("topic", ["", "delegate", "rmb1/delegate", "/rmb1/delegate", "a//delegate", "a/b/c"])
def test_other_topics_are_none_of_ours(topic: str) -> None:
    with pytest.raises(CodecError):
        codec.split_topic(topic)


def test_a_session_has_its_clients_own_subscriptions_alone() -> None:
    for callback, wanted in (("a@m1", "b@m1"), ("@m1", "@m1"), ("192.0.2.7:1883", "192.0.2.7:1883")):
        body = Roaming(callback, RoamingStep.OFFER, 1, subscriptions=(GuestSubscription("a", wanted, 1),))
        with pytest.raises(CodecError, match=r"another client's|no step"):
            codec.read(codec.write("farm", "m1", PublicationKind.ROAMING, HEADER, body))


def test_a_payload_of_another_action_is_refused() -> None:
    publication = codec.write("farm", "m1", PublicationKind.UNSUBSCRIPTION_ALL, HEADER, EmptyBody())
    publication.topic = "farm/m1/delegate"
    with pytest.raises(CodecError, match="UNSUBSCRIPTION_ALL on the topic 'farm/m1/delegate'"):
        codec.read(publication)


@pytest.mark.parametrize("topic_filter", ["$SYS/#", "$hedgerow/plan", "$share/g/t"])
def test_a_brokers_own_topics_are_not_delegated(topic_filter: str) -> None:
    body = Registrations((Registration(topic_filter, ()),))
    publication = codec.write("farm", "m1", PublicationKind.DELEGATE, HEADER, body)
    with pytest.raises(CodecError, match="not for others"):
        codec.read(publication)


@pytest.mark.parametrize("client_id", ["a", "", 'quo"te', "{brace}", "at@sign", "sl/ash", "ü", "per%cent"])
def test_a_clients_callback(client_id: str) -> None:
    callback = addresses.of_client(client_id, "m1")
    assert addresses.validate(callback) == callback
    assert addresses.owner_of(callback) == "m1"
    assert (addresses.client_id_of(callback) or "") == client_id
    assert addresses.decode_list(addresses.encode_list([callback, "@m2"])) == (callback, "@m2")


def test_the_documents_list_of_callbacks() -> None:
    assert addresses.encode_list(["192.0.2.7:1883", "b@m1"]) == '{192.0.2.7:1883"b@m1}'
    assert addresses.decode_list("{}") == ()


@pytest.mark.parametrize(
    "text",
    [
        "", "a", "a@", "a@m/1", "a@m#", "%61@m1", "a b@m1", "192.0.2.7", "192.0.2.7:0", "192.0.2.7:65536",
        "192.0.2.7:+1", "192.0.2.7:٣", "host:1883", "2001:db8::7:1883", "[192.0.2.7]:1883", "[::1:1883",
        "1.2.3:1", 'a"b@m1', "{@m1", "@m1\n", "a" * 2_000 + "@m1",
    ],
)  # fmt: skip
def test_what_is_no_callback(text: str) -> None:
    with pytest.raises(CallbackError):
        addresses.validate(text)


@pytest.mark.parametrize("text", ["", "{", "}", "a@m1", "{a@m1", 'a@m1"b@m1', '{a@m1""b@m1}', "{{a@m1}}"])
def test_what_is_no_list(text: str) -> None:
    with pytest.raises(CallbackError):
        addresses.decode_list(text)
