"""A peer whose CONNECT names an authentication method proves itself by AUTH packets; the rest is sealed."""

from __future__ import annotations

import pytest

from hedgerow.broker.broker import Broker
from hedgerow.broker.connection import SMALL_PACKET_BYTES
from hedgerow.broker.dialled import DialledConnection
from hedgerow.broker.exchange import (
    MAX_ROUNDS,
    Authentication,
    AuthenticationError,
    Authenticator,
    ConnectionSeal,
)
from hedgerow.broker.role import Refusal, Role
from hedgerow.broker.session import Session
from hedgerow.errors import ProtocolError
from hedgerow.message import Properties
from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import (
    MQTT_5,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
)
from hedgerow.mqtt.reasons import Reason
from tests.broker.harness import Client, World
from tests.packets import read_packets

METHOD = "open-sesame"


class ToySeal:
    """Each byte by itself, with one bit turned."""

    def close(self, data: bytes) -> bytes:
        return bytes(byte ^ 1 for byte in data)

    def open(self, chunk: bytes) -> bytes:
        if chunk.startswith(b"forged"):
            raise ProtocolError(Reason.NOT_AUTHORIZED, "forged")
        return self.close(chunk)


class Toy:
    """Says "who" until it hears "ali"."""

    method = METHOD
    peer = "ali"

    def __init__(self) -> None:
        self.seal: ConnectionSeal | None = None

    def step(self, data: bytes) -> bytes:
        if data == b"ali":
            self.seal = ToySeal()
        elif data == b"thief":
            raise AuthenticationError("not the word")
        return b"who"


class ToyRole(Role):
    name = "toy"
    prefix = "toy-"

    def __init__(self) -> None:
        self.asked: list[str | None] = []
        self.unproven: list[str] = []

    def authenticator(self, packet: Connect) -> Authenticator | Refusal:
        return Toy()

    def not_proven(self, packet: Connect, reason: str) -> None:
        self.unproven.append(reason)

    def refusal(
        self, connection: object, packet: Connect, username: str | None, owner: Session | None
    ) -> Refusal | None:
        exchange = connection.exchange  # type: ignore[attr-defined]
        self.asked.append(exchange.proven_name if exchange is not None else None)
        return None

    def may_write(self, session: Session, topic: str) -> bool:
        return True


class ToyWorld(World):
    def prepare(self, broker: Broker) -> None:
        self.role = ToyRole()
        broker.register(self.role)

    def begin(self, client_id: str = "toy-1", word: bytes = b"", **fields: object) -> Client:
        client = self.open()
        properties: Properties = {"authentication_method": METHOD, "authentication_data": word}
        client.send(Connect(client_id, properties=properties, **fields))  # type: ignore[arg-type]
        return client


def auth(data: bytes, method: str = METHOD, reason_code: int = Reason.CONTINUE_AUTHENTICATION) -> Auth:
    return Auth(reason_code, {"authentication_method": method, "authentication_data": data})


def sealed(*packets: Packet) -> bytes:
    return ToySeal().close(b"".join(codec.encode(packet, MQTT_5) for packet in packets))


def unsealed(data: bytes) -> list[Packet]:
    return read_packets(ToySeal().open(data), MQTT_5)


@pytest.fixture
def world() -> ToyWorld:
    return ToyWorld()


def test_an_exchange_comes_before_the_session_and_seals_the_rest(world: ToyWorld) -> None:
    client = world.begin()
    assert client.take() == [auth(b"who")]
    assert "toy-1" not in world.broker.sessions
    assert world.role.asked == []
    client.send(auth(b"ali"))
    (connack,) = unsealed(client.take_bytes())
    assert isinstance(connack, Connack)
    assert connack.reason_code == 0
    assert connack.properties["authentication_method"] == METHOD  # MQTT-4.12.0-5
    assert world.role.asked == ["ali"]
    client.send_bytes(sealed(Pingreq(), Pingreq()))
    assert unsealed(client.take_bytes()) == [Pingresp(), Pingresp()]


def test_a_large_packet_comes_sealed_in_pieces(world: ToyWorld) -> None:
    client = world.begin()
    client.send(auth(b"ali"))
    reader = world.connect("reader")
    client.take_bytes()
    data = sealed(Publish("t", b"x" * 10_000))
    for begin in range(0, len(data), 999):
        client.send_bytes(data[begin : begin + 999])
    assert world.broker.stats.publish_received == 1
    assert reader.take() == []


def test_what_is_not_sealed_ends_the_connection(world: ToyWorld) -> None:
    client = world.begin()
    client.send(auth(b"ali"))
    client.take_bytes()
    client.send_bytes(b"forged")
    assert client.closed
    assert client.take_bytes() == b""  # The peer has sent nothing wrong.


def test_a_wrong_word_is_refused_without_a_session(world: ToyWorld) -> None:
    for client in world.begin(word=b"thief"), world.begin():
        client.send_bytes(codec.encode(auth(b"thief"), MQTT_5))
        assert client.take()[-1].reason_code == Reason.NOT_AUTHORIZED  # type: ignore[union-attr]
        assert client.closed
    assert world.role.unproven == ["not the word", "not the word"]
    assert world.role.asked == []
    assert "toy-1" not in world.broker.sessions


@pytest.mark.parametrize(
    "packets",
    [
        [Pingreq()],
        [Publish("t", b"")],
        [Connect("toy-1")],
        [auth(b"ali"), Pingreq()],
        [auth(b"", "another")],
        [auth(b"ali", reason_code=Reason.RE_AUTHENTICATE)],
    ],
    ids=["ping", "publish", "connect", "ping behind the last AUTH", "another method", "again"],
)
def test_nothing_but_auth_comes_in_an_exchange(world: ToyWorld, packets: list[Packet]) -> None:
    client = world.begin()
    client.take()
    client.send(*packets)
    assert client.take_one(Connack).reason_code == Reason.PROTOCOL_ERROR
    assert client.closed
    assert "toy-1" not in world.broker.sessions


def test_nothing_comes_behind_a_connect_that_names_a_method(world: ToyWorld) -> None:
    client = world.open()
    client.send(Connect("toy-1", properties={"authentication_method": METHOD}), auth(b"ali"))
    assert client.take()[-1].reason_code == Reason.PROTOCOL_ERROR  # type: ignore[union-attr]
    assert client.closed


def test_a_peer_may_leave_the_exchange_and_say_why(world: ToyWorld) -> None:
    client = world.begin()
    reason = "I do not believe\nyou"
    client.send(Disconnect(Reason.IMPLEMENTATION_SPECIFIC_ERROR, {"reason_string": reason}))
    assert client.closed
    (said,) = world.role.unproven
    assert "I do not believe" in said
    assert "\n" not in said


def test_an_exchange_ends_in_time(world: ToyWorld) -> None:
    """The time for CONNECT is the time for the whole of it."""
    client = world.begin()
    client.take()
    world.advance(world.broker.limits.connect_timeout_s / 2)
    client.send(auth(b"what?"))
    assert client.take() == [auth(b"who")]
    world.advance(world.broker.limits.connect_timeout_s / 2)
    assert client.take_one(Connack).reason_code == Reason.NOT_AUTHORIZED
    assert client.closed


def test_an_exchange_has_an_end(world: ToyWorld) -> None:
    client = world.begin()
    for _ in range(MAX_ROUNDS):
        client.send(auth(b"what?"))
    assert not client.closed
    client.send(auth(b"what?"))
    assert client.closed


def test_what_waits_for_a_proof_is_small(world: ToyWorld) -> None:
    client = world.begin(username="u" * SMALL_PACKET_BYTES)
    assert client.take_one(Connack).reason_code == Reason.PACKET_TOO_LARGE
    client = world.begin()
    client.take()
    client.send(auth(b"x" * SMALL_PACKET_BYTES))
    assert client.take_one(Connack).reason_code == Reason.PACKET_TOO_LARGE


def test_a_peer_without_room_for_the_auth_is_refused(world: ToyWorld) -> None:
    client = world.open()
    client.send(Connect("toy-1", properties={"authentication_method": METHOD, "maximum_packet_size": 10}))
    assert client.closed
    assert len(client.take_bytes()) <= 10  # MQTT-3.1.2-24


def test_nothing_of_a_connect_is_kept_once_it_is_accepted(world: ToyWorld) -> None:
    client = world.begin()
    client.send(auth(b"ali"))
    assert client.connection.exchange is not None
    assert client.connection.exchange.connect is None


def test_the_method_of_a_client_is_refused(world: ToyWorld) -> None:
    assert world.begin("plain").take_one(Connack).reason_code == Reason.BAD_AUTHENTICATION_METHOD


def test_a_connect_with_a_password_is_sealed_before_the_login() -> None:
    world = ToyWorld(verifies_passwords=True)
    client = world.begin(username="ali", password=b"p")
    assert world.broker.take_logins() == []
    client.take()
    client.send(auth(b"ali"))
    (login,) = world.broker.take_logins()
    assert login.username == "ali"
    assert client.take_bytes() == b""
    login.connection.refuse_connect(Reason.NOT_AUTHORIZED, "no")
    world.settle()
    (connack,) = unsealed(client.take_bytes())
    assert isinstance(connack, Connack)


# The end that dials


class ToyDial(DialledConnection):
    __slots__ = ("accepted",)

    def connect_packet(self) -> Connect:
        self.exchange = Authentication(Toy())
        return Connect("toy-1", properties={"authentication_method": METHOD})

    def handle_accepted(self, packet: Connack) -> None:
        self.accepted = packet


def dial(world: ToyWorld) -> tuple[ToyDial, Client]:
    connection = ToyDial(world.broker, world.now, "far:1883", "tcp", 0.5, 3)
    connection.protocol_version = MQTT_5
    client = Client(world, connection)
    client.version = MQTT_5
    connection.link = client
    connection.open()
    world.settle()
    client.take()
    return connection, client


def test_the_end_that_dials_seals_all_behind_its_last_auth(world: ToyWorld) -> None:
    connection, far = dial(world)
    far.send(auth(b"ali"))
    assert far.take() == [auth(b"who")]
    far.send_bytes(sealed(Connack()))
    assert connection.accepted == Connack()
    connection.send_packet(Pingreq())
    world.settle()
    assert unsealed(far.take_bytes()) == [Pingreq()]


def test_auth_and_more_leave_together(world: ToyWorld) -> None:
    connection, far = dial(world)
    far.send_later(auth(b"ali"))
    connection.send_packet(Pingreq())
    world.settle()
    data = far.take_bytes()
    plain = codec.encode(auth(b"who"), MQTT_5)
    assert data.startswith(plain)
    assert unsealed(data[len(plain) :]) == [Pingreq()]


@pytest.mark.parametrize("packets", [[auth(b"ali"), Connack()], [auth(b"thief")], [Pingresp()]])
def test_the_end_that_dials_is_as_strict(world: ToyWorld, packets: list[Packet]) -> None:
    connection, far = dial(world)
    far.send(*packets)
    assert far.closed
    assert not hasattr(connection, "accepted")


def test_no_auth_that_was_not_asked_for(world: ToyWorld) -> None:
    connection, far = dial(world)
    connection.exchange = None
    far.send(auth(b"ali"))
    assert far.closed
