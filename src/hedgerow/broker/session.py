"""A session (MQTT 5 §4.1): what the broker knows of a client, with or without a connection.

Idle sessions are many, so what a session may never need (subscriptions, an outbox, received packet
identifiers) is made when it is first needed.

`Channel` is a session's connection as those see it who deliver to it; `connection.py` has the whole of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import MutableMapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from hedgerow.broker.access import Access
from hedgerow.broker.changes import SessionRecord, SubscriptionRecord
from hedgerow.broker.ledger import Inbound, Outbound
from hedgerow.broker.limits import QueueLimits
from hedgerow.broker.stored import StoredQueue
from hedgerow.broker.told import NOTHING_TOLD
from hedgerow.broker.unreleased import Unreleased
from hedgerow.compiling import mypyc_attr
from hedgerow.message import Message, MessageId
from hedgerow.mqtt.outbox import Delivery, Outbox
from hedgerow.mqtt.packets import Packet, Will

if TYPE_CHECKING:
    from hedgerow.broker.backlog import Backlog
    from hedgerow.broker.batch import Batch
    from hedgerow.broker.exchange import Authentication, ConnectionSeal
    from hedgerow.broker.role import Role


class WireForm(IntEnum):
    """How a session's client takes a QoS 0 PUBLISH without properties."""

    OWN = 0  # encoded for it alone: topic aliases, or a Maximum Packet Size
    MQTT_3 = 3  # 3.1 and 3.1.1: no property length
    MQTT_5 = 5  # with a property length of 0
    PEER = 9  # with the message's id


# By names of the module: a member of an enumeration takes ten times as long to look up.
FORM_OF_ITS_OWN: Final = WireForm.OWN
FORM_OF_MQTT_3: Final = WireForm.MQTT_3
FORM_OF_MQTT_5: Final = WireForm.MQTT_5


class Pause:
    """Why nothing is read from a client for the time being.

    Numbers to be put together with "|": an operation on a flag of `enum` takes a hundred times as long.
    """

    LOGIN: Final = 1  # its password is being verified
    POSTPONED: Final = 2  # it is the others' turn
    HELD: Final = 4  # too many of its acknowledgements wait for a commit
    UNREAD: Final = 8  # it leaves too many of its answers unread
    DELIVERING: Final = 16  # what it published last has yet to reach all of its many recipients
    METERED: Final = 32  # it has published as much as its quota allows


class Publisher(Protocol):
    """Whoever publishes: a session, or a part of this process (`port.py`)."""

    @property
    def gives_ids(self) -> bool: ...

    @property
    def source(self) -> tuple[str, str | None]:
        """By which way its publications come, and from whom, as observers are told."""

    @property
    def share(self) -> str | None:
        """In whose share of what there is for all it takes; None: it is the node's own."""


def share_of(publisher: Publisher | None) -> str:
    """As `Publisher.share`, with no name for the node itself."""
    if isinstance(publisher, Session) and publisher.owner is not None:
        return publisher.owner  # as nearly always
    return (publisher.share or "") if publisher is not None else ""


class Suspicion:
    """Which messages in flight the far end of a link may be closing on: see `suspects.py`."""

    __slots__ = (
        "careful_until",
        "evidence",
        "first",
        "hurried",
        "hurried_at",
        "is_blamed",
        "is_careful",
        "parked",
        "relayed",
        "retry_at",
        "retry_s",
        "shunned",
        "tried",
        "window",
    )

    def __init__(self, retry_s: float) -> None:
        self.first: Delivery | None = None  # in flight when the far end closed
        self.evidence = 0  # against it
        self.is_careful = False  # one message at a time leaves
        self.careful_until = 0.0
        self.window = 0  # when that is over
        self.parked: dict[Delivery, MessageId] = {}  # in flight, and not sent for now; the oldest first
        self.retry_at = 0.0  # when the first of them is tried again
        self.retry_s = retry_s
        self.tried: Delivery | None = None  # was parked, and is sent again
        # What was parked, and until when it is not sent anew where it is retained: a queue may be dropped.
        self.shunned: dict[MessageId, float] = {}
        self.is_blamed = False  # the connection that was the last to end
        self.hurried = 0.0  # connections that were wanted at once, less those that time has made up for
        self.hurried_at = 0.0
        self.relayed = 0  # so many when the last of them ended


FREE_QUEUE_BYTES: Final = 4 * 1024  # that may wait for any session, whatever waits for others of its owner
# What a delivery takes beside its bytes: 150 of a message that waits for others too, 490 with one that does
# not, 880 where that has properties and is stored. By its bytes alone an empty one cost nothing.
DELIVERY_BYTES: Final = 600
STORED_BYTES: Final = 300  # and what a chunk of those in the log does, which may be one or thousands of them


class Session:
    __slots__ = (
        "client_id",
        "connection",
        "deep_levels",
        "dropped",
        "durable",
        "expires_at",
        "expiry_s",
        "far_origin",
        "is_away",
        "key",
        "ledger",
        "outbox",
        "own_bytes",
        "owner",
        "protocol_version",
        "purged_at",
        "queue_limits",
        "queue_share",
        "received",
        "role",
        "stored",
        "subscription_bytes",
        "subscriptions",
        "suspicion",
        "timer_at",
        "username",
        "will",
        "will_at",
        "wire_form",
    )

    def __init__(self, key: int, client_id: str, username: str | None, role: Role) -> None:
        self.key = key
        self.client_id = client_id
        self.username = username
        self.role = role
        self.protocol_version = 0
        self.wire_form = FORM_OF_ITS_OWN
        self.connection: Channel | None = None
        self.expiry_s = 0.0
        self.expires_at: float | None = None
        self.durable = False  # kept in the store: the broker has one, and the session outlives connections
        self.will: Will | None = None
        self.will_at: float | None = None  # when a will that waits for its delay is published
        self.timer_at: float | None = None  # when the broker next looks at this session
        self.subscriptions: MutableMapping[str, SubscriptionRecord] | None = None
        self.owner: str | None = None  # whose quota it counts for, with the next four: see `owners.py`
        self.own_bytes = 0
        self.subscription_bytes = 0
        self.deep_levels = 0
        self.queue_share = FREE_QUEUE_BYTES  # that may wait for it before its owner's room is asked for
        self.outbox: Outbox | None = None
        self.stored: StoredQueue | None = None  # what it has not finished of the log; of each durable session
        self.received: Unreleased | None = None  # QoS 2 from the client: PUBREC sent, PUBREL awaited
        self.purged_at = 0.0  # when a full queue was last searched for what has expired
        self.dropped = 0  # deliveries given up because the queue was full
        self.far_origin: str | None = None  # the broker at the other end: what began there is not sent back
        self.is_away = False  # its client is served by another broker: see `BrokerCore.set_away`
        self.ledger: Outbound | None = None  # of a link to another broker
        self.queue_limits: QueueLimits | None = None  # where they are not the broker's
        self.suspicion: Suspicion | None = None  # of a link

    @property
    def gives_ids(self) -> bool:
        return self.role.gives_ids

    @property
    def share(self) -> str | None:
        return f"link:{self.client_id}" if self.owner is None and self.role.is_link else self.owner

    @property
    def waiting_bytes(self) -> int:
        """About the memory that what waits for its client takes."""
        outbox, connection = self.outbox, self.connection
        size = 0 if outbox is None else outbox.bytes + DELIVERY_BYTES * len(outbox)
        if self.stored is not None:
            size += STORED_BYTES * len(self.stored.chunks)
        return size if connection is None else size + connection.unread_bytes

    @property
    def waiting_count(self) -> int:
        """How much its client has yet to acknowledge."""
        stored = self.stored
        count = 0 if self.outbox is None else len(self.outbox)
        return count if stored is None else count + stored.unloaded + stored.pending

    @property
    def queued_bytes(self) -> int:
        """About the bytes of what its client has yet to acknowledge, wherever they wait."""
        loaded = 0 if self.outbox is None else self.outbox.bytes
        return loaded if self.stored is None else max(loaded, self.stored.bytes)

    @property
    def has_queue(self) -> bool:
        """Does anything wait for room in its client's window?"""
        if self.outbox is not None and self.outbox.queue:
            return True
        return self.stored is not None and self.stored.unloaded > 0

    def loaded(self) -> list[Delivery]:
        """What its client has yet to acknowledge, of what is in memory, in order."""
        outbox = self.outbox
        return [] if outbox is None else [*outbox.in_flight.values(), *outbox.queue]

    def may_read(self, access: Access, topic: str) -> bool:
        return self.role.may_read(self, access, topic)

    @property
    def source(self) -> tuple[str, str | None]:
        """By which way its publications come, and from whom, as observers are told."""
        if self.role.transport is not None:
            return self.role.transport, self.far_origin
        return "will" if self.connection is None else self.connection.transport, self.client_id

    def record(self) -> SessionRecord:
        return SessionRecord(
            self.key,
            self.client_id,
            self.username,
            self.protocol_version,
            self.expiry_s,
            self.expires_at,
            self.will,
            self.role.name,
            self.owner,
        )


class Attachment(Protocol):
    """What a role has going on with a connection."""

    def input_handled(self) -> None:
        """The packets of a chunk are handled."""

    def check_time(self) -> None:
        """The time that was set for the connection has come."""


@mypyc_attr(allow_interpreted_subclasses=True)  # as `Connection` does
class Channel(ABC):
    """The connection of a session, for those who deliver to it."""

    __slots__ = (
        "address",
        "attachment",
        "backlog",
        "carries_ids",
        "certificate_name",
        "congested",
        "exchange",
        "far_reason",
        "held_acknowledgements",
        "held_packets",
        "held_publications",
        "inbound",
        "is_proven",
        "link",
        "maximum_packet_size",
        "opened_at",
        "out",
        "owner",
        "peer_name",
        "protocol_version",
        "pumping",
        "resending",
        "session",
        "timer_at",
        "told",
        "transport",
        "unread_bytes",
    )

    def __init__(self, now: float, address: str, transport: str) -> None:
        self.opened_at = now
        self.address = address
        self.transport = transport
        self.certificate_name: str | None = None  # of a client that showed a certificate
        self.link: Any = None  # the shell's own
        self.owner: str | None = None  # whose share of the connections it is in; None: nobody's
        self.attachment: Attachment | None = None
        self.session: Session | None = None
        self.protocol_version = 0
        self.maximum_packet_size = 0  # the client's; 0: none
        self.peer_name: str | None = None  # what the peer calls itself: a claim
        self.exchange: Authentication | None = None  # by which the peer proves itself, or did
        self.is_proven = False  # It has the key of this node, so it is one of the same fabric.
        self.told = NOTHING_TOLD  # by the far end: which of the last messages it has
        self.carries_ids = False  # messages have their ids on the wire, both ways
        self.inbound: Inbound | None = None  # of such a one
        self.timer_at: float | None = None  # when the broker next looks at this connection
        self.out: list[bytes] = []
        self.congested = False  # its reader is slow
        # By filter: retained messages that a subscription is yet to get.
        self.backlog: OrderedDict[str, Backlog] | None = None
        self.resending: deque[Delivery] | None = None  # in flight before, and not yet sent again
        self.pumping = False  # the broker is to go on with the backlog or the queue
        self.held_acknowledgements = 0  # that wait for a commit
        self.held_packets = 0  # QoS 2 PUBLISH and PUBREL that wait for a commit, and what is behind them
        self.far_reason: int | None = None  # why the far end closed, if that may be what it was sent
        self.held_publications = 0  # those among them that finish a publication
        self.unread_bytes = 0  # QoS 0 in `out`, while congested

    def connected_session(self) -> Session:
        """The session, for whoever knows that there is one."""
        if self.session is None:
            raise RuntimeError("a connection without a session was asked for it")
        return self.session

    @property
    @abstractmethod
    def is_connected(self) -> bool: ...

    @property
    @abstractmethod
    def compares_ages(self) -> bool:
        """Is the other side a broker that keeps the newest of retained values, not the one that came last?"""

    @abstractmethod
    def id_blocks(self, batch: Batch, topic: bytes) -> list[bytes]: ...

    @abstractmethod
    def encode_run(self, batch: Batch, topic: bytes) -> bytes: ...

    @abstractmethod
    def seal_with(self, seal: ConnectionSeal | None) -> None:
        """From here on all that is said either way travels in it."""

    @abstractmethod
    def send(self, data: bytes) -> None: ...

    @abstractmethod
    def send_packet(self, packet: Packet) -> None: ...

    @abstractmethod
    def send_message(self, message: Message, retain: bool, identifiers: tuple[int, ...]) -> bool:
        """Send at QoS 0, or drop it where the reader is too slow or takes no packet of that size."""

    @abstractmethod
    def send_at_most_once(self, data: bytes, count: int) -> bool:
        """Send `count` QoS 0 packets, or drop them all. False when dropped."""

    @abstractmethod
    def encode_publish(
        self,
        message: Message,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        packet_id: int = 0,
        dup: bool = False,
        may_alias: bool = True,
    ) -> bytes | None:
        """The PUBLISH as this client takes it; None when it is larger than that (MQTT-3.1.2-24).

        `may_alias`: the packet leaves before any that is encoded after it.
        """

    @abstractmethod
    def takes_run(self, messages: Sequence[Message]) -> bool:
        """May these leave at QoS 1, now and together, each packet as all the others are?"""

    @abstractmethod
    def name_on_wire(self, topic: str) -> bytes | None:
        """What this peer calls a topic; None: it does not get it."""

    @abstractmethod
    def has_name_for(self, topic: str) -> bool:
        """Can the topic be told to the other side at all?"""

    @abstractmethod
    def note_run(self, origin: str, epoch: int, sequences: Sequence[int]) -> None:
        """Messages in a row were sent at QoS 0."""

    @abstractmethod
    def pause(self, reason: int) -> None:
        """Ask the shell to read no more, until every reason is gone."""

    @abstractmethod
    def resume(self, reason: int) -> None: ...

    @abstractmethod
    def set_congested(self, congested: bool, now: float) -> None:
        """The transport's buffer filled up, or drained."""

    @abstractmethod
    def check_time(self) -> None:
        """The time that was set for this connection has come."""

    @abstractmethod
    def check_keep_alive(self) -> None:
        """Has it been silent for too long?"""

    @abstractmethod
    def forget_routes(self) -> None:
        """Ask again where this client may publish, and who gets it."""

    @abstractmethod
    def disconnect(self, reason_code: int, reason: str, server_reference: str | None = None) -> None:
        """Close from our side, telling an MQTT 5 client why, and where to go (§3.14)."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Our own code failed while it served this peer."""

    @abstractmethod
    def end(self, reason: str, with_will: bool = True) -> None:
        """The connection is over."""
