"""Names and ids of ours as the numbers of the document's wire, and back.

A node whose id is a decimal number has that number. Any other has one made of its id, with the highest bit
set: people who number federators begin with small ones.

A publication has there an origin and a sequence. One of ours gets both from its fabric-wide id alone, so that
it has the same ones whichever gateway passes it on, and is taken once; its origin has the highest bit set, by
which other gateways see that it may come to them by our own links as well. The 31 bits below are a digest, of
the node and its life, and two may have the same. So each life counts from a number that is made of another
digest: of those two, one must also be within what is remembered of the other, among 2**32. Within a life no
number comes twice in 2**32 publications.

One of theirs gets a fabric-wide id from both numbers alone, and keeps the numbers where it leaves our fabric
again. Sequences there begin anew with each topic and each restart, and nothing tells of a restart: so a
digest of topic and payload is part of the id. It has 94 bits: nobody can make up another message with the id
of what is published elsewhere.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

from hedgerow.broker.ids import ALIAS, BROKER, KIND
from hedgerow.federation.document.limits import MAX_NUMBER
from hedgerow.message import MessageId
from hedgerow.origins import OF_GATEWAY

OF_OURS = 2**31  # the highest bit
# An alias that no node gives but a gateway: all of them together have a part of the log of ids.
_ORIGIN = f"{BROKER}{OF_GATEWAY}{KIND}gateway{ALIAS}#"
_LIFE = Struct("<II")
_LOW_BITS = 31  # of the digest, above the 32 bits of the sequence; the others are the epoch


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
    digest = blake2b(topic.encode() + b"\0" + payload, digest_size=12).digest()
    content = int.from_bytes(digest, "little") >> 2
    sequence = (content & (1 << _LOW_BITS) - 1) << 32 | publication.sequence
    return MessageId(f"{_ORIGIN}{publication.origin:08x}", content >> _LOW_BITS, sequence)


def publication_id(message_id: MessageId) -> PublicationId:
    origin, epoch, sequence = message_id
    if is_of_gateway(origin):
        try:
            return PublicationId(int(origin.removeprefix(_ORIGIN), 16) & MAX_NUMBER, sequence & MAX_NUMBER)
        except ValueError:
            pass  # Somebody else's, which only looks like it.
    digest = blake2b(f"{origin}/{epoch}".encode(errors="surrogatepass"), digest_size=8).digest()
    life, first = _LIFE.unpack(digest)
    return PublicationId(OF_OURS | life, (first + sequence) & MAX_NUMBER)


def origin_of(node_id: str, epoch: int) -> int:
    """Of what begins at this node in this life."""
    return publication_id(MessageId(node_id, epoch, 0)).origin


def is_of_gateway(origin: str) -> bool:
    """Did a gateway give the id, to a publication of a federator that is not ours?"""
    return origin.startswith(_ORIGIN)


def _hash(data: bytes) -> int:
    """31 bits."""
    return int.from_bytes(blake2b(data, digest_size=4).digest(), "little") & (OF_OURS - 1)
