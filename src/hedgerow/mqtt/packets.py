"""The fifteen control packets as plain data, for all three protocol versions, and the extension's two.

Fields carry the specification's names. What a version does not have (properties in 3.1 and 3.1.1,
reason codes in their acknowledgements) keeps its default. The codec turns these into bytes and
back; the short path for common packets never makes them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from hedgerow.message import Properties

MQTT_3_1: Final = 3
MQTT_3_1_1: Final = 4
MQTT_5: Final = 5
MQTT_EXTENDED = -1
"""3.1.1 with the extension of `extension.py`. On the wire it is 0xFF, which is -1 as a signed byte: so it is
below MQTT 5, as its rules are, and no other byte of a peer is mistaken for it."""

NEVER_EXPIRES: Final = 0xFFFFFFFF  # as a Session Expiry Interval (§3.1.2.11.2)

# Control packet types (§2.1.2).
CONNECT: Final = 1
CONNACK: Final = 2
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14
AUTH: Final = 15
PUBCALLBACK: Final = 0  # the extension's number 16, modulo 16


def _properties() -> Properties:
    return {}


@dataclass(slots=True)
class Will:
    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default_factory=_properties)


@dataclass(slots=True)
class Connect:
    client_id: str = ""
    protocol_version: int = MQTT_5
    clean_start: bool = True
    keep_alive: int = 0
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties = field(default_factory=_properties)
    is_bridge: bool = False
    """Another broker connects; before MQTT 5, which has subscription options to the same effect."""
    is_extended: bool = False
    """It is a broker's, of MQTT 5 and the extension: see `extension.py`."""

    @property
    def names_method(self) -> bool:
        """Does it ask for enhanced authentication (§4.12)?"""
        return "authentication_method" in self.properties


@dataclass(slots=True)
class Connack:
    session_present: bool = False
    reason_code: int = 0
    properties: Properties = field(default_factory=_properties)


@dataclass(slots=True)
class Publish:
    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = field(default_factory=_properties)


@dataclass(slots=True)
class Puback:
    packet_id: int
    reason_code: int = 0
    properties: Properties = field(default_factory=_properties)


@dataclass(slots=True)
class Pubrec:
    packet_id: int
    reason_code: int = 0
    properties: Properties = field(default_factory=_properties)


@dataclass(slots=True)
class Pubrel:
    packet_id: int
    reason_code: int = 0
    properties: Properties = field(default_factory=_properties)


@dataclass(slots=True)
class Pubcomp:
    packet_id: int
    reason_code: int = 0
    properties: Properties = field(default_factory=_properties)


@dataclass(slots=True)
class Subscription:
    """A topic filter with its subscription options (§3.8.3.1)."""

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(slots=True)
class Subscribe:
    packet_id: int
    subscriptions: list[Subscription]
    properties: Properties = field(default_factory=_properties)


@dataclass(slots=True)
class Suback:
    packet_id: int
    reason_codes: list[int]
    properties: Properties = field(default_factory=_properties)


@dataclass(slots=True)
class Unsubscribe:
    packet_id: int
    topic_filters: list[str]
    properties: Properties = field(default_factory=_properties)


@dataclass(slots=True)
class Unsuback:
    packet_id: int
    reason_codes: list[int] = field(default_factory=list)
    properties: Properties = field(default_factory=_properties)


@dataclass(slots=True)
class Pingreq:
    pass


@dataclass(slots=True)
class Pingresp:
    pass


@dataclass(slots=True)
class Disconnect:
    reason_code: int = 0
    properties: Properties = field(default_factory=_properties)


@dataclass(slots=True)
class Auth:
    reason_code: int = 0
    properties: Properties = field(default_factory=_properties)


@dataclass(slots=True)
class Renew:
    """A CONNACK of the extension, also in mid-session: where the client's connection is to be renewed."""

    code: int
    address: str = ""
    """`HOST:PORT`. With Active Topics it may be empty: the one that was told last."""
    topics: list[str] = field(default_factory=list)
    """Filters whose subscriptions are active there already."""
    session_present: bool = False


@dataclass(slots=True)
class Pubcallback:
    """A publication that was matched before, for the subscribers that it names."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    callbacks: tuple[str, ...] = ()
    """None: it is for the client that receives it."""
    message_id: str = ""
    properties: Properties = field(default_factory=_properties)
    """Between brokers, where the rest is MQTT 5."""


Packet = (
    Connect | Connack | Publish | Puback | Pubrec | Pubrel | Pubcomp | Subscribe | Suback
    | Unsubscribe | Unsuback | Pingreq | Pingresp | Disconnect | Auth | Renew
    | Pubcallback
)  # fmt: skip
