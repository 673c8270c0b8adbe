"""Both ends of a new link prove that they have the federation's key, by AUTH packets (MQTT 5 §4.12).

    CONNECT  dialler's nonce 32 | dialler's name
    AUTH     acceptor's nonce 32 | acceptor's proof 32 | acceptor's name
    AUTH     dialler's proof 32
    CONNACK  and all that follows: sealed (`seal.py`)

A proof is an HMAC-SHA-256 over the prover's part in the exchange, both nonces, the whole CONNECT and both
names. So it counts for this link, these two ends and this direction alone: it is of no use at another node,
at another time, or when it is sent back to its maker. The acceptor proves itself first. A stranger who dials,
or is dialled, gets two nonces and at most one proof, which tell nothing of a key of 16 bytes or more.

A relay that carries the exchange between two honest ends gains nothing: the keys of the seal come from the
federation's key and the same words as the proofs. Whoever gets hold of the federation's key later can read
what was recorded.

The machine is given its nonce, and knows nothing of packets.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import TYPE_CHECKING

from hedgerow.broker.exchange import AuthenticationError
from hedgerow.federation.neighbours import METHOD

if TYPE_CHECKING:
    from hedgerow.broker.seal import RecordSeal

NONCE_BYTES = 32
PROOF_BYTES = 32
MAX_NAME_BYTES = 1_024  # An unknown peer may have us keep and hash no more than that.

WRONG_KEY = "wrong federation key"
NOT_READABLE = "authentication data of a wrong form"
OWN_NAME = "this node itself, or another of its name"


class _End:
    """What both ends do. `peer` is the other's name, which is proven once `seal` is there."""

    method = METHOD

    def __init__(self, key: bytes, name: str, nonce: bytes) -> None:
        self.peer = ""
        self.seal: RecordSeal | None = None
        self._secret = hmac.digest(METHOD.encode(), key, "sha256")
        self._name = name
        self._nonce = nonce
        self._words = b""  # what both ends prove that they have in common

    def _meet(self, name: bytes) -> None:
        if not 0 < len(name) <= MAX_NAME_BYTES:
            raise AuthenticationError(NOT_READABLE)
        try:
            self.peer = name.decode()
        except UnicodeDecodeError:
            raise AuthenticationError(NOT_READABLE) from None
        if self.peer == self._name:
            raise AuthenticationError(OWN_NAME)  # Our own words, sent back.

    def _agree(self, nonces: bytes, connect: bytes, *names: str) -> None:
        texts = [name.encode() for name in names]
        lengths = b"".join(len(text).to_bytes(4, "big") for text in texts)
        self._words = b"".join((nonces, sha256(connect).digest(), lengths, *texts))

    def _make(self, label: bytes) -> bytes:
        return hmac.digest(self._secret, label + b"\0" + self._words, "sha256")

    def _check(self, label: bytes, proof: bytes) -> None:
        if not hmac.compare_digest(self._make(label), proof):
            raise AuthenticationError(WRONG_KEY)

    def _seal(self, own: bytes, other: bytes) -> None:
        # It loads OpenSSL: 6 MiB that a node without a key need not have.
        from hedgerow.broker.seal import RecordSeal

        self.seal = RecordSeal(self._make(b"from " + own), self._make(b"from " + other))


class ProvingDialler(_End):
    """`opening` goes into CONNECT, of which `connect` has the bytes; `step` answers the acceptor's AUTH."""

    def __init__(self, key: bytes, name: str, nonce: bytes) -> None:
        super().__init__(key, name, nonce)
        self.opening = nonce + name.encode()
        self.connect = b""

    def step(self, data: bytes) -> bytes:
        """The dialler's proof: the acceptor is proven."""
        nonce, proof = data[:NONCE_BYTES], data[NONCE_BYTES : NONCE_BYTES + PROOF_BYTES]
        self._meet(data[NONCE_BYTES + PROOF_BYTES :])
        self._agree(self._nonce + nonce, self.connect, self._name, self.peer)
        self._check(b"acceptor", proof)
        self._seal(b"dialler", b"acceptor")
        return self._make(b"dialler")


class ProvingAcceptor(_End):
    """`connect`: the CONNECT that came, and `expected` the name in it. `step` answers CONNECT, then AUTH."""

    def __init__(self, key: bytes, name: str, nonce: bytes, connect: bytes, expected: str | None) -> None:
        super().__init__(key, name, nonce)
        self._connect = connect
        self._expected = expected

    def step(self, data: bytes) -> bytes:
        """The acceptor's proof; then nothing, for the dialler is proven."""
        if self._words:
            self._check(b"dialler", data)
            self._seal(b"acceptor", b"dialler")
            return b""
        self._meet(data[NONCE_BYTES:])
        if self.peer != self._expected:
            raise AuthenticationError(NOT_READABLE)
        self._agree(data[:NONCE_BYTES] + self._nonce, self._connect, self.peer, self._name)
        return self._nonce + self._make(b"acceptor") + self._name.encode()
