"""The proof that both ends of a new link have the overlay's key, before either tells the other anything.

The first message on a link could be one that waited for a neighbour, and whoever acknowledges it makes it
vanish: packets that prove themselves later (`wire.py`) would be too late. So who dials says SEQUENCE/PROOF in
its CONNECT. The sequence grows with every link of a node, over restarts too, and what was recorded does not
count again. Who dials does not know yet who is there: one that it reached by mistake could use the proof once
elsewhere. The answer in CONNACK is for this dialler and this link alone.

A proof is a keyed BLAKE2b, as 32 hexadecimal digits.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from hashlib import blake2b

from hedgerow.federation.overlay.limits import MAX_SEQUENCES

NO_PROOF = "it has not the key of this overlay"
NO_KEY = "it has a key, and this node has none"
REPLAYED = "it sends what it has sent before"

_DOMAIN = b"hedgerow link"  # BLAKE2's `person`
_PROOF_BYTES = 16
_MAX_SEQUENCE = (1 << 64) - 1


class LinkProofs:
    """`take_sequence` gives numbers of 64 bits that grow. Without a key nothing is said and nothing asked."""

    def __init__(self, node_id: str, key: bytes | None, take_sequence: Callable[[], int]) -> None:
        self._node_id = node_id
        self._key = key
        self._take_sequence = take_sequence
        self._sequences: dict[str, int] = {}  # by dialler, of its last link

    def make(self) -> str:
        """For a CONNECT."""
        if self._key is None:
            return ""
        sequence = self._take_sequence()
        return f"{sequence}/{_proof(self._key, sequence, self._node_id)}"

    def refusal(self, dialler: str, said: str) -> str | None:
        """Why it may not be let in; None: it has the key, and says so for the first time."""
        if self._key is None:
            return NO_KEY if said else None
        sequence = _sequence_of(said)
        expected = f"{sequence}/{_proof(self._key, sequence, dialler)}"
        if not hmac.compare_digest(said.encode(), expected.encode()):
            return NO_PROOF
        if sequence <= self._sequences.get(dialler, -1):
            return REPLAYED
        self._sequences.pop(dialler, None)
        if len(self._sequences) >= MAX_SEQUENCES:
            del self._sequences[next(iter(self._sequences))]
        self._sequences[dialler] = sequence
        return None

    def answer(self, dialler: str, said: str) -> str:
        """For the CONNACK to one that was let in."""
        return "" if self._key is None else _proof(self._key, _sequence_of(said), self._node_id, dialler)

    def accepts(self, far_node: str, said: str, answer: str) -> bool:
        """Is this the answer to what we said?"""
        if self._key is None:
            return True
        expected = _proof(self._key, _sequence_of(said), far_node, self._node_id)
        return hmac.compare_digest(answer.encode(), expected.encode())


def _sequence_of(said: str) -> int:
    digits = said.partition("/")[0]
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= 20
    return min(int(digits), _MAX_SEQUENCE) if is_number else 0


def _proof(key: bytes, sequence: int, *names: str) -> str:
    code = blake2b(sequence.to_bytes(8, "big"), key=key, digest_size=_PROOF_BYTES, person=_DOMAIN)
    for name in names:
        text = name.encode()
        code.update(len(text).to_bytes(4, "big") + text)
    return code.hexdigest()
