"""What strangers and bad members send: bounded, counted, and without effect on the others."""

from __future__ import annotations

from random import Random

import pytest

from hedgerow.federation.overlay import handlers, limits, wire
from hedgerow.federation.overlay.events import PeerRefused
from hedgerow.federation.overlay.limits import OverlaySettings
from hedgerow.federation.overlay.overlay import Overlay
from hedgerow.federation.overlay.wire import OverlayKind, OverlayPacket, Peer
from tests.federation.overlay.network import peer

NOW = 1_700_000_000.0
KEY = b"k" * 32


class Attacker:
    """A node with links of its own making to one machine."""

    def __init__(self, key: bytes | None = None, settings: OverlaySettings | None = None) -> None:
        self.node = Overlay(peer("me"), NOW, epoch=1, random=Random(0).random, key=key, settings=settings)
        self.key = key
        self.now = NOW
        self._sequence = 1 << 32

    def connect(self, name: str) -> None:
        self.node.connected(Peer(name, ()), 0.01, self.now)

    def packet(self, name: str, packet: OverlayPacket) -> bytes:
        self._sequence += 1
        return wire.encode(packet, self._sequence, self.key, name, "me")

    def send(self, name: str, packet: OverlayPacket) -> None:
        self.node.receive(name, self.packet(name, packet), self.now)

    def become_neighbour(self, name: str) -> None:
        self.connect(name)
        self.send(name, OverlayPacket(OverlayKind.NEIGHBOUR, peers=(peer(name),)))

    @property
    def active(self) -> list[str]:
        return [it.node_id for it in self.node.active]


def invented(count: int, first: int = 0) -> tuple[Peer, ...]:
    return tuple(peer(f"x{number}") for number in range(first, first + count))


def test_a_flood_of_invented_peers_fills_nothing_beyond_its_bound() -> None:
    attacker = Attacker()
    attacker.become_neighbour("bad")
    for number in range(1_000):
        attacker.now += 0.05
        attacker.send("bad", OverlayPacket(OverlayKind.SHUFFLE, 0, number, invented(16, 16 * number)))
        attacker.send("bad", OverlayPacket(OverlayKind.NEIGHBOURS, peers=invented(16, 16 * number)))
    assert len(attacker.node.passive) == OverlaySettings().passive_at_most
    assert len(attacker.node.links["bad"].others) <= wire.MAX_PEERS
    assert attacker.active == ["bad"]


def test_invented_newcomers_make_few_connections() -> None:
    attacker = Attacker()
    attacker.become_neighbour("bad")
    for (newcomer,) in zip(invented(400), strict=True):
        attacker.send("bad", OverlayPacket(OverlayKind.FORWARD_JOIN, 0, peers=(newcomer,)))
    assert len(attacker.node.take_connects()) == limits.MAX_DIALS
    assert attacker.node.stats.crowded > 0


def test_who_sends_too_much_is_cut_off_and_named() -> None:
    attacker = Attacker()
    attacker.become_neighbour("bad")
    attacker.become_neighbour("good")
    for _ in range(1_000):
        attacker.send("bad", OverlayPacket(OverlayKind.NEIGHBOURS))
    assert attacker.active == ["good"]
    assert attacker.node.stats.flooded == 1
    assert PeerRefused("bad", "it sends too much") in attacker.node.take_events()
    assert "bad" in attacker.node.take_disconnects()
    assert attacker.node.stats.strangers > 0  # what came after that


def test_links_that_never_ask_are_bounded_and_closed() -> None:
    attacker = Attacker()
    for number in range(1_000):
        attacker.connect(f"x{number}")
    assert len(attacker.node.links) == limits.MAX_LINKS
    assert attacker.node.stats.crowded == 1_000 - limits.MAX_LINKS
    assert attacker.node.deadline <= NOW + limits.IDLE_S
    attacker.node.handle_timer(NOW + limits.IDLE_S)
    assert attacker.node.links == {}
    assert len(attacker.node.take_disconnects()) == 1_000


def test_many_who_join_find_a_bounded_view() -> None:
    attacker = Attacker()
    for number in range(100):
        attacker.connect(f"x{number}")
        attacker.send(f"x{number}", OverlayPacket(OverlayKind.JOIN, peers=(peer(f"x{number}"),)))
    assert len(attacker.active) == OverlaySettings().active_at_most
    assert attacker.active[-1] == "x99"
    assert attacker.node.stats.evicted == 100 - OverlaySettings().active_at_most


@pytest.mark.parametrize("kind", [OverlayKind.JOIN, OverlayKind.NEIGHBOUR])
def test_a_forged_sender_is_refused(kind: OverlayKind) -> None:
    attacker = Attacker()
    attacker.connect("bad")
    attacker.send("bad", OverlayPacket(kind, peers=(peer("good"),)))
    assert attacker.active == []
    assert attacker.node.stats.forged == 1
    assert attacker.node.take_events() == [PeerRefused("bad", "it speaks for 'good'")]


def test_what_was_recorded_does_not_count_again() -> None:
    attacker = Attacker(KEY)
    attacker.connect("good")
    recorded = attacker.packet("good", OverlayPacket(OverlayKind.JOIN, peers=(peer("good"),)))
    attacker.node.receive("good", recorded, NOW)
    attacker.node.lost(Peer("good", ()), NOW)
    attacker.connect("good")
    attacker.node.receive("good", recorded, NOW)
    assert attacker.active == []
    assert attacker.node.stats.replayed == 1
    assert PeerRefused("good", "it sends what it has sent before") in attacker.node.take_events()


def test_without_the_key_nothing_is_kept_of_a_stranger() -> None:
    attacker = Attacker(KEY)
    attacker.key = None
    for number in range(300):
        attacker.connect(f"x{number}")
        attacker.send(f"x{number}", OverlayPacket(OverlayKind.JOIN, peers=(peer(f"x{number}"),)))
    assert attacker.node.stats.forged == 300
    assert attacker.node.links == {}
    assert attacker.node.passive == []
    assert attacker.node.take_packets() == []
    assert len(attacker.node.take_events()) == limits.MAX_EVENTS


def test_noise_of_every_kind_is_dropped_and_counted() -> None:
    attacker = Attacker()
    attacker.become_neighbour("bad")
    random = Random(1)
    for data in (
        b"",
        b"\x01",
        bytes(30_000),
        b"\x01" * 20,
        b"\x02" * 20,
        *(random.randbytes(40) for _ in range(50)),
    ):
        attacker.node.receive("bad", data, NOW)
    stats = attacker.node.stats
    assert stats.malformed + stats.other_version == 55
    assert attacker.active == ["bad"]


@pytest.mark.parametrize(
    "kind",
    [
        OverlayKind.FORWARD_JOIN,
        OverlayKind.SHUFFLE,
        OverlayKind.SHUFFLE_REPLY,
        OverlayKind.NEIGHBOURS,
        OverlayKind.RELEASE,
    ],
)
def test_who_is_no_neighbour_here_is_told_so(kind: OverlayKind) -> None:
    attacker = Attacker()
    attacker.connect("bad")
    attacker.send("bad", OverlayPacket(kind, peers=(peer("x"),)))
    ((whom, answer),) = attacker.node.take_packets()
    assert whom == "bad"
    assert wire.decode(answer, None, "me", "bad")[0] == OverlayPacket(OverlayKind.DISCONNECT)
    assert attacker.node.passive == []


def test_a_member_cannot_talk_a_node_out_of_its_last_links() -> None:
    attacker = Attacker()
    for name in ("a", "b", "c", "d", "e"):
        attacker.become_neighbour(name)
    for name in ("a", "b", "c", "d", "e"):
        attacker.send(name, OverlayPacket(OverlayKind.RELEASE, peers=tuple(map(peer, "abcde"))))
    assert attacker.active == ["a", "b", "c", "d", "e"]
    attacker.become_neighbour("f")
    attacker.send("a", OverlayPacket(OverlayKind.RELEASE, peers=(peer("x"), peer("me"))))
    assert "a" in attacker.active  # There is no way to it that we know of.
    attacker.send("a", OverlayPacket(OverlayKind.RELEASE, peers=(peer("b"),)))
    assert attacker.active == ["b", "c", "d", "e", "f"]


def test_walks_of_others_are_bounded() -> None:
    attacker = Attacker()
    for name in ("bad", "good"):
        attacker.become_neighbour(name)
    for number in range(400):
        attacker.now += 0.02
        attacker.send("bad", OverlayPacket(OverlayKind.SHUFFLE, 6, number, invented(2)))
    assert len(attacker.node.shuffles.walks) <= limits.MAX_WALKS


@pytest.mark.parametrize("key", [b"short", b"x" * 65])
def test_a_key_of_the_wrong_size(key: bytes) -> None:
    with pytest.raises(ValueError, match="16 to 64 bytes"):
        Attacker(key)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_in_whatever_order_nothing_is_raised_and_all_bounds_hold(seed: int) -> None:
    random = Random(seed)
    attacker = Attacker(settings=OverlaySettings(active_target=2, active_at_most=3, passive_at_most=5))
    node = attacker.node
    node.join(Peer("", ("mqtt://p0",)), NOW)
    node.add_static(Peer("", ("mqtt://p1",)), NOW)
    names = ["me", *(f"p{number}" for number in range(8))]
    for _ in range(1_500):
        attacker.now += random.choice((0.0, 0.01, 0.3))
        name = random.choice(names)
        match random.randrange(8):
            case 0:
                node.connected(random.choice((peer(name), Peer(name, ()))), random.random(), attacker.now)
            case 1:
                node.lost(
                    random.choice((peer(name), Peer(name, ()), Peer("", (f"mqtt://{name}",)))), attacker.now
                )
            case 2:
                node.handle_timer(attacker.now)
            case 3:
                for wanted in node.take_connects():
                    who = wanted.node_id or wanted.addresses[0].removeprefix("mqtt://")
                    node.connected(Peer(who, wanted.addresses), random.random(), attacker.now)
            case _:
                kind = random.choice(list(OverlayKind))
                fewest, most = wire.PEERS_ALLOWED[kind]
                some = [peer(random.choice(names)) for _ in range(random.randint(fewest, min(most, 4)))]
                if kind in handlers.NAMES_ITS_SENDER:
                    some = [peer(name)]
                value = random.choice((0, 1, 1, 6, 255))
                attacker.send(name, OverlayPacket(kind, value, random.randrange(4), tuple(some)))
        movable = [link for link in node.neighbours() if not link.is_static]
        assert len(movable) <= 3
        assert len(node.passive) <= 5
        assert not {it.node_id for it in node.passive} & {*attacker.active, "me"}
        assert "me" not in node.links
        assert node.deadline >= NOW
    assert node.stats.received > 50
