"""Who subscribes at a mobile broker, as its machine knows them: by callbacks.

A client's session has a callback of its own. Parts of this node, shared subscriptions, and clients whose ids
are too long for a callback have one together (`own`), and their filters are never delegated: a fixed broker
cannot notify them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from hedgerow.broker.broker import Broker
from hedgerow.broker.routes import Route
from hedgerow.broker.session import Publisher, Session
from hedgerow.mobility.delegation import addresses
from hedgerow.mobility.delegation.mobile import MobileSide
from hedgerow.mobility.delegation.notifier import Matched
from hedgerow.mobility.delegation.publications import PLAN_PREFIX
from hedgerow.mobility.hot_filters import HotFilters

NODE_CLIENT = "hedgerow-node"  # in whose name bridges, ports and shared subscriptions of this node are told
MAX_MATCHED = 4_096  # routes whose callbacks are remembered


class Subscribers:
    """`ended` is called with a topic filter that has no subscriber any more."""

    def __init__(
        self, broker: Broker, machine: MobileSide, filters: HotFilters, ended: Callable[[str], None]
    ) -> None:
        self.own = addresses.of_client(NODE_CLIENT, broker.node_id)
        self._broker = broker
        self._machine = machine
        self._filters = filters
        self._ended = ended
        self._own_filters: Counter[str] = Counter()
        self._clients: dict[str, str] = {}  # callback → client id
        self._matched: dict[str, tuple[Route, Matched]] = {}
        self._generation = -1

    def callback_of(self, session: Session) -> str:
        return addresses.of_client(session.client_id, self._broker.node_id)

    def client_id_of(self, callback: str) -> str:
        """Empty if it is none of these."""
        return self._clients.get(callback, "")

    def session_of(self, callback: str) -> Session | None:
        return self._broker.sessions.get(self.client_id_of(callback))

    def is_known(self, session: Session) -> bool:
        return self.callback_of(session) in self._clients

    def note(self, session: Session | None, topic_filter: str, qos: int | None) -> None:
        """As a `Watcher` of the broker's subscriptions."""
        if topic_filter.startswith("$") and topic_filter != PLAN_PREFIX + self._broker.node_id:
            return  # Each broker's own.
        callback = self.callback_of(session) if session is not None else self.own
        if session is None or not _is_nameable(callback) or callback == self.own:
            self._note_own(topic_filter, qos is not None)
            return
        if qos is None:
            self._unsubscribe(callback, topic_filter)
        else:
            self._clients[callback] = session.client_id
            self._subscribe(callback, topic_filter, qos)

    def _note_own(self, topic_filter: str, is_wanted: bool) -> None:
        self._own_filters[topic_filter] += 1 if is_wanted else -1
        count = self._own_filters[topic_filter]
        if is_wanted and count == 1:
            self._subscribe(self.own, topic_filter, 2)
            self._filters.pin(topic_filter, True)
        elif not count:
            del self._own_filters[topic_filter]
            self._filters.pin(topic_filter, False)
            self._unsubscribe(self.own, topic_filter)

    def _subscribe(self, callback: str, topic_filter: str, qos: int) -> None:
        is_new = self._machine.registries.get(topic_filter) is None
        self._machine.subscribe(callback, topic_filter, qos, self._broker.now)
        if is_new:
            self._filters.add(topic_filter)

    def _unsubscribe(self, callback: str, topic_filter: str) -> None:
        self._machine.unsubscribe(callback, topic_filter, self._broker.now)
        if self._machine.registries.get(topic_filter) is None:
            self._filters.remove(topic_filter)
            self._ended(topic_filter)
        if not self._machine.registries.knows(callback):
            self._clients.pop(callback, None)

    def matched_on(self, route: Route, publisher: Publisher | None) -> Matched:
        """Whom the broker notifies of what takes this route, and who is at the fixed broker."""
        matched = self._matched_on(route)
        if route.inactive and isinstance(publisher, Session) and publisher.role.is_movable:
            held = publisher.subscriptions or {}
            own = [held[each].subscription.no_local for each in route.inactive if each in held]
            name = self.callback_of(publisher)
            if own and all(own) and name not in matched.here:
                # It asked not to get its own, and the fixed broker cannot know whose this is.
                matched = matched._replace(here=matched.here | {name}, served=(*matched.served, name))
        return matched

    def forget_changed(self) -> None:
        """What routes gave, if that may be another now."""
        if self._generation != self._machine.generation:
            self._matched.clear()
            self._generation = self._machine.generation

    def _matched_on(self, route: Route) -> Matched:
        self.forget_changed()
        if len(self._matched) >= MAX_MATCHED:
            self._matched.clear()
        known = self._matched.get(route.topic)
        if known is not None and known[0] is route and not route.stale:
            return known[1]
        here = [self.callback_of(each.session) for each in route.recipients if self.is_known(each.session)]
        there = {self.callback_of(each.session): each.qos for each in route.elsewhere}
        matched = self._machine.matched(route.topic, [*here, self.own], there)
        self._matched[route.topic] = route, matched
        return matched


def _is_nameable(callback: str) -> bool:
    try:
        addresses.validate(callback)
    except addresses.CallbackError:
        return False
    return True
