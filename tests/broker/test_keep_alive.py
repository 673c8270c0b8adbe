"""Keep alive, and the timers behind it."""

from __future__ import annotations

from hedgerow.broker.limits import Limits
from hedgerow.mqtt.packets import MQTT_3_1, MQTT_3_1_1, Disconnect, Pingreq, Pingresp, Publish
from hedgerow.mqtt.reasons import Reason
from tests.broker.harness import World


def test_a_silent_client_is_closed_after_one_and_a_half_times_its_keep_alive() -> None:
    """MQTT-3.1.2-22."""
    world = World()
    client = world.connect("a", keep_alive=10)
    old = world.connect("b", MQTT_3_1_1, keep_alive=10)
    world.advance(14.9)
    assert not client.closed
    assert not old.closed
    world.advance(0.2)
    assert client.take_one(Disconnect).reason_code == Reason.KEEP_ALIVE_TIMEOUT
    assert client.closed
    assert old.closed
    assert old.take() == []


def test_any_packet_keeps_a_client_alive() -> None:
    world = World()
    client = world.connect("a", keep_alive=10)
    for _ in range(5):
        world.advance(14)
        client.send(Publish("t"))
        world.advance(14)
        client.send(Pingreq())
        assert client.take() == [Pingresp()]
    assert not client.closed


def test_what_a_client_receives_does_not_keep_it_alive() -> None:
    world = World()
    client = world.connect("a", keep_alive=10)
    client.subscribe("t")
    other = world.connect("b")
    for _ in range(4):
        world.advance(5)
        other.send(Publish("t"))
    assert client.closed


def test_what_has_come_and_is_still_to_be_read_keeps_a_client_alive() -> None:
    """The broker's loop is late, and the client is not to pay for it."""
    world = World()
    client = world.connect("a", keep_alive=10)
    client.unread_since = world.now + 14
    world.advance(28.9)
    assert not client.closed
    world.advance(0.2)
    assert client.take_one(Disconnect).reason_code == Reason.KEEP_ALIVE_TIMEOUT


def test_a_keep_alive_of_zero_is_none() -> None:
    world = World()
    client = world.connect("a", keep_alive=0)
    world.advance(1_000_000)
    assert not client.closed


def test_the_server_may_set_the_keep_alive() -> None:
    """MQTT-3.2.2-21: those who ask for more, or for none, get the longest."""
    world = World(Limits(keep_alive_s=20))
    for asked in 0, 21, 65_535:
        client = world.connect("a", keep_alive=asked)
        assert client.connack.properties["server_keep_alive"] == 20
        world.advance(31)
        assert client.closed
    client = world.connect("a", keep_alive=20)
    assert "server_keep_alive" not in client.connack.properties


def test_who_cannot_be_told_of_a_keep_alive_keeps_their_own() -> None:
    """3.1.1, MQTT-3.1.2-24: one and a half times the keep-alive that the client said."""
    world = World(Limits(keep_alive_s=20))
    for version in MQTT_3_1, MQTT_3_1_1:
        client = world.connect("a", version, keep_alive=100)
        world.advance(149)
        assert not client.closed
        world.advance(2)
        assert client.closed
        client = world.connect("a", version, keep_alive=0)
        world.advance(100_000)
        assert not client.closed


def test_a_client_is_not_blamed_for_what_we_did_not_read() -> None:
    """While the store does not commit we stop reading; the client's PINGREQ waits in its socket."""
    world = World(durable=True)
    reader = world.connect("reader", kept=True)
    reader.subscribe("t", 1)
    reader.lose()
    client = world.connect("a", MQTT_3_1_1, keep_alive=10)
    world.commits = False
    for packet_id in range(1, 5_000):
        client.connection.receive_data(b"\x32\x05\x00\x01t" + packet_id.to_bytes(2, "big"), world.now)
    world.settle()
    assert client.connection.paused
    world.advance(100)
    assert not client.closed
    world.commits = True
    world.settle()
    assert not client.connection.paused
    world.advance(16)
    assert client.closed


def test_connections_and_sessions_that_are_gone_leave_no_timers() -> None:
    """A client that comes and goes must not pile up timers that are due in a day."""
    world = World()
    for _ in range(5_000):
        world.connect("a", keep_alive=65_535, kept=True).lose()
    assert world.broker.timers_held < 3_000


def test_a_session_that_makes_way_for_a_new_one_leaves_no_timer() -> None:
    """With all of the old one, for as long as it would have been kept."""
    world = World()
    for _ in range(3_000):
        world.connect("a", clean_start=True, properties={"session_expiry_interval": 86_400}).lose()
    assert len(world.broker.sessions) == 1
    assert world.broker.timers_held < 2_000
