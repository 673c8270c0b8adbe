"""What is known of a peer's messages by their fabric-wide ids.

Who connects to this broker and says `hedgerow-node` in CONNECT is a peer: another broker, or a client that
gives ids. From CONNACK on each message has its id on this connection, both ways (`identified.py`), and a
retained one the time of its publication (`mqtt/ids.py` has the properties). No other client is sent them by a
broker; what one publishes under their names passes as any user property, behind the broker's own.

What is retained goes by age (`age_key`) alone: an older value does not replace a newer one, by whichever way
and however often they come. Whether anybody hears of it also goes by its id: what was here before is kept, if
it is the newest, but not published again. `hedgerow-held` marks a deletion of some time ago that is told to a
broker which may have missed it: where there was nothing to delete, nobody hears of it.

What comes late, since it has waited or is sent once more (`recent.py`), says for how many seconds it has been
around, `hedgerow-age`: who has subscribed since does not get it. Each broker counts on by its own clock, and
the time on the way is left out, so that a message is never taken for older than it is. For the same reason an
age is not stored: if a clock was set between two lives of a node, messages would become too old for those who
wait for them. A value that is the newest of its topic is for late subscribers too, and has no age.

Who may claim an id can make a later message of that id be dropped. So each peer's role says under which
origin its ids count (`Role.origin_of`). A node that proved itself may pass on ids of every origin. What a
client gives counts as its user's, under an *alias*, `USER~ORIGIN`: no name of a node has a "~", so no client
gives an id that a node gives, and none gives that of another user. An id that does not count is as
if it were not there: the message is a new one. With an ACL, ids are taken only from whoever may write
`RIGHT_TOPIC`.

Where anyone can bring a message of another, it is another message under another topic, lest who has it there
miss it under its own: its alias is `!as:BEFORE#AFTER~ORIGIN`, with the levels that differ.

A link that has proved nothing passes on what many have given, so it keeps them apart: what was an alias
before becomes `!LINK@NODE~TRAIL~ORIGIN`. The trail begins with a digest of what it replaces; behind it are
marks of the nodes that have renamed the message, by which it goes no further where it has been.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from hedgerow.broker.core import BrokerCore
from hedgerow.digests import blake2b
from hedgerow.message import MAX_ORIGIN, Message, MessageId
from hedgerow.mqtt.ids import (
    AGE_PROPERTY,
    AGE_SLACK_S,
    HELD,
    MAX_AGE_S,
    TIME_PROPERTY,
    encode_block,
    identify_from,
    is_held_deletion,
    keep_pairs,
)
from hedgerow.mqtt.packets import PUBLISH
from hedgerow.mqtt.properties import encode_body
from hedgerow.origins import OF_TOPIC

if TYPE_CHECKING:
    from hedgerow.broker.role import Role
    from hedgerow.broker.session import Channel

ALIAS = "~"
BROKER = "!"  # before the name of a broker or a link, where a user's stands otherwise
AT = "@"  # before the node of a link, and before a digest in the place of a name
KIND = ":"  # behind one of the kinds of `origins.py`
MAX_PRINCIPAL = 64  # characters; a client identifier may have 64 KiB
MAX_LINK = 32
_NO_ID = MessageId("", 0, 0)
_DIGEST_BYTES = 16
_DIGEST_CHARS = 2 * _DIGEST_BYTES
_MARK_CHARS = 8


def alias_of(user: str, origin: str) -> str | None:
    """Under which origin ids of this name count when a client of this user gives them, whatever alias it was
    before. "" is the user of all anonymous clients.

    None: the name is too long for one.
    """
    return _bounded(_name(user, ALIAS) + ALIAS + origin.rpartition(ALIAS)[2])


def alias_of_broker(name: str, origin: str) -> str | None:
    """As `alias_of`, for another broker, which has proved its name. It passes on what others have given.

    None: it has been renamed so often that it goes round, or is somebody's joke.
    """
    return _bounded(_rename(BROKER + _name(name), origin))


def alias_of_link(name: str, node_id: str, origin: str, kind: str = "") -> str | None:
    """The same for a link whose other end has not proved that it is a node. At another node somebody else may
    have the name."""
    kind += KIND if kind else ""
    link = f"{BROKER}{kind}{_name(name, most=MAX_LINK)}{AT}{_name(node_id)}"
    return _bounded(_rename(link, origin))


def alias_of_topic(was: str, now: str, origin: str) -> str | None:
    """The same for a message that had another topic. With that topic again, it has its own origin again."""
    before, after = _difference(was, now)
    back = _retopic(after, before) + ALIAS
    inner = origin.removeprefix(back)
    if origin.startswith(back) and ALIAS not in inner and not inner.startswith(AT):
        return inner
    return _bounded(_rename(_retopic(before, after), origin))


def _retopic(before: str, after: str) -> str:
    return f"{BROKER}{OF_TOPIC}{KIND}{_name(f'{before}#{after}')}"  # No topic has a "#".


def _difference(was: str, now: str) -> tuple[str, str]:
    """The levels of each that stand before those that both end with."""
    levels, others = was.split("/"), now.split("/")
    while levels and others and levels[-1] == others[-1]:
        del levels[-1], others[-1]
    return "".join(f"{each}/" for each in levels), "".join(f"{each}/" for each in others)


def _rename(principal: str, origin: str) -> str:
    """Two origins never become one: of an alias that it was before, a digest stays, and the trail."""
    outer, is_alias, name = origin.rpartition(ALIAS)
    if len(name) > MAX_PRINCIPAL or name.startswith(AT):
        name = AT + _digest(name)  # of no node
    if not is_alias:
        return principal + ALIAS + name
    trail = "".join(_trail_of(origin))
    if outer.startswith(BROKER):
        trail += _mark_of(outer.partition(ALIAS)[0])
    return principal + ALIAS + _digest(outer) + trail + ALIAS + name


def _trail_of(origin: str) -> list[str]:
    """The marks of those who have renamed it, but for the last."""
    trail = origin.rpartition(ALIAS)[0].partition(ALIAS)[2]
    if len(trail) <= _DIGEST_CHARS or (len(trail) - _DIGEST_CHARS) % _MARK_CHARS or ALIAS in trail:
        return []
    return [trail[at : at + _MARK_CHARS] for at in range(_DIGEST_CHARS, len(trail), _MARK_CHARS)]


@lru_cache(maxsize=1_024)
def _mark_of(principal: str) -> str:
    """Of the broker, or of the node at which the link ends. Hardly two have the same; and whoever makes up a
    trail hurts only the own message."""
    place = principal.rpartition(AT)[2]
    return blake2b(place.encode(errors="surrogatepass"), digest_size=_MARK_CHARS // 2).hexdigest()


def _bounded(alias: str) -> str | None:
    return alias if len(alias) <= MAX_ORIGIN else None


def _name(text: str, separators: str = ALIAS + AT + KIND, most: int = MAX_PRINCIPAL) -> str:
    """As it stands in an alias: no other has the same."""
    is_plain = len(text) <= most and text.isprintable() and not text.startswith((BROKER, AT))
    return text if is_plain and not any(each in text for each in separators) else AT + _digest(text)


def _digest(text: str) -> str:
    return blake2b(text.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()


def user_of(origin: str) -> str | None:
    """The user of whom an origin is an alias ("": anonymous clients); None: it is not one of a user."""
    user, alias, _ = origin.partition(ALIAS)
    return user if alias and not user.startswith(BROKER) else None


def is_own_origin(broker: BrokerCore, origin: str) -> bool:
    """This node, or an alias of it, under which a node that does not know it passes its messages on.

    By that a message which comes home goes no further; who forges it hurts only the own message.
    """
    return origin == broker.node_id or origin.endswith(ALIAS + broker.node_id)


def goes_round(origin: str) -> bool:
    """Has who renamed it last renamed it before?"""
    trail = _trail_of(origin)
    return bool(trail) and _mark_of(origin.partition(ALIAS)[0]) in trail


def was_renamed_here(broker: BrokerCore, origin: str) -> bool:
    """Has it been here, under an alias that this node gave it before others gave it theirs?"""
    return ALIAS in origin and _mark_of(_name(broker.node_id)) in _trail_of(origin)


def has_been_here(broker: BrokerCore, origin: str) -> bool:
    """Whatever is of this origin has been."""
    return is_own_origin(broker, origin) or was_renamed_here(broker, origin)


def identify_as(broker: BrokerCore, message: Message, role: Role, connection: Channel) -> None:
    """Set the id, the time and the age that a message tells, as far as its peer may say so."""
    identify_from(message, broker.now)
    if message.id is None:
        message.published_at = message.first_at = None
        return
    given = message.id.origin
    origin = role.origin_of(connection, given)
    if origin == given:
        return
    message.id = None if origin is None else message.id._replace(origin=origin)
    if message.published_at is not None and (origin is None or message.published_at > broker.now):
        # A value from the future would hold against whatever others publish until then.
        message.published_at = None


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
    return has_been_here(broker, message_id.origin) or broker.duplicates.seen(message_id)


def is_again(broker: BrokerCore, message: Message) -> bool:
    """As `is_duplicate`, but a value of this node's former life, which it may have forgotten, goes by age."""
    message_id = message.id
    if message_id is None:
        return False
    if is_own_origin(broker, message_id.origin):
        return message_id.epoch == broker.epoch or not has_age(message)
    return was_renamed_here(broker, message_id.origin) or broker.duplicates.seen(message_id)


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
