"""Who gets a topic: the subscription table, and a `Route` per topic that remembers its answer.

Matching walks the tree once per topic, not once per message: the first message of a topic builds
its `Route`, and a change of any subscription that could match marks it stale. A route also sorts
its recipients by what they need: those who take a QoS 0 packet as the very bytes received, in
either of the two wire forms, and those who need a packet of their own.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from hedgerow.broker.access import Access
from hedgerow.broker.elsewhere import (
    ALWAYS,
    OTHERS_QOS,
    Watcher,
    Withheld,
    entry_of,
    sort_out,
    tell,
    with_withheld,
)
from hedgerow.broker.observer import Observer
from hedgerow.broker.recipients import Entry, Recipient, SharedGroup
from hedgerow.broker.resting import Resting
from hedgerow.broker.role import Role
from hedgerow.broker.session import Publisher, Session, WireForm
from hedgerow.message import Message
from hedgerow.mqtt.packets import Subscription
from hedgerow.packed import PartlyPacked
from hedgerow.topics import FilterTable, TopicTree, is_wildcard, split_shared

# A publisher that invents topics makes the cache start anew, not grow; nor with many recipients each.
MAX_ROUTES = 65_536
MAX_CACHED_RECIPIENTS = 500_000
MAX_ROUTE_TOPIC = 1_024  # Longer topics are looked up each time: so many of the longest would be 4 GiB.


class Listener(Publisher, Protocol):
    """A part of this process that hears a topic."""

    @property
    def closed(self) -> bool: ...

    def take(self, message: Message, route: Route, publisher: Publisher | None) -> None: ...


Sorted = tuple[tuple[Session, ...], tuple[Session, ...], tuple[Recipient, ...], tuple[Session, ...]]
NOBODY: Sorted = ((), (), (), ())


class Route:
    """Where the messages of one topic go, until a subscription changes."""

    __slots__ = (
        "_by_session",
        "elsewhere",
        "groups",
        "has_clients",
        "inactive",
        "mqtt_3",
        "mqtt_5",
        "observers",
        "others",
        "peers",
        "ports",
        "recipients",
        "stale",
        "topic",
        "verbatim_3",
        "verbatim_5",
    )

    def __init__(
        self,
        topic: str,
        recipients: Sequence[Recipient],
        groups: Sequence[SharedGroup],
        ports: tuple[Listener, ...],
        interned: dict[tuple[Session, ...], tuple[Session, ...]],
        elsewhere: Sequence[Recipient] = (),
        observers: Sequence[Observer] = (),
        inactive: tuple[str, ...] = (),
    ) -> None:
        self.topic = topic
        self.stale = False
        self.recipients = recipients
        self.groups = groups
        self.ports = ports
        self.elsewhere = elsewhere  # Clients of another broker, which sees to it that they get it.
        self.inactive = inactive  # Filters that match, and that another broker matches.
        self._by_session: dict[Session, Recipient] | None = None
        # The same recipients, sorted for QoS 0 without properties and without RETAIN.
        by_form = _sort(recipients, interned) if recipients else NOBODY
        self.mqtt_3, self.mqtt_5, self.others, self.peers = by_form
        # All recipients, where a packet that came in that form suits every one of them.
        plain = not self.others and not self.peers and not groups and not ports
        self.verbatim_3 = self.mqtt_3 if plain and not self.mqtt_5 else None
        self.verbatim_5 = self.mqtt_5 if plain and not self.mqtt_3 else None
        self.has_clients = bool(self.mqtt_3 or self.mqtt_5 or groups or elsewhere or inactive)
        if self.others and not self.has_clients:
            self.has_clients = any(recipient.session.role.is_movable for recipient in self.others)
        self.observers = (
            tuple(each for each in observers if each.wants(topic, self.has_clients)) if observers else ()
        )

    @property
    def is_wanted(self) -> bool:
        here = self.recipients or self.groups or self.ports or self.observers
        return bool(here or self.elsewhere or self.inactive)

    def recipient(self, session: Session) -> Recipient | None:
        """The session as a recipient, or as one that another broker serves."""
        if self._by_session is None:
            self._by_session = {each.session: each for each in self.recipients}
            self._by_session |= {each.session: each for each in self.elsewhere}
        return self._by_session.get(session)


def _sort(
    recipients: Sequence[Recipient], interned: dict[tuple[Session, ...], tuple[Session, ...]]
) -> Sorted:
    """For QoS 0: those who take plain packets of each version, those who need one of their own, and peers."""
    by_form: dict[WireForm, list[Session]] = {WireForm.MQTT_3: [], WireForm.MQTT_5: []}
    others: list[Recipient] = []
    peers: list[Session] = []
    for recipient in recipients:
        form = recipient.session.wire_form
        if form == WireForm.PEER:
            peers.append(recipient.session)
        elif recipient.no_local or recipient.identifiers or form == WireForm.OWN:
            others.append(recipient)
        else:
            by_form[form].append(recipient.session)
    # Topics with the same recipients share one tuple, so that "the same" is told by identity.
    mqtt_3, mqtt_5 = (interned.setdefault(tuple(sessions), tuple(sessions)) for sessions in by_form.values())
    return mqtt_3, mqtt_5, tuple(others), tuple(peers)


class Interest:
    """Which filters have subscribers, for whoever watches it."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._resting: PartlyPacked[int] | None = None  # of filters of which nothing is heard for long
        self._changed: Callable[[str, bool], None] | None = None
        self.on_count: Callable[[str], None] | None = None
        """Told of each filter that has one subscriber more, or less."""

    @property
    def counts(self) -> Mapping[str, int]:
        return self._counts if self._resting is None else ChainMap(self._counts, self._resting)

    def rest(self, topic_filter: str) -> None:
        """It changes seldom from now on."""
        count = self._counts.pop(topic_filter, 0)
        if not self._counts:
            self._counts = {}  # A dictionary that was large stays so.
        if count:
            if self._resting is None:
                self._resting = PartlyPacked(_write_count, _read_count)
            self._resting[topic_filter] = count
            self._resting.pack(topic_filter)

    def wake(self, topic_filter: str) -> None:
        if self._resting is not None and (count := self._resting.pop(topic_filter, 0)):
            self._counts[topic_filter] = count

    def watch(self, changed: Callable[[str, bool], None]) -> None:
        """Be told of each filter: now, and when it has its first subscriber or none any more."""
        self._changed = changed
        for topic_filter in list(self.counts):
            changed(topic_filter, True)

    def grow(self, topic_filter: str) -> None:
        if self._resting is not None:
            self.wake(topic_filter)
        count = self._counts.get(topic_filter, 0) + 1
        self._counts[topic_filter] = count
        if count == 1 and self._changed is not None:
            self._changed(topic_filter, True)
        if self.on_count is not None:
            self.on_count(topic_filter)

    def shrink(self, topic_filter: str) -> None:
        if self._resting is not None:
            self.wake(topic_filter)
        self._counts[topic_filter] -= 1
        if not self._counts[topic_filter]:
            del self._counts[topic_filter]
            if self._changed is not None:
                self._changed(topic_filter, False)
        if self.on_count is not None:
            self.on_count(topic_filter)


def _write_count(count: int) -> bytes:
    return count.to_bytes(4, "little")


def _read_count(topic_filter: str, data: bytes) -> int:
    return int.from_bytes(data, "little")


class SubscriptionTable:
    def __init__(self, access: Access) -> None:
        self.access = access
        self.shared_count = 0
        self._entries: FilterTable[Session, Entry] = FilterTable()
        self._groups: TopicTree[str, SharedGroup] = TopicTree()
        self._ports: TopicTree[Listener, None] = TopicTree()
        self.local = Interest()
        self.beyond = Interest()  # of those who are behind other nodes
        self.inactive = Withheld()  # filters that another broker matches: see `set_active`
        self.resting = Resting()  # filters without an event
        self.rests_quiet = False
        """Memory is scarce here: whoever subscribes to what has no event is packed."""
        self.private: set[str] = set()  # topics that parts of this process alone get
        self.observers: list[Observer] = []
        self.watcher: Watcher | None = None
        self._routes: dict[str, Route] = {}
        self._cached_recipients = 0
        self._interned: dict[tuple[Session, ...], tuple[Session, ...]] = {}

    def __len__(self) -> int:
        return len(self._entries) + self.shared_count + self.inactive.count + self.resting.count

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
            is_new = self._put(session, topic_filter, entry)
            if is_new:
                self._interest_of(session).grow(topic_filter)
            self._rest_interest(topic_filter)
            self.forget_routes(topic_filter)
            if self.watcher is not None:
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

    def _put(self, session: Session, topic_filter: str, entry: Entry) -> bool:
        """True: it is new."""
        if topic_filter in self.inactive and session.role.is_movable:
            return self.inactive.add(session, topic_filter)
        if self.rests_quiet and self._may_rest(session, topic_filter):
            return self.resting.add(session, topic_filter, entry.since)
        self.wake(topic_filter)
        known = self._entries.replace(topic_filter, session, entry)
        if known is not None:
            entry.since = min(known.since, entry.since)
        return known is None

    def _may_rest(self, session: Session, topic_filter: str) -> bool:
        if is_wildcard(topic_filter) or not session.role.is_movable:
            return False
        return not self._entries.at(topic_filter) and self.resting.has_room(topic_filter)

    def wake(self, topic_filter: str) -> None:
        """There is an event for it, or whoever subscribes to it can not rest."""
        if self.rests_quiet and topic_filter in self.resting:
            self.local.wake(topic_filter)
            for session, since in self.resting.take(topic_filter):
                self._entries.replace(topic_filter, session, _entry(session, topic_filter, since))

    def remove(self, session: Session, topic_filter: str) -> None:
        name, topic_filter = split_shared(topic_filter)
        if name is None:
            was_active = self._entries.remove(topic_filter, session) is not None
            was_packed = not was_active and self._resting_in(topic_filter).discard(session, topic_filter)
            if was_active or was_packed:
                self._interest_of(session).shrink(topic_filter)
                self._rest_interest(topic_filter)
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

    def add_port(self, port: Listener, topic_filter: str) -> None:
        if self._ports.set(topic_filter, port, None):
            self.local.grow(topic_filter)
            tell(self.watcher, None, topic_filter, OTHERS_QOS)
        self.forget_routes(topic_filter)

    def remove_port(self, port: Listener, topic_filter: str) -> None:
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
        is_active = self._entries.get(topic_filter, session) is not None
        return is_active or self._resting_in(topic_filter).holds(session, topic_filter)

    def _resting_in(self, topic_filter: str) -> Withheld | Resting:
        return self.resting if self.rests_quiet and topic_filter in self.resting else self.inactive

    def _rest_interest(self, topic_filter: str) -> None:
        if topic_filter in self.inactive or (self.rests_quiet and topic_filter in self.resting):
            self.local.rest(topic_filter)

    def set_active(self, topic_filter: str, is_active: bool) -> None:
        """This broker matches what is published for a filter, or another one does: then nothing is in the
        tree but whose sessions are never served elsewhere."""
        if (topic_filter in self.inactive) != is_active:
            return
        if is_active:
            self.local.wake(topic_filter)
            for session in self.inactive.end(topic_filter):
                self._put(session, topic_filter, _entry(session, topic_filter))
            self._rest_interest(topic_filter)
        elif self.rests_quiet and topic_filter in self.resting:
            self.inactive.begin(topic_filter, [session for session, _ in self.resting.take(topic_filter)])
        else:
            movable = [each for each in self._entries.at(topic_filter) if each.role.is_movable]
            for session in movable:
                self._entries.remove(topic_filter, session)
            self.inactive.begin(topic_filter, movable)
            self.local.rest(topic_filter)
        self.forget_routes(topic_filter)

    def add_observer(self, observer: Observer) -> None:
        self.observers.append(observer)
        self.forget_all_routes()

    def _interest_of(self, session: Session) -> Interest:
        return self.local if session.role.is_interest_here else self.beyond

    def shift_interest(self, session: Session, topic_filter: str, role: Role) -> None:
        """The session, which holds this filter, is about to get another role."""
        self.wake(topic_filter)
        if topic_filter in self.inactive:
            # In the tree or out of it: only those of movable clients are withheld.
            if role.is_movable and self._entries.remove(topic_filter, session) is not None:
                self.inactive.add(session, topic_filter)
            elif not role.is_movable and self.inactive.discard(session, topic_filter):
                self._entries.replace(topic_filter, session, _entry(session, topic_filter))
        before, after = session.role.is_interest_here, role.is_interest_here
        if before != after:
            (self.local if before else self.beyond).shrink(topic_filter)
            (self.local if after else self.beyond).grow(topic_filter)

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

    def route(self, topic: str, even_nobody: bool = True) -> Route:
        """`even_nobody`: it is remembered, whether or not anybody gets the topic."""
        route = self._routes.get(topic)
        if route is None:
            route = self._build(topic)
            if len(topic) > MAX_ROUTE_TOPIC or not (even_nobody or route.is_wanted):
                route.stale = True  # good for this one message
                return route
            if len(self._routes) >= MAX_ROUTES or self._cached_recipients >= MAX_CACHED_RECIPIENTS:
                self.forget_all_routes()
            self._routes[topic] = route
            self._cached_recipients += len(route.recipients) + len(route.elsewhere) + len(route.groups)
        return route

    def _build(self, topic: str) -> Route:
        ports: tuple[Listener, ...] = ()
        if self._ports:
            ports = tuple(dict.fromkeys(port for port, _ in self._ports.match(topic)))
        if topic in self.private:  # Not for observers either: a command may hold a password.
            return Route(topic, (), (), ports, self._interned)
        self.wake(topic)
        by_session: dict[Session, list[Entry]] = {}
        for session, entry in self._entries.match(topic):
            by_session.setdefault(session, []).append(entry)
        recipients: Sequence[Recipient] = ()
        elsewhere: Sequence[Recipient] = ()
        inactive = self.inactive.match(topic)
        if by_session:
            found = [
                with_withheld(Recipient(session, entries), inactive)
                for session, entries in by_session.items()
                if session.may_read(self.access, topic)
            ]
            recipients, elsewhere = sort_out(found)
        groups = tuple(group for _, group in self._groups.match(topic)) if self._groups else ()
        # Most of a hundred thousand topics may have nobody: those have no list of their own.
        return Route(
            topic,
            recipients or (),
            groups,
            ports,
            self._interned,
            elsewhere or (),
            self.observers,
            inactive,
        )


def _entry(session: Session, topic_filter: str, since: float = ALWAYS) -> Entry:
    """A session that is being taken apart has no record of it. It gets nothing any more, and has yet to be
    taken out."""
    known = entry_of(session, topic_filter, since)
    return known or Entry(session, topic_filter, Subscription(topic_filter), None, since)
