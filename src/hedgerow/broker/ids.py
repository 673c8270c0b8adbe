"""What is known of a peer's messages by their fabric-wide ids.

Who connects to this broker and says `hedgerow-node` in CONNECT is a peer: another broker, or a client that
gives ids. From CONNACK on each message has its id on this connection, both ways (`identified.py`), and a
retained one the time of its publication; other clients never see them (`mqtt/ids.py` has the properties).

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
from whoever may write `RIGHT_TOPIC`.
"""

from __future__ import annotations

from hedgerow.broker.core import BrokerCore
from hedgerow.message import Message, MessageId
from hedgerow.mqtt.ids import (
    AGE_PROPERTY,
    AGE_SLACK_S,
    HELD,
    MAX_AGE_S,
    TIME_PROPERTY,
    encode_block,
    is_held_deletion,
    keep_pairs,
)
from hedgerow.mqtt.packets import PUBLISH
from hedgerow.mqtt.properties import encode_body

_NO_ID = MessageId("", 0, 0)


def encode_id(broker: BrokerCore, message: Message) -> bytes:
    """These properties, without the length of the block that they begin."""
    block = encode_block(broker.id_prefixes, message.id or broker.identify_late(message))
    if message.retain and message.published_at is not None:
        block += encode_body({"user_property": ((TIME_PROPERTY, f"{message.published_at:.6f}"),)}, PUBLISH)
    if message.first_at is not None or message.properties:
        block += _encode_age(broker, message)
    return block


def _encode_age(broker: BrokerCore, message: Message) -> bytes:
    age_s = 0.0
    if message.first_at is not None and not is_newest(broker, message):
        age_s = min(max(0.0, broker.now - message.first_at), MAX_AGE_S)
    elif all(name != AGE_PROPERTY for name, _ in message.properties.get("user_property", ())):
        return b""  # Else ours is said first, lest that of a client pass for it.
    return encode_body({"user_property": ((AGE_PROPERTY, f"{age_s:.3f}"),)}, PUBLISH)


def is_newest(broker: BrokerCore, message: Message) -> bool:
    """Is it the value of its topic, or the deletion that there is in its place?"""
    kept = broker.retained.newest(message.topic, broker.now) if message.retain else None
    return kept is not None and kept.id == message.id


def is_before(message: Message, since: float) -> bool:
    """Is it known to be older than a subscription of that time?"""
    return message.first_at is not None and message.first_at + AGE_SLACK_S < since


def is_duplicate(broker: BrokerCore, message_id: MessageId) -> bool:
    """Has it been here? What began here always has: it was delivered when it was accepted."""
    return message_id.origin == broker.node_id or broker.duplicates.seen(message_id)


def is_again(broker: BrokerCore, message: Message) -> bool:
    """As `is_duplicate`, but a value of this node's former life, which it may have forgotten, goes by age."""
    message_id = message.id
    if message_id is None:
        return False
    if message_id.origin == broker.node_id:
        return message_id.epoch == broker.epoch or not has_age(message)
    return broker.duplicates.seen(message_id)


def has_age(message: Message) -> bool:
    return message.retain and message.published_at is not None


def is_outdated(broker: BrokerCore, message: Message) -> bool:
    """Is a retained value, or a deletion, no newer than what is kept of its topic?"""
    kept = broker.retained.newest(message.topic, broker.now)
    return kept is not None and age_key(kept) >= age_key(message)


def is_known(broker: BrokerCore, message: Message) -> bool:
    """Is it the value that is kept, with another time, or a deletion that is told where there is no value?

    What begins at a foreign broker has no time until it comes to a node, and it may come to several.
    """
    kept = broker.retained.newest(message.topic, broker.now)
    if kept is not None and (kept.payload or kept.id == message.id):
        return kept.id == message.id
    return is_held_deletion(message)


def age_key(message: Message) -> tuple[float, MessageId]:
    """The newer of two values has the greater one, wherever they are compared."""
    return message.published_at or 0.0, message.id or _NO_ID


def remove_mark(message: Message) -> None:
    """It is a deletion like any other from here on."""
    pairs = message.properties.get("user_property", ())
    if HELD in pairs:
        keep_pairs(message, [pair for pair in pairs if pair != HELD])
