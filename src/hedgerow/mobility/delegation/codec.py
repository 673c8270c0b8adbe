"""Publications of mobile and fixed brokers (`publications.py`): topics, and payloads byte by byte.

Every payload begins with version 2, kind 1, epochs 8 and 8, link 4, number 8, acknowledged 8, settled 8. A
registration is its topic filter, how many subscribers it has, which of the payload's list of callbacks they
are, each with its QoS, and a counting Bloom filter of them. Since a Bloom filter cannot list its members, and
must not decide alone who is notified, the list counts, and one that the filter contradicts is refused. An
event is flags, callbacks as `{first"second}` with their QoS, callbacks that were served already, then the
message: topic, QoS and retain, id, MQTT 5 properties, payload. Texts and numbers are those of MQTT.

`decode` takes what anyone may have sent: it raises `CodecError` and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Any, NamedTuple

from hedgerow.errors import ProtocolError, TopicError
from hedgerow.message import Message, MessageId
from hedgerow.mobility.delegation import addresses
from hedgerow.mobility.delegation.bloom import BloomError, CountingBloomFilter
from hedgerow.mobility.delegation.limits import ENTRIES_PER_DELEGATION, MAX_ENTRIES, MAX_PAYLOAD_BYTES
from hedgerow.mobility.delegation.publications import (
    ACTIONS,
    PLAN_PREFIX,
    Body,
    EmptyBody,
    EventBody,
    Filters,
    GuestSubscription,
    HelloBody,
    PublicationKind,
    Registration,
    Registrations,
    Serving,
    StreamHeader,
    Unsubscription,
)
from hedgerow.mqtt import properties as mqtt_properties
from hedgerow.mqtt.packets import PUBLISH
from hedgerow.mqtt.wire import (
    Reader,
    encode_four_byte_integer,
    encode_utf8_string,
    encode_variable_byte_integer,
)
from hedgerow.topics import is_local, split_shared, validate_filter, validate_name

VERSION = 2
_HEADER = Struct("!BBQQIQQQ")
_LIST_BYTES = 60_000  # A longer list of callbacks is cut: a text of MQTT has 65,535 bytes.
_MAX_ID_BYTES = 1_024
_LONGEST_FIRST = sorted(set(ACTIONS.values()), key=len, reverse=True)


class CodecError(ValueError):
    """A publication that is refused; the text says why."""


def topic_of(domain: str, broker_id: str, kind: PublicationKind) -> str:
    return f"{domain}/{broker_id}/{ACTIONS[kind]}"


def split_topic(topic: str) -> tuple[str, str, str]:
    """Domain, broker id and action; CodecError for a topic that is no coordination topic."""
    for action in _LONGEST_FIRST:
        if topic.endswith(f"/{action}"):
            domain, _, broker_id = topic[: -len(action) - 1].rpartition("/")
            if domain and broker_id:
                return domain, broker_id, action
    raise CodecError("no coordination topic")


def encode(kind: PublicationKind, header: StreamHeader, body: Body) -> bytes:
    return _HEADER.pack(VERSION, kind, *header) + _FORMS[kind].write(body)


def decode(action: str, payload: bytes) -> tuple[PublicationKind, StreamHeader, Body]:
    """Raises CodecError for whatever is not as `encode` writes it."""
    if not _HEADER.size <= len(payload) <= MAX_PAYLOAD_BYTES:
        raise CodecError(f"a payload of {len(payload)} bytes")
    version, number, *numbers = _HEADER.unpack_from(payload)
    if version != VERSION:
        raise CodecError(f"version {version}")
    try:
        kind = PublicationKind(number)
    except ValueError:
        raise CodecError(f"kind {number}") from None
    if ACTIONS[kind] != action:
        raise CodecError(f"{kind.name} on the topic of {action!r}")
    reader = Reader(payload, _HEADER.size)
    try:
        body = _FORMS[kind].read(reader)
    except ProtocolError as error:
        raise CodecError(error.reason) from None
    except (TopicError, addresses.CallbackError, BloomError) as error:
        raise CodecError(str(error)) from None
    if reader.remaining:
        raise CodecError(f"{reader.remaining} bytes too many")
    return kind, StreamHeader(*numbers), body


def filter_of(registration: Registration) -> CountingBloomFilter:
    """The subscribers of one topic, as they travel."""
    members = CountingBloomFilter(max(1, len(registration.entries)))
    for callback, _ in registration.entries:
        members.add(callback)
    return members


# How each body is written and read.


def _write_hello(body: HelloBody) -> bytes:
    return body.known_epoch.to_bytes(8, "big") + body.received.to_bytes(8, "big")


def _read_hello(reader: Reader) -> HelloBody:
    return HelloBody(_read_eight_bytes(reader), _read_eight_bytes(reader))


def _read_eight_bytes(reader: Reader) -> int:
    return reader.four_byte_integer() << 32 | reader.four_byte_integer()


def _write_registrations(body: Registrations) -> bytes:
    listed = list(dict.fromkeys(callback for topic in body.topics for callback, _ in topic.entries))
    place = {callback: index for index, callback in enumerate(listed)}
    pieces = [_write_list(listed), encode_variable_byte_integer(len(body.topics))]
    for topic in body.topics:
        members = filter_of(topic).encode()
        pieces += [encode_utf8_string(topic.topic_filter), encode_variable_byte_integer(len(topic.entries))]
        pieces += [encode_variable_byte_integer(place[name] << 2 | qos) for name, qos in topic.entries]
        pieces += [encode_four_byte_integer(len(members)), members]
    return b"".join(pieces)


def _read_registrations(reader: Reader) -> Registrations:
    listed = _read_list(reader)
    return Registrations(tuple(_read_registration(reader, listed) for _ in range(_read_topic_count(reader))))


def _read_registration(reader: Reader, listed: Sequence[str]) -> Registration:
    topic_filter = _read_filter(reader)
    count = _read_count(reader)
    entries = {}
    for _ in range(count):
        place, qos = divmod(reader.variable_byte_integer(), 4)
        if place >= len(listed) or qos > 2:
            raise CodecError("a subscriber that is not in the list")
        entries[listed[place]] = qos
    size = reader.four_byte_integer()
    start = reader.advance(size)
    # No larger than it need be: thousands of empty ones would be a cheap way to keep us busy.
    members = CountingBloomFilter.decode(reader.data[start : start + size], max_capacity=max(1, count))
    if not len(entries) == count == len(members) or not all(callback in members for callback in entries):
        raise CodecError("the filter and the list of callbacks differ")
    return Registration(topic_filter, tuple(entries.items()))


def _write_filters(body: Filters) -> bytes:
    count = encode_variable_byte_integer(len(body.topic_filters))
    return count + b"".join(map(encode_utf8_string, body.topic_filters))


def _read_filters(reader: Reader) -> Filters:
    return Filters(tuple(_read_filter(reader) for _ in range(_read_topic_count(reader))))


def _write_unsubscription(body: Unsubscription) -> bytes:
    return encode_utf8_string(body.topic_filter) + encode_utf8_string(body.callback)


def _read_unsubscription(reader: Reader) -> Unsubscription:
    return Unsubscription(_read_filter(reader), addresses.validate(reader.utf8_string()))


def _read_guest_unsubscription(reader: Reader) -> Unsubscription:
    return Unsubscription(_read_guest_filter(reader), addresses.validate(reader.utf8_string()))


def _write_guest_subscription(body: GuestSubscription) -> bytes:
    options = body.qos | body.no_local << 2 | body.retain_as_published << 3  # as in SUBSCRIBE (§3.8.3.1)
    names = encode_utf8_string(body.topic_filter) + encode_utf8_string(body.callback)
    return names + bytes([options]) + encode_variable_byte_integer(body.identifier or 0)


def _read_guest_subscription(reader: Reader) -> GuestSubscription:
    topic_filter = _read_guest_filter(reader)
    callback = addresses.validate(reader.utf8_string())
    options = reader.byte()
    if options & 3 == 3 or options > 15:
        raise CodecError("no options of a subscription")
    identifier = reader.variable_byte_integer() or None
    return GuestSubscription(
        topic_filter, callback, options & 3, bool(options & 4), bool(options & 8), identifier
    )


def _write_serving(body: Serving) -> bytes:
    has_user = body.username is not None
    user = b"" if body.username is None else encode_utf8_string(body.username)
    return encode_utf8_string(body.callback) + bytes([body.is_here | has_user << 1]) + user


def _read_serving(reader: Reader) -> Serving:
    callback, flags = addresses.validate(reader.utf8_string()), reader.byte()
    if flags > 3:
        raise CodecError("a client that is neither here nor there")
    return Serving(callback, bool(flags & 1), reader.utf8_string() if flags & 2 else None)


def _write_nothing(body: EmptyBody) -> bytes:
    return b""


def _read_nothing(reader: Reader) -> EmptyBody:
    return EmptyBody()


def _write_event(body: EventBody) -> bytes:
    message = body.message
    return b"".join(
        (
            bytes([body.is_to_match | body.is_handed_on << 1 | body.is_again << 2]),
            _write_list([callback for callback, _ in body.callbacks]),
            bytes(qos for _, qos in body.callbacks),
            _write_list(body.served),
            encode_utf8_string(message.topic),
            bytes([message.qos | message.retain << 2]),
            encode_utf8_string(str(message.id)),
            mqtt_properties.encode(message.properties, PUBLISH),
            message.payload,
        )
    )


def _read_event(reader: Reader) -> EventBody:
    flags = reader.byte()
    callbacks = _read_list(reader)
    start = reader.advance(len(callbacks))
    levels = reader.data[start : reader.position]
    served = _read_list(reader)
    topic = validate_name(reader.utf8_string())
    first = reader.byte()
    text = reader.utf8_string()
    found, reader.position = mqtt_properties.decode(reader.data, reader.position, PUBLISH)
    if flags > 7 or first > 7 or first & 3 == 3 or any(level > 2 for level in levels):
        raise CodecError("an event out of bounds")
    _check_is_for_others(topic)
    # A topic alias of the sender's would be sent on to clients, who have to end a connection that has one.
    properties = mqtt_properties.of_message(found)
    message = Message(topic, reader.rest(), first & 3, bool(first & 4), properties, _parse_id(text))
    pairs = tuple(zip(callbacks, levels, strict=True))
    return EventBody(message, pairs, served, *(bool(flags & bit) for bit in (1, 2, 4)))


def _parse_id(text: str) -> MessageId:
    # Python reads a number of four thousand digits, and refuses a longer one.
    if len(text) > _MAX_ID_BYTES:
        raise CodecError("an id that is too long")
    try:
        message_id = MessageId.parse(text)
    except ValueError:
        raise CodecError("an event without an id") from None
    if max(message_id.epoch, message_id.sequence) >= 2**63:
        raise CodecError("an id that no node gives")
    return message_id


def _write_list(callbacks: Sequence[str]) -> bytes:
    rows = list(_rows(callbacks))
    texts = (encode_utf8_string(addresses.encode_list(row)) for row in rows)
    return encode_variable_byte_integer(len(rows)) + b"".join(texts)


def _rows(callbacks: Sequence[str]) -> Iterator[list[str]]:
    row: list[str] = []
    size = 0
    for callback in callbacks:
        length = len(callback.encode()) + 1
        if row and size + length > _LIST_BYTES:
            yield row
            row, size = [], 0
        row.append(callback)
        size += length
    if row:
        yield row


def _read_list(reader: Reader) -> tuple[str, ...]:
    found: list[str] = []
    for _ in range(_read_count(reader)):
        found += addresses.decode_list(reader.utf8_string())
        if len(found) > MAX_ENTRIES:
            raise CodecError("too many callbacks")
    if len(set(found)) != len(found):
        raise CodecError("a callback twice in a list")
    return tuple(found)


def _read_filter(reader: Reader) -> str:
    topic_filter = validate_filter(reader.utf8_string())
    _check_is_for_others(topic_filter)
    return topic_filter


def _read_guest_filter(reader: Reader) -> str:
    text = reader.utf8_string()
    _, topic_filter = split_shared(text)
    _check_is_for_others(validate_filter(topic_filter))
    return text


def _check_is_for_others(topic: str) -> None:
    """Most of what begins with $ is a broker's own affair: a mobile one must not get $SYS by delegating it.

    The plans for mobile brokers are theirs.
    """
    if is_local(topic) and not topic.startswith(PLAN_PREFIX):
        raise CodecError("a topic that is not for others")


def _read_count(reader: Reader) -> int:
    count = reader.variable_byte_integer()
    if count > reader.remaining:  # Whatever is counted has a byte at least.
        raise CodecError("more is promised than there is")
    return count


def _read_topic_count(reader: Reader) -> int:
    """As few as honest brokers write at a time: eight megabytes of them would be seconds of silence."""
    count = _read_count(reader)
    if count > ENTRIES_PER_DELEGATION:
        raise CodecError(f"more than {ENTRIES_PER_DELEGATION} topics at a time")
    return count


class _Form(NamedTuple):
    write: Callable[[Any], bytes]
    read: Callable[[Reader], Body]


_REGISTRATIONS = _Form(_write_registrations, _read_registrations)
_EVENT = _Form(_write_event, _read_event)
_NOTHING = _Form(_write_nothing, _read_nothing)
_UNSUBSCRIPTION = _Form(_write_unsubscription, _read_unsubscription)
_FORMS = {
    PublicationKind.HELLO: _Form(_write_hello, _read_hello),
    PublicationKind.ACKNOWLEDGE: _NOTHING,
    PublicationKind.NOTHING: _NOTHING,
    PublicationKind.DELEGATE: _REGISTRATIONS,
    PublicationKind.UNSUBSCRIPTION_SINGLE: _UNSUBSCRIPTION,
    PublicationKind.UNSUBSCRIPTION_ALL: _NOTHING,
    PublicationKind.DEACTIVATE_ALL: _NOTHING,
    PublicationKind.DEACTIVATE_NO: _NOTHING,
    PublicationKind.RECOVER: _Form(_write_filters, _read_filters),
    PublicationKind.RECOVERED: _REGISTRATIONS,
    PublicationKind.EVENT: _EVENT,
    PublicationKind.NOTIFY: _EVENT,
    PublicationKind.SERVING: _Form(_write_serving, _read_serving),
    PublicationKind.SUBSCRIPTION: _Form(_write_guest_subscription, _read_guest_subscription),
    PublicationKind.UNSUBSCRIPTION: _Form(_write_unsubscription, _read_guest_unsubscription),
}
