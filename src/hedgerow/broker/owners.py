"""Whose the sessions are, and how much one owner may have.

An owner is what a client has proved: a user, by password or certificate; else the site that it comes from, an
IPv4 address or an IPv6 /64. Client identifiers prove nothing, since whoever connects makes them up. Nodes and
parts of nodes, whose sessions the configuration makes, have no owner and no share.

An owner may have a third as many sessions as are free. So one owner gets at most a quarter of all, two a
fifth each, and however many there are, some are left for the next one. Bytes of subscriptions and of queues
are bounded for each session and for each owner.
"""

from __future__ import annotations

from sys import getsizeof

from hedgerow.broker.limits import Limits
from hedgerow.broker.pool import Pool
from hedgerow.broker.session import FREE_QUEUE_BYTES, Channel, Session
from hedgerow.broker.unreleased import MAP_BYTES
from hedgerow.message import Message
from hedgerow.mqtt.packets import Will
from hedgerow.rates import is_loopback, site_of
from hedgerow.topics import is_wildcard

FREE_PER_OWN = 3
MIN_SESSIONS = 16  # An owner may always have so many, for as long as there are any.
MIN_CONNECTIONS = 16  # the same
ADMINISTRATORS_CONNECTIONS = 16  # beyond the limit
OWNER_SUBSCRIPTIONS = 16  # An owner's filters may take as much as those of so many sessions.


# Queues: an owner's may take as much as so many full ones. A session takes shares of that, so that the sum is
# touched once for each share and not at each message; a first little one is for nothing.
OWNER_QUEUES = 16
MAX_SPARE_BYTES = 64 * 1024  # that a session takes beyond what it needs
RECLAIM_S = 0.1  # Shares that are no longer needed are looked for this seldom.

# Packets of which only the beginning has come: so many of the largest may be on their way, those of one owner
# a quarter of that. 300 connections that each held back the end of an 8 MB packet took 2.3 GB.
LARGE_PACKETS = 128

MAX_CONNECT_BYTES = 512 * 1024  # Five fields of 64 KiB, and properties: nobody unknown may have us keep more.
# Of larger CONNECTs on their way, together: 10,000 of them would be 5 GiB.
MAX_UNKNOWN_BYTES = 64 * 1024 * 1024

# What a subscription takes beside its filter, and each level of it in the tree. Counted by their number,
# 2,000 filters of 65 KB took 125 MiB.
SUBSCRIPTION_BYTES = 400
LEVEL_BYTES = 120
WILL_BYTES = 400  # the same, of a will. Counted by their number, 6,000 of 365 KB took 2.1 GB.

# Finding the filters for a name of few levels is little work, whatever they are: two ways at each level. With
# "+" in every combination, 760 filters of 200 levels kept everybody waiting for 28 ms at each publication.
SHALLOW_LEVELS = 12
_USER, _SITE = "user:", "site:"  # how names of owners begin

MAX_DEEP_LEVELS = 40_000  # of all deeper filters with wildcards together
MAX_DEEP_LEVELS_OF_OWNER = 4_000


def owner_of(username: str | None, address: str) -> str:
    """The name of an owner. What follows the colon of the first cannot be taken for one of the second."""
    if username is not None:
        return f"{_USER}{username}"
    try:
        return f"{_SITE}{site_of(address)}"
    except ValueError:
        return f"{_SITE}{address}"


def is_user(owner: str) -> bool:
    return owner.startswith(_USER)


def is_address(owner: str) -> bool:
    """Whoever that is has proved to be nobody."""
    return owner.startswith(_SITE)


def filter_bytes(topic_filter: str) -> int:
    """About the memory that a subscription takes."""
    return weigh_filter(topic_filter)[0]


def own_bytes(client_id: str, username: str | None, will: Will | None) -> int:
    """What a session takes for itself, beside a little that all have. The names may have 64 KiB each."""
    size = getsizeof(client_id) + (getsizeof(username) if username is not None else 0)
    if will is None:
        return size
    return size + WILL_BYTES + Message(will.topic, will.payload, properties=will.properties).size


def weigh_filter(topic_filter: str) -> tuple[int, int]:
    """About the memory that a subscription takes, and what it adds to the work of finding the filters for a
    deep name."""
    levels = topic_filter.count("/") + 1
    deep = levels if levels > SHALLOW_LEVELS and is_wildcard(topic_filter) else 0
    return len(topic_filter) + SUBSCRIPTION_BYTES + LEVEL_BYTES * levels, deep


class Owner:
    __slots__ = (
        "deep_levels",
        "idle",
        "name",
        "queue_bytes",
        "reclaim_at",
        "sessions",
        "sharing",
        "subscription_bytes",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.queue_bytes = 0  # of the shares that its sessions have taken, beyond what is free
        self.sharing: dict[Session, None] = {}  # those sessions
        self.reclaim_at = 0.0
        self.sessions = 0
        self.subscription_bytes = 0
        self.deep_levels = 0
        self.idle: dict[Session, None] = {}  # those that went away with nothing in them, the oldest first


class Owners:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._owners: dict[str, Owner] = {}
        self._deep_levels = 0
        self.packet_bytes = Pool(
            LARGE_PACKETS * limits.packet_bytes, limits.peer_packet_bytes, FREE_PER_OWN
        )  # of packets that have come in part
        # Of these it may have as many as it leaves free: many devices may have one user.
        self.connections = Pool(limits.connections, MIN_CONNECTIONS, 1)
        self.session_bytes = Pool(limits.session_bytes, MAX_CONNECT_BYTES, FREE_PER_OWN)
        self.unknown_bytes = Pool(MAX_UNKNOWN_BYTES, MAX_CONNECT_BYTES, FREE_PER_OWN)  # the same, of CONNECTs

    def set_limits(self, limits: Limits) -> None:
        self._limits = limits
        self.packet_bytes.resize(LARGE_PACKETS * limits.packet_bytes, limits.peer_packet_bytes)
        self.connections.resize(limits.connections, MIN_CONNECTIONS)
        self.session_bytes.resize(limits.session_bytes, MAX_CONNECT_BYTES)

    def __len__(self) -> int:
        return len(self._owners)

    def get(self, name: str) -> Owner | None:
        return self._owners.get(name)

    def opened(self, connection: Channel, address: str | None) -> None:
        """Its owner is not known yet: until it has logged in it counts for its site. This machine's own are
        no strangers, and among them may be a proxy that speaks for many."""
        if address is not None and not is_loopback(address):
            connection.owner = owner_of(None, address)
        self.connections.change(connection.owner, 1)

    def logged_in(self, connection: Channel, username: str) -> None:
        self.connections.change(connection.owner, -1)
        connection.owner = owner_of(username, "")
        self.connections.change(connection.owner, 1)

    def closed(self, connection: Channel) -> None:
        self.connections.change(connection.owner, -1)

    def has_too_many_connections(self, connection: Channel) -> bool:
        """Has the owner of this one, which is counted, more than it may have?"""
        return connection.owner is not None and self.connections.is_beyond(connection.owner)

    def may_open(self, name: str, total: int) -> bool:
        """May it have one more session, where there are so many?"""
        owner = self._owners.get(name)
        own = owner.sessions if owner is not None else 0
        free = self._limits.sessions - total
        return free > 0 and own < max(MIN_SESSIONS, free // FREE_PER_OWN)

    def oldest_idle(self, name: str) -> Session | None:
        """A session of this owner that nobody would miss: away, with no subscription, queue or will."""
        owner = self._owners.get(name)
        while owner is not None and owner.idle:
            session = next(iter(owner.idle))
            del owner.idle[session]
            if is_idle(session):
                return session
        return None

    def add(self, session: Session, name: str) -> None:
        """A session of this owner, which is weighed when all is known of it."""
        owner = self._owners.get(name)
        if owner is None:
            owner = self._owners[name] = Owner(name)
        session.owner = owner.name  # One text for all of its sessions: there may be 100,000.
        owner.sessions += 1

    def remove(self, session: Session) -> None:
        """With all that it was subscribed to."""
        if session.owner is None:
            return
        owner = self._owners[session.owner]
        owner.subscription_bytes -= session.subscription_bytes
        owner.deep_levels -= session.deep_levels
        self._deep_levels -= session.deep_levels
        owner.sessions -= 1
        owner.idle.pop(session, None)
        _set_share(owner, session, 0)
        self.session_bytes.change(session.owner, -session.own_bytes)
        session.own_bytes = 0
        if not owner.sessions:
            del self._owners[session.owner]
        session.owner = None

    def weigh(self, session: Session) -> None:
        """Its will is another one, its user, or what it has to remember until its peer releases it."""
        if session.owner is not None:
            size = own_bytes(session.client_id, session.username, session.will)
            size += session.received.size if session.received is not None else 0
            self.session_bytes.change(session.owner, size - session.own_bytes)
            session.own_bytes = size

    def may_remember(self, session: Session) -> bool:
        """Has its owner room for one more publication at QoS 2 that is not released?"""
        received = session.received
        if session.owner is None or received is None or not received.is_to_grow:
            return True
        return self.session_bytes.has_room(session.owner, MAP_BYTES)

    def came(self, session: Session) -> None:
        owner = self._owners.get(session.owner or "")
        if owner is not None:
            owner.idle.pop(session, None)

    def went(self, session: Session) -> None:
        owner = self._owners.get(session.owner or "")
        if owner is not None and is_idle(session):
            owner.idle[session] = None

    def take_filter(self, session: Session, topic_filter: str) -> bool:
        """As `subscribed`, if it may have one more filter."""
        size, deep = weigh_filter(topic_filter)
        most = self._limits.subscription_bytes
        if session.subscription_bytes + size > most:
            return False
        owner = None
        if session.owner is not None:
            owner = self._owners[session.owner]
            if owner.subscription_bytes + size > OWNER_SUBSCRIPTIONS * most:
                return False
            is_too_deep = owner.deep_levels + deep > MAX_DEEP_LEVELS_OF_OWNER
            if deep and (is_too_deep or self._deep_levels + deep > MAX_DEEP_LEVELS):
                return False
        self._count(session, owner, size, deep)
        return True

    def may_queue(self, session: Session, wanted: int, now: float) -> bool:
        """May so many bytes wait for it? What one session may have is not asked here."""
        if wanted <= session.queue_share or session.owner is None:
            return True
        owner = self._owners[session.owner]
        share = max(wanted, min(2 * wanted, wanted + MAX_SPARE_BYTES, self._limits.queue_bytes_in_memory))
        room = OWNER_QUEUES * self._limits.queue_bytes_in_memory - share
        if owner.queue_bytes - session.queue_share > room and owner.reclaim_at <= now:
            owner.reclaim_at = now + RECLAIM_S
            for each in list(owner.sharing):
                _set_share(owner, each, each.waiting_bytes)
        if owner.queue_bytes - session.queue_share > room:
            return False
        _set_share(owner, session, share)
        return True

    def waits(self, session: Session) -> None:
        """Count what waits for it, whether there is room or not: the store had it."""
        if session.owner is not None:
            _set_share(self._owners[session.owner], session, session.waiting_bytes)

    def subscribed(self, session: Session, topic_filter: str) -> None:
        """To a filter that is new to the session."""
        owner = self._owners.get(session.owner or "")
        size, deep = weigh_filter(topic_filter)
        self._count(session, owner, size, deep)

    def unsubscribed(self, session: Session, topic_filter: str) -> None:
        owner = self._owners.get(session.owner or "")
        size, deep = weigh_filter(topic_filter)
        self._count(session, owner, -size, -deep)

    def _count(self, session: Session, owner: Owner | None, size: int, deep: int) -> None:
        session.subscription_bytes += size
        if owner is not None:
            session.deep_levels += deep
            owner.subscription_bytes += size
            owner.deep_levels += deep
            self._deep_levels += deep


def _set_share(owner: Owner, session: Session, size: int) -> None:
    share = max(size, FREE_QUEUE_BYTES)
    owner.queue_bytes += share - session.queue_share
    session.queue_share = share
    if share > FREE_QUEUE_BYTES:
        owner.sharing[session] = None
    else:
        owner.sharing.pop(session, None)


def is_idle(session: Session) -> bool:
    is_empty = not session.subscriptions and not session.waiting_count and not session.received
    return session.connection is None and is_empty and session.will is None
