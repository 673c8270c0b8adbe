"""Ids on their way through a foreign broker, where anyone may publish what looks like one.

An id counts only with a MAC under the key that nodes share (`fabric_key.py`); otherwise the message is taken
as born there. Anyone may copy a message with its MAC to another foreign broker, at a lower QoS or with an
earlier end, and what comes first is the message. So a copy is no less than what was sent: the QoS and the
expiry that were sealed hold, by whichever line of a section it comes. Under another
topic than at the node that sent it, it is another message (`alias_of_topic`).

So nodes without a common key cannot tell that a message was with them before. That it does not
go round for ever, each node adds its name to `hedgerow-via` when it sends a message to a foreign broker, and
lets none through that has its name already. A forger can have only the own message dropped.
"""

from __future__ import annotations

from typing import Protocol

from hedgerow.bridges.fabric_key import FabricKey, encode_carried, same
from hedgerow.broker.ids import alias_of_topic
from hedgerow.message import Message, Properties
from hedgerow.mqtt.ids import (
    EXPIRY_PROPERTY,
    ID_PROPERTY,
    MAC_PROPERTY,
    OWN_PROPERTIES,
    TOPIC_PROPERTY,
    identify_from,
    keep_pairs,
)
from hedgerow.mqtt.packets import PUBLISH
from hedgerow.mqtt.properties import encode_body

VIA_PROPERTY = "hedgerow-via"
MAX_VIA = 16  # nodes without a common key in a row; a longer path is a circle, or somebody's joke
MAX_VIA_TEXT = 2_048
CLOCKS_S = 2.0  # A copy whose end is that much earlier by our clock was not weakened.

Pairs = tuple[tuple[str, str], ...]


class Counter(Protocol):
    forged_ids: int


def encode_via(message: Message | None, node_id: str) -> bytes:
    """The user property that adds this node to the path of a message; None: one that has none yet."""
    path = [*path_of(message), node_id] if message is not None else [node_id]
    pair = (VIA_PROPERTY, ",".join(path))
    return encode_body({"user_property": (pair,)}, PUBLISH)


def path_of(message: Message) -> list[str]:
    pairs = message.properties.get("user_property", ())
    text = next((value for name, value in pairs if name == VIA_PROPERTY), "")
    return text[:MAX_VIA_TEXT].split(",")[: MAX_VIA + 1] if text else []


def may_go_on(message: Message, node_id: str) -> bool:
    """To a foreign broker, or from one: has it not been with this node already?"""
    if "user_property" not in message.properties:
        return True
    path = path_of(message)
    return node_id not in path and len(path) <= MAX_VIA


def encode_expiry(message: Message, now: float) -> bytes:
    """The user property that says how long a message lasts: the interval itself counts down on its way."""
    if message.expires_at is None:
        return b""
    pair = (EXPIRY_PROPERTY, f"{message.remaining_interval(now)}/{message.expires_at:.3f}")
    return encode_body({"user_property": (pair,)}, PUBLISH)


def encode_topic(topic: str, name_there: str) -> bytes:
    """The user property that says the topic of a message here, where the foreign broker has another."""
    if topic == name_there:
        return b""
    return encode_body({"user_property": ((TOPIC_PROPERTY, topic),)}, PUBLISH)


def _restore(message: Message, before: Pairs, sealed_qos: int, now: float) -> bool:
    """Let it last as long, and be as safe, as it was sent: whoever passed it on may have given it less.

    Returns whether nobody has.
    """
    is_whole = message.qos > 0 or not sealed_qos
    message.qos = message.qos or sealed_qos
    left_s = message.properties.pop("message_expiry_interval", None)
    said = _said(before, EXPIRY_PROPERTY)
    if said is None:
        return is_whole and left_s is None
    interval, _, until = said.partition("/")
    lasts = int(interval)
    message.properties["message_expiry_interval"] = lasts
    # Clocks may differ: then the longer one holds, but never longer than was asked for.
    least = lasts if left_s is None else left_s
    left_here_s = min(lasts, float(until) - now)
    message.expires_at = now + min(lasts, max(least, left_here_s))
    return is_whole and (left_s is None or left_s + CLOCKS_S >= left_here_s)


def _said(pairs: Pairs, wanted: str) -> str | None:
    return next((value for name, value in pairs if name == wanted), None)


def read_sealed(message: Message, topic: str, key: FabricKey, now: float, counter: Counter) -> bool:
    """Set what the user properties tell of the id and the times, if that is proved, and take it away.

    `topic`: what the message's topic is called here. Returns whether the foreign broker has the message as it
    was sent, so that nobody need bring it there.
    """
    is_whole = False
    pairs = message.properties.get("user_property", ())
    before, proof, behind = _split(pairs)
    if proof is not None and _is_right(message, key, before, proof, behind):
        keep_pairs(message, list(before))
        identify_from(message, now)  # Only what is proved: a client's own stand behind it.
        is_whole = _restore(message, before, int(proof[0]), now)
        _name(message, _said(before, TOPIC_PROPERTY) or message.topic, topic)
    elif any(name == ID_PROPERTY for name, _ in pairs):
        counter.forged_ids += 1
    path = path_of(message) if message.id is not None else _path_in(pairs)
    kept = [pair for pair in behind if pair[0] not in OWN_PROPERTIES and pair[0] != VIA_PROPERTY]
    if message.id is None:
        kept = [pair for pair in pairs if pair[0] not in OWN_PROPERTIES and pair[0] != VIA_PROPERTY]
    if len(path) > 1 or (path and message.id is None):
        kept.append((VIA_PROPERTY, ",".join(path)))
    keep_pairs(message, kept)
    return is_whole


def _name(message: Message, sealed: str, topic: str) -> None:
    """Under another topic than the one that was sealed its id is another."""
    if message.id is None or sealed == topic:
        return
    origin = alias_of_topic(sealed, topic, message.id.origin)
    message.id = None if origin is None else message.id._replace(origin=origin)
    if origin is None:
        message.published_at = message.first_at = None


def _path_in(pairs: Pairs) -> list[str]:
    return path_of(Message("", b"", properties={"user_property": pairs}))


def _split(pairs: Pairs) -> tuple[Pairs, str | None, Pairs]:
    """What stands before the first MAC, the MAC, and what stands behind it."""
    for position, (name, value) in enumerate(pairs):
        if name == MAC_PROPERTY:
            return pairs[:position], value, pairs[position + 1 :]
    return (), None, pairs


def _is_right(message: Message, key: FabricKey, before: Pairs, proof: str, behind: Pairs) -> bool:
    own: Properties = {"user_property": before}
    try:
        block, carried = encode_body(own, PUBLISH), encode_carried(message.properties, behind)
    except ValueError:
        return False
    if proof[:1] not in ("0", "1", "2"):
        return False
    expected = key.mac(message.topic.encode(), int(proof[0]), message.retain, block, carried, message.payload)
    return same(expected, proof)
