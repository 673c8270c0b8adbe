"""Names and ids of ours as the numbers of the document's wire, and back.

A node whose id is a decimal number has that number. Any other has one made of its id, with the highest bit
set: people who number federators begin with small ones.

A publication has there an origin and a sequence. One of ours gets both from its fabric-wide id alone, so that
it has the same ones whichever gateway passes it on, and is taken once; its origin has the highest bit set, by
which other gateways see that it may come to them by our own links as well. One of theirs gets a fabric-wide
id from both numbers alone, and keeps the numbers where it leaves our fabric again. Sequences there begin anew
with each topic and each restart, and nothing tells of a restart: so the payload and the topic are part of the
id.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from hedgerow.federation.document.wire import MAX_NUMBER
from hedgerow.message import MessageId

OF_OURS = 2**31  # the highest bit
# An alias that no node gives but a gateway: all of them together have a part of the log of ids.
# No other alias has a ":".
_ORIGIN = "!document:gateway~#"
_EPOCH = 1


class PublicationId(NamedTuple):
    origin: int
    sequence: int

    @property
    def is_of_ours(self) -> bool:
        """Did it begin at a node of ours? Whoever says so may lie, and harms only this publication."""
        return self.origin >= OF_OURS


def number_of(node_id: str) -> int:
    if node_id.isascii() and node_id.isdecimal() and int(node_id) <= MAX_NUMBER:
        return int(node_id)
    return OF_OURS | _hash(node_id.encode())


def fabric_id(topic: str, publication: PublicationId, payload: bytes) -> MessageId:
    content = _hash(topic.encode() + b"\0" + payload)
    return MessageId(f"{_ORIGIN}{publication.origin:08x}", _EPOCH, content << 32 | publication.sequence)


def publication_id(message_id: MessageId) -> PublicationId:
    origin, epoch, sequence = message_id
    if is_of_gateway(origin):
        try:
            return PublicationId(int(origin.removeprefix(_ORIGIN), 16) & MAX_NUMBER, sequence & MAX_NUMBER)
        except ValueError:
            pass  # Somebody else's, which only looks like it.
    return PublicationId(OF_OURS | _hash(f"{origin}/{epoch}".encode()), sequence & MAX_NUMBER)


def is_of_gateway(origin: str) -> bool:
    """Did a gateway give the id, to a publication of a federator that is not ours?"""
    return origin.startswith(_ORIGIN)


def _hash(data: bytes) -> int:
    """31 bits."""
    return int.from_bytes(blake2b(data, digest_size=4).digest(), "little") & (OF_OURS - 1)
