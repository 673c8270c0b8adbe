"""What federators of the document's line of work say to each other, as topics and bytes.

Each message is about one topic, which follows its kind: `federator/core_ann/TOPIC`. Every number is 32 bits
without a sign, little-endian; the length of a payload has 64. All is published at QoS 2.

    federator/core_ann/TOPIC   core, sequence, distance, sender             CORE_ANN
    federator/memb_ann/TOPIC   core, sequence, sender                       MESH_MEMB_ANN
    federator/routing/TOPIC    origin, sequence, sender, length, payload    DATA
    federator/beacon/TOPIC     nothing           a client has subscribed    NEW_REGULAR_TOPIC
    federated/TOPIC            the payload       a client's publication, and what clients get

`decode` takes what anyone may have published: it raises `DocumentWireError` and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import NamedTuple

from hedgerow.errors import TopicError
from hedgerow.topics import validate_name

CORE_ANN = "federator/core_ann/"
MEMB_ANN = "federator/memb_ann/"
ROUTING = "federator/routing/"
BEACON = "federator/beacon/"
FEDERATED = "federated/"
PREFIXES = (CORE_ANN, MEMB_ANN, ROUTING, BEACON, FEDERATED)
QOS = 2

# What federators and clients of this wire say at their broker. It is no topic of a mesh itself.
OWN_TOPICS = ("federator/", FEDERATED)
NOT_FEDERATED = ("$", "hedgerow/", *OWN_TOPICS)
# By a mesh for such a topic alone a neighbour tells its number (`federator.py`).
PROBE = "hedgerow/neighbour/"

_CORE_ANN = Struct("<4I")
_MEMB_ANN = Struct("<3I")
_ROUTING = Struct("<3IQ")


class DocumentWireError(ValueError):
    """A message that is to be ignored; its text is the reason under which it is counted."""


class CoreAnn(NamedTuple):
    core: int
    sequence: int
    distance: int
    """From the sender to the core."""
    sender: int


class MembAnn(NamedTuple):
    core: int
    sequence: int
    sender: int


class RoutedPublication(NamedTuple):
    """`origin` and `sequence` are its id."""

    origin: int
    sequence: int
    sender: int
    payload: bytes


class Beacon(NamedTuple):
    """A client at this broker is subscribed."""


class FederatedPublication(NamedTuple):
    """A client at this broker has published."""

    payload: bytes


DocumentEntry = CoreAnn | MembAnn | RoutedPublication | Beacon | FederatedPublication


def encode(topic: str, entry: DocumentEntry) -> tuple[str, bytes]:
    """The topic to publish it to, and the payload."""
    match entry:
        case CoreAnn():
            return CORE_ANN + topic, _CORE_ANN.pack(*entry)
        case MembAnn():
            return MEMB_ANN + topic, _MEMB_ANN.pack(*entry)
        case RoutedPublication(origin, sequence, sender, payload):
            return ROUTING + topic, _ROUTING.pack(origin, sequence, sender, len(payload)) + payload
        case Beacon():
            return BEACON + topic, b""
        case FederatedPublication(payload):
            return FEDERATED + topic, payload


def decode(name: str, payload: bytes) -> tuple[str, DocumentEntry]:
    """From the topic that it was published to, and the payload: what it is about, and what it says."""
    prefix = next((each for each in PREFIXES if name.startswith(each)), None)
    if prefix is None:
        raise DocumentWireError("kind")
    topic = name.removeprefix(prefix)
    try:
        validate_name(topic)
    except TopicError:
        raise DocumentWireError("topic") from None
    return topic, _READERS[prefix](payload)


def is_probe(topic: str) -> bool:
    return topic.startswith(PROBE)


def is_federated(topic: str) -> bool:
    """May it have a mesh? The others are each broker's own."""
    return not topic.startswith(NOT_FEDERATED)


def _read_core_ann(payload: bytes) -> CoreAnn:
    _expect(len(payload) == _CORE_ANN.size)
    return CoreAnn(*_CORE_ANN.unpack(payload))


def _read_memb_ann(payload: bytes) -> MembAnn:
    _expect(len(payload) == _MEMB_ANN.size)
    return MembAnn(*_MEMB_ANN.unpack(payload))


def _read_routing(payload: bytes) -> RoutedPublication:
    _expect(len(payload) >= _ROUTING.size)
    origin, sequence, sender, length = _ROUTING.unpack_from(payload)
    _expect(length == len(payload) - _ROUTING.size)
    return RoutedPublication(origin, sequence, sender, payload[_ROUTING.size :])


def _read_beacon(payload: bytes) -> Beacon:
    return Beacon()  # Whatever is in it.


def _expect(is_so: bool) -> None:
    if not is_so:
        raise DocumentWireError("malformed")


_READERS: dict[str, Callable[[bytes], DocumentEntry]] = {
    CORE_ANN: _read_core_ann,
    MEMB_ANN: _read_memb_ann,
    ROUTING: _read_routing,
    BEACON: _read_beacon,
    FEDERATED: FederatedPublication,
}
