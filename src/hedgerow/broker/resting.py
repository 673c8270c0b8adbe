"""Subscriptions of which nothing is heard: packed, until there is an event for them.

A broker with little memory (`SubscriptionTable.rests_quiet`) builds nothing to match a filter without
wildcards by, before an event has its topic. Until then `Resting` has whose it is, and sessions with many
subscriptions have them packed. What another broker matches is packed as well (`elsewhere.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from struct import Struct

from hedgerow.broker.changes import SubscriptionRecord
from hedgerow.broker.session import Session
from hedgerow.mqtt.packets import Subscription
from hedgerow.packed import PackedMap, PartlyPacked

MIN_PACKED = 8  # subscriptions of a session: of fewer, little is left to be packed
MAX_OWNERS = 64  # of a filter that rests: to find one among more takes long

_OWNER = Struct("<Qd")  # key of a session, and since when it is subscribed
_OPTIONS = Struct("<BI")  # of a subscription: as in SUBSCRIBE (§3.8.3.1), and its identifier or 0


def pack(session: Session, topic_filter: str) -> None:
    held = session.subscriptions
    if held is None or len(held) < MIN_PACKED:
        return
    if not isinstance(held, PartlyPacked):
        held = session.subscriptions = packed_records(held)
    held.pack(topic_filter)


def unpack(session: Session, topic_filter: str) -> None:
    if isinstance(session.subscriptions, PartlyPacked):
        session.subscriptions.unpack(topic_filter)


def packed_records(held: Mapping[str, SubscriptionRecord]) -> PartlyPacked[SubscriptionRecord]:
    """A session's subscriptions, of which some may be packed."""
    return PartlyPacked(_write_record, _read_record, held.items())


def _write_record(record: SubscriptionRecord) -> bytes:
    wanted = record.subscription
    flags = wanted.no_local << 2 | wanted.retain_as_published << 3
    options = wanted.qos | flags | wanted.retain_handling << 4
    return _OPTIONS.pack(options, record.subscription_identifier or 0)


def _read_record(topic_filter: str, data: bytes) -> SubscriptionRecord:
    options, identifier = _OPTIONS.unpack(data)
    wanted = Subscription(topic_filter, options & 3, bool(options & 4), bool(options & 8), options >> 4)
    return SubscriptionRecord(wanted, identifier or None)


class Owners:
    """Sessions by their keys, for as long as filters refer to them."""

    def __init__(self) -> None:
        self._sessions: dict[int, Session] = {}
        self._filters: dict[int, int] = {}  # how many

    def __getitem__(self, key: int) -> Session:
        return self._sessions[key]

    def add(self, session: Session) -> None:
        self._sessions[session.key] = session
        self._filters[session.key] = self._filters.get(session.key, 0) + 1

    def discard(self, session: Session) -> None:
        self._filters[session.key] -= 1
        if not self._filters[session.key]:
            del self._filters[session.key], self._sessions[session.key]


class Resting:
    """Filters of which nothing is heard, and the sessions whose subscriptions they are."""

    def __init__(self) -> None:
        self._owners = Owners()
        self._filters = PackedMap()
        self.count = 0
        """Subscriptions."""

    def __contains__(self, topic_filter: object) -> bool:
        return topic_filter in self._filters

    def owners(self, topic_filter: str) -> list[tuple[Session, float]]:
        """And since when each is subscribed."""
        packed = self._filters.get(topic_filter) or b""
        return [(self._owners[key], since) for key, since in _OWNER.iter_unpack(packed)]

    def holds(self, session: Session, topic_filter: str) -> bool:
        return any(owner is session for owner, _ in self.owners(topic_filter))

    def has_room(self, topic_filter: str) -> bool:
        return len(self._filters.get(topic_filter) or b"") < MAX_OWNERS * _OWNER.size

    def add(self, session: Session, topic_filter: str, since: float) -> bool:
        """True: it is new."""
        known = dict(self.owners(topic_filter))
        is_new = session not in known
        known[session] = min(since, known.get(session, since))
        self._set(topic_filter, known.items())
        if is_new:
            self._came(session, topic_filter)
        return is_new

    def discard(self, session: Session, topic_filter: str) -> bool:
        """True: it was there."""
        known = self.owners(topic_filter)
        rest = [each for each in known if each[0] is not session]
        if len(rest) == len(known):
            return False
        self._set(topic_filter, rest)
        self._went(session, topic_filter)
        return True

    def take(self, topic_filter: str) -> Iterator[tuple[Session, float]]:
        """It is to rest no more."""
        owners = self.owners(topic_filter)
        self._filters.pop(topic_filter)
        for session, since in owners:
            self._went(session, topic_filter)
            yield session, since

    def _set(self, topic_filter: str, owners: Iterable[tuple[Session, float]]) -> None:
        packed = b"".join(_OWNER.pack(session.key, since) for session, since in owners)
        if packed:
            self._filters.set(topic_filter, packed)
        else:
            self._filters.pop(topic_filter)

    def _came(self, session: Session, topic_filter: str) -> None:
        self.count += 1
        self._owners.add(session)
        pack(session, topic_filter)

    def _went(self, session: Session, topic_filter: str) -> None:
        self.count -= 1
        self._owners.discard(session)
        unpack(session, topic_filter)
