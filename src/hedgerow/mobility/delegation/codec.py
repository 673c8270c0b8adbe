"""Publications of mobile and fixed brokers (`publications.py`): topics, and payloads byte by byte.

Each is a PUBLISH of MQTT 5 whose first user property, `hedgerow-stream`, says in decimal numbers, with a
space between: version 2, kind, how many of the user properties in front are the brokers' own, then the
header (`StreamHeader`), and for an event its flags (1 to be matched, 2 handed on, 4 again, 8 missed) and its
QoS + 4 × RETAIN.

An event has its own topic, payload and properties. The brokers' own user properties in front of the
message's are its id, callbacks as `{first"second}`, their QoS as digits unless all are 2, and callbacks
that were served already; in a PUBCALLBACK the id and the callbacks are in the packet's header instead.

All else has a coordination topic, and the payload that the document gives it: nothing, or for
`unsubscription/single` the callback, with the topic filter in `hedgerow-filter`. A registration is its topic
filter, how many subscribers it lists, which of the payload's list of callbacks they are, each with its QoS,
and up to three sets of more (`subscriber_sets.py`): QoS, a counting Bloom filter, and callbacks that it names
wrongly. Texts and numbers
are those of MQTT.

`read` takes what anyone may have sent: it raises `CodecError` and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from hedgerow.errors import ProtocolError, TopicError
from hedgerow.message import Message, MessageId, Properties
from hedgerow.mobility.delegation import addresses
from hedgerow.mobility.delegation.bloom import BloomError, CountingBloomFilter
from hedgerow.mobility.delegation.limits import (
    ENTRIES_PER_DELEGATION,
    MAX_ENTRIES,
    MAX_HAD,
    MAX_PAYLOAD_BYTES,
)
from hedgerow.mobility.delegation.publications import (
    ACTIONS,
    EVENTS,
    PLAN_PREFIX,
    AddressChanges,
    Body,
    EmptyBody,
    EventBody,
    Filters,
    GuestSubscription,
    HelloBody,
    Members,
    PublicationKind,
    Registration,
    Registrations,
    Roaming,
    RoamingStep,
    Serving,
    StreamHeader,
    Unsubscription,
)
from hedgerow.mqtt import properties as mqtt_properties
from hedgerow.mqtt.extension import MAX_CALLBACKS
from hedgerow.mqtt.ids import ID_PROPERTY
from hedgerow.mqtt.packets import Pubcallback, Publish
from hedgerow.mqtt.wire import (
    Reader,
    encode_four_byte_integer,
    encode_utf8_string,
    encode_variable_byte_integer,
)
from hedgerow.topics import is_local, split_shared, validate_filter, validate_name

Pairs = tuple[tuple[str, str], ...]

VERSION = 2
STREAM_PROPERTY = "hedgerow-stream"
CALLBACKS_PROPERTY = "hedgerow-callbacks"
LEVELS_PROPERTY = "hedgerow-levels"
SERVED_PROPERTY = "hedgerow-served"
FILTER_PROPERTY = "hedgerow-filter"
ID_AT, CALLBACKS_AT = 1, 2
"""Where an event's id and the first list of its callbacks stand among the user properties."""

_LIST_BYTES = 60_000  # A longer list of callbacks is cut: a text of MQTT has 65,535 bytes.
_QOS_LEVELS = 3
_LIST_NAMES = MAX_CALLBACKS  # of a PUBCALLBACK
_MAX_ID_BYTES = 1_024
_MAX_DIGITS = 20  # of a number of 64 bits
_NUMBERS = 3 + len(StreamHeader._fields)
_LONGEST_FIRST = sorted(set(ACTIONS.values()), key=len, reverse=True)
_ALL = "2"  # the level of a callback for whom its owner knows what it asked for


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


def write(domain: str, broker_id: str, kind: PublicationKind, header: StreamHeader, body: Body) -> Message:
    """The publication, as it stands in a PUBLISH of MQTT 5."""
    if isinstance(body, EventBody):
        return _write_event(kind, header, body)
    own: Pairs = ()
    if kind == PublicationKind.UNSUBSCRIPTION_SINGLE and isinstance(body, Unsubscription):
        own = ((FILTER_PROPERTY, body.topic_filter),)
    numbers = f"{VERSION} {kind} {1 + len(own)} {' '.join(map(str, header))}"
    properties: Properties = {"user_property": ((STREAM_PROPERTY, numbers), *own)}
    return Message(topic_of(domain, broker_id, kind), _FORMS[kind].write(body), 1, properties=properties)


def is_numbered(publication: Message) -> bool:
    """Is it in a stream? What others than ours write is not."""
    pairs = publication.properties.get("user_property", ())
    return bool(pairs) and pairs[0][0] == STREAM_PROPERTY


def is_event(publication: Message) -> bool:
    """Then its topic is the event's; all else has a coordination topic."""
    if not is_numbered(publication):
        return False
    begins = tuple(f"{VERSION} {kind.value} " for kind in EVENTS)
    return publication.properties["user_property"][0][1].startswith(begins)


def read(publication: Message) -> tuple[PublicationKind, StreamHeader, Body]:
    """Raises CodecError for whatever is not as `write` writes it."""
    if len(publication.payload) > MAX_PAYLOAD_BYTES:
        raise CodecError(f"a payload of {len(publication.payload)} bytes")
    if not is_numbered(publication):
        raise CodecError("no number in a stream")
    pairs = publication.properties["user_property"]
    version, number, count, *numbers = _read_numbers(pairs[0][1])
    if version != VERSION:
        raise CodecError(f"version {version}")
    try:
        kind = PublicationKind(number)
    except ValueError:
        raise CodecError(f"kind {number}") from None
    header = StreamHeader(*numbers[: len(StreamHeader._fields)])
    if len(header) + (2 if kind in EVENTS else 0) != len(numbers) or not 0 < count <= len(pairs):
        raise CodecError("numbers that do not fit their kind")
    own = pairs[1:count]
    try:
        if kind in EVENTS:
            return kind, header, _read_event(publication, own, pairs[count:], *numbers[-2:])
        return kind, header, _read_body(kind, publication, own)
    except ProtocolError as error:
        raise CodecError(error.reason) from None
    except (TopicError, addresses.CallbackError, BloomError) as error:
        raise CodecError(str(error)) from None


def _read_numbers(text: str) -> list[int]:
    parts = text.split(" ")
    if not _NUMBERS <= len(parts) <= _NUMBERS + 2:
        raise CodecError(f"{len(parts)} numbers")
    if not all(part.isascii() and part.isdigit() and len(part) <= _MAX_DIGITS for part in parts):
        raise CodecError("what is no number")
    return list(map(int, parts))


def _read_body(kind: PublicationKind, publication: Message, own: Pairs) -> Body:
    if ACTIONS[kind] != split_topic(publication.topic)[2]:
        raise CodecError(f"{kind.name} on the topic {publication.topic!r}")
    if kind == PublicationKind.UNSUBSCRIPTION_SINGLE:
        return _read_unsubscription_single(publication.payload, own)
    reader = Reader(publication.payload)
    body = _FORMS[kind].read(reader)
    if reader.remaining:
        raise CodecError(f"{reader.remaining} bytes too many")
    return body


# How each body is written and read.


def _write_hello(body: HelloBody) -> bytes:
    return b"".join(number.to_bytes(8, "big") for number in body)


def _read_hello(reader: Reader) -> HelloBody:
    return HelloBody(_read_eight_bytes(reader), _read_eight_bytes(reader), _read_eight_bytes(reader))


def _read_eight_bytes(reader: Reader) -> int:
    return reader.four_byte_integer() << 32 | reader.four_byte_integer()


def _write_registrations(body: Registrations) -> bytes:
    listed = list(dict.fromkeys(callback for topic in body.topics for callback, _ in topic.entries))
    place = {callback: index for index, callback in enumerate(listed)}
    pieces = [_write_list(listed), encode_variable_byte_integer(len(body.topics))]
    for topic in body.topics:
        pieces += [encode_utf8_string(topic.topic_filter), encode_variable_byte_integer(len(topic.entries))]
        pieces += [encode_variable_byte_integer(place[name] << 2 | qos) for name, qos in topic.entries]
        pieces.append(encode_variable_byte_integer(len(topic.members)))
        for qos, members, exceptions in topic.members:
            encoded = members.encode()
            pieces += [bytes([qos]), encode_four_byte_integer(len(encoded)), encoded, _write_list(exceptions)]
    return b"".join(pieces)


def _read_registrations(reader: Reader) -> Registrations:
    listed = _read_list(reader)
    return Registrations(tuple(_read_registration(reader, listed) for _ in range(_read_topic_count(reader))))


def _read_registration(reader: Reader, listed: Sequence[str]) -> Registration:
    topic_filter = _read_filter(reader)
    entries = {}
    for _ in range(_read_count(reader)):
        place, qos = divmod(reader.variable_byte_integer(), 4)
        if place >= len(listed) or qos > 2:
            raise CodecError("a subscriber that is not in the list")
        entries[listed[place]] = qos
    count = _read_count(reader)
    if count > _QOS_LEVELS:
        raise CodecError("a filter for each QoS is enough")
    members = tuple(_read_members(reader) for _ in range(count))
    return Registration(topic_filter, tuple(entries.items()), members)


def _read_members(reader: Reader) -> Members:
    qos, size = reader.byte(), reader.four_byte_integer()
    start = reader.advance(size)
    # No larger than its counters are: a few bytes must not ask for megabytes.
    members = CountingBloomFilter.decode(reader.data[start : start + size], max_capacity=size)
    if qos > 2 or not 0 < len(members) <= members.capacity:
        raise CodecError("a filter out of bounds")
    return Members(qos, members, _read_list(reader))


def _write_addresses(body: AddressChanges) -> bytes:
    return _write_list(body.added) + _write_list(body.removed)


def _read_addresses(reader: Reader) -> AddressChanges:
    return AddressChanges(_read_list(reader), _read_list(reader))


def _write_filters(body: Filters) -> bytes:
    count = encode_variable_byte_integer(len(body.topic_filters))
    return count + b"".join(map(encode_utf8_string, body.topic_filters))


def _read_filters(reader: Reader) -> Filters:
    return Filters(tuple(_read_filter(reader) for _ in range(_read_topic_count(reader))))


def _write_unsubscription_single(body: Unsubscription) -> bytes:
    """As published: the callback address, and nothing else."""
    return body.callback.encode()


def _read_unsubscription_single(payload: bytes, own: Pairs) -> Unsubscription:
    if [name for name, _ in own] != [FILTER_PROPERTY]:
        raise CodecError("no topic filter")
    topic_filter = validate_filter(own[0][1])
    _check_is_for_others(topic_filter)
    return Unsubscription(topic_filter, read_callback(payload))


def read_callback(payload: bytes) -> str:
    try:
        return addresses.validate(payload.decode())
    except (UnicodeDecodeError, addresses.CallbackError) as error:
        raise CodecError(str(error)) from None


def _write_unsubscription(body: Unsubscription) -> bytes:
    return encode_utf8_string(body.topic_filter) + encode_utf8_string(body.callback)


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


def _write_roaming(body: Roaming) -> bytes:
    user = b"" if body.username is None else encode_utf8_string(body.username)
    pieces = [
        encode_utf8_string(body.callback),
        bytes([body.step, (body.username is not None) | body.is_more << 1]),
        user,
        body.number.to_bytes(8, "big"),
        encode_four_byte_integer(body.expiry_s),
        body.written.to_bytes(8, "big"),
        encode_variable_byte_integer(len(body.subscriptions)),
    ]
    pieces += map(_write_guest_subscription, body.subscriptions)
    pieces.append(encode_variable_byte_integer(len(body.had)))
    return b"".join([*pieces, *(encode_utf8_string(str(each)) for each in body.had)])


def _read_roaming(reader: Reader) -> Roaming:
    callback, step, flags = addresses.validate(reader.utf8_string()), reader.byte(), reader.byte()
    if step not in set(RoamingStep) or flags > 3 or addresses.client_id_of(callback) is None:
        raise CodecError("no step of a session's way")
    username = reader.utf8_string() if flags & 1 else None
    number, expiry_s = _read_eight_bytes(reader), reader.four_byte_integer()
    written = _read_eight_bytes(reader)
    subscriptions = tuple(_read_guest_subscription(reader) for _ in range(_read_topic_count(reader)))
    if any(each.callback != callback for each in subscriptions):
        raise CodecError("another client's subscription")
    count = _read_count(reader)
    if count > MAX_HAD:
        raise CodecError(f"more than {MAX_HAD} events at a time")
    had = tuple(_parse_id(reader.utf8_string()) for _ in range(count))
    is_more = bool(flags & 2)
    return Roaming(
        callback, RoamingStep(step), number, username, is_more, expiry_s, subscriptions, had, written
    )


def _write_nothing(body: EmptyBody) -> bytes:
    return b""


def _read_nothing(reader: Reader) -> EmptyBody:
    return EmptyBody()


def _write_event(kind: PublicationKind, header: StreamHeader, body: EventBody) -> Message:
    """The message itself, with what one broker tells the other of it in front of its user properties."""
    message = body.message
    own: list[tuple[str, str]] = [(ID_PROPERTY, str(message.id))]
    own += [(CALLBACKS_PROPERTY, each) for each in _lists([name for name, _ in body.callbacks])]
    levels = "".join(str(qos) for _, qos in body.callbacks)
    if levels.strip(_ALL):
        own.append((LEVELS_PROPERTY, levels))
    own += [(SERVED_PROPERTY, each) for each in _lists(body.served)]
    flags = body.is_to_match | body.is_handed_on << 1 | body.is_again << 2 | body.is_missed << 3
    first = message.qos | message.retain << 2
    numbers = f"{VERSION} {kind} {1 + len(own)} {' '.join(map(str, header))} {flags} {first}"
    properties = mqtt_properties.of_message(message.properties)
    pairs = (STREAM_PROPERTY, numbers), *own, *properties.get("user_property", ())
    return Message(message.topic, message.payload, 1, properties={**properties, "user_property": pairs})


def _read_event(publication: Message, own: Pairs, pairs: Pairs, flags: int, first: int) -> EventBody:
    names = [name for name, _ in own]
    message_id = _parse_id(own[0][1]) if names[:1] == [ID_PROPERTY] else None
    callbacks, served = (_read_lists(own, name) for name in (CALLBACKS_PROPERTY, SERVED_PROPERTY))
    levels = next((text for name, text in own if name == LEVELS_PROPERTY), _ALL * len(callbacks))
    if message_id is None or flags > 15 or first > 7 or first & 3 == 3:
        raise CodecError("an event out of bounds")
    if len(levels) != len(callbacks) or levels.strip("012"):
        raise CodecError("callbacks without their levels")
    topic = validate_name(publication.topic)
    _check_is_for_others(topic)
    # A topic alias of the sender's would be sent on to clients, who have to end a connection that has one.
    properties: Properties = {**mqtt_properties.of_message(publication.properties)}
    properties.pop("user_property", None)
    if pairs:
        properties["user_property"] = pairs
    message = Message(topic, publication.payload, first & 3, bool(first & 4), properties, message_id)
    entries = tuple(zip(callbacks, map(int, levels), strict=True))
    return EventBody(message, entries, served, *(bool(flags & bit) for bit in (1, 2, 4, 8)))


def _lists(names: Sequence[str]) -> list[str]:
    return [addresses.encode_list(row) for row in _rows(names)]


def _read_lists(own: Pairs, wanted: str) -> tuple[str, ...]:
    found: list[str] = []
    for name, text in own:
        if name == wanted:
            found += addresses.decode_list(text)
            if len(found) > MAX_ENTRIES:
                raise CodecError("too many callbacks")
    if len(set(found)) != len(found):
        raise CodecError("a callback twice in a list")
    return tuple(found)


# In a PUBCALLBACK, between brokers that have negotiated the extension.


def packet_of(publication: Message, is_extended: bool) -> Publish | Pubcallback:
    """As it is sent."""
    pairs = publication.properties.get("user_property", ())
    if is_extended and len(pairs) > ID_AT and pairs[ID_AT][0] == ID_PROPERTY:
        return as_pubcallback(publication)
    return Publish(publication.topic, publication.payload, properties=publication.properties)


def publication_of(packet: Publish) -> Message:
    return Message(packet.topic, packet.payload, 1, properties=packet.properties)


def as_pubcallback(publication: Message) -> Pubcallback:
    """An event: its callbacks and its id are in the header of the packet."""
    pairs = list(publication.properties["user_property"])
    callbacks: tuple[str, ...] = ()
    if len(pairs) > CALLBACKS_AT and pairs[CALLBACKS_AT][0] == CALLBACKS_PROPERTY:
        callbacks = tuple(pairs.pop(CALLBACKS_AT)[1][1:-1].split('"'))
    message_id = pairs.pop(ID_AT)[1]
    properties: Properties = {**publication.properties, "user_property": tuple(pairs)}
    return Pubcallback(
        publication.topic,
        publication.payload,
        callbacks=callbacks,
        message_id=message_id,
        properties=properties,
    )


def from_pubcallback(packet: Pubcallback) -> Message:
    """As it would stand in a PUBLISH."""
    pairs = list(packet.properties.get("user_property", ()))
    pairs[ID_AT:ID_AT] = [(ID_PROPERTY, packet.message_id)]
    if packet.callbacks:
        pairs[CALLBACKS_AT:CALLBACKS_AT] = [(CALLBACKS_PROPERTY, addresses.encode_list(packet.callbacks))]
    properties: Properties = {**packet.properties, "user_property": tuple(pairs)}
    return Message(packet.topic, packet.payload, 1, properties=properties)


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
        if row and (size + length > _LIST_BYTES or len(row) >= _LIST_NAMES):
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
_NOTHING = _Form(_write_nothing, _read_nothing)
_FORMS = {
    PublicationKind.HELLO: _Form(_write_hello, _read_hello),
    PublicationKind.ACKNOWLEDGE: _NOTHING,
    PublicationKind.EVENTS_ACKNOWLEDGE: _NOTHING,
    PublicationKind.NOTHING: _NOTHING,
    PublicationKind.DELEGATE: _REGISTRATIONS,
    PublicationKind.ADDRESSES: _Form(_write_addresses, _read_addresses),
    PublicationKind.UNSUBSCRIPTION_SINGLE: _Form(_write_unsubscription_single, _read_nothing),
    PublicationKind.UNSUBSCRIPTION_ALL: _NOTHING,
    PublicationKind.DEACTIVATE_ALL: _NOTHING,
    PublicationKind.DEACTIVATE_NO: _NOTHING,
    PublicationKind.RECOVER: _Form(_write_filters, _read_filters),
    PublicationKind.RECOVERED: _REGISTRATIONS,
    PublicationKind.SERVING: _Form(_write_serving, _read_serving),
    PublicationKind.SUBSCRIPTION: _Form(_write_guest_subscription, _read_guest_subscription),
    PublicationKind.UNSUBSCRIPTION: _Form(_write_unsubscription, _read_guest_unsubscription),
    PublicationKind.ROAMING: _Form(_write_roaming, _read_roaming),
}
