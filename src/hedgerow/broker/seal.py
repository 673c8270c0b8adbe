"""Records that only the two ends of a link can make and read.

After the proofs of a link everything on it travels in records: two bytes of length, then AES-256-GCM
ciphertext with its tag. Each direction has its own key, and the nonce is a counter: a record that is changed,
left out, repeated, moved or sent back to its maker does not open, and ends the link.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from hedgerow.errors import ProtocolError
from hedgerow.mqtt.reasons import Reason

LENGTH_BYTES = 2
TAG_BYTES = 16
# Only a record that opens is a sign of life. So it is short enough to come whole within a keep alive, over a
# link of 3 kB/s too, and whoever writes into the stream cannot have us wait for the rest of a long one.
MAX_PLAIN_BYTES = 4_096
MAX_RECORD_BYTES = MAX_PLAIN_BYTES + TAG_BYTES


class RecordSeal:
    """One for each end: its `sending_key` is the other's `receiving_key`."""

    __slots__ = ("_cipher_in", "_cipher_out", "_partial", "_received", "_sent", "_wanted")

    def __init__(self, sending_key: bytes, receiving_key: bytes) -> None:
        self._cipher_out, self._cipher_in = AESGCM(sending_key), AESGCM(receiving_key)
        self._sent = self._received = 0
        self._partial = bytearray()  # the beginning of a record
        self._wanted = 0  # how long it must be before it is worth looking at

    def close(self, data: bytes) -> bytes:
        """The records that carry `data`."""
        records: list[bytes] = []
        for begin in range(0, len(data), MAX_PLAIN_BYTES):
            text = self._cipher_out.encrypt(_nonce(self._sent), data[begin : begin + MAX_PLAIN_BYTES], None)
            self._sent += 1
            records += len(text).to_bytes(LENGTH_BYTES, "big"), text
        return b"".join(records)

    def open(self, chunk: bytes) -> bytes:
        """What the whole records carry that are there now; `ProtocolError` for one that does not open."""
        data = chunk
        if self._partial:
            self._partial += chunk
            if len(self._partial) < self._wanted:
                return b""
            data = bytes(self._partial)
        opened = []
        position, end = 0, len(data)
        self._wanted = LENGTH_BYTES
        while end - position >= LENGTH_BYTES:
            begin = position + LENGTH_BYTES
            stop = begin + int.from_bytes(data[position:begin], "big")
            if not TAG_BYTES < stop - begin <= MAX_RECORD_BYTES:
                raise _broken("a sealed record of a wrong length")
            if stop > end:
                self._wanted = stop - position
                break
            try:
                opened.append(self._cipher_in.decrypt(_nonce(self._received), data[begin:stop], None))
            except InvalidTag:
                raise _broken("a sealed record that the peer did not make") from None
            self._received += 1
            position = stop
        self._partial = bytearray(data[position:])
        return b"".join(opened)


def _nonce(count: int) -> bytes:
    return count.to_bytes(12, "big")


def _broken(reason: str) -> ProtocolError:
    return ProtocolError(Reason.NOT_AUTHORIZED, f"{reason}: someone else writes into this link")
