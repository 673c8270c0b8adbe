"""Fabric-wide ids in MQTT 5: the user property that carries one, and what is known of a peer's messages.

Between brokers the id of a message travels as the user property `hedgerow-id`, the first property of its
PUBLISH. A broker that connects to another says `hedgerow-node` in its CONNECT, with its own name, and is told
the other's in CONNACK. From then on each message has its id on this connection, both ways (`peers.py`), and a
retained one the time of its publication, `hedgerow-time`; other clients never see them.

What is retained goes by age (`age_key`) alone: an older value does not replace a newer one, by whichever way
and however often they come. Whether anybody hears of it also goes by its id: what was here before is kept, if
it is the newest, but not published again. `hedgerow-held` marks a deletion of some time ago that is told to a
broker which may have missed it: where there was nothing to delete, nobody hears of it.

What comes late, since it has waited or is sent once more (`recent.py`), says for how many seconds it has been
around, `hedgerow-age`: who has subscribed since does not get it. Each broker counts on by its own clock, and
the time on the way is left out, so that a message is never taken for older than it is. For the same reason an
age is not stored: if a clock was set between two lives of a node, messages would become too old for those who
wait for them. A value that is the newest of its topic is for late subscribers too, and has no age.

Who may claim an id can make a later message of that id be dropped. With an ACL, ids are therefore taken only
from who may write `$hedgerow/bridge`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hedgerow.message import Message, MessageId, Properties
from hedgerow.mqtt.packets import PUBLISH
from hedgerow.mqtt.properties import encode_body

if TYPE_CHECKING:
    from hedgerow.mqtt.broker.broker import Broker

ID_PROPERTY = "hedgerow-id"
NODE_PROPERTY = "hedgerow-node"
TIME_PROPERTY = "hedgerow-time"
AGE_PROPERTY = "hedgerow-age"
OWN_PROPERTIES = (ID_PROPERTY, TIME_PROPERTY, AGE_PROPERTY)
HELD = ("hedgerow-held", "1")
RIGHT_TOPIC = "$hedgerow/bridge"
# The year 2106. Up to it a microsecond more is another number, so that a later publication has a later time.
MAX_TIME = 2.0**32
MAX_AGE_S = 7 * 86_400.0
# A publication that was under way when its subscriber came is rather delivered than lost.
AGE_SLACK_S = 0.5
MAX_PREFIXES = 4_096  # A stranger may invent an origin for every message.
MAX_ORIGIN = 256  # characters; 64 KiB in each of so many prefixes would be memory for the taking
MAX_NUMBER = 2**63 - 1  # The store has 64 bits and a sign: a larger one could never be written.
_NO_ID = MessageId("", 0, 0)
ID_HEAD = b"\x26" + len(ID_PROPERTY).to_bytes(2, "big") + ID_PROPERTY.encode()


@dataclass(slots=True)
class Inbound:
    """What came from a peer. Of `published`, what is not counted below was passed on."""

    published: int = 0
    duplicates: int = 0
    outdated: int = 0
    """Retained values of which a newer one is here, or the very same."""
    refused: int = 0
    """A topic that is not to come this way, or a retained message that there is no room for."""


@dataclass(slots=True)
class Outbound:
    """What was published for a bridge. What is not counted below waits in its session's outbox."""

    published: int = 0
    relayed: int = 0
    away: int = 0
    """QoS 0 while there was no connection."""
    overflowed: int = 0
    expired: int = 0
    too_large: int = 0
    refused: int = 0
    """The far broker said no, the topic has no name there, or the bridge's user may no longer read it."""
    discarded: int = 0
    """It waited when the bridge was deleted, and no other bridge took it."""


def node_of(properties: Properties) -> str | None:
    """The name of the broker at the other end, if it says that it takes part, with one that ids may bear."""
    said = next((value for name, value in properties.get("user_property", ()) if name == NODE_PROPERTY), "")
    return said if 0 < len(said) <= MAX_ORIGIN and said.isprintable() else None


def identify_from(message: Message, now: float) -> None:
    """Set the id, the time and the age that the message's user properties tell, and take these away.

    What cannot be read is as if it were not there.
    """
    pairs = message.properties.get("user_property", ())
    for name, value in pairs:
        try:
            if name == ID_PROPERTY and message.id is None:
                message.id = parse_id(value)
            elif name == TIME_PROPERTY and message.retain and message.published_at is None:
                # The first, as with ids: behind it comes what a client said, who may not say it.
                message.published_at = _read_time(value)
            elif name == AGE_PROPERTY and message.first_at is None:
                message.first_at = now - _read_age(value)
        except ValueError:
            continue
    _keep_pairs(message, [pair for pair in pairs if pair[0] not in OWN_PROPERTIES])


def _keep_pairs(message: Message, pairs: list[tuple[str, str]]) -> None:
    if pairs:
        message.properties["user_property"] = tuple(pairs)
    else:
        message.properties.pop("user_property", None)


def parse_id(text: str) -> MessageId:
    """Raises ValueError for what is no id, or none that a node gives."""
    message_id = MessageId.parse(text)
    origin, epoch, sequence = message_id
    if len(origin) > MAX_ORIGIN or "\0" in origin or max(epoch, sequence) > MAX_NUMBER:
        raise ValueError(f"beyond what ids are: {text[:80]!r}")
    return message_id


def _read_time(text: str) -> float:
    at = float(text)
    if not 0 < at < MAX_TIME:
        raise ValueError(text)
    return round(at, 6)


def _read_age(text: str) -> float:
    age_s = float(text)
    if not 0 <= age_s <= MAX_AGE_S:
        raise ValueError(text)
    return age_s


def encode_id(broker: Broker, message: Message) -> bytes:
    """These properties, without the length of the block that they begin."""
    origin, epoch, sequence = message.id or broker.identify_late(message)
    prefix = broker.id_prefixes.get((origin, epoch))
    if prefix is None:
        if len(broker.id_prefixes) >= MAX_PREFIXES:
            broker.id_prefixes.clear()
        prefix = broker.id_prefixes[origin, epoch] = f"{origin}/{epoch}/".encode()
    value = b"%b%d" % (prefix, sequence)
    block = b"%b%c%c%b" % (ID_HEAD, len(value) >> 8, len(value) & 0xFF, value)
    if message.retain and message.published_at is not None:
        block += encode_body({"user_property": ((TIME_PROPERTY, f"{message.published_at:.6f}"),)}, PUBLISH)
    if message.first_at is not None or message.properties:
        block += _encode_age(broker, message)
    return block


def _encode_age(broker: Broker, message: Message) -> bytes:
    age_s = 0.0
    if message.first_at is not None and not is_newest(broker, message):
        age_s = min(max(0.0, broker.now - message.first_at), MAX_AGE_S)
    elif all(name != AGE_PROPERTY for name, _ in message.properties.get("user_property", ())):
        return b""  # Else ours is said first, lest that of a client pass for it.
    return encode_body({"user_property": ((AGE_PROPERTY, f"{age_s:.3f}"),)}, PUBLISH)


def is_newest(broker: Broker, message: Message) -> bool:
    """Is it the value of its topic, or the deletion that there is in its place?"""
    kept = broker.retained.newest(message.topic, broker.now) if message.retain else None
    return kept is not None and kept.id == message.id


def is_before(message: Message, since: float) -> bool:
    """Is it known to be older than a subscription of that time?"""
    return message.first_at is not None and message.first_at + AGE_SLACK_S < since


def is_duplicate(broker: Broker, message_id: MessageId) -> bool:
    """Has it been here? What began here always has: it was delivered when it was accepted."""
    return message_id.origin == broker.node_id or broker.duplicates.seen(message_id)


def is_again(broker: Broker, message: Message) -> bool:
    """As `is_duplicate`, but a value of this node's former life, which it may have forgotten, goes by age."""
    message_id = message.id
    if message_id is None:
        return False
    if message_id.origin == broker.node_id:
        return message_id.epoch == broker.epoch or not has_age(message)
    return broker.duplicates.seen(message_id)


def has_age(message: Message) -> bool:
    return message.retain and message.published_at is not None


def is_outdated(broker: Broker, message: Message) -> bool:
    """Is a retained value, or a deletion, no newer than what is kept of its topic?"""
    kept = broker.retained.newest(message.topic, broker.now)
    return kept is not None and age_key(kept) >= age_key(message)


def is_known(broker: Broker, message: Message) -> bool:
    """Is it the value that is kept, with another time, or a deletion that is told where there is no value?

    What begins at a foreign broker has no time until it comes to a node, and it may come to several.
    """
    kept = broker.retained.newest(message.topic, broker.now)
    if kept is not None and (kept.payload or kept.id == message.id):
        return kept.id == message.id
    return not message.payload and HELD in message.properties.get("user_property", ())


def age_key(message: Message) -> tuple[float, MessageId]:
    """The newer of two values has the greater one, wherever they are compared."""
    return message.published_at or 0.0, message.id or _NO_ID


def remove_mark(message: Message) -> None:
    """It is a deletion like any other from here on."""
    pairs = message.properties.get("user_property", ())
    if HELD in pairs:
        _keep_pairs(message, [pair for pair in pairs if pair != HELD])
