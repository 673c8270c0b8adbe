"""Whole frames for tests: written from values, read back by kind, and hypothesis strategies of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st

from hedgerow.message import Message, MessageId
from hedgerow.mqtt.packets import MQTT_5, PUBLISH
from hedgerow.multicast import frame
from hedgerow.multicast.frame import (
    Acknowledgement,
    Challenge,
    FrameKind,
    Gone,
    GroupInterest,
    Header,
    Hello,
    RepairRequest,
)
from hedgerow.multicast.groups import topic_crc
from tests.mqtt.strategies import property_sets

SENDER = bytes.fromhex("0102030405060708")
ORIGIN = SENDER.hex()


class Frame(NamedTuple):
    header: Header
    topic: str | None
    body: Any


_PARSERS: dict[FrameKind, Callable[[bytes], Any]] = {
    FrameKind.HEARTBEAT: frame.parse_heartbeat,
    FrameKind.REPAIR: frame.parse_repair,
    FrameKind.GONE: frame.parse_gone,
    FrameKind.TOPICS: lambda body: frame.parse_names(body, are_filters=False),
    FrameKind.INTEREST: frame.parse_interest,
    FrameKind.PRESENCE: bytes,
    FrameKind.HELLO: frame.parse_hello,
    FrameKind.WELCOME: frame.parse_welcome,
    FrameKind.CHALLENGE: frame.parse_challenge,
    FrameKind.PROOF: frame.parse_challenge,
    FrameKind.LEAVE: bytes,
    FrameKind.ACKNOWLEDGEMENT: frame.parse_acknowledgement,
    FrameKind.ASK: bytes,
}

PACKERS: dict[FrameKind, Callable[[Any], bytes]] = {
    FrameKind.HEARTBEAT: frame.pack_heartbeat,
    FrameKind.REPAIR: frame.pack_repair,
    FrameKind.GONE: frame.pack_gone,
    FrameKind.TOPICS: frame.pack_names,
    FrameKind.INTEREST: frame.pack_interest,
    FrameKind.PRESENCE: bytes,
    FrameKind.HELLO: frame.pack_hello,
    FrameKind.WELCOME: bytes,
    FrameKind.CHALLENGE: frame.pack_challenge,
    FrameKind.PROOF: frame.pack_challenge,
    FrameKind.LEAVE: bytes,
    FrameKind.ACKNOWLEDGEMENT: frame.pack_acknowledgement,
    FrameKind.ASK: bytes,
}


def read(data: bytes, topic: str = "t") -> Frame:
    """A frame in clear. `topic` is that of the group, for frames that do not say theirs."""
    header = frame.parse_header(data)
    rest = data[frame.HEADER_BYTES :]
    said = None
    if header.flags & frame.TOPIC:
        said, rest = frame.parse_topic(rest)
    return Frame(header, said, _read_body(header, said or topic, rest))


def _read_body(header: Header, topic: str, body: bytes) -> Any:
    if header.kind != FrameKind.DATA:
        return _PARSERS[FrameKind(header.kind)](body)
    if header.flags & frame.AGE:
        _, body = frame.parse_age(body)
    if header.flags & frame.FRAGMENT:
        return frame.parse_fragment(body)
    if header.flags & frame.BATCH:
        return frame.parse_batch(body)
    message_id = MessageId(header.sender.hex(), 0, header.message_sequence)
    return frame.parse_content(topic, header.flags, message_id, body)


def write(
    kind: int,
    body: bytes = b"",
    *,
    topic: str = "t",
    flags: int = 0,
    sender: bytes = SENDER,
    stream_sequence: int = 0,
    message_sequence: int = 0,
    crc: int | None = None,
) -> bytes:
    """A frame in clear; the topic is in it if `flags` say so."""
    header = frame.pack_header(
        kind, flags, topic_crc(topic) if crc is None else crc, sender, stream_sequence, message_sequence
    )
    return header + (frame.pack_topic(topic) if flags & frame.TOPIC else b"") + body


def write_message(message: Message, published_at: float | None = None, **header: Any) -> bytes:
    flags, content = frame.pack_content(message, ORIGIN, published_at)
    header["flags"] = header.get("flags", 0) | flags
    return write(FrameKind.DATA, content, topic=message.topic, **header)


_texts = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=20)
names = _texts
filters = st.one_of(_texts, st.just("#"), st.just("+"), _texts.map(lambda text: f"+/{text}/#"))
eights = st.binary(min_size=8, max_size=8)
u64 = st.integers(0, 2**64 - 1)
sequences = st.integers(0, frame.MAX_SEQUENCE)
origins = _texts.filter(lambda text: len(text.encode()) <= frame.MAX_ORIGIN_BYTES)

message_properties = property_sets(PUBLISH, MQTT_5).map(
    lambda found: {
        name: value for name, value in found.items() if name not in ("topic_alias", "subscription_identifier")
    }
)
messages = st.builds(
    Message,
    names,
    st.binary(max_size=200),
    st.integers(0, 2),
    st.booleans(),
    message_properties,
    st.builds(MessageId, origins, sequences, sequences),
)
times = st.none() | st.integers(0, frame.MAX_MICROSECONDS).map(lambda microseconds: microseconds / 1e6)

bodies: dict[FrameKind, st.SearchStrategy[Any]] = {
    FrameKind.HEARTBEAT: u64,
    FrameKind.REPAIR: st.builds(
        RepairRequest,
        eights,
        st.integers(0, frame.ANY_AGE),
        st.lists(
            st.tuples(st.integers(1, 2**64 - 1), st.integers(1, 65_535)),
            min_size=1,
            max_size=frame.MAX_RANGES,
        ),
    ),
    FrameKind.GONE: st.builds(Gone, eights, u64, sequences),
    FrameKind.TOPICS: st.lists(names, max_size=5),
    FrameKind.INTEREST: st.builds(GroupInterest, st.booleans(), st.lists(filters, max_size=5)),
    FrameKind.PRESENCE: st.just(b""),
    FrameKind.HELLO: st.builds(Hello, eights, st.booleans(), st.lists(filters, max_size=5)),
    FrameKind.WELCOME: eights,
    FrameKind.CHALLENGE: st.builds(Challenge, eights, st.binary(min_size=16, max_size=16)),
    FrameKind.PROOF: st.builds(Challenge, eights, st.binary(min_size=16, max_size=16)),
    FrameKind.LEAVE: st.just(b""),
    FrameKind.ACKNOWLEDGEMENT: st.builds(
        Acknowledgement,
        eights,
        st.integers(0, 2**32 - 1),
        st.lists(
            st.tuples(eights, st.one_of(sequences, st.just(frame.CEASED))), max_size=frame.MAX_ACKNOWLEDGED
        ),
    ),
    FrameKind.ASK: st.just(b""),
}
