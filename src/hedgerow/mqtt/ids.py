"""Fabric-wide ids in MQTT 5: the user properties that carry them, for brokers and for clients that give ids.

Between brokers the id of a message travels as the user property `hedgerow-id`, the first property of its
PUBLISH. Who connects to another says `hedgerow-node` in CONNECT, with its own name, and a broker of ours
tells its own in CONNACK. A bridge says `hedgerow-bridge` too, with the bridge's name, by which people tell it
from clients that give ids. A retained message has the time of its publication, `hedgerow-time`, and one that
comes late says for how many seconds it has been around, `hedgerow-age`. `broker/ids.py` says what a
broker makes of all that. To brokers that know none of it these are user properties as any, and pass with the
message.
"""

from __future__ import annotations

from hedgerow.message import MAX_NUMBER, MAX_ORIGIN, Message, MessageId, Properties

ID_PROPERTY = "hedgerow-id"
# Where there is an ACL: whoever may write it may give ids of its own; whoever may read it too may pass on
# those of others.
RIGHT_TOPIC = "$hedgerow/bridge"
CLIENT_RIGHT = "$hedgerow/client/"  # and a client id, percent-encoded: who may write it has a right to the id
NODE_PROPERTY = "hedgerow-node"
BRIDGE_PROPERTY = "hedgerow-bridge"
RECENT_PROPERTY = "hedgerow-recent"  # of a node, to one that it is joined with (`broker/told.py`)
TIME_PROPERTY = "hedgerow-time"
AGE_PROPERTY = "hedgerow-age"
MAC_PROPERTY = "hedgerow-mac"  # proves the id at a broker where anyone may publish one
EXPIRY_PROPERTY = "hedgerow-expiry"  # there: for how many seconds it lasts, and until when
TOPIC_PROPERTY = "hedgerow-topic"  # there: its topic at the node that sent it, where that is another
OWN_PROPERTIES = (
    ID_PROPERTY,
    TIME_PROPERTY,
    AGE_PROPERTY,
    MAC_PROPERTY,
    EXPIRY_PROPERTY,
    TOPIC_PROPERTY,
)
HELD = ("hedgerow-held", "1")
# The year 2106. Up to it a microsecond more is another number, so that a later publication has a later time.
MAX_TIME = 2.0**32
MAX_AGE_S = 7 * 86_400.0
# A publication that was under way when its subscriber came is rather delivered than lost.
AGE_SLACK_S = 0.5
MAX_PREFIXES = 4_096  # A stranger may invent an origin for every message.
ID_HEAD = b"\x26" + len(ID_PROPERTY).to_bytes(2, "big") + ID_PROPERTY.encode()

Prefixes = dict[tuple[str, int], bytes]
"""By origin and epoch: ids up to their sequence."""


def node_of(properties: Properties) -> str | None:
    """The name of the broker at the other end, if it says that it takes part, with one that ids may bear."""
    for name, value in properties.get("user_property", ()):
        if name == NODE_PROPERTY:
            return value if may_bear(value) else None
    return None


def is_of_bridge(properties: Properties) -> bool:
    return any(name == BRIDGE_PROPERTY for name, _ in properties.get("user_property", ()))


def may_bear(origin: str) -> bool:
    """Is it a name that ids may bear?"""
    return 0 < len(origin) <= MAX_ORIGIN and origin.isprintable()


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
    keep_pairs(message, [pair for pair in pairs if pair[0] not in OWN_PROPERTIES])


def is_held_deletion(message: Message) -> bool:
    """Is it a deletion of some time ago, told to a broker which may have missed it, and no news to others?"""
    return not message.payload and HELD in message.properties.get("user_property", ())


def keep_pairs(message: Message, pairs: list[tuple[str, str]]) -> None:
    """Have these user properties, and no others."""
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


def encode_block(prefixes: Prefixes, message_id: MessageId) -> bytes:
    """The user property that carries the id, without the length of the block that it begins."""
    origin, epoch, sequence = message_id
    prefix = prefixes.get((origin, epoch))
    if prefix is None:
        if len(prefixes) >= MAX_PREFIXES:
            prefixes.clear()
        prefix = prefixes[origin, epoch] = f"{origin}/{epoch}/".encode()
    value = b"%b%d" % (prefix, sequence)
    return b"%b%c%c%b" % (ID_HEAD, len(value) >> 8, len(value) & 0xFF, value)
