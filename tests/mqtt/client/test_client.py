"""The client machine's connection: CONNECT to DISCONNECT, time, bytes in any split, broken rules."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hedgerow.mqtt import codec
from hedgerow.mqtt.client.client import Client, ClientState
from hedgerow.mqtt.client.events import (
    Connected,
    ConnectOptions,
    Disconnected,
    Event,
    MessageReceived,
    Refused,
)
from hedgerow.mqtt.packets import (
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Pubrel,
    Subscribe,
    Subscription,
    Will,
)
from hedgerow.mqtt.reasons import Reason
from tests.mqtt.client.peer import NOW, Peer, connected
from tests.packets import read_packets

# CONNECT and CONNACK.


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (ConnectOptions("c"), "10 0e 0004 4d515454 05 02 003c 00 0001 63"),
        (
            ConnectOptions("c", version=MQTT_3_1_1, clean_start=False),
            "10 0d 0004 4d515454 04 00 003c 0001 63",
        ),
        (ConnectOptions("c", version=MQTT_3_1, keep_alive_s=5), "10 0f 0006 4d5149736470 03 02 0005 0001 63"),
        (
            ConnectOptions("c", session_expiry_s=60, receive_maximum=7, topic_alias_maximum=3),
            "10 19 0004 4d515454 05 02 003c 0b 11 0000003c 21 0007 22 0003 0001 63",
        ),
        (
            ConnectOptions("c", username="u", password=b"p", will=Will("w", b"gone", 1, True)),
            "10 1e 0004 4d515454 05 ee 003c 00 0001 63 00 0001 77 0004 676f6e65 0001 75 0001 70",
        ),
    ],
)
def test_connect_is_these_bytes(options: ConnectOptions, expected: str) -> None:
    client = Client(options)
    client.connect(NOW)
    assert client.take_output() == bytes.fromhex(expected)


def test_connack_tells_what_the_server_decided() -> None:
    peer = Peer(client_id="", keep_alive_s=60)
    (event,) = peer.connect(properties={"assigned_client_identifier": "given", "server_keep_alive": 5})
    assert isinstance(event, Connected)
    assert (event.client_id, event.keep_alive_s, event.session_present) == ("given", 5, False)
    assert peer.client.deadline() == NOW + 5
    peer.lose()
    peer.client.connect(NOW)
    (again,) = peer.sent()
    assert isinstance(again, Connect)
    assert again.client_id == "given"


def test_refusal_with_reason_and_server_reference() -> None:
    peer = Peer()
    peer.client.connect(NOW)
    peer.sent()
    events = peer.answer(
        Connack(False, Reason.SERVER_MOVED, {"reason_string": "gone", "server_reference": "b:1883"})
    )
    assert events == [Refused(Reason.SERVER_MOVED, "gone", "b:1883")]
    assert peer.client.closing
    assert peer.client.state is ClientState.IDLE


@pytest.mark.parametrize(
    ("return_code", "reason_code"),
    [
        (1, Reason.UNSUPPORTED_PROTOCOL_VERSION),
        (2, Reason.CLIENT_IDENTIFIER_NOT_VALID),
        (4, Reason.BAD_USER_NAME_OR_PASSWORD),
        (5, Reason.NOT_AUTHORIZED),
    ],
)
@pytest.mark.parametrize("version", [MQTT_3_1, MQTT_3_1_1, MQTT_5])
def test_return_codes_of_older_servers_are_understood(
    version: int, return_code: int, reason_code: int
) -> None:
    """A server that knows no MQTT 5 answers it with the CONNACK of 3.1.1, which has no properties."""
    client = Client(ConnectOptions("c", version=version))
    client.connect(NOW)
    (event,) = client.receive_data(bytes((0x20, 2, 0, return_code)), NOW)
    assert isinstance(event, Refused)
    assert event.reason_code == reason_code


def test_session_present_after_a_clean_start_is_refused() -> None:
    peer = Peer(clean_start=True)
    peer.client.connect(NOW)
    peer.sent()
    (event,) = peer.answer(Connack(session_present=True))
    assert isinstance(event, Disconnected)
    assert "MQTT-3.2.2-4" in event.reason


@pytest.mark.parametrize(
    ("options", "clean_starts"),
    [
        ({"session_expiry_s": 60}, [True, False, False]),
        ({"session_expiry_s": 60, "clean_start": False}, [False, False, False]),
        ({"session_expiry_s": 0}, [True, True, True]),
        ({"version": MQTT_3_1_1}, [True, True, True]),
        ({"version": MQTT_3_1_1, "clean_start": False}, [False, False, False]),
    ],
)
def test_only_the_first_start_is_clean_when_the_session_stays(
    options: dict[str, int], clean_starts: list[bool]
) -> None:
    peer = Peer(**options)
    seen = []
    for _ in clean_starts:
        peer.client.connect(NOW)
        (packet,) = peer.sent()
        assert isinstance(packet, Connect)
        seen.append(packet.clean_start)
        peer.answer(Connack())
        peer.lose()
    assert seen == clean_starts


# The end.


def test_disconnect_says_so_and_closes() -> None:
    peer = connected(session_expiry_s=60)
    peer.client.disconnect(NOW, properties={"session_expiry_interval": 0})
    assert peer.sent() == [Disconnect(0, {"session_expiry_interval": 0})]
    assert peer.client.closing
    assert peer.lose() == []


def test_disconnect_without_a_connection_does_nothing() -> None:
    client = Client(ConnectOptions("c"))
    client.disconnect(NOW)
    assert client.take_output() == b""
    assert not client.closing


def test_the_servers_disconnect_is_reported() -> None:
    peer = connected()
    events = peer.answer(Disconnect(Reason.USE_ANOTHER_SERVER, {"server_reference": "other"}))
    assert events == [
        Disconnected("the server disconnected: use another server", Reason.USE_ANOTHER_SERVER, "other")
    ]
    assert peer.client.closing
    assert peer.sent() == []


def test_a_lost_link_is_reported_once() -> None:
    peer = connected()
    assert peer.client.lost(NOW, "cut") == [Disconnected("cut")]
    assert peer.client.lost(NOW, "cut") == []
    assert peer.answer(Publish("a")) == []


# Time.


def test_a_pingreq_leaves_when_nothing_was_sent_for_the_keep_alive() -> None:
    peer = connected(keep_alive_s=10)
    client = peer.client
    assert client.deadline() == NOW + 10
    assert client.handle_timer(NOW + 9.9) == []
    assert peer.sent() == []
    assert client.handle_timer(NOW + 10) == []
    assert peer.sent() == [Pingreq()]
    peer.now = NOW + 10.5
    peer.answer(Pingresp())
    assert client.deadline() == NOW + 20


def test_no_pingresp_means_a_dead_link() -> None:
    peer = connected(keep_alive_s=10, ping_timeout_s=3.0)
    peer.client.handle_timer(NOW + 10)
    peer.sent()
    assert peer.client.deadline() == NOW + 13
    (event,) = peer.client.handle_timer(NOW + 13)
    assert isinstance(event, Disconnected)
    assert "PINGREQ" in event.reason
    assert peer.client.closing


def test_publishing_into_a_silent_link_does_not_keep_it_alive() -> None:
    """Links are cut silently: what we write vanishes, and only an answer shows that it did not."""
    peer = connected(keep_alive_s=10, ping_timeout_s=3.0)
    client = peer.client
    for second in range(1, 11):
        peer.now = NOW + second
        peer.publish("a")
        client.handle_timer(peer.now)
    assert Pingreq() in peer.sent()
    peer.now = NOW + 12
    peer.publish("a")
    (event,) = client.handle_timer(NOW + 13)
    assert isinstance(event, Disconnected)


def test_what_arrives_before_the_pingresp_shows_that_the_link_lives() -> None:
    peer = connected(keep_alive_s=10, ping_timeout_s=3.0)
    peer.client.handle_timer(NOW + 10)
    peer.now = NOW + 12
    peer.answer(Publish("a"))
    assert peer.client.handle_timer(NOW + 13) == []
    assert peer.client.deadline() == NOW + 15


def test_a_link_that_is_not_read_is_not_dead_but_still_pinged() -> None:
    peer = connected(keep_alive_s=10, ping_timeout_s=3.0)
    client = peer.client
    client.set_reading(False, NOW)
    client.handle_timer(NOW + 10)
    assert client.handle_timer(NOW + 13) == []
    assert client.handle_timer(NOW + 20) == []
    assert peer.sent() == [Pingreq(), Pingreq()]
    client.set_reading(True, NOW + 25)
    assert client.deadline() == NOW + 28


def test_an_answer_is_awaited_no_longer_than_the_keep_alive_that_was_agreed_on() -> None:
    peer = connected({"server_keep_alive": 4}, keep_alive_s=0, ping_timeout_s=30.0)
    peer.client.handle_timer(NOW + 4)
    assert peer.client.deadline() == NOW + 8


def test_keep_alive_zero_has_no_deadline() -> None:
    assert connected(keep_alive_s=0).client.deadline() is None


def test_no_connack_in_time() -> None:
    client = Client(ConnectOptions("c", connect_timeout_s=4.0))
    client.connect(NOW)
    assert client.deadline() == NOW + 4
    assert client.handle_timer(NOW + 4) == [Disconnected("no CONNACK in 4 s")]
    assert client.closing
    assert client.deadline() is None


# Bytes.

TRANSCRIPT: list[Packet] = [
    Connack(),
    Publish("a/b", b"0"),
    Publish("a/b", b"", retain=True),
    Publish("a/b", b"1", qos=1, packet_id=1),
    Publish("ä/β", b"x" * 200, qos=2, packet_id=2),
    Publish("a/b", b"2", qos=2, packet_id=2, dup=True),
    Pubrel(2),
    Publish("a", b"{}", properties={"content_type": "json", "user_property": (("k", "v"), ("k", "w"))}),
    Pingresp(),
    Publish("a/b", b"y" * 20_000),
    Disconnect(Reason.SERVER_SHUTTING_DOWN),
]


def run_transcript(version: int, chunks: list[bytes]) -> tuple[list[Event], bytes]:
    client = Client(ConnectOptions("c", version=version))
    client.connect(NOW)
    client.take_output()
    events = [event for chunk in chunks for event in client.receive_data(chunk, NOW)]
    return events, client.take_output()


def transcript_bytes(version: int) -> bytes:
    packets = [packet for packet in TRANSCRIPT if version == MQTT_5 or not isinstance(packet, Disconnect)]
    return b"".join(codec.encode(packet, version) for packet in packets)


@pytest.mark.parametrize("version", [MQTT_3_1, MQTT_3_1_1, MQTT_5])
def test_every_split_of_the_bytes_gives_the_same_events_and_answers(version: int) -> None:
    data = transcript_bytes(version)
    whole = run_transcript(version, [data])
    assert [event.payload for event in whole[0] if isinstance(event, MessageReceived)] == [
        b"0", b"", b"1", b"x" * 200, b"{}", b"y" * 20_000,
    ]  # fmt: skip
    assert run_transcript(version, [data[i : i + 1] for i in range(len(data))]) == whole
    for at in range(1, 600):
        assert run_transcript(version, [data[:at], data[at:]]) == whole


@given(st.lists(st.integers(0, len(transcript_bytes(MQTT_5))), max_size=8))
def test_any_split_of_the_bytes(cuts: list[int]) -> None:
    data = transcript_bytes(MQTT_5)
    edges = [0, *sorted(cuts), len(data)]
    chunks = [data[start:stop] for start, stop in pairwise(edges)]
    assert run_transcript(MQTT_5, chunks) == run_transcript(MQTT_5, [data])


# Broken rules end the connection with the reason code that the specification names.


@pytest.mark.parametrize(
    ("data", "reason_code"),
    [
        ("20 03 00 00 00", Reason.PROTOCOL_ERROR),  # a second CONNACK
        ("10 0e 0004 4d515454 05 02 003c 00 0001 63", Reason.PROTOCOL_ERROR),  # CONNECT to a client
        ("82 07 0001 00 0001 61 00", Reason.PROTOCOL_ERROR),  # SUBSCRIBE to a client
        ("c0 00", Reason.PROTOCOL_ERROR),  # PINGREQ to a client
        ("f0 00", Reason.PROTOCOL_ERROR),  # AUTH that nobody agreed on
        ("00 00", Reason.PROTOCOL_ERROR),  # packet type 0
        ("90 04 0009 00 00", Reason.PROTOCOL_ERROR),  # SUBACK for nothing
        ("b0 04 0009 00 00", Reason.PROTOCOL_ERROR),  # UNSUBACK for nothing
        ("36 06 0001 61 0001 00", Reason.MALFORMED_PACKET),  # QoS 3
        ("38 04 0001 61 00", Reason.MALFORMED_PACKET),  # DUP at QoS 0
        ("30 04 0009 61 00", Reason.MALFORMED_PACKET),  # a topic longer than the packet
        ("30 03 0000 00", Reason.PROTOCOL_ERROR),  # neither topic nor alias
        ("32 06 0001 61 0000 00", Reason.PROTOCOL_ERROR),  # packet identifier 0
        ("40 02 0000", Reason.PROTOCOL_ERROR),
        ("62 02 0000", Reason.PROTOCOL_ERROR),
        ("60 02 0001", Reason.MALFORMED_PACKET),  # the flags of PUBREL are 2
        ("30 ff ff ff ff 01", Reason.MALFORMED_PACKET),  # a length of five bytes
        ("30 07 0001 61 03 23 0001", Reason.TOPIC_ALIAS_INVALID),  # we offered none
    ],
)
def test_a_broken_rule_ends_the_connection(data: str, reason_code: Reason) -> None:
    peer = connected()
    (event,) = peer.client.receive_data(bytes.fromhex(data), NOW)
    assert isinstance(event, Disconnected)
    assert event.reason_code == reason_code
    assert peer.sent() == [Disconnect(reason_code)]
    assert peer.client.closing


def test_messages_before_a_broken_rule_are_delivered() -> None:
    peer = connected()
    data = codec.encode(Publish("a", b"1"), MQTT_5) + b"\0\0" + codec.encode(Publish("a", b"2"), MQTT_5)
    message, end = peer.client.receive_data(data, NOW)
    assert isinstance(message, MessageReceived)
    assert isinstance(end, Disconnected)


def test_a_packet_before_connack_ends_the_connection_without_a_word() -> None:
    client = Client(ConnectOptions("c"))
    client.connect(NOW)
    client.take_output()
    (event,) = client.receive_data(codec.encode(Publish("a"), MQTT_5), NOW)
    assert isinstance(event, Disconnected)
    assert client.take_output() == b""


def test_a_packet_larger_than_our_maximum_is_refused_before_it_has_come() -> None:
    peer = connected(maximum_packet_size=1_000)
    (event,) = peer.client.receive_data(b"\x30\xff\xff\xff\x7f", NOW)
    assert isinstance(event, Disconnected)
    assert event.reason_code == Reason.PACKET_TOO_LARGE


def test_mqtt_3_has_no_disconnect_from_the_server() -> None:
    peer = connected(version=MQTT_3_1_1)
    (event,) = peer.client.receive_data(b"\xe0\x00", NOW)
    assert isinstance(event, Disconnected)
    assert peer.client.take_output() == b""


@given(st.lists(st.binary(max_size=60), max_size=5), st.sampled_from([MQTT_3_1, MQTT_3_1_1, MQTT_5]))
def test_whatever_the_network_sends_nothing_raises(chunks: list[bytes], version: int) -> None:
    fresh = Peer(version=version)
    fresh.client.connect(NOW)
    busy = connected(version=version, topic_alias_maximum=2, receive_maximum=2)
    busy.client.subscribe([Subscription("a/#")], NOW)
    busy.publish("a", qos=1)
    busy.publish("a", qos=2)
    for peer in (fresh, busy):
        for chunk in chunks:
            peer.client.receive_data(chunk, NOW)
        data = peer.client.take_output()
        assert read_packets(data, version) is not None


# Misuse.


def test_misuse_raises() -> None:
    peer = connected()
    with pytest.raises(RuntimeError, match="is connected"):
        peer.client.connect(NOW)
    peer.lose()
    with pytest.raises(RuntimeError, match="QoS 0 needs a connection"):
        peer.publish("a")


def test_packet_identifiers_of_requests_and_publications_differ() -> None:
    peer = connected(first_packet_id=65_535)
    peer.client.subscribe([Subscription("a")], NOW)
    for _ in range(3):
        peer.publish("a", qos=1)
    subscribe, *publications = peer.sent()
    assert isinstance(subscribe, Subscribe)
    ids = [packet.packet_id for packet in publications if isinstance(packet, Publish)]
    assert (subscribe.packet_id, ids) == (65_535, [1, 2, 3])
    # All the way round: the SUBSCRIBE still waits for its answer.
    peer.client._sender.outbox.next_packet_id = 65_535
    peer.answer(Puback(1))
    peer.publish("a", qos=1)
    (last,) = peer.sent()
    assert isinstance(last, Publish)
    assert last.packet_id == 1
