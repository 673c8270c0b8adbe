"""One broker of every kind at once, those who mind their business, and strangers who do not.

The broker `node` is federated with a key, supports mobile brokers, has bridges' roles and UDP sensors. Its
neighbour `hill` and the mobile broker `tractor` are whole machines on links in memory. All others are
`Peer`s, which check each message that they get. Every payload names who published it, and where.
"""

from __future__ import annotations

import json
import re
from typing import Any

from hedgerow.broker.access import Access, Acl
from hedgerow.broker.connection import Connection
from hedgerow.broker.port import Port
from hedgerow.federation.federation import INTRODUCTION_TOPIC, MESH_TOPIC, OVERLAY_TOPIC
from hedgerow.federation.neighbours import NEIGHBOUR_PREFIX
from hedgerow.federation.signs_of_life import ALIVE_TOPIC
from hedgerow.message import Message
from hedgerow.mobility.fixed import FixedNode
from hedgerow.mobility.roles import MOBILE_PREFIX
from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import (
    MQTT_5,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Subscription,
    Unsubscribe,
)
from hedgerow.mqtt.reasons import FAILURE
from hedgerow.sensors.exchange import Exchange
from hedgerow.sensors.packet import PUBLISHER, build
from tests.broker.harness import KEPT
from tests.federation.hosts import Node, Pipe
from tests.mobility.domain import Domain
from tests.packets import PacketReader
from tests.security.oracle import DOMAIN, Oracle, fits, write_acl

KEY = b"the key of the federation, 32 b."
HEARD = ("house/#", "public/#", "inbox/#", "meter/#")  # by carol
SENSOR_TOPIC = "inbox/udp"
FEDERATION_TOPICS = (MESH_TOPIC, OVERLAY_TOPIC, INTRODUCTION_TOPIC, ALIVE_TOPIC)
PAYLOAD = re.compile(rb'\[(?:null|"\w*"), "[^"]*", "[^"]*", \d+\]')
ACCESS = Access(Acl.parse(write_acl(), "acl"))


class Stage(Node):
    """The broker that everybody is at."""

    def federate(self) -> None:
        super().federate()
        self.fixed = FixedNode(self.broker, DOMAIN, None, 3.0)
        self._fixed_at = self.now
        self.exchange = Exchange({7: SENSOR_TOPIC}, 18_000, lambda host, port: False)
        access = self.broker.access
        self.exchange.permit(
            lambda topic: access.may_read(None, "", topic), lambda topic: access.may_write(None, "", topic)
        )
        self.sensors = Port(self.broker, "sensors", self._send_to_sensors, "sensors")
        self.sensors.subscribe(SENSOR_TOPIC, self.now)

    def settle_once(self) -> bool:
        is_busy = False
        for login in self.broker.take_logins():
            is_busy = True
            self.broker.finish_login(login, login.password == password_of(login.username), self.now)
        if self._fixed_at <= self.now:
            self.fixed.handle_timer(self.now)
        if self.fixed.has_work:
            is_busy = True
            self.fixed.serve(self.now)
            self.fixed.take_events()
        self._fixed_at = self.fixed.deadline
        self.broker.take_events()
        return super().settle_once() or is_busy or self.fixed.has_work

    @property
    def deadline(self) -> float:
        return min(super().deadline, self._fixed_at)

    def _send_to_sensors(self, message: Message) -> None:
        self.exchange.send_message(message, self.now)

    def receive_datagram(self, data: bytes) -> None:
        self.exchange.receive_datagram(data, 0, ("192.0.2.66", 9), self.now)
        for message in self.exchange.take_messages():
            self.sensors.publish(message, self.now)
        self.exchange.take_datagrams()
        self.exchange.take_events()
        self.settle()


def password_of(user: str) -> bytes:
    return f"secret of {user}".encode()


class Scene(Domain):
    """`is_open`: without rules, so that nobody has logged in. `is_keyed`: its federation has a key."""

    def __init__(self, seed: int, is_open: bool, is_keyed: bool = True) -> None:
        super().__init__(seed)
        self.oracle = Oracle(is_open)
        self.is_open = is_open
        self.is_keyed = is_keyed
        federation = {"key": KEY} if is_keyed else {}
        self.count = 0
        self.acknowledged: dict[bytes, str] = {}  # payload → topic, that an authorised peer saw acknowledged
        self.values: dict[str, bytes] = {}  # topic → payload, retained by someone who may
        self.deleted: set[str] = set()  # topics whose value was deleted by someone who may
        self.hellos: list[bytes] = []  # the first that `hill` and `tractor` wrote to `node` on each link
        self.recorded: list[bytes] = []  # what they wrote last
        rules: dict[str, Any] = {} if is_open else {"access": ACCESS}
        self.node = Stage(self, "node", verifies_passwords=True, federation=federation, **rules)
        self.hosts["node"] = self.node
        self.node.settle()
        self.hill = self.add("hill", "node", federation=federation)
        self.add_mobile("tractor", "node")
        self.carol = Peer(self, "carol", "carol-log", kept=True)
        for topic_filter in (*HEARD, "$hedgerow/#"):
            self.carol.subscribe(topic_filter, 1)
        self.dave = Peer(self, "dave", "dave-1", kept=True)
        self.dave.subscribe("$share/g/house/#", 1)
        self.alice = Peer(self, "alice", "alice-phone", kept=True)
        self.alice.subscribe("own/alice/alice-phone", 1)
        self.relay = Peer(self, "relay", "relay-1", node="mill", is_relay=True)
        self.meter = Peer(self, "meter", "meter-1", node="meter")
        self.victims = [self.dave, self.alice, self.relay, self.meter]
        self.names = {peer.client_id for peer in (*self.victims, self.carol)} | {MOBILE_PREFIX + "tractor"}
        self.far_reader = self.hill.subscribe("#")
        self.advance(2.0)

    def _certificate_of(self, node: Node) -> str | None:
        return None if self.is_open else node.name

    def _lay_pipe(self, near: Connection, far: Connection, names: tuple[str, str]) -> Pipe:
        return RecordingPipe(self, near, far, names)

    def payload(self, user: str | None, client_id: str, topic: str) -> bytes:
        self.count += 1
        return json.dumps([user, client_id, topic, self.count]).encode()

    def check_message(self, user: str | None, client_id: str, topic: str, payload: bytes) -> None:
        """Someone gets it: may it, and might whoever published it do so?"""
        where = f"{user}/{client_id} got {topic!r}: {payload!r}"
        if client_id.startswith(MOBILE_PREFIX) and topic.startswith(f"{DOMAIN}/node/"):
            return  # From broker to broker.
        if client_id.startswith(MOBILE_PREFIX) and self._is_own(user, client_id, payload):
            return  # What its own clients have of it is between them and this broker.
        if client_id == NEIGHBOUR_PREFIX + "rogue" and topic in FEDERATION_TOPICS:
            assert not self.is_keyed, f"without the key: {where}"
            return  # From federation to federation.
        assert self.oracle.may_read(user, client_id, topic), f"forbidden to read: {where}"
        if topic.startswith("$") and not payload.startswith((b"[null", b'["')):
            return  # The node's own, of which none is anybody's secret but by the rules.
        if not payload:
            assert topic in self.deleted, f"deleted by nobody who may: {where}"
            return
        # Whoever replays a packet of MQTT 5 on a connection of MQTT 3.1.1 puts its properties in front.
        found = PAYLOAD.search(payload)
        assert found is not None, f"published by nobody: {where}"
        sender, sender_id, said_topic, _ = json.loads(found[0])
        assert said_topic == topic, f"on another topic: {where}"
        assert self.oracle.may_write(sender, sender_id, topic), f"forbidden to write: {where}"

    @staticmethod
    def _is_own(user: str | None, client_id: str, payload: bytes) -> bool:
        found = PAYLOAD.search(payload)
        return found is not None and json.loads(found[0])[:2] == [user, client_id]

    def check_bytes(self, user: str | None, client_id: str, data: bytes) -> None:
        """Someone gets messages in another form than PUBLISH: may it? Its own come back to it."""
        for payload in PAYLOAD.findall(data):
            _, _, topic, _ = json.loads(payload)
            is_own = self._is_own(user, client_id, payload)
            assert is_own or self.oracle.may_read(user, client_id, topic), f"forbidden to {user}: {payload!r}"

    def check_victims(self) -> None:
        """Nobody who minds his business was touched."""
        for peer in (*self.victims, *([self.carol] if self.carol.wants_connection else [])):
            assert not peer.is_closed, f"{peer.client_id} was disconnected: {peer.goodbye}"
        for peer in (*self.victims, self.carol):
            session = self.node.broker.sessions.get(peer.client_id)
            assert session is not None, f"the session of {peer.client_id} is gone"
            assert session.username == peer.user, f"{peer.client_id} became {session.username}'s"
            assert set(session.subscriptions or ()) == peer.filters, peer.client_id
            assert self.node.fixed.guests.callback_of(session) is None, f"{peer.client_id} became a guest"
        assert "hill" in self.node.linked, "the neighbour's link is gone"
        assert not self.is_keyed or self.node.linked == {"hill"}, f"its neighbours are {self.node.linked}"
        assert self.node.session_of("hill").connection is not None, "the neighbour's link is gone"
        assert self.node.fixed.is_linked("tractor"), "the mobile broker's link is gone"
        assert self.is_open or not self.node.fixed.is_linked("crook"), "nobody gave crook the right"

    def finish(self) -> None:
        """What was promised is kept."""
        if not self.carol.wants_connection:
            self.carol.connect(kept=True)
        self.advance(3.0)
        self.alice.publish("house/door", 1)  # Whatever was announced, the neighbour's clients get the next.
        self.advance(1.0)
        self.check_victims()
        far = {message.payload for message in self.far_reader.messages}
        assert list(self.acknowledged)[-1] in far, "the neighbour is cut off"
        got = {packet.payload for packet in self.carol.messages}
        may_read = self.oracle.may_read
        for payload, topic in self.acknowledged.items():
            is_wanted = any(fits(each, topic) for each in HEARD)
            if is_wanted and may_read(self.carol.user, "carol-log", topic):
                assert payload in got, f"acknowledged, and lost: {payload!r}"
            if topic == "house/deep/x" and not self.is_open:
                assert payload in {each.payload for each in self.dave.messages}, (
                    f"lost by a group: {payload!r}"
                )
        kept = {topic: value for topic, value in self.node.retained.items() if topic[:1] != "$"}
        assert kept == self.values, f"retained: {kept} instead of {self.values}"
        for message in self.far_reader.messages:
            if message.payload and json.loads(message.payload)[0] != "hill":
                user = None if self.is_open else "hill"
                self.check_message(user, "hedgerow-federation-hill", message.topic, message.payload)

    # Those who mind their business

    def publish_at_hill(self, topic: str) -> None:
        """By a client of the neighbour."""
        payload = self.payload(None if self.is_open else "hill", "hedgerow-federation-hill", topic)
        self.acknowledged[payload] = topic
        self.hill.publish(topic, payload)
        self.advance(0.01)

    def sensor(self) -> None:
        payload = self.payload(None, "", SENSOR_TOPIC)
        self.node.receive_datagram(build(9_000, PUBLISHER, 7, payload))


class RecordingPipe(Pipe):
    """A link between two machines, which a stranger overhears on its way to `node`."""

    fabric: Scene
    is_begun = False

    def carry(self, index: int, data: bytes) -> None:
        if data and self.names[1 - index] == "node":
            # Without rules, a client id like that of `tractor` is whoever's says it (MQTT-3.1.4-3).
            if not self.is_begun and (self.names[index] == "hill" or not self.fabric.is_open):
                self.fabric.hellos.append(data)
            self.is_begun = True
            self.fabric.recorded = [*self.fabric.recorded[-50:], data]
        super().carry(index, data)


class Peer:
    """A client of `node`. In a scene without rules nobody has a user, whatever it says."""

    def __init__(
        self,
        scene: Scene,
        user: str | None,
        client_id: str,
        *,
        kept: bool = False,
        node: str | None = None,
        is_relay: bool = False,
        **fields: Any,
    ) -> None:
        """`hello`: what it sends in place of a CONNECT of its own."""
        self.scene = scene
        self.user = None if scene.is_open else user
        self.client_id = client_id
        self.filters: set[str] = set()
        self.messages: list[Publish] = []
        self.sequence = 0
        self.node = node
        pairs = [("hedgerow-node", node)] if node is not None else []
        pairs += [("hedgerow-bridge", "b")] if is_relay else []
        self.pairs = tuple(pairs)
        self.connect(kept=kept, **fields)

    def connect(
        self, *, kept: bool = False, is_known: bool = True, hello: bytes = b"", **fields: Any
    ) -> None:
        self.goodbye: Packet | None = None
        self.is_closed = False
        self.wants_connection = True
        self.is_accepted = False
        self._reader = PacketReader()
        self._unacknowledged: dict[int, Publish] = {}
        self.version = fields.pop("protocol_version", MQTT_5)
        self.connection = self.scene.node.broker.open(self.scene.now, "192.0.2.9:1", True)
        self.connection.link = self
        if hello:
            self.send_bytes(hello)
            return
        properties: Any = {}
        if self.version == MQTT_5:
            properties = {"user_property": self.pairs} | ({"session_expiry_interval": KEPT} if kept else {})
        if self.user is not None:
            fields |= {"username": self.user, "password": password_of(self.user) if is_known else b"guess"}
        self.send(Connect(self.client_id, self.version, not kept, properties=properties, **fields))

    def send(self, *packets: Packet) -> None:
        self.send_bytes(b"".join(codec.encode(packet, self.version) for packet in packets))

    def send_bytes(self, data: bytes) -> None:
        if not self.is_closed:
            self.connection.receive_data(data, self.scene.now)
            self.scene.node.settle()

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self.filters.add(topic_filter)
        self.send(Subscribe(1, [Subscription(topic_filter, qos)]))

    def unsubscribe(self, topic_filter: str) -> None:
        self.send(Unsubscribe(1, [topic_filter]))

    def publish(
        self,
        topic: str,
        qos: int,
        *,
        retain: bool = False,
        is_empty: bool = False,
        pairs: Any = (),
        is_promised: bool = True,
    ) -> None:
        """`is_promised`: it does not lie, so that what is acknowledged must come to those who want it. What a
        mobile broker writes on its link is for this broker alone."""
        if self.is_closed or not self.is_accepted:
            return
        scene = self.scene
        payload = b"" if is_empty else scene.payload(self.user, self.client_id, topic)
        may_write = scene.oracle.may_write(self.user, self.client_id, topic)
        if retain and is_empty and may_write:
            scene.deleted.add(topic)
        self.sequence += 1
        properties: Any = {"user_property": tuple(pairs)} if pairs and self.version == MQTT_5 else {}
        packet = Publish(topic, payload, qos, retain, properties=properties)
        if qos:
            packet.packet_id = self.sequence
            if qos == 1 and is_promised and not self.client_id.startswith(MOBILE_PREFIX):
                self._unacknowledged[self.sequence] = packet
        self.send(packet)

    def publish_with_id(self, topic: str) -> None:
        """As a relay, or a publisher that gives ids, does."""
        self.publish(topic, 1, pairs=[("hedgerow-id", f"{self.node}/1/{self.sequence}")])

    def leave(self, *, is_clean: bool = False) -> None:
        self.wants_connection = False
        if self.is_closed:
            return
        if is_clean and self.is_accepted:
            self.send(Disconnect())
        if not self.is_closed:
            self.is_closed = True
            self.connection.link = None
            self.connection.lost(self.scene.now)
            self.scene.node.settle()

    # The connection's link

    def transmit(self) -> None:
        self._reader.feed(self.connection.take_output())
        replies: list[Packet] = []
        while (packet := self._reader.take(self.version)) is not None:
            replies += self.answer(packet)
        if self.connection.closing:
            self.is_closed = True
            self.connection.link = None
            self.connection.lost(self.scene.now)
        elif replies:
            data = b"".join(codec.encode(each, self.version) for each in replies)
            self.connection.receive_data(data, self.scene.now)

    def unacknowledged_bytes(self) -> int:
        return 0

    def silent_s(self) -> float:
        return float("inf")

    def answer(self, packet: Packet) -> list[Packet]:
        match packet:
            case Connack(reason_code=0):
                self.is_accepted = True
            case Disconnect() | Connack():
                self.goodbye = packet
            case Publish():
                self.scene.check_message(self.user, self.client_id, packet.topic, packet.payload)
                self.messages.append(packet)
                if packet.qos:
                    return [Puback(packet.packet_id) if packet.qos == 1 else Pubrec(packet.packet_id)]
            case Pubrel(packet_id):
                return [Pubcomp(packet_id)]
            case Puback(packet_id, reason_code) if reason_code < FAILURE:
                self._acknowledged(self._unacknowledged.pop(packet_id, None))
        return []

    def _acknowledged(self, packet: Publish | None) -> None:
        scene = self.scene
        if packet is None or not scene.oracle.may_write(self.user, self.client_id, packet.topic):
            return  # MQTT 3.1.1 acknowledges what it refuses.
        if packet.payload:
            scene.acknowledged[packet.payload] = packet.topic
        if packet.retain and packet.payload:
            scene.values[packet.topic] = packet.payload
        elif packet.retain:
            scene.values.pop(packet.topic, None)
