"""CONNECT, DISCONNECT, logins and take-over at the broker."""

from __future__ import annotations

import pytest

from hedgerow.broker.events import ClientConnected, ClientDisconnected, ConnectionRefused, ProtocolBroken
from hedgerow.broker.limits import Limits
from hedgerow.broker.owners import MAX_CONNECT_BYTES
from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import (
    MQTT_3_1,
    MQTT_3_1_1,
    MQTT_5,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Will,
)
from hedgerow.mqtt.reasons import Reason
from tests.broker.harness import Client, World


def test_a_client_is_told_what_the_server_takes() -> None:
    connack = World(Limits(receive_maximum=7, packet_bytes=2_000, topic_alias_maximum=3)).connect("a").connack
    assert connack == Connack(
        False, 0, {"receive_maximum": 7, "maximum_packet_size": 2_000, "topic_alias_maximum": 3}
    )


@pytest.mark.parametrize("version", [MQTT_3_1, MQTT_3_1_1])
def test_older_versions_get_a_connack_without_properties(version: int) -> None:
    assert World().connect("a", version).connack == Connack()


def test_a_client_without_a_name_is_given_one_that_nobody_has() -> None:
    world = World()
    names = {world.connect("").connack.properties["assigned_client_identifier"] for _ in range(3)}
    assert len(names) == 3
    assert names == world.broker.sessions.keys()


def test_an_assigned_name_is_never_that_of_another_session() -> None:
    """MQTT-3.2.2-16, also when a client has chosen a name of that form for itself."""
    world = World()
    world.connect("node-1-1")
    assert world.connect("").connack.properties["assigned_client_identifier"] != "node-1-1"
    assert len(world.broker.sessions) == 2


def test_mqtt_3_1_1_needs_a_name_for_a_session_that_is_kept() -> None:
    client = World().open()
    client.send(Connect("", MQTT_3_1_1, clean_start=False))
    assert client.take() == [Connack(False, Reason.CLIENT_IDENTIFIER_NOT_VALID)]
    assert client.closed


def test_mqtt_3_1_needs_a_name() -> None:
    client = World().open()
    client.send(Connect("", MQTT_3_1))
    assert client.take() == [Connack(False, Reason.CLIENT_IDENTIFIER_NOT_VALID)]
    assert client.closed


def test_what_came_with_the_connect_is_handled_after_it() -> None:
    client = World().open()
    client.send(Connect("a"), Subscribe(1, [Subscription("t")]), Publish("t", b"x"), Pingreq())
    assert [type(packet) for packet in client.take()] == [Connack, Suback, Publish, Pingresp]


def test_nothing_behind_a_refused_connect_is_handled() -> None:
    """MQTT-3.1.4-6."""
    world = World()
    other = world.connect("other")
    other.subscribe("t")
    client = world.open()
    refused = Connect("a", properties={"authentication_method": "magic"})
    client.send(refused, Publish("t", b"x"))
    assert client.take_one(Connack).reason_code == Reason.BAD_AUTHENTICATION_METHOD
    assert client.closed
    assert other.take() == []


def test_a_second_connect_is_a_protocol_error() -> None:
    """MQTT-3.1.0-2."""
    world = World()
    client = world.connect("a")
    client.send(Connect("a"))
    assert client.take_one(Disconnect).reason_code == Reason.PROTOCOL_ERROR
    assert client.closed
    [event] = [event for event in world.broker.take_events() if isinstance(event, ProtocolBroken)]
    assert "client a" in str(event)
    assert "MQTT-3.1.0-2" in str(event)


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", b"\xc0\x00", b"\x30", b"\0\0", b"\xff" * 9, b"\x82\xff"]
)
def test_what_does_not_begin_with_a_connect_is_closed_at_its_first_byte(data: bytes) -> None:
    """MQTT-3.1.0-1; without waiting for the rest of what it claims to be."""
    client = World().open()
    client.send_bytes(data)
    assert client.closed
    assert client.take_bytes() == b""


def test_a_connect_longer_than_any_sensible_one_is_refused_at_its_header() -> None:
    """Who has not logged in yet is not given room for a packet of the largest size."""
    world = World()
    client = world.open()
    client.send_bytes(b"\x10" + codec.encode_remaining_length(MAX_CONNECT_BYTES) + b"\0\4MQTT\5")
    assert client.closed


def test_a_connection_that_sends_no_connect_is_closed() -> None:
    world = World(Limits(connect_timeout_s=10))
    client = world.open()
    client.send_bytes(b"\x10")
    world.advance(9)
    assert not client.closed
    world.advance(1)
    assert client.closed
    assert client.take_bytes() == b""


def test_the_time_to_connect_does_not_matter_to_who_has_connected() -> None:
    world = World(Limits(connect_timeout_s=10))
    client = world.connect("a")
    world.advance(1_000)
    assert not client.closed


def test_a_connection_over_the_limit_is_told_that_the_server_is_busy() -> None:
    world = World(Limits(connections=2))
    kept = [world.connect("a"), world.connect("b")]
    client = world.open()
    client.send(Connect("c"))
    assert client.take_one(Connack).reason_code == Reason.SERVER_BUSY
    assert client.closed
    old = world.open()
    old.send(Connect("d", MQTT_3_1_1))
    assert old.take() == [Connack(False, Reason.SERVER_UNAVAILABLE)]
    kept.pop().lose()
    world.connect("e")
    assert not kept[0].closed


def test_the_number_of_sessions_is_limited() -> None:
    world = World(Limits(sessions=2))
    for client_id in "ab":
        client = world.connect(client_id, kept=True)
        client.subscribe("t")
        client.lose()
    client = world.open()
    client.send(Connect("c"))
    assert client.take_one(Connack).reason_code == Reason.QUOTA_EXCEEDED
    world.connect("a", kept=True)


def test_bytes_after_the_end_are_ignored() -> None:
    """A shell may hand over a chunk that it had read before it learned of the close."""
    world = World()
    client = world.connect("a")
    client.send_bytes(b"\xf0\0")
    assert client.take_one(Disconnect).reason_code == Reason.PROTOCOL_ERROR
    client.send_bytes(b"\xf0\0" + codec.encode(Publish("t"), MQTT_5))
    assert client.take_bytes() == b""
    assert world.broker.stats.protocol_errors == 1
    assert world.broker.stats.connections_refused == 0


def test_nothing_behind_a_disconnect_is_handled() -> None:
    """MQTT-3.14.4-1."""
    world = World()
    other = world.connect("other")
    other.subscribe("t")
    client = world.connect("a")
    client.send(Disconnect(), Publish("t", b"x"))
    assert client.closed
    assert client.take() == []
    assert other.take() == []


def test_the_log_tells_who_came_and_went() -> None:
    world = World()
    client = world.connect("a")
    client.send(Disconnect())
    assert [type(event) for event in world.broker.take_events()] == [ClientConnected, ClientDisconnected]


def test_a_connect_with_an_authentication_method_is_refused() -> None:
    """MQTT-4.12.0-1: none is configured."""
    client = World().open()
    client.send(
        Connect("a", properties={"authentication_method": "SCRAM-SHA-1", "authentication_data": b"x"})
    )
    assert client.take_one(Connack).reason_code == Reason.BAD_AUTHENTICATION_METHOD
    assert client.closed


def test_auth_without_a_method_is_a_protocol_error() -> None:
    client = World().connect("a")
    client.send(Auth(0x19, {"authentication_method": "SCRAM-SHA-1"}))
    assert client.take_one(Disconnect).reason_code == Reason.PROTOCOL_ERROR
    assert client.closed


# Versions


def test_an_unknown_version_is_told_so_in_the_words_of_3_1_1() -> None:
    client = World().open()
    client.version = MQTT_3_1_1
    client.send_bytes(bytes.fromhex("100d 0004 4d515454 06 02 003c 0001 61"))
    assert client.take() == [Connack(False, Reason.UNSUPPORTED_PROTOCOL_VERSION)]
    assert client.closed


@pytest.mark.parametrize("version", [MQTT_3_1, MQTT_3_1_1])
def test_a_malformed_connect_of_an_older_version_is_closed_without_an_answer(version: int) -> None:
    client = World().open()
    data = bytearray(codec.encode(Connect("a", version), version))
    data[-6] |= 8  # a will QoS, and no will
    client.send_bytes(bytes(data))
    assert client.closed
    assert client.take_bytes() == b""


def test_a_malformed_connect_of_mqtt_5_is_told_so() -> None:
    client = World().open()
    client.version = MQTT_5
    data = bytearray(codec.encode(Connect("a"), MQTT_5))
    data[9] |= 1
    client.send_bytes(bytes(data))
    assert client.take_one(Connack).reason_code == Reason.MALFORMED_PACKET
    assert client.closed


# Take-over


@pytest.mark.parametrize("kept", [False, True])
def test_a_new_connection_takes_the_session_over(kept: bool) -> None:
    """MQTT-3.1.4-3."""
    world = World()
    first = world.connect("a", kept=kept)
    second = world.connect("a", kept=kept)
    assert first.take_one(Disconnect).reason_code == Reason.SESSION_TAKEN_OVER
    assert first.closed
    assert not second.closed
    assert second.connack.session_present is kept
    second.send(Pingreq())
    assert second.take() == [Pingresp()]


def test_what_the_first_connection_still_sends_does_not_reach_the_second() -> None:
    world = World()
    first = world.connect("a", kept=True)
    second = world.connect("a", kept=True)
    first.take()
    first.send(Subscribe(1, [Subscription("t")]))
    first.lose()
    assert not second.closed
    second.send(Publish("t", b"x"))
    assert second.take() == []


# Logins


def login_world() -> World:
    return World(Limits(connect_timeout_s=10), verifies_passwords=True)


def begin_login(world: World, *behind: Subscribe | Pingreq) -> Client:
    client = world.open()
    client.send(Connect("a", username="alice", password=b"secret"), *behind)
    assert client.take_bytes() == b""
    assert client.connection.paused
    return client


def test_a_login_waits_for_its_password_to_be_checked() -> None:
    world = login_world()
    client = begin_login(world)
    [login] = world.broker.take_logins()
    assert (login.username, login.password) == ("alice", b"secret")
    world.broker.finish_login(login, True, world.now)
    world.settle()
    assert client.take_one(Connack).reason_code == 0
    assert not client.connection.paused
    assert world.broker.sessions["a"].username == "alice"


def test_what_comes_while_the_password_is_checked_is_handled_after_it() -> None:
    world = login_world()
    client = begin_login(world, Subscribe(1, [Subscription("t")]))
    client.send(Pingreq())
    client.send(Pingreq())
    [login] = world.broker.take_logins()
    world.broker.finish_login(login, True, world.now)
    world.settle()
    assert [type(packet) for packet in client.take()] == [Connack, Suback, Pingresp, Pingresp]


def test_the_first_chunk_while_the_password_is_checked_is_no_second_connect() -> None:
    world = login_world()
    client = begin_login(world)
    client.send(Pingreq())
    [login] = world.broker.take_logins()
    world.broker.finish_login(login, True, world.now)
    world.settle()
    assert [type(packet) for packet in client.take()] == [Connack, Pingresp]


def test_a_drained_buffer_does_not_resume_reading_while_the_password_is_checked() -> None:
    world = login_world()
    client = begin_login(world)
    client.set_congested(True)
    client.set_congested(False)
    assert client.connection.paused


def test_a_wrong_password_is_refused() -> None:
    world = login_world()
    client = begin_login(world, Pingreq())
    [login] = world.broker.take_logins()
    world.broker.finish_login(login, False, world.now)
    world.settle()
    assert client.take_one(Connack).reason_code == Reason.BAD_USER_NAME_OR_PASSWORD
    assert client.closed
    assert not world.broker.sessions


def test_a_login_that_takes_too_long_is_refused() -> None:
    world = login_world()
    client = begin_login(world)
    [login] = world.broker.take_logins()
    world.advance(10)
    assert client.take_one(Connack).reason_code == Reason.SERVER_BUSY
    assert client.closed
    world.broker.finish_login(login, True, world.now)
    world.settle()
    assert not world.broker.sessions


def test_a_login_whose_client_went_away_comes_to_nothing() -> None:
    world = login_world()
    client = begin_login(world)
    [login] = world.broker.take_logins()
    client.lose()
    world.broker.finish_login(login, True, world.now)
    world.settle()
    assert not world.broker.sessions


def test_without_anonymous_access_a_name_is_needed() -> None:
    world = World()
    client = world.open(anonymous=False)
    client.send(Connect("a"))
    assert client.take_one(Connack).reason_code == Reason.NOT_AUTHORIZED
    assert client.closed
    [event] = world.broker.take_events()
    assert isinstance(event, ConnectionRefused)


def test_a_certificate_says_who_it_is() -> None:
    world = World(verifies_passwords=True)
    client = world.open(anonymous=False, certificate_name="sensor-7")
    client.send(Connect("a", username="root"))
    assert client.take_one(Connack).reason_code == 0
    assert world.broker.sessions["a"].username == "sensor-7"


def connect_as(world: World, username: str | None) -> Client:
    client = world.open(certificate_name=username)
    client.send(Connect("a", clean_start=False, properties={"session_expiry_interval": 100}))
    return client


def test_nobody_takes_over_the_session_of_another_user() -> None:
    world = World()
    alice = connect_as(world, "alice")
    mallory = connect_as(world, "mallory")
    assert mallory.take_one(Connack).reason_code == Reason.NOT_AUTHORIZED
    assert mallory.closed
    assert not alice.closed


def test_a_session_without_a_user_is_not_handed_to_one_who_has_a_name() -> None:
    world = World()
    connect_as(world, None).lose()
    assert connect_as(world, "alice").take_one(Connack).session_present is False


# A Maximum Packet Size that leaves no room


def test_a_client_that_has_no_room_for_the_connack_is_refused() -> None:
    """MQTT-3.1.2-24: what the CONNACK has to say is not optional."""
    client = World().open()
    client.send(Connect("a", properties={"maximum_packet_size": 5}))
    assert client.take_bytes() == bytes.fromhex("20 03 00 95 00")
    assert client.closed
    client = World().open()
    client.send(Connect("a", properties={"maximum_packet_size": 4}))
    assert client.take_bytes() == b""
    assert client.closed


def test_a_reason_string_that_does_not_fit_is_left_out() -> None:
    """MQTT-3.2.2-19, MQTT-3.14.2-3."""
    refused = World().open()
    refused.send(Connect("a", properties={"maximum_packet_size": 30, "authentication_method": "x"}))
    assert refused.take() == [Connack(False, Reason.BAD_AUTHENTICATION_METHOD)]
    client = World().connect("a", properties={"maximum_packet_size": 30})
    client.send(Connect("a"))
    assert client.take() == [Disconnect(Reason.PROTOCOL_ERROR)]


def test_shutting_down_tells_why() -> None:
    world = World()
    new, old = world.connect("new"), world.connect("old", MQTT_3_1_1)
    unknown = world.open()
    world.broker.shut_down(world.now)
    world.settle()
    assert new.take() == [Disconnect(Reason.SERVER_SHUTTING_DOWN)]
    assert old.take() == []
    assert new.closed
    assert old.closed
    assert unknown.closed


def test_a_disconnect_may_name_another_server() -> None:
    world = World()
    client = world.connect("a")
    client.connection.disconnect(Reason.USE_ANOTHER_SERVER, "", server_reference="other.example:1883")
    world.settle()
    expected = Disconnect(Reason.USE_ANOTHER_SERVER, {"server_reference": "other.example:1883"})
    assert client.take() == [expected]


def test_a_will_with_a_wildcard_in_its_topic_is_malformed() -> None:
    client = World().open()
    client.version = MQTT_5
    data = codec.encode(Connect("a", will=Will("t/x", b"")), MQTT_5).replace(b"t/x", b"t/#")
    client.send_bytes(data)
    assert client.take_one(Connack).reason_code == Reason.MALFORMED_PACKET


def test_publications_before_the_connack_are_taken() -> None:
    """§3.1.4: a client need not wait for it."""
    world = World()
    client = world.open()
    client.send(Connect("a"), Publish("t", b"x", 1, packet_id=9))
    assert client.take()[1:] == [Puback(9, Reason.NO_MATCHING_SUBSCRIBERS)]


@pytest.mark.parametrize("version", [MQTT_3_1_1, MQTT_5])
def test_a_node_may_ask_for_client_identifiers(version: int) -> None:
    """MQTT-3.1.3-6, MQTT-3.1.3-8: a server may take an empty one, and need not."""
    world = World()
    world.broker.takes_empty_client_ids = False
    client = world.open()
    client.send(Connect("", version))
    assert client.closed
    (answer,) = client.take()
    assert isinstance(answer, Connack)
    assert answer.reason_code == Reason.CLIENT_IDENTIFIER_NOT_VALID
    assert not world.connect("a", version).closed
