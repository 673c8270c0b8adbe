"""What the client machine is told when it is made, and what it reports: facts in the past tense.

Every event belongs to one call of `Client.receive_data`, `Client.handle_timer` or `Client.lost`, in
the order in which things happened. Reason codes are those of MQTT 5 for every version.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hedgerow.message import Message, Properties
from hedgerow.mqtt.packets import MQTT_5, Subscription, Will

MAX_RECEIVE_MAXIMUM = 65_535


@dataclass(slots=True)
class ConnectOptions:
    """How to connect, the same for every connection that one `Client` makes."""

    client_id: str = ""
    """Empty: the server assigns one, which later connections keep."""
    version: int = MQTT_5
    clean_start: bool = True
    """For the first connection. Later ones resume the session when `session_expiry_s` kept it."""
    session_expiry_s: int = 0
    keep_alive_s: int = 60
    """0: no PINGREQ, and a silent link is never found dead."""
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    receive_maximum: int = MAX_RECEIVE_MAXIMUM
    puts_up_with_more: bool = False
    """Stay with a server that sends more than `receive_maximum`; packet identifiers are a bound too."""
    maximum_packet_size: int | None = None
    topic_alias_maximum: int = 0
    """Topic aliases that the server may use towards us."""
    max_in_flight: int = MAX_RECEIVE_MAXIMUM
    """QoS 1 and 2 publications that may await their acknowledgement; the server may allow fewer."""
    manual_acknowledgement: bool = False
    """Received QoS 1 and 2 messages wait for `Client.acknowledge`."""
    connect_timeout_s: float = 10.0
    """From CONNECT to CONNACK."""
    ping_timeout_s: float = 10.0
    """From PINGREQ to PINGRESP, or the keep-alive if that is shorter. Beyond it the link is dead,
    whatever the socket says."""
    first_packet_id: int = 1
    """Where packet identifiers begin. A process that takes up the session of an earlier one does
    well to begin elsewhere: the server may still hold that one's QoS 2 packet identifiers."""
    properties: Properties = field(default_factory=Properties)
    """Further properties of CONNECT."""
    origin: str | None = None
    """The client's name in the fabric: in MQTT 5 it gives its publications ids under this name, and reads
    those of what it receives (`mqtt/ids.py`)."""
    epoch: int = 0
    """Of these ids: another one for each life of the client, since their sequences begin anew."""

    @property
    def shows_password(self) -> bool:
        """Does CONNECT hold what proves who we are?"""
        return self.password is not None or "authentication_data" in self.properties

    @property
    def identifies(self) -> bool:
        """Do publications have ids? Only MQTT 5 has a place for them."""
        return self.origin is not None and self.version == MQTT_5


@dataclass(slots=True)
class Connected:
    session_present: bool
    client_id: str
    version: int
    keep_alive_s: int
    properties: Properties


@dataclass(slots=True)
class Refused:
    """The server answered CONNECT with a refusal; the link is to be closed."""

    reason_code: int
    reason: str
    server_reference: str | None = None


class Receipt:
    """A received QoS 1 or 2 message whose handshake is not over."""

    __slots__ = ("acknowledged", "awaited", "copy_of", "is_void", "packet_id", "qos", "refusal")

    def __init__(self, packet_id: int, qos: int, acknowledged: bool) -> None:
        self.packet_id = packet_id
        self.qos = qos
        self.acknowledged = acknowledged  # by the application
        self.copy_of: Receipt | None = None  # which came first, and is the one that the application has
        self.is_void = False  # Its connection is over, and the server is to send the message again.
        self.awaited = False  # by the server: received on this connection, PUBACK or PUBREC not sent
        self.refusal = b""  # what the server gets in the place of PUBACK or PUBREC, and no PUBREL follows

    @property
    def is_done(self) -> bool:
        """Is the application done with the message?"""
        return self.acknowledged or (self.copy_of is not None and self.copy_of.acknowledged)


@dataclass(slots=True)
class MessageReceived(Message):
    """A message that arrived. It is the event and the `Message` that applications hold, one object
    for both, because there is one for every message."""

    packet_id: int = 0
    dup: bool = False
    subscription_identifiers: tuple[int, ...] = ()
    receipt: Receipt | None = field(default=None, repr=False, compare=False)
    """What `Client.acknowledge` looks at; None when there is nothing to acknowledge."""
    callbacks: tuple[str, ...] = ()
    """The subscribers that it is for, where a server of the extension has matched it for this client."""


@dataclass(slots=True)
class MessageRefused:
    """A message came whose content breaks a rule. The server was told so, and the connection goes on."""

    topic: str
    reason: str


@dataclass(slots=True)
class Published:
    """A QoS 1 or 2 publication is over: `reason_code` below 0x80 means that the server has it."""

    handle: int
    reason_code: int = 0
    reason: str = ""


@dataclass(slots=True)
class Subscribed:
    """One reason code per subscription: the granted QoS, or from 0x80 on a refusal.

    `handle` is 0 when the machine subscribed by itself, because the server had lost the session.
    """

    handle: int
    subscriptions: list[Subscription]
    reason_codes: list[int]
    reason: str = ""


@dataclass(slots=True)
class Unsubscribed:
    handle: int
    topic_filters: list[str]
    reason_codes: list[int]
    reason: str = ""


@dataclass(slots=True)
class Disconnected:
    """The connection is over; `reason_code` is what DISCONNECT said, None when there was none."""

    reason: str
    reason_code: int | None = None
    server_reference: str | None = None


@dataclass(slots=True)
class Renewed:
    """A server of the extension tells of another one. `code`: whether to go there, as in `extension.py`."""

    code: int
    address: str
    topics: list[str] = field(default_factory=list)


Event = (
    Connected
    | Refused
    | MessageReceived
    | MessageRefused
    | Published
    | Subscribed
    | Unsubscribed
    | Disconnected
    | Renewed
)
