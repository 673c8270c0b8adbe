"""Where the network filters multicast: peers that are sent single copies.

Whoever is told of a peer (by the user, by multicast DNS, or because it was heard before) and does not hear
its multicast sends it a HELLO that asks for copies. Before any copy is sent, the HELLO has to bring back
the cookie that a WELCOME took to its address: a forged source address gets one small datagram, not a
stream of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from hashlib import blake2b
from typing import NamedTuple

from hedgerow.multicast.frame import COOKIE_BYTES, NO_COOKIE, Hello
from hedgerow.multicast.limits import GONE_AFTER_S, MAX_COPIES, MAX_PEERS, MAX_UNANSWERED
from hedgerow.topics import matches

PeerAddress = Hashable
"""A peer's unicast address, as the shell's sockets take it."""

FORGET_PEER_S = 600.0
MAX_FILTERS = 64  # of one peer; one that has more gets everything


class KnownPeer:
    __slots__ = ("cookie", "is_configured", "known_at", "sender", "unanswered")

    def __init__(self, now: float) -> None:
        self.is_configured = False
        """The user named it: it stays, however long it is silent."""
        self.known_at = now
        self.sender: bytes | None = None
        self.cookie = NO_COOKIE
        self.unanswered = 0


class PeerCopies(NamedTuple):
    until: float
    filters: tuple[str, ...]


class Peers:
    def __init__(self, secret: bytes, multicast_at: Callable[[bytes], float]) -> None:
        """`multicast_at` tells when a member's multicast was last heard."""
        self.has_changed = False
        """Other copies are due now than before."""
        self.known: dict[PeerAddress, KnownPeer] = {}
        self.copies: dict[PeerAddress, PeerCopies] = {}
        """Who is sent copies."""
        self._secret = secret
        self._multicast_at = multicast_at

    def add(
        self, address: PeerAddress, now: float, is_configured: bool = False, sender: bytes | None = None
    ) -> bool:
        """True when it is new."""
        peer = self.known.get(address)
        is_new = peer is None
        if peer is None:
            if len(self.known) >= MAX_PEERS and not self._make_room():
                return False
            peer = self.known[address] = KnownPeer(now)
        peer.known_at = now
        peer.is_configured |= is_configured
        peer.sender = sender or peer.sender
        return is_new

    def _make_room(self) -> bool:
        oldest = min(
            (address for address, peer in self.known.items() if not peer.is_configured),
            key=lambda address: self.known[address].known_at,
            default=None,
        )
        if oldest is None:
            return False
        del self.known[oldest]
        return True

    def remove(self, address: PeerAddress) -> None:
        """It said that it goes."""
        peer = self.known.get(address)
        if peer is not None and not peer.is_configured:
            del self.known[address]
        self.has_changed |= self.copies.pop(address, None) is not None

    def hellos(self, filters: list[str], now: float) -> list[tuple[PeerAddress, Hello]]:
        """Whom to greet: those whose multicast does not reach us."""
        old = [
            address
            for address, peer in self.known.items()
            if not peer.is_configured
            and (peer.known_at < now - FORGET_PEER_S or peer.unanswered >= MAX_UNANSWERED)
        ]
        for address in old:
            del self.known[address]
        unheard = [(address, peer) for address, peer in self.known.items() if not self._is_heard(peer, now)]
        for _, peer in unheard:
            peer.unanswered += 1
        return [(address, self._hello(peer, filters)) for address, peer in unheard]

    def hellos_again(self, filters: list[str], now: float) -> list[tuple[PeerAddress, Hello]]:
        """Our filters are others: those who send us copies have to know at once."""
        return [
            (address, self._hello(peer, filters))
            for address, peer in self.known.items()
            if peer.cookie != NO_COOKIE and not self._is_heard(peer, now)
        ]

    def _is_heard(self, peer: KnownPeer, now: float) -> bool:
        return peer.sender is not None and self._multicast_at(peer.sender) > now - GONE_AFTER_S

    def _hello(self, peer: KnownPeer, filters: list[str]) -> Hello:
        if peer.cookie == NO_COOKIE:
            return Hello(NO_COOKIE, True, [])  # Its address may be forged: it gets no more than that.
        return Hello(peer.cookie, True, filters if len(filters) <= MAX_FILTERS else ["#"])

    def hello_to(self, address: PeerAddress, filters: list[str]) -> Hello | None:
        peer = self.known.get(address)
        return None if peer is None else self._hello(peer, filters)

    def cookie_for(self, source: PeerAddress) -> bytes:
        return blake2b(repr(source).encode(), key=self._secret, digest_size=COOKIE_BYTES).digest()

    def receive_hello(self, source: PeerAddress, sender: bytes, hello: Hello, now: float) -> bool:
        """True when a peer begins to get copies."""
        if hello.cookie != self.cookie_for(source):
            return False
        self.add(source, now, sender=sender)
        is_new = source not in self.copies
        if not hello.wants_copies or (is_new and len(self.copies) >= MAX_COPIES):
            return False
        filters = hello.filters if len(hello.filters) <= MAX_FILTERS else ["#"]
        self.copies[source] = PeerCopies(now + GONE_AFTER_S, tuple(filters))
        self.has_changed = True
        return is_new

    def needs_copies(self, address: PeerAddress, now: float) -> bool:
        """Do we not hear the multicast of this peer?"""
        peer = self.known.get(address)
        return peer is not None and not self._is_heard(peer, now)

    def receive_welcome(self, source: PeerAddress, sender: bytes, cookie: bytes, now: float) -> bool:
        """True when a HELLO with the new cookie is due at once."""
        peer = self.known.get(source)
        if peer is None:
            return False
        peer.known_at = now
        peer.sender = sender
        peer.unanswered = 0
        is_new = peer.cookie != cookie
        peer.cookie = cookie
        return is_new and not self._is_heard(peer, now)

    def find_copies(self, topic: str | None) -> tuple[PeerAddress, ...]:
        """Who gets copies of this topic's frames; for None, of those that are for everyone."""
        return tuple(
            address
            for address, copies in self.copies.items()
            if topic is None or any(matches(each, topic) for each in copies.filters)
        )

    def expire(self, now: float) -> None:
        for address in [each for each, copies in self.copies.items() if copies.until <= now]:
            del self.copies[address]
            self.has_changed = True
