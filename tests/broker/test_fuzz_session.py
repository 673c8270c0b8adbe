"""Garbage, changed packets and every cut of the bytes: no exception leaves, and others are served."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import MQTT_5, Connect, Packet, Publish, Subscribe, Subscription, Will
from tests.broker.fuzz_checks import LIMITS, Siege
from tests.mobility.fake_mobility import MobileWorld
from tests.mqtt.strategies import packets, versions

TOPICS = ("t", "t/u", "t/u/v", "u")
FILTERS = ("t", "t/+", "t/#", "#", "+/u", "$share/g/t/#", "$share/g/#", "$SYS/#", "u")

# Packets that meet each other: few names, few identifiers.
identifiers = st.integers(1, 5)


def meeting_packets(version: int) -> st.SearchStrategy[Packet]:
    properties: st.SearchStrategy[Any] = st.just({})
    if version == MQTT_5:
        properties = st.fixed_dictionaries(
            {},
            optional={
                "topic_alias": st.integers(1, 4),
                "message_expiry_interval": st.integers(0, 9),
                "user_property": st.just((("name", "x" * 300),)),
            },
        )
    topics = st.sampled_from(TOPICS)
    at_most_once = st.builds(
        Publish, topics, st.binary(max_size=300), retain=st.booleans(), properties=properties
    )
    acknowledged = st.builds(
        Publish,
        topics,
        st.binary(max_size=300),
        st.integers(1, 2),
        st.booleans(),
        st.booleans(),
        identifiers,
        properties,
    )
    options = (st.booleans(), st.booleans(), st.integers(0, 2)) if version == MQTT_5 else ()
    subscriptions = st.builds(Subscription, st.sampled_from(FILTERS), st.integers(0, 2), *options)
    subscribe = st.builds(Subscribe, identifiers, st.lists(subscriptions, min_size=1, max_size=4))
    return st.one_of(at_most_once, acknowledged, subscribe, packets(version))


connect_properties: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={
        "session_expiry_interval": st.integers(0, 20),
        "receive_maximum": st.integers(1, 3),
        "maximum_packet_size": st.sampled_from([20, 100, 400]),
        "topic_alias_maximum": st.integers(0, 3),
    },
)


@st.composite
def connects(draw: st.DrawFn) -> Connect:
    version = draw(versions)
    packet = Connect(
        draw(st.sampled_from(["a", "b", "c"])), version, draw(st.booleans()), draw(st.integers(0, 3))
    )
    if draw(st.booleans()):
        packet.will = Will(
            draw(st.sampled_from(TOPICS)), b"gone", draw(st.integers(0, 2)), draw(st.booleans())
        )
    if version == MQTT_5:
        packet.properties = draw(connect_properties)
    return packet


@st.composite
def chunks(draw: st.DrawFn) -> bytes:
    """Valid packets, changed ones, or anything; cut anywhere."""
    version = draw(versions)
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.binary(max_size=64))
    found = draw(st.lists(meeting_packets(version), min_size=1, max_size=4))
    data = bytearray(b"".join(codec.encode(packet, version) for packet in found))
    if kind == 1:
        for _ in range(draw(st.integers(1, 3))):
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    if kind == 2:
        return bytes(data[: draw(st.integers(0, len(data)))])
    if kind == 3:  # as short as a packet can be, before others; tests/security has all of them
        short = draw(st.binary(max_size=4))
        return bytes((draw(st.integers(0, 255)), len(short))) + short + bytes(data)
    return bytes(data)


strangers = st.integers(0, 7)
steps = st.one_of(
    st.tuples(st.just("send"), strangers, chunks()),
    st.tuples(st.just("connect"), connects()),
    st.tuples(st.just("send"), strangers, chunks()),
    st.tuples(st.just("lose"), strangers),
    st.tuples(st.just("congest"), strangers, st.booleans()),
    st.tuples(st.just("advance"), st.floats(0, 8)),
)


@settings(max_examples=70)  # `make fuzz` goes on for as long as it is let
@given(st.booleans(), st.lists(steps, min_size=10, max_size=60))
def test_whatever_strangers_send_the_others_are_served(durable: bool, story: list[tuple[Any, ...]]) -> None:
    siege = Siege(durable)
    for name, *arguments in story:
        if name == "advance":
            siege.world.advance(*arguments)
        else:
            getattr(siege, name)(*arguments)
    siege.finish()


@settings(max_examples=120)
@given(st.binary(max_size=200), st.lists(st.integers(1, 40), max_size=10))
def test_bytes_from_who_never_connected_come_to_nothing(data: bytes, sizes: list[int]) -> None:
    siege = Siege(durable=False)
    siege.open()
    for size in sizes:
        siege.send(0, data[:size])
        data = data[size:]
    siege.send(0, data)
    siege.finish()


@settings(max_examples=120)
@given(versions.flatmap(lambda v: st.tuples(st.just(v), st.lists(meeting_packets(v), max_size=5))), st.data())
def test_however_the_bytes_are_cut_the_answers_are_the_same(
    case: tuple[int, list[Packet]], data: Any
) -> None:
    version, sent = case
    everything = b"".join(codec.encode(packet, version) for packet in [Connect("a", version), *sent])
    cuts = sorted(data.draw(st.sets(st.integers(0, len(everything)), max_size=8)))
    answers = []
    for positions in [], cuts, list(range(len(everything))):
        client = MobileWorld(LIMITS).open()
        for start, end in zip([0, *positions], [*positions, len(everything)], strict=True):
            client.send_bytes(everything[start:end])
        answers.append((client.take_bytes(), client.closed))
    assert answers[0] == answers[1] == answers[2]
