"""Nobody enters a federation that has a key without it: by no recording, no reflection and no live relay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hedgerow.broker.connection import Connection
from hedgerow.broker.events import MessageSetAside
from hedgerow.broker.seal import LENGTH_BYTES, MAX_PLAIN_BYTES, RecordSeal
from hedgerow.errors import ProtocolError
from hedgerow.federation.events import LinkNotOpen
from hedgerow.federation.federation import MAX_FOREIGN
from hedgerow.federation.key_proof import NONCE_BYTES, OWN_NAME, PROOF_BYTES, WRONG_KEY
from hedgerow.federation.neighbour_connection import NO_PROOF, NeighbourConnection
from hedgerow.federation.neighbours import KEY_HERE, KEY_THERE, METHOD, NEIGHBOUR_PREFIX
from hedgerow.federation.overlay.events import PeerRefused
from hedgerow.federation.overlay.wire import Peer
from hedgerow.mqtt import codec
from hedgerow.mqtt.ids import NODE_PROPERTY
from hedgerow.mqtt.packets import (
    MQTT_5,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Publish,
    Subscribe,
    Subscription,
)
from hedgerow.mqtt.reasons import Reason
from tests.federation.fabric_of_nodes import Fabric
from tests.federation.hosts import Node, Pipe
from tests.packets import read_packets

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
KEYED: dict[str, Any] = {"federation": {"key": KEY}}
MALLORY = "mqtt://mallory"


class Wire:
    """The attacker's end of a connection of a node. It sees all bytes, and sends what it likes."""

    def __init__(self, fabric: Fabric, name: str, connection: Connection) -> None:
        self.fabric = fabric
        self.host = fabric[name]
        self.connection = connection
        self.chunks: list[bytes] = []
        self.is_closed = False
        self.towards: Wire | None = None  # where a relay carries it
        self.alter: Callable[[bytes], bytes] = lambda data: data
        connection.link = self
        self.host.settle()

    def transmit(self) -> None:
        data = self.connection.take_output()
        if data:
            self.chunks.append(data)
            if self.towards is not None:
                self.fabric.later(0.001, lambda: self.towards.send_bytes(self.alter(data)))  # type: ignore[union-attr]
        if self.connection.closing:
            self.is_closed = True
            self.connection.link = None
            self.connection.lost(self.fabric.now)

    def unacknowledged_bytes(self) -> int:
        return 0

    def silent_s(self) -> float:
        return float("inf")

    def send_bytes(self, data: bytes) -> None:
        if not self.is_closed:
            self.connection.receive_data(data, self.fabric.now)
            self.host.settle()

    def send(self, *packets: Packet) -> None:
        self.send_bytes(b"".join(codec.encode(packet, MQTT_5) for packet in packets))

    @property
    def packets(self) -> list[Packet]:
        """What came in the clear."""
        return read_packets(b"".join(self.chunks), MQTT_5)


def dial(fabric: Fabric, name: str) -> Wire:
    """A wire to that node's broker, as whoever connects there has."""
    return Wire(fabric, name, fabric[name].broker.open(fabric.now, "192.0.2.66:6666", True))


def answer(fabric: Fabric, name: str) -> Wire:
    """That node dials the attacker."""
    federation = fabric[name].federation
    return Wire(fabric, name, federation.open(Peer("", (MALLORY,)), MALLORY, fabric.now))


class Field(Fabric):
    """The attacker answers at an address of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.wires: list[Wire] = []
        self.changed_for: str | None = None  # the node to which a `ChangingPipe` changes what is long
        self.changed = 0
        self.said: list[int | None] = []  # what the other end had been told, each time when it got something

    def _lay_pipe(self, near: Connection, far: Connection, names: tuple[str, str]) -> Pipe:
        return ChangingPipe(self, near, far, names)

    def dial(self, node: Node, peer: Peer) -> None:
        if peer.addresses != (MALLORY,):
            super().dial(node, peer)
        elif self.wires:
            self.later(0.001, lambda: node.federation.dial_failed(peer, "connection refused"))
        else:
            self.later(0.001, lambda: self._relay(node, peer))

    def _relay(self, node: Node, peer: Peer) -> None:
        near = Wire(self, node.name, node.federation.open(peer, MALLORY, self.now))
        far = dial(self, "b")
        near.towards, far.towards = far, near
        self.wires = [near, far]
        for chunk in near.chunks:
            far.send_bytes(chunk)


class ChangingPipe(Pipe):
    """A link on which somebody changes the first twelve long records to one node."""

    fabric: Field

    def deliver(self, index: int, data: bytes) -> None:
        field, receiver = self.fabric, self.names[index]
        if receiver == field.changed_for and len(data) > 2_900 and field.changed < 12:
            field.changed += 1
            data = data[:-1] + bytes([data[-1] ^ 1])
        elif field.changed and receiver != field.changed_for:
            field.said.append(self.sides[index].far_reason)
        super().deliver(index, data)


def relay(fabric: Field, dialler: str) -> list[Wire]:
    """The dialler believes that the attacker is its neighbour, who carries everything to B and back."""
    fabric[dialler].link_to("mallory")
    fabric.advance(2)
    if dialler != "b":
        assert fabric[dialler].linked == {"b"}
        assert fabric["b"].linked == {dialler}
    return fabric.wires


def auth_data(packet: Packet) -> bytes:
    assert isinstance(packet, Auth), packet
    return packet.properties["authentication_data"]


def auth(data: bytes) -> Auth:
    return Auth(
        Reason.CONTINUE_AUTHENTICATION, {"authentication_method": METHOD, "authentication_data": data}
    )


def connect_as(name: str, nonce: bytes = b"n" * NONCE_BYTES) -> Connect:
    properties: Any = {
        "user_property": ((NODE_PROPERTY, name),),
        "authentication_method": METHOD,
        "authentication_data": nonce + name.encode(),
    }
    return Connect(NEIGHBOUR_PREFIX + name, MQTT_5, False, properties=properties)


@pytest.fixture
def fabric() -> Field:
    """A and B have the key, and no link yet."""
    fabric = Field()
    fabric.add("a", durable=True, **KEYED)
    fabric.add("b", durable=True, **KEYED)
    fabric.advance(0.1)
    return fabric


def check_refused(wire: Wire, name: str = "a") -> None:
    """It got no session there, nor anything but a challenge and a refusal."""
    assert wire.is_closed
    assert NEIGHBOUR_PREFIX + name not in wire.host.broker.sessions
    last = wire.packets[-1]
    assert isinstance(last, Connack), last
    assert last.reason_code == Reason.NOT_AUTHORIZED
    assert wire.connection.seal is None


# Recordings


def test_a_connect_that_was_sent_to_the_attacker_opens_no_other_node(fabric: Field) -> None:
    recorded = b"".join(answer(fabric, "a").chunks)
    thief = dial(fabric, "b")
    thief.send_bytes(recorded)
    (challenge,) = thief.packets
    assert isinstance(challenge, Auth)  # and there is nobody to answer it
    thief.send(auth(b"\0" * PROOF_BYTES))
    check_refused(thief)
    assert PeerRefused("a", WRONG_KEY) in fabric["b"].told(PeerRefused)


@pytest.mark.parametrize("restarts", [False, True], ids=["at once", "after a restart"])
def test_a_whole_link_that_was_recorded_does_not_count_again(fabric: Field, restarts: bool) -> None:
    near, far = relay(fabric, "a")
    fabric["b"].subscribe("t/#", client_id="reader")
    fabric["a"].kill()
    far.is_closed = True
    far.connection.lost(fabric.now)
    fabric.advance(0.1)
    if restarts:
        fabric["b"].crash()
    inbox = fabric["b"].subscribe(client_id="reader")
    thief = dial(fabric, "b")
    for chunk in near.chunks:
        thief.send_bytes(chunk)
    assert thief.is_closed
    assert isinstance(thief.packets[-1], Connack)
    assert thief.packets[-1].reason_code == Reason.NOT_AUTHORIZED
    assert fabric["b"].linked == set()
    assert inbox.payloads == []


def test_a_recorded_acceptor_does_not_count_again(fabric: Field) -> None:
    _, far = relay(fabric, "a")
    victim = answer(fabric, "a")
    victim.send_bytes(far.chunks[0])  # B's challenge and proof, for another CONNECT
    assert victim.is_closed
    assert victim.connection.seal is None
    assert isinstance(victim.packets[-1], Disconnect)
    assert PeerRefused("b", WRONG_KEY) in fabric["a"].told(PeerRefused)


# Reflections


def test_a_node_does_not_answer_its_own_challenge(fabric: Field) -> None:
    """The attacker is dialled by B, dials B at the same time, and lets it talk to itself."""
    near, far = relay(fabric, "b")
    assert near.is_closed
    assert far.is_closed
    assert fabric["b"].linked == set()
    assert PeerRefused("b", OWN_NAME) in fabric["b"].told(PeerRefused)


def test_a_proof_that_is_sent_back_proves_nothing(fabric: Field) -> None:
    thief = dial(fabric, "b")
    thief.send(connect_as("a"))
    challenge = auth_data(thief.packets[0])
    thief.send(auth(challenge[NONCE_BYTES : NONCE_BYTES + PROOF_BYTES]))
    check_refused(thief)


def test_a_challenge_that_is_sent_back_proves_nothing(fabric: Field) -> None:
    """The attacker uses A's nonce as its own, and has another node make the proof under that node's name."""
    victim = answer(fabric, "a")
    (connect,) = victim.packets
    assert isinstance(connect, Connect)
    nonce = connect.properties["authentication_data"][:NONCE_BYTES]
    oracle = dial(fabric, "b")
    oracle.send(connect_as("mallory", nonce))
    victim.send(auth(auth_data(oracle.packets[0])))
    assert victim.is_closed
    assert victim.connection.seal is None
    assert fabric["a"].linked == set()


def test_a_link_in_one_name_is_none_in_another(fabric: Field) -> None:
    """Who has the key proves one name, and the session is that of the same name."""
    packet = connect_as("a")
    packet.properties["authentication_data"] = b"n" * NONCE_BYTES + b"c"
    thief = dial(fabric, "b")
    thief.send(packet)
    check_refused(thief)


# A live relay


def test_a_relay_reads_nothing(fabric: Field) -> None:
    near, far = relay(fabric, "a")
    inbox = fabric["b"].subscribe("barn/#")
    fabric.advance(2)
    fabric["a"].publish("barn/door", b"the code is 4711")
    fabric.wait_for(lambda: inbox.payloads == [b"the code is 4711"], 2)
    seen = b"".join(near.chunks[2:] + far.chunks[1:])
    assert len(seen) > 100
    for word in (b"barn", b"4711", b"hedgerow", b"federation"):
        assert word not in seen


@pytest.mark.parametrize("target", ["a", "b"])
def test_a_relay_writes_nothing(fabric: Field, target: str) -> None:
    near, far = relay(fabric, "a")
    inbox = fabric[target].subscribe("t/#")
    fabric.advance(1)
    wire = near if target == "a" else far
    wire.send(Publish("t/x", b"forged", 1, packet_id=77))
    assert wire.is_closed
    fabric.advance(1)
    assert inbox.payloads == []


def test_a_relay_gets_no_link_for_itself_behind_the_proofs(fabric: Field) -> None:
    """It carries the proofs and then goes on alone: in the same chunk, or in the next."""
    for is_together in (True, False):
        near, far = answer(fabric, "a"), dial(fabric, "b")
        far.send_bytes(near.chunks[0])
        near.send_bytes(far.chunks[0])
        own = codec.encode(Subscribe(1, [Subscription("#")]), MQTT_5)
        if is_together:
            far.send_bytes(near.chunks[1] + own)
        else:
            far.send_bytes(near.chunks[1])
            far.send_bytes(own)
        assert far.is_closed


def test_a_relay_changes_no_word_of_connect(fabric: Field) -> None:
    """A session that is not kept would lose what waits for the neighbour."""
    near, far = answer(fabric, "a"), dial(fabric, "b")
    (connect,) = near.packets
    assert isinstance(connect, Connect)
    connect.properties["session_expiry_interval"] = 0
    far.send(connect)
    near.send_bytes(far.chunks[0])
    assert near.is_closed
    assert near.connection.seal is None


Change = Callable[[list[bytes]], list[bytes]]

CHANGES: dict[str, Change] = {
    "changed": lambda records: [records[0][:-1] + bytes([records[0][-1] ^ 1]), *records[1:]],
    "reordered": lambda records: [records[1], records[0], *records[2:]],
    "repeated": lambda records: [records[0], records[0], *records[1:]],
    "left out": lambda records: records[1:],
    "cut short": lambda records: [records[0][:-1], *records[1:]],
    "shorter by its own word": lambda records: [b"\0\x20" + records[0][2:34], *records[1:]],
    "empty": lambda records: [b"\0\0", *records],
    "a tag alone": lambda records: [b"\0\x10" + records[0][-16:], *records],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_records_that_were_tampered_with_do_not_open(change: Change) -> None:
    one, other = RecordSeal(b"1" * 32, b"2" * 32), RecordSeal(b"2" * 32, b"1" * 32)
    records = [one.close(b"%d" % number * 50) for number in range(4)]
    with pytest.raises(ProtocolError, match="sealed record"):
        list(map(other.open, change(records)))


def test_a_record_that_is_sent_back_does_not_open() -> None:
    one = RecordSeal(b"1" * 32, b"2" * 32)
    with pytest.raises(ProtocolError, match="sealed record"):
        one.open(one.close(b"hello"))


@pytest.mark.parametrize("step", [1, 2, 7, 1_000, 10**6])
def test_records_come_in_any_pieces(step: int) -> None:
    one, other = RecordSeal(b"1" * 32, b"2" * 32), RecordSeal(b"2" * 32, b"1" * 32)
    texts = [b"x", b"y" * 3_000, b"z" * (2 * MAX_PLAIN_BYTES + 1), b"!"]
    if step < 1_000:
        del texts[2]
    data = b"".join(map(one.close, texts))
    pieces = [data[begin : begin + step] for begin in range(0, len(data), step)]
    assert b"".join(map(other.open, pieces)) == b"".join(texts)
    assert one.close(b"") == b""
    assert len(one.close(b"x")) == LENGTH_BYTES + 1 + 16


@pytest.mark.parametrize("side", [0, 1], ids=["to the acceptor", "to the dialler"])
def test_a_link_ends_with_a_record_that_was_changed(fabric: Field, side: int) -> None:
    wires = relay(fabric, "a")
    wires[side].alter = lambda data: data[:-1] + bytes([data[-1] ^ 0x80])
    fabric.wait_for(lambda: wires[1 - side].is_closed, 5)


@pytest.mark.parametrize("sender", ["a", "b"], ids=["from the dialler", "from the acceptor"])
def test_records_that_were_changed_are_blamed_on_no_message(fabric: Field, sender: str) -> None:
    """Who is on the way sees sizes, and so chooses the message whose record it changes, on each link anew."""
    receiver = "ab".replace(sender, "")
    fabric["a"].link_to("b")
    fabric.settle_links()
    inbox = fabric[receiver].subscribe("t/#", client_id="reader")
    fabric.advance(1)
    fabric.changed_for = receiver
    fabric[sender].publish("t/x", b"x" * 3_000)
    fabric.advance(120)
    assert fabric.changed == 12
    assert inbox.payloads == [b"x" * 3_000]
    assert set(fabric.said) == {None}
    assert not [each for each in fabric[sender].broker.take_events() if isinstance(each, MessageSetAside)]


@pytest.mark.parametrize("side", [0, 1], ids=["at the dialler", "at the acceptor"])
def test_a_relay_keeps_no_link_alive_that_it_stops(fabric: Field, side: int) -> None:
    """Two bytes announce a long record. What comes after them vanishes in it, and is no sign of life."""
    wire = relay(fabric, "a")[side]
    wire.send_bytes(MAX_PLAIN_BYTES.to_bytes(LENGTH_BYTES, "big"))
    fabric.wait_for(lambda: wire.is_closed, 2.5)


# What a stranger costs


def test_one_auth_is_all_that_a_stranger_may_send(fabric: Field) -> None:
    thief = dial(fabric, "b")
    thief.send(connect_as("a"))
    for _ in range(3):
        thief.send(auth(b"x"))
    check_refused(thief)
    assert len(thief.packets) == 2


@pytest.mark.parametrize(
    "data", [b"", b"x", b"x" * 32, b"x" * 32 + b"\xff", b"x" * 32 + b"n" * 2_000, b"x" * 32 + b"b"]
)
def test_openings_of_a_wrong_form_are_refused(fabric: Field, data: bytes) -> None:
    packet = connect_as("a")
    packet.properties["authentication_data"] = data
    thief = dial(fabric, "b")
    thief.send(packet)
    check_refused(thief)


@pytest.mark.parametrize("data", [b"", b"x" * 63, b"x" * 64, b"x" * 64 + b"\xff", b"x" * 64 + b"mallory"])
def test_challenges_of_a_wrong_form_are_refused(fabric: Field, data: bytes) -> None:
    victim = answer(fabric, "a")
    victim.send(auth(data))
    assert victim.is_closed
    assert victim.connection.seal is None


def test_a_silent_stranger_is_left_in_time(fabric: Field) -> None:
    thief, host = dial(fabric, "b"), fabric["b"]
    thief.send(connect_as("a"))
    fabric.advance(host.broker.limits.connect_timeout_s + 0.1)
    check_refused(thief)
    silent = answer(fabric, "a")
    fabric.advance(6)
    assert silent.is_closed
    assert any("no CONNACK" in event.reason for event in fabric["a"].told(LinkNotOpen))


# Mistakes are told, at both ends


def test_a_wrong_key_is_named_at_both_ends() -> None:
    fabric = Fabric()
    fabric.add("a", "b", **KEYED)
    fabric.add("b", federation={"key": OTHER_KEY})
    fabric.advance(3)
    assert fabric["a"].linked == fabric["b"].linked == set()
    assert WRONG_KEY in {event.reason for event in fabric["a"].told(LinkNotOpen)}
    assert PeerRefused("a", f"it does not trust this node: {WRONG_KEY}") in fabric["b"].told(PeerRefused)


@pytest.mark.parametrize(("dialler", "acceptor", "reason"), [(KEYED, {}, KEY_THERE), ({}, KEYED, KEY_HERE)])
def test_that_only_one_has_a_key_is_named_at_both_ends(
    dialler: dict[str, Any], acceptor: dict[str, Any], reason: str
) -> None:
    fabric = Fabric()
    fabric.add("b", **acceptor)
    fabric.add("a", "b", **dialler)
    fabric.advance(3)
    assert fabric["a"].linked == fabric["b"].linked == set()
    assert {event.reason for event in fabric["a"].told(LinkNotOpen)} == {f"refused: {reason}"}
    assert PeerRefused("a", reason) in fabric["b"].told(PeerRefused)


def test_links_without_a_key_are_as_they_were() -> None:
    fabric = Fabric()
    fabric.line("a", "b")
    fabric.settle_links()
    for pipe in fabric.between("a", "b"):
        assert [side.seal for side in pipe.sides] == [None, None]
        assert [side.exchange for side in pipe.sides] == [None, None]


# Brokers that are not ours


def test_a_tunnel_has_the_same_proofs_and_seal() -> None:
    fabric = Fabric()
    home = fabric.add_foreign("H")
    fabric.add("s", home="H", assume=("t/#",), **KEYED)
    fabric.add("n", "H", **KEYED)
    fabric.wait_for(lambda: fabric["n"].linked == {"s"} and fabric["s"].linked == {"n"}, 5)
    spy = home.subscribe("hedgerow/#", "#", qos=0)
    reader = fabric["s"].subscribe("secret/#")
    fabric.advance(2)
    fabric["n"].publish("secret/x", b"4711")
    fabric.wait_for(lambda: reader.payloads == [b"4711"], 2)
    assert spy.messages
    frames = [message.payload for message in spy.messages if "state" not in message.topic]
    assert not [payload for payload in frames if b"4711" in payload or b"secret" in payload]
    link = fabric["n"].session_of("s").connection
    assert isinstance(link, NeighbourConnection)
    assert link.transport == "tunnel"
    assert link.seal is not None


def test_a_broker_that_is_not_ours_is_dialled_again_at_once(fabric: Field) -> None:
    fabric.add_foreign("H")
    fabric["a"].link_to("H")
    fabric.advance(0.1)
    assert [where for _, who, where in fabric.dials if who == "a"] == ["H", "H"]
    fabric["a"].federation.close(fabric.now)


def test_a_broker_that_pays_no_heed_to_the_method_is_not_ours(fabric: Field) -> None:
    wire = answer(fabric, "a")
    wire.send(Connack())
    assert not wire.is_closed
    assert wire.connection.seal is None
    assert any(isinstance(packet, Subscribe) for packet in wire.packets)  # for a tunnel


def test_who_pretends_not_to_know_the_method_gets_no_link(fabric: Field) -> None:
    answer(fabric, "a").send(Connack(False, Reason.BAD_AUTHENTICATION_METHOD))
    wire = answer(fabric, "a")
    (connect,) = wire.packets
    assert isinstance(connect, Connect)
    assert not connect.names_method
    named: Any = {"user_property": ((NODE_PROPERTY, "b"),)}
    wire.send(Connack(False, Reason.SUCCESS, named))
    assert wire.is_closed
    assert fabric["a"].linked == set()
    assert NEIGHBOUR_PREFIX + "b" not in fabric["a"].broker.sessions
    again = answer(fabric, "a").packets[0]
    assert isinstance(again, Connect)
    assert again.names_method  # The next one is asked for its proof.


def test_who_lets_a_node_in_without_a_proof_gets_no_link(fabric: Field) -> None:
    wire = answer(fabric, "a")
    named: Any = {"user_property": ((NODE_PROPERTY, "b"),)}
    wire.send(Connack(False, Reason.SUCCESS, named))
    assert wire.is_closed
    assert NEIGHBOUR_PREFIX + "b" not in fabric["a"].broker.sessions
    assert PeerRefused("b", NO_PROOF) in fabric["a"].told(PeerRefused)


def test_a_refusal_without_a_proof_moves_no_neighbour(fabric: Field) -> None:
    """The attacker says that it is B, to which there is a link: that address is not B's now."""
    relay(fabric, "a")
    elsewhere = "mqtt://elsewhere"
    federation = fabric["a"].federation
    wire = Wire(fabric, "a", federation.open(Peer("", (elsewhere,)), elsewhere, fabric.now))
    named: Any = {"user_property": ((NODE_PROPERTY, "b"),)}
    wire.send(Connack(False, Reason.USE_ANOTHER_SERVER, named))
    assert elsewhere in federation.not_reached


def test_addresses_of_foreign_brokers_are_bounded(fabric: Field) -> None:
    federation = fabric["a"].federation
    for number in range(MAX_FOREIGN + 10):
        federation.dial_foreign(Peer("", (f"mqtt://{number}",)), f"mqtt://{number}")
    federation.take_dials()
    foreign = [n for n in range(MAX_FOREIGN + 10) if federation.dialler(f"mqtt://{n}") is None]
    assert foreign == list(range(10, MAX_FOREIGN + 10))


def test_a_node_of_ours_takes_the_place_of_a_foreign_broker(fabric: Field) -> None:
    fabric.add_foreign("H")
    fabric["a"].link_to("H")
    fabric.advance(1)
    fabric["H"].kill()
    fabric.add("H", **KEYED)
    fabric.wait_for(lambda: "H" in fabric["a"].linked, 60)
