"""Packets between the members of an overlay, and the proof that a member wrote them.

All packets have one form, in network byte order:

    version 1 | kind 1 | value 1 | number 4 | sequence 8 | count 1 | count peers | proof 16, with a key

    peer: length 1, node id | count 1 | that many addresses: length 1, text

The proof is a keyed BLAKE2b over the sender's id, the receiver's and all that stands before it: a packet
counts on the link from its author to its reader and nowhere else. The sequence (epoch 4, count 4) grows with
every packet of a sender, over restarts too, so that one that was recorded does not count again.
"""

from __future__ import annotations

import hmac
from enum import IntEnum
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

from hedgerow.federation.overlay.limits import MAX_ADDRESSES

VERSION = 1
PROOF_BYTES = 16
MAX_ID_BYTES = 128
MAX_ADDRESS_BYTES = 255
MAX_PEERS = 16
MAX_NUMBER = 2**32 - 1
MAX_PACKET_BYTES = 20_000

_HEADER = Struct("!BBBIQB")
_DOMAIN = b"hedgerow overlay"  # 16 bytes: BLAKE2's `person`


class Peer(NamedTuple):
    node_id: str
    """Empty while only an address is known."""
    addresses: tuple[str, ...]


class OverlayKind(IntEnum):
    JOIN = 1
    """peers: the sender."""
    FORWARD_JOIN = 2
    """value: steps left; peers: the newcomer."""
    NEIGHBOUR = 3
    """value: 1 if the sender would be alone otherwise; peers: the sender."""
    NEIGHBOUR_REPLY = 4
    """value: 1 accepted."""
    DISCONNECT = 5
    """peers: whom to turn to instead, if anybody."""
    SHUFFLE = 6
    """value: steps left; number: of this shuffle; peers: whose it is, then a sample of what it knows."""
    SHUFFLE_REPLY = 7
    """number; peers: whose shuffle it was, then a sample."""
    NEIGHBOURS = 8
    """number: how far the receiver is, in microseconds, 0 if the sender has not measured it; peers: the
    sender's neighbours."""
    RELEASE = 9
    """May our link end? peers: the sender's other neighbours."""
    RELEASE_REPLY = 10
    """value: 1 agreed."""


PEERS_ALLOWED = {
    OverlayKind.JOIN: (1, 1),
    OverlayKind.FORWARD_JOIN: (1, 1),
    OverlayKind.NEIGHBOUR: (1, 1),
    OverlayKind.NEIGHBOUR_REPLY: (0, 0),
    OverlayKind.DISCONNECT: (0, 1),
    OverlayKind.SHUFFLE: (1, MAX_PEERS),
    OverlayKind.SHUFFLE_REPLY: (1, MAX_PEERS),
    OverlayKind.NEIGHBOURS: (0, MAX_PEERS),
    OverlayKind.RELEASE: (0, MAX_PEERS),
    OverlayKind.RELEASE_REPLY: (0, 0),
}


class OverlayPacket(NamedTuple):
    kind: OverlayKind
    value: int = 0
    number: int = 0
    peers: tuple[Peer, ...] = ()


class PacketError(Exception):
    """A packet that is not in this form."""


class UnknownVersionError(PacketError):
    """A packet of another version, which may be right in its own way."""


class ProofError(PacketError):
    """A packet that no member of ours wrote."""


def check_peer(peer: Peer) -> Peer:
    """The peer, if it can be sent; ValueError says why not."""
    if len(peer.node_id.encode()) > MAX_ID_BYTES:
        raise ValueError(f"the node id {peer.node_id!r} is longer than {MAX_ID_BYTES} bytes")
    if len(peer.addresses) > MAX_ADDRESSES:
        raise ValueError(f"{peer.node_id!r} has more than {MAX_ADDRESSES} addresses")
    for address in peer.addresses:
        if not 0 < len(address.encode()) <= MAX_ADDRESS_BYTES or not address.isprintable():
            raise ValueError(f"{address!r} is no address of 1 to {MAX_ADDRESS_BYTES} printable bytes")
    if not peer.node_id.isprintable():
        raise ValueError(f"the node id {peer.node_id!r} is not printable")
    return peer


def encode(packet: OverlayPacket, sequence: int, key: bytes | None, sender: str, receiver: str) -> bytes:
    header = _HEADER.pack(VERSION, packet.kind, packet.value, packet.number, sequence, len(packet.peers))
    data = header + b"".join(map(_encode_peer, packet.peers))
    return data if key is None else data + _proof(key, data, sender, receiver)


def decode(data: bytes, key: bytes | None, sender: str, receiver: str) -> tuple[OverlayPacket, int]:
    """(the packet, its sequence); PacketError when it is not one, or not from a member."""
    if not _HEADER.size <= len(data) <= MAX_PACKET_BYTES:
        raise PacketError(f"a packet of {len(data)} bytes")
    if data[0] != VERSION:
        raise UnknownVersionError(f"version {data[0]}")
    if key is not None:
        # Before anything in it is looked at.
        data, proof = data[:-PROOF_BYTES], data[-PROOF_BYTES:]
        if not hmac.compare_digest(proof, _proof(key, data, sender, receiver)):
            raise ProofError("wrong federation key")
        if len(data) < _HEADER.size:
            raise PacketError("no room for a header")
    _, kind, value, number, sequence, count = _HEADER.unpack_from(data)
    try:
        kind = OverlayKind(kind)
    except ValueError:
        raise PacketError(f"kind {kind}") from None
    fewest, most = PEERS_ALLOWED[kind]
    if not fewest <= count <= most:
        raise PacketError(f"{count} peers in {kind.name}")
    peers = []
    position = _HEADER.size
    for _ in range(count):
        peer, position = _decode_peer(data, position)
        peers.append(peer)
    if key is None and position + PROOF_BYTES == len(data):
        raise ProofError("it has a key, and this node has none")
    if position != len(data):
        raise PacketError(f"{len(data) - position} bytes too many")
    return OverlayPacket(kind, value, number, tuple(peers)), sequence


def _proof(key: bytes, data: bytes, sender: str, receiver: str) -> bytes:
    code = blake2b(key=key, digest_size=PROOF_BYTES, person=_DOMAIN)
    for name in (sender.encode(errors="surrogatepass"), receiver.encode(errors="surrogatepass")):
        code.update(len(name).to_bytes(4, "big") + name)
    code.update(data)
    return code.digest()


def _encode_peer(peer: Peer) -> bytes:
    addresses = bytes([len(peer.addresses)]) + b"".join(map(_encode_text, peer.addresses))
    return _encode_text(peer.node_id) + addresses


def _encode_text(text: str) -> bytes:
    data = text.encode()
    return bytes([len(data)]) + data


def _decode_peer(data: bytes, position: int) -> tuple[Peer, int]:
    node_id, position = _decode_text(data, position)
    if position >= len(data):
        raise PacketError("a peer without addresses")
    count = data[position]
    position += 1
    addresses = []
    for _ in range(min(count, MAX_ADDRESSES + 1)):
        address, position = _decode_text(data, position)
        addresses.append(address)
    if not node_id:
        raise PacketError("a peer without an id")
    try:
        return check_peer(Peer(node_id, tuple(addresses))), position
    except ValueError as problem:
        raise PacketError(str(problem)) from None


def _decode_text(data: bytes, position: int) -> tuple[str, int]:
    if position >= len(data) or position + 1 + data[position] > len(data):
        raise PacketError("the packet ends in a text")
    end = position + 1 + data[position]
    try:
        return data[position + 1 : end].decode(), end
    except UnicodeDecodeError:
        raise PacketError("a text that is not UTF-8") from None
