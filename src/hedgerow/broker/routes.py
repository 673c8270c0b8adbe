"""Who gets a topic: the subscription table, and a `Route` per topic that remembers its answer.

Matching walks the tree once per topic, not once per message: the first message of a topic builds
its `Route`, and a change of any subscription that could match marks it stale. A route also sorts
its recipients by what they need: those who take a QoS 0 packet as the very bytes received, in
either of the two wire forms, and those who need a packet of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from hedgerow.broker.access import Access
from hedgerow.broker.systopics import COMMAND_TOPICS
from hedgerow.broker.withheld import OTHERS_QOS, Watcher, Withheld, sort_out, tell
from hedgerow.mqtt.packets import Subscription
from hedgerow.topics import TopicTree, is_wildcard, matches, split_shared

if TYPE_CHECKING:
    from hedgerow.broker.port import Port
    from hedgerow.broker.session import Session

# A publisher that invents topics makes the cache start anew, not grow; nor with many recipients each.
MAX_ROUTES = 65_536
MAX_CACHED_RECIPIENTS = 500_000
MAX_ROUTE_TOPIC = 1_024  # Longer topics are looked up each time: so many of the longest would be 4 GiB.
ALWAYS = float("-inf")  # since when one is subscribed who may have been so before that was known


class WireForm(IntEnum):
    """How a session's client takes a QoS 0 PUBLISH without properties."""

    OWN = 0  # encoded for it alone: topic aliases, or a Maximum Packet Size
    MQTT_3 = 3  # 3.1 and 3.1.1: no property length
    MQTT_5 = 5  # with a property length of 0
    PEER = 9  # another broker: with the message's id (`peers.py`)


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
        self._in_order = list(self.members.values())
        return is_new

    def leave(self, session: Session) -> bool:
        """True when it was in the group."""
        was_member = self.members.pop(session, None) is not None
        self._in_order = list(self.members.values())
        return was_member

    def choose(self, readers: Access, topic: str) -> Recipient | None:
        """The next member that can take it at once; else one that is connected; else one that is away."""
        members = self._in_order
        second_best: Recipient | None = None
        for step in range(len(members)):
            position = (self._turn + step) % len(members)
            recipient = members[position]
            session = recipient.session
            connection = session.connection
            if second_best is not None and (connection is None or connection.congested):
                continue
            if not session.may_read(readers, topic):
                continue
            outbox = session.outbox
            if connection is not None and not connection.congested:
                if outbox is None or not outbox.is_full:
                    self._turn = position + 1
                    return recipient
                second_best = recipient
            second_best = second_best or recipient
        return second_best


class Route:
    """Where the messages of one topic go, until a subscription changes."""

    __slots__ = (
        "_by_session",
        "groups",
        "has_clients",
        "is_journalled",
        "mqtt_3",
        "mqtt_5",
        "others",
        "peers",
        "ports",
        "recipients",
        "stale",
        "topic",
        "verbatim_3",
        "verbatim_5",
        "withheld",
    )

    def __init__(
        self,
        topic: str,
        recipients: list[Recipient],
        groups: list[SharedGroup],
        ports: tuple[Port, ...],
        interned: dict[tuple[Session, ...], tuple[Session, ...]],
        withheld: Sequence[Withheld] = (),
        is_journalled: bool = False,
    ) -> None:
        self.topic = topic
        self.is_journalled = is_journalled  # The node has a journal, and wants this topic in it.
        self.stale = False
        self.recipients = recipients
        self.groups = groups
        self.ports = ports
        self.withheld = withheld  # Others see to it that they get it.
        self._by_session: dict[Session, Recipient] | None = None
        # The same recipients, sorted for QoS 0 without properties and without RETAIN.
        by_form: dict[WireForm, list[Session]] = {WireForm.MQTT_3: [], WireForm.MQTT_5: []}
        self.others: list[Recipient] = []
        self.peers: list[Session] = []
        for recipient in recipients:
            form = recipient.session.wire_form
            if form == WireForm.PEER:
                self.peers.append(recipient.session)
            elif recipient.no_local or recipient.identifiers or form == WireForm.OWN:
                self.others.append(recipient)
            else:
                by_form[form].append(recipient.session)
        # Topics with the same recipients share one tuple, so that "the same" is told by identity.
        self.mqtt_3, self.mqtt_5 = (
            interned.setdefault(tuple(sessions), tuple(sessions)) for sessions in by_form.values()
        )
        # All recipients, where a packet that came in that form suits every one of them.
        plain = not self.others and not self.peers and not groups and not ports
        self.verbatim_3 = self.mqtt_3 if plain and not self.mqtt_5 else None
        self.verbatim_5 = self.mqtt_5 if plain and not self.mqtt_3 else None
        self.has_clients = bool(self.mqtt_3 or self.mqtt_5 or groups or withheld) or any(
            recipient.session.is_client for recipient in self.others
        )

    def recipient(self, session: Session) -> Recipient | None:
        """The session as a recipient, or as one that is withheld."""
        if self._by_session is None:
            self._by_session = {each.session: each for each in self.recipients}
            self._by_session |= {each.recipient.session: each.recipient for each in self.withheld}
        return self._by_session.get(session)


class Interest:
    """Which filters have subscribers, for who watches it: what neighbours are to get is not wanted here."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._changed: Callable[[str, bool], None] = lambda topic_filter, is_wanted: None

    @property
    def counts(self) -> Mapping[str, int]:
        return self._counts

    def watch(self, changed: Callable[[str, bool], None]) -> None:
        """Be told of each filter: now, and when it has its first subscriber or none any more."""
        self._changed = changed
        for topic_filter in list(self._counts):
            changed(topic_filter, True)

    def grow(self, topic_filter: str) -> None:
        self._counts[topic_filter] += 1
        if self._counts[topic_filter] == 1:
            self._changed(topic_filter, True)

    def shrink(self, topic_filter: str) -> None:
        self._counts[topic_filter] -= 1
        if not self._counts[topic_filter]:
            del self._counts[topic_filter]
            self._changed(topic_filter, False)


class SubscriptionTable:
    def __init__(self, access: Access) -> None:
        self.access = access
        self.shared_count = 0
        self._entries: TopicTree[Session, Entry] = TopicTree()
        self._groups: TopicTree[str, SharedGroup] = TopicTree()
        self._ports: TopicTree[Port, None] = TopicTree()
        self.local = Interest()
        self.of_neighbours = Interest()
        self.delegated: set[str] = set()  # filters whose events another broker finds: see `withhold`
        self.watcher: Watcher | None = None
        self._journalled: tuple[str, ...] = ()
        self._routes: dict[str, Route] = {}
        self._cached_recipients = 0
        self._interned: dict[tuple[Session, ...], tuple[Session, ...]] = {}

    def __len__(self) -> int:
        return len(self._entries) + self.shared_count

    @property
    def visited(self) -> int:
        """What lookups have cost: see `TopicTree`."""
        return self._entries.visited + self._groups.visited + self._ports.visited

    def add(
        self, session: Session, subscription: Subscription, identifier: int | None, since: float = ALWAYS
    ) -> None:
        """`since`: what is known to be older is not for this one, unless it had the filter before."""
        name, topic_filter = split_shared(subscription.topic_filter)
        entry = Entry(session, topic_filter, subscription, identifier, since)
        if name is None:
            known = self._entries.get(topic_filter, session)
            if known is not None:
                entry.since = min(known.since, since)
            is_new = self._entries.set(topic_filter, session, entry)
            if is_new:
                self._interest_of(session).grow(topic_filter)
            self.forget_routes(topic_filter)
            tell(self.watcher, session, topic_filter, subscription.qos, is_new)
        else:
            group = self._groups.get(topic_filter, name)
            if group is None:
                group = SharedGroup()
                self._groups.set(topic_filter, name, group)
            if group.join(Recipient(session, [entry])):
                self.shared_count += 1
                self.local.grow(topic_filter)
                tell(self.watcher, None, topic_filter, subscription.qos)
            self.forget_routes(topic_filter)

    def remove(self, session: Session, topic_filter: str) -> None:
        name, topic_filter = split_shared(topic_filter)
        if name is None:
            if self._entries.remove(topic_filter, session) is not None:
                self._interest_of(session).shrink(topic_filter)
                self.forget_routes(topic_filter)
                tell(self.watcher, session, topic_filter, None)
        else:
            group = self._groups.get(topic_filter, name)
            if group is not None and group.leave(session):
                self.shared_count -= 1
                self.local.shrink(topic_filter)
                if not group.members:
                    self._groups.remove(topic_filter, name)
                self.forget_routes(topic_filter)
                tell(self.watcher, None, topic_filter, None)

    def add_port(self, port: Port, topic_filter: str) -> None:
        if self._ports.set(topic_filter, port, None):
            self.local.grow(topic_filter)
            tell(self.watcher, None, topic_filter, OTHERS_QOS)
        self.forget_routes(topic_filter)

    def remove_port(self, port: Port, topic_filter: str) -> None:
        self._ports.remove(topic_filter, port)
        self.local.shrink(topic_filter)
        self.forget_routes(topic_filter)
        tell(self.watcher, None, topic_filter, None)

    def reserve(self, topic_filter: str) -> None:
        """It is wanted here, whether or not a port listens at the moment, until it is released."""
        self.local.grow(topic_filter)
        tell(self.watcher, None, topic_filter, OTHERS_QOS)

    def release(self, topic_filter: str) -> None:
        self.local.shrink(topic_filter)
        tell(self.watcher, None, topic_filter, None)

    def holds(self, session: Session, topic_filter: str) -> bool:
        """Has the session a subscription here that is not a shared one?"""
        return self._entries.get(topic_filter, session) is not None

    def withhold(self, topic_filter: str, is_delegated: bool) -> None:
        """Another broker finds the events of this filter from now on, or this one does again."""
        if is_delegated:
            self.delegated.add(topic_filter)
        else:
            self.delegated.discard(topic_filter)
        self.forget_routes(topic_filter)

    def set_journalled(self, topic_filters: Sequence[str]) -> None:
        """Topics that these match are recorded in the node's journal from now on, and no others."""
        self._journalled = tuple(topic_filters)
        self.forget_all_routes()

    def _interest_of(self, session: Session) -> Interest:
        return self.of_neighbours if session.is_neighbour else self.local

    def forget_routes(self, topic_filter: str) -> None:
        """The answer may differ now for the topics that `topic_filter` matches."""
        if is_wildcard(topic_filter):
            self.forget_all_routes()
        else:
            self._interned.clear()
            route = self._routes.pop(topic_filter, None)
            if route is not None:
                route.stale = True

    def forget_all_routes(self) -> None:
        for route in self._routes.values():
            route.stale = True
        self._routes.clear()
        self._interned.clear()
        self._cached_recipients = 0

    def known_route(self, topic: str) -> Route | None:
        """The route of a topic that was looked up before, and so is a valid one."""
        return self._routes.get(topic)

    def route(self, topic: str) -> Route:
        route = self._routes.get(topic)
        if route is None:
            route = self._build(topic)
            if len(topic) > MAX_ROUTE_TOPIC:
                route.stale = True  # good for this one message
                return route
            if len(self._routes) >= MAX_ROUTES or self._cached_recipients >= MAX_CACHED_RECIPIENTS:
                self.forget_all_routes()
            self._routes[topic] = route
            self._cached_recipients += len(route.recipients) + len(route.withheld)
        return route

    def _build(self, topic: str) -> Route:
        ports = tuple(dict.fromkeys(port for port, _ in self._ports.match(topic)))
        if topic in COMMAND_TOPICS:  # Not for the journal either: a section may hold a password.
            return Route(topic, [], [], ports, self._interned)
        by_session: dict[Session, list[Entry]] = {}
        for session, entry in self._entries.match(topic):
            by_session.setdefault(session, []).append(entry)
        recipients = [
            Recipient(session, entries)
            for session, entries in by_session.items()
            if session.may_read(self.access, topic)
        ]
        recipients, withheld = sort_out(recipients, self.delegated)
        groups = [group for _, group in self._groups.match(topic)]
        is_journalled = any(matches(topic_filter, topic) for topic_filter in self._journalled)
        return Route(topic, recipients, groups, ports, self._interned, withheld, is_journalled)
