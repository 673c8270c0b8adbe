"""Who gets a message: sessions by their subscriptions, groups that share one, and parts of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hedgerow.broker.session import Session
from hedgerow.mqtt.packets import Subscription

MEMBERS_AT_ONCE = 64  # of a shared subscription, which may have as many as there are sessions


class Entry:
    """One subscription of one session."""

    __slots__ = ("identifiers", "no_local", "qos", "retain_as_published", "session", "since", "topic_filter")

    def __init__(
        self,
        session: Session,
        topic_filter: str,
        subscription: Subscription,
        identifier: int | None,
        since: float,
    ) -> None:
        self.session = session
        self.topic_filter = topic_filter  # without the name of a shared one
        self.qos = subscription.qos
        self.no_local = subscription.no_local
        self.retain_as_published = subscription.retain_as_published
        self.identifiers = () if identifier is None else (identifier,)
        self.since = since


class Recipient:
    """A session that gets a topic, with all of its subscriptions that match (MQTT-3.3.4-2).

    Overlapping subscriptions give one copy at the highest QoS with every identifier.
    """

    __slots__ = ("entries", "identifiers", "no_local", "qos", "retain_as_published", "session", "since")

    def __init__(self, session: Session, entries: list[Entry]) -> None:
        self.session = session
        self.entries = entries
        self.qos = max(entry.qos for entry in entries)
        self.no_local = any(entry.no_local for entry in entries)
        self.retain_as_published = any(entry.retain_as_published for entry in entries)
        self.identifiers = tuple(number for entry in entries for number in entry.identifiers)
        self.since = min(entry.since for entry in entries)

    def for_own_publication(self) -> Recipient | None:
        """What is left when the session itself published: no-local ones do not count (MQTT-3.8.3-3)."""
        if len(self.entries) == 1:
            return None if self.no_local else self
        entries = [entry for entry in self.entries if not entry.no_local]
        return Recipient(self.session, entries) if entries else None


class SharedGroup:
    """The sessions of one `$share/NAME/FILTER`; each message goes to one of them, in turn (§4.8.2)."""

    __slots__ = ("_in_order", "_turn", "members")

    def __init__(self) -> None:
        self.members: dict[Session, Recipient] = {}
        self._in_order: list[Recipient] = []
        self._turn = 0

    def join(self, recipient: Recipient) -> bool:
        """True when its session is new to the group."""
        is_new = recipient.session not in self.members
        self.members[recipient.session] = recipient
        self._in_order = []
        return is_new

    def leave(self, session: Session) -> bool:
        """True when it was in the group."""
        was_member = self.members.pop(session, None) is not None
        self._in_order = []
        return was_member

    def next_if_ready(self) -> Recipient | None:
        """The member whose turn it is, if it can take a message at once, as most can."""
        members = self._in_order
        if not members:
            return None
        position = self._turn if self._turn < len(members) else 0
        recipient = members[position]
        session = recipient.session
        connection, outbox = session.connection, session.outbox
        if connection is None or connection.congested or (outbox is not None and outbox.is_full):
            return None
        self._turn = position + 1
        return recipient

    def look_for_one(self, may_read: Callable[[Session], bool]) -> Iterator[tuple[int, Recipient | None]]:
        """The next member that can take a message at once; else one that is connected; else one that is away.

        Each step looks at so many members, and the last one may find it. Nearly all may be away: what is
        published to a large group is passed on in turns, and between two steps members come and go.
        """
        members = self._in_order
        count = 0
        if not members:
            members = self._in_order = list(self.members.values())
            count = len(members) // MEMBERS_AT_ONCE
        second_best: Recipient | None = None
        begin = self._turn
        for step in range(len(members)):
            if count >= MEMBERS_AT_ONCE:
                yield count, None
                count = 0
            count += 1
            position = (begin + step) % len(members)
            recipient = members[position]
            session = recipient.session
            connection = session.connection
            if second_best is not None and (connection is None or connection.congested):
                continue
            if session not in self.members or not may_read(session):
                continue
            outbox = session.outbox
            if connection is not None and not connection.congested:
                if outbox is None or not outbox.is_full:
                    self._turn = position + 1
                    yield count, recipient
                    return
                second_best = recipient
            second_best = second_best or recipient
        yield count, second_best
