"""The bounds on what any peer can make the broker keep or do, with safe defaults."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


# A link between brokers carries what many clients send: with the window of one client it would wait for the
# acknowledgements of the far broker, message by message.
PEER_WINDOWS = 4
MAX_WINDOW = 65_535
# What may wait for a session in memory, and for a link to another broker.
QUEUE_BYTES = 16 * MIB
QUEUE_MESSAGES = 100_000
LINK_QUEUE_BYTES = 64 * MIB
MAX_PACKET_BYTES = 268_435_460  # §2.1.4: a remaining length of four bytes, and the header

# What a node adds to a PUBLISH for another: id (with an origin of 256 characters), time and age. A peer may
# send so much more than a client, or what a client was allowed to send could not be carried to it.
PEER_ROOM_BYTES = 2 * KIB


@dataclass(slots=True, frozen=True)
class Limits:
    connections: int = 10_000
    """Open connections; the next one is refused with Server busy. One owner (a user, or an address for those
    without a name) may have as many as it leaves free, so at most half; addresses of this machine, all.
    Administrators get a few more."""
    http_connections: int = 256
    """Open connections of the HTTP port, beside the others; one address, but for loopback, gets a quarter."""
    connects_per_s: float = 100.0
    """Connections per second from one address, after a burst of ten times as many; 0: no limit."""
    connect_timeout_s: float = 10.0
    """From the opening of a connection to its CONNECT."""
    packet_bytes: int = 8 * MIB
    """The largest packet taken (Maximum Packet Size)."""
    receive_maximum: int = 1_024
    """QoS 1 and 2 publications that one client may have in flight to us."""
    in_flight: int = 1_024
    """QoS 1 and 2 deliveries in flight to one client, when its own Receive Maximum allows."""
    session_bytes: int = 256 * MIB
    """About the memory that client ids, user names and wills of all sessions take, and what they have to
    remember of QoS 2 publications; those of one owner at most a quarter of it."""
    queue_bytes: int | None = None
    """What may wait for one session: deliveries until they are complete, and what a slow reader leaves. None:
    16 MiB in memory, and in the log (`data`) whatever that has room for."""
    queue_messages: int | None = None
    """Deliveries that may wait for one session. None: 100,000 in memory, and in the log any number."""
    subscriptions: int = 10_000
    """Subscriptions of one session; fewer where they have more than 16 levels."""
    subscription_bytes: int = 16 * MIB
    """About the memory that the filters of one session take; those of one owner may take 16 times that."""
    retained_bytes: int = 256 * MIB
    """About the memory that all retained messages take together."""
    topic_alias_maximum: int = 64
    """Topic aliases per connection, each way."""
    keep_alive_s: int = 65_535
    """The longest keep-alive; clients of MQTT 5 that ask for more, or for none, are told this one. Those of
    earlier versions, which cannot be told, keep theirs. 65,535: as they ask."""
    session_expiry_s: float = float("inf")
    """The longest time that a session is kept without its client."""
    sessions: int = 100_000
    """Sessions kept, connected or not; a new one beyond that is refused with Quota exceeded. One owner (a
    user, or an address for anonymous clients) may have a third as many as are free: at most a quarter."""

    @property
    def queue_bytes_in_memory(self) -> int:
        return QUEUE_BYTES if self.queue_bytes is None else self.queue_bytes

    @property
    def queue_messages_in_memory(self) -> int:
        return QUEUE_MESSAGES if self.queue_messages is None else self.queue_messages

    @property
    def peer_receive_maximum(self) -> int:
        return min(PEER_WINDOWS * self.receive_maximum, MAX_WINDOW)

    @property
    def peer_packet_bytes(self) -> int:
        return min(self.packet_bytes + PEER_ROOM_BYTES, MAX_PACKET_BYTES)

    @property
    def peer_in_flight(self) -> int:
        return min(PEER_WINDOWS * self.in_flight, MAX_WINDOW)


@dataclass(slots=True, frozen=True)
class QueueLimits:
    """What may wait for one session, where it has a limit of its own."""

    bytes: int | None
    """None: `LINK_QUEUE_BYTES` in memory, and in the log whatever that has room for."""
    age_s: float
    """0: for ever."""
    drops_oldest: bool

    @property
    def bytes_in_memory(self) -> int:
        return LINK_QUEUE_BYTES if self.bytes is None else self.bytes


@dataclass(slots=True, frozen=True)
class LogBounds:
    """What may wait on the disk, for all sessions together."""

    bytes: int | None = None
    """None: whatever the disk has room for."""
    age_s: float = 0.0
    """0: for ever."""
    drops_oldest: bool = False
    """At the bound the oldest goes, whoever waits for it, instead of publishers having to wait."""
