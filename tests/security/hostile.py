"""Peers with a right to their link, who say on it what no honest one would, in the protocol's own form."""

from __future__ import annotations

from itertools import count
from random import Random

from hedgerow.federation.federation import MESH_TOPIC, OVERLAY_TOPIC
from hedgerow.federation.mesh.limits import MAX_SEQUENCE
from hedgerow.federation.mesh.wire import (
    About,
    CoreAnnouncement,
    FilterChanges,
    FilterList,
    MembershipAnnouncement,
    MeshKind,
    Question,
    Repair,
    encode_core_announcement,
    encode_list,
    encode_membership,
    encode_packet,
    encode_question,
    encode_repair,
)
from hedgerow.federation.neighbours import NEIGHBOUR_PREFIX
from hedgerow.federation.overlay.wire import PEERS_ALLOWED, OverlayKind, OverlayPacket
from hedgerow.federation.overlay.wire import Peer as OverlayPeer
from hedgerow.federation.overlay.wire import encode as encode_overlay
from hedgerow.message import Message, MessageId
from hedgerow.mobility.delegation import codec
from hedgerow.mobility.delegation.events import DelegationStats
from hedgerow.mobility.delegation.publications import (
    Body,
    EmptyBody,
    EventBody,
    Filters,
    HelloBody,
    PublicationKind,
    Registration,
    Registrations,
    Serving,
    Unsubscription,
)
from hedgerow.mobility.delegation.stream import Stream
from hedgerow.mobility.roles import MOBILE_PREFIX
from hedgerow.mqtt.packets import Connack, Packet, Publish
from tests.security.oracle import DOMAIN
from tests.security.scene import Peer, Scene

FILTERS = ("#", "house/#", "house/safe", "public/#", "inbox/#", "own/#", "own/alice/alice-phone")
CLIENTS = ("alice-phone", "carol-log", "dave-1", "relay-1", "s-1", "s-2")
# Carol comes and goes.
BROUGHT = (
    ("carol-log", "carol"),
    ("carol-log", "carol"),
    ("carol-log", "thief"),
    ("s-1", None),
    ("s-2", "bob"),
)
NODES = ("rogue", "hill", "node", "ghost")
OWNERS = ("thief", "thief", "tractor", "node")
TOPICS = (
    "house/door",
    "house/safe",
    "public/a",
    "public/b",
    f"{DOMAIN}/tractor/delegate",
    "$SYS/broker/uptime",
)


class Thief(Peer):
    """A mobile broker. Its stream is in order, so that each of its lies is heard."""

    def __init__(self, scene: Scene) -> None:
        self._stream = Stream(DOMAIN, "thief", 1, DelegationStats())
        self._numbers = count(1)
        self._packet_ids = count(1)
        super().__init__(scene, "thief", MOBILE_PREFIX + "thief", node="thief")

    def lie(self, random: Random) -> None:
        if self.is_closed or not self._stream.is_open:
            return
        kind, body = self._make_up(random)
        self._stream.put(kind, body, self.scene.now)
        self.send(*self._take())

    def claim(self, origin: str, numbers: range) -> None:
        """The ids that another node gives next, for events of its own."""
        if self.is_closed or not self._stream.is_open:
            return
        topic = "public/forged"
        for number in numbers:
            payload = self.scene.payload(self.user, self.client_id, topic)
            message = Message(topic, payload, 1, id=MessageId(origin, 1, number))
            self._stream.put(PublicationKind.EVENT, EventBody(message), self.scene.now)
        self.send(*self._take())

    def _make_up(self, random: Random) -> tuple[PublicationKind, Body]:
        pick = random.choice
        callback = f"{pick((*CLIENTS, ''))}@{pick(OWNERS)}"
        match random.randrange(9):
            case 0 | 1:
                registration = Registration(pick(FILTERS), ((callback, 1),))
                return PublicationKind.DELEGATE, Registrations((registration,))
            case 2 | 3 | 4:
                return PublicationKind.EVENT, self._event(random, callback)
            case 5 | 6:
                client_id, username = pick(BROUGHT)
                username = None if self.scene.is_open else username
                serving = Serving(f"{client_id}@thief", random.random() < 0.2, username)
                return PublicationKind.SERVING, serving
            case 7:
                return pick(
                    (
                        (PublicationKind.RECOVER, Filters((pick(FILTERS),))),
                        (PublicationKind.UNSUBSCRIPTION_SINGLE, Unsubscription(pick(FILTERS), callback)),
                    )
                )
            case _:
                kinds = ("UNSUBSCRIPTION_ALL", "DEACTIVATE_ALL", "DEACTIVATE_NO", "NOTHING")
                return PublicationKind[pick(kinds)], EmptyBody()

    def _event(self, random: Random, callback: str) -> EventBody:
        topic = random.choice(TOPICS)
        may_write = self.scene.oracle.may_write(self.user, self.client_id, topic)
        payload = self.scene.payload(self.user, self.client_id, topic)
        # A value of its own on its own topic would only be one more to keep account of.
        is_value = not may_write and random.random() < 0.5
        message = Message(topic, payload, 1, is_value, id=MessageId("thief", 1, next(self._numbers)))
        flags = [random.random() < 0.3 for _ in range(3)]
        return EventBody(message, ((callback, 1),), (), *flags)

    def answer(self, packet: Packet) -> list[Packet]:
        replies = super().answer(packet)
        if isinstance(packet, Connack) and self.is_accepted:
            self._stream.link_up()
        elif isinstance(packet, Publish):
            self.scene.check_bytes(self.user, self.client_id, packet.payload)
            self._hear(packet)
        return [*replies, *self._take()]

    def _hear(self, packet: Publish) -> None:
        stream, now = self._stream, self.scene.now
        kind, header, body = codec.read(codec.publication_of(packet))
        if isinstance(body, HelloBody):
            if stream.receive_hello(header, body, now):
                stream.begin_anew()
        elif stream.accept(kind, header, body, now):
            stream.acknowledged(kind, header)

    def _take(self) -> list[Packet]:
        return [
            Publish(
                each.topic,
                each.payload,
                1,
                packet_id=next(self._packet_ids) % 60_000 + 1,
                properties=each.properties,
            )
            for each in self._stream.take_publications()
        ]


class Rogue(Peer):
    """A neighbour without a key, where the rules let it be one. Elsewhere it is refused each time."""

    def __init__(self, scene: Scene) -> None:
        self._sequences = count(1 << 32)
        super().__init__(scene, "rogue", NEIGHBOUR_PREFIX + "rogue", kept=True, node="rogue")
        assert not (scene.is_keyed and self.is_accepted), "a neighbour without the key"
        if self.is_accepted:
            self._say(OverlayPacket(OverlayKind.JOIN, peers=(OverlayPeer("rogue", ("mqtt://rogue",)),)))

    def lie(self, random: Random) -> None:
        if self.is_closed or not self.is_accepted:
            return
        match random.randrange(4):
            case 0:
                self._say(_make_up_of_overlay(random))
            case 1:
                topic = random.choice(TOPICS)
                self.publish(topic, 1, pairs=[("hedgerow-id", f"rogue/1/{self.sequence}")], is_promised=False)
            case _:
                self.send(Publish(MESH_TOPIC, _make_up_of_mesh(random)))

    def _say(self, packet: OverlayPacket) -> None:
        data = encode_overlay(packet, next(self._sequences), None, "rogue", "node")
        self.send(Publish(OVERLAY_TOPIC, data))


def _make_up_of_overlay(random: Random) -> OverlayPacket:
    pick = random.choice
    kind = pick([each for each in OverlayKind if each is not OverlayKind.DISCONNECT])
    fewest, most = PEERS_ALLOWED[kind]
    names = [pick(NODES) for _ in range(random.randint(fewest, min(most, 4)))]
    peers = tuple(OverlayPeer(name, (f"mqtt://{pick(NODES)}",)) for name in names)
    return OverlayPacket(kind, random.randrange(8), random.getrandbits(32), peers)


def _make_up_of_mesh(random: Random) -> bytes:
    """Numbers that are far ahead, in anyone's name; filters that it may not read."""
    pick = random.choice
    core, sequence, version = pick(NODES), pick((1, 1 << 20, 1 << 50, MAX_SEQUENCE)), pick((1, 2, 1 << 40))
    filters = tuple(pick(FILTERS) for _ in range(random.randrange(3)))
    changes = FilterChanges(version, 0, len(filters), filters)
    match random.randrange(5):
        case 0 | 1:
            edition = pick((0, 1, MAX_SEQUENCE))
            announcement = CoreAnnouncement(core, sequence, random.randrange(4), 30.0, changes, edition)
            kind = MeshKind.PART_ANN if edition else MeshKind.CORE_ANN
            return encode_packet(kind, [encode_core_announcement(announcement)])
        case 2:
            membership = MembershipAnnouncement(core, sequence, changes)
            return encode_packet(MeshKind.MESH_MEMB_ANN, [encode_membership(membership)])
        case 3:
            listed = FilterList(core, version, True, random.random() < 0.5, len(filters), filters)
            return encode_packet(MeshKind.LIST, [encode_list(listed)])
        case _:
            asked = encode_question(Question(pick(list(About)), core))
            return pick(
                (
                    encode_packet(MeshKind.ASK, [asked]),
                    encode_packet(MeshKind.REPAIR, [encode_repair(Repair(core, sequence))]),
                )
            )
