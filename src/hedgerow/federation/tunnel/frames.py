"""The frames of tunnels: payloads of publications, as bytes, and the proof that a federator wrote them.

All frames have one form, in network byte order:

    version 1 | kind 1 | number 8 | length 1, sender's node id | body | proof 16, with a key

    OPEN, OPENED   nonce 16
    DATA           sequence 8 | acknowledged 8 | bytes, at least one
    ACK            sequence 8 | acknowledged 8
    CLOSE          reason, UTF-8

Two bits of the kind say that the federator wrote it (and not the dialler) and that there is a proof. The
number is the dialler's tunnel id until both nonces are known, and from then on the session number, which
follows from the whole handshake: a frame of another tunnel, an older one, or one with another federator at
the same broker, has another number. A sequence counts the bytes that were sent before, `acknowledged` those
that arrived.

The proof is a keyed BLAKE2b over the whole frame. That of DATA and ACK is made with a key derived from ids
and nonces of both ends, so that none counts in another tunnel; that of OPENED covers the OPEN that it
answers. OPEN and CLOSE stand for themselves: an OPEN counts only after a proven DATA or ACK, and a number
that was closed does not come back. A proof hides nothing: who may read these topics reads what flows.
"""

from __future__ import annotations

import hmac
from enum import IntEnum
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

VERSION = 1
NONCE_BYTES = 16
PROOF_BYTES = 16
MAX_ID_BYTES = 255
MAX_REASON_BYTES = 200
MAX_DATA_BYTES = 32 * 1024

FEDERATOR_TOPIC = "hedgerow/federation/federator"
NODE_TOPIC = "hedgerow/federation/node/"

HEAD = Struct("!BBQB")
NUMBERS = Struct("!QQ")
MAX_FRAME_BYTES = HEAD.size + MAX_ID_BYTES + NUMBERS.size + MAX_DATA_BYTES + PROOF_BYTES

_FROM_FEDERATOR = 0x80
_HAS_PROOF = 0x40
_DOMAIN = b"hedgerow tunnel"  # BLAKE2's `person`, of at most 16 bytes


class TunnelFrameKind(IntEnum):
    OPEN = 1  # a dialler asks for a tunnel
    OPENED = 2  # the federator's answer
    DATA = 3
    ACK = 4
    CLOSE = 5  # no such tunnel, or no longer


class TunnelFrame(NamedTuple):
    kind: TunnelFrameKind
    from_federator: bool
    number: int
    sender: str
    sequence: int = 0
    acknowledged: int = 0
    data: bytes = b""
    """The bytes of DATA, the nonce of OPEN and OPENED."""
    reason: str = ""


class TunnelFrameError(ValueError):
    """A frame that is to be ignored; its text is the reason under which it is counted."""


class Seal:
    """Makes and checks the proofs of some frames; without a key there are none."""

    __slots__ = ("_code", "proof_bytes")

    def __init__(self, key: bytes | None, *context: bytes) -> None:
        """Proofs hold for frames of this context alone."""
        self._code = None
        self.proof_bytes = 0
        if key is not None:
            derived = blake2b(_joined(context), key=key, person=_DOMAIN, digest_size=32).digest()
            # Copied for each frame, which takes half as long as a new one with a key.
            self._code = blake2b(key=derived, digest_size=PROOF_BYTES)
            self.proof_bytes = PROOF_BYTES

    def close(self, parts: list[bytes | memoryview]) -> bytes:
        """The frame whose parts these are, with its proof."""
        if self._code is not None:
            code = self._code.copy()
            for part in parts:
                code.update(part)
            parts.append(code.digest())
        return b"".join(parts)

    def accepts(self, payload: bytes) -> bool:
        """Was this frame, which could be decoded, made by who has the key? Without a key: has it no proof?"""
        has_proof = bool(payload[1] & _HAS_PROOF)
        if self._code is None or not has_proof:
            return self._code is None and not has_proof
        view = memoryview(payload)
        code = self._code.copy()
        code.update(view[:-PROOF_BYTES])
        return hmac.compare_digest(code.digest(), view[-PROOF_BYTES:])


class TunnelSession(NamedTuple):
    """What both ends know of a tunnel when each has the other's nonce."""

    number: int
    seal: Seal


def opening_seal(key: bytes | None) -> Seal:
    """For OPEN and CLOSE."""
    return Seal(key, b"opening")


def answer_seal(key: bytes | None, opening: TunnelFrame) -> Seal:
    """For the OPENED that answers this OPEN."""
    return Seal(key, b"answer", opening.number.to_bytes(8, "big"), opening.sender.encode(), opening.data)


def agree(key: bytes | None, opening: TunnelFrame, answer: TunnelFrame) -> TunnelSession:
    """The session to which this OPEN and its OPENED lead."""
    context = (
        b"session",
        opening.number.to_bytes(8, "big"),
        opening.sender.encode(),
        opening.data,
        answer.sender.encode(),
        answer.data,
    )
    number = blake2b(_joined(context), key=key or b"", person=_DOMAIN, digest_size=8).digest()
    return TunnelSession(int.from_bytes(number, "big"), Seal(key, *context))


def head(kind: TunnelFrameKind, from_federator: bool, number: int, sender: str, seal: Seal) -> bytes:
    """With what a frame begins."""
    name = sender.encode()
    flags = (_FROM_FEDERATOR if from_federator else 0) | (_HAS_PROOF if seal.proof_bytes else 0)
    return HEAD.pack(VERSION, kind | flags, number, len(name)) + name


def encode(frame: TunnelFrame, seal: Seal) -> bytes:
    begin = head(frame.kind, frame.from_federator, frame.number, frame.sender, seal)
    if frame.kind in (TunnelFrameKind.DATA, TunnelFrameKind.ACK):
        return seal.close([begin, NUMBERS.pack(frame.sequence, frame.acknowledged), frame.data])
    if frame.kind is TunnelFrameKind.CLOSE:
        return seal.close([begin, short_reason(frame.reason).encode()])
    return seal.close([begin, frame.data])


def decode(payload: bytes) -> TunnelFrame:
    """What a frame says, whoever wrote it: whether it counts, `Seal.accepts` tells. Raises FrameError."""
    if len(payload) > MAX_FRAME_BYTES:
        raise TunnelFrameError("too large")
    if len(payload) < HEAD.size:
        raise TunnelFrameError("malformed")
    version, kind_and_flags, number, length = HEAD.unpack_from(payload)
    if version != VERSION:
        raise TunnelFrameError("version")
    kind = _KINDS.get(kind_and_flags & ~(_FROM_FEDERATOR | _HAS_PROOF))
    if kind is None:
        raise TunnelFrameError("kind")
    begin = HEAD.size + length
    end = len(payload) - (PROOF_BYTES if kind_and_flags & _HAS_PROOF else 0)
    if end < begin:
        raise TunnelFrameError("malformed")
    sender = _name(payload[HEAD.size : begin])
    from_federator = bool(kind_and_flags & _FROM_FEDERATOR)
    if kind is TunnelFrameKind.DATA or kind is TunnelFrameKind.ACK:
        begin += NUMBERS.size
        if end < begin or (end > begin) is not (kind is TunnelFrameKind.DATA) or end - begin > MAX_DATA_BYTES:
            raise TunnelFrameError("malformed")
        sequence, acknowledged = NUMBERS.unpack_from(payload, begin - NUMBERS.size)
        return TunnelFrame(kind, from_federator, number, sender, sequence, acknowledged, payload[begin:end])
    if kind is TunnelFrameKind.CLOSE:
        return TunnelFrame(kind, from_federator, number, sender, reason=_reason(payload[begin:end]))
    if end - begin != NONCE_BYTES:
        raise TunnelFrameError("malformed")
    return TunnelFrame(kind, from_federator, number, sender, data=payload[begin:end])


def check_node_id(node_id: str) -> str:
    """The node id, if it can be sent; ValueError says why not."""
    if not node_id or not node_id.isprintable() or len(node_id.encode()) > MAX_ID_BYTES:
        raise ValueError(f"{node_id!r} is no node id of 1 to {MAX_ID_BYTES} printable bytes")
    return node_id


def short_reason(reason: str) -> str:
    """As much of it as a frame may hold, in one line."""
    line = "".join(character if character.isprintable() else " " for character in reason)
    return line.encode()[:MAX_REASON_BYTES].decode(errors="ignore")


def quote_node_id(node_id: str) -> str:
    """The node id as one level of a topic."""
    return "".join(
        character if character.isprintable() and character not in "/+#%$" else _quoted(character)
        for character in node_id
    )


def unquote_node_id(level: str) -> str:
    """The inverse; ValueError for what `quote_node_id` never writes."""
    first, *rest = level.split("%")
    try:
        raw = first.encode() + b"".join(bytes.fromhex(part[:2]) + part[2:].encode() for part in rest)
        node_id = raw.decode(errors="surrogatepass")
    except ValueError:
        node_id = ""
    if not node_id or quote_node_id(node_id) != level:
        raise ValueError(f"{level!r} is no quoted node id")
    return node_id


def _quoted(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode(errors="surrogatepass"))


def _joined(parts: tuple[bytes, ...]) -> bytes:
    """Other parts never make the same bytes."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _name(raw: bytes) -> str:
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        raise TunnelFrameError("malformed") from None
    if not name or not name.isprintable():
        raise TunnelFrameError("malformed")
    return name


def _reason(raw: bytes) -> str:
    # It goes to people's logs: nothing in it may begin a line there or move a cursor.
    if len(raw) > MAX_REASON_BYTES:
        raise TunnelFrameError("malformed")
    return short_reason(raw.decode(errors="replace"))


_KINDS = {int(kind): kind for kind in TunnelFrameKind}
