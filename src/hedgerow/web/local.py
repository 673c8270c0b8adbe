"""What only this node knows, for one viewer: clients, subscriptions, retained values, its own events.

A viewer sees the clients of others, and what they subscribe to, only as an administrator or where the node
has no users; its own it always sees. Topics and filters it sees only if it may read them. There are no
passwords among what is shown: a session has none.

A node may have 100,000 sessions: they are looked through by scans (`scan.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from hedgerow.broker.session import Session
from hedgerow.errors import TopicError
from hedgerow.message import Message
from hedgerow.mqtt.packets import MQTT_3_1, MQTT_3_1_1, MQTT_5, MQTT_EXTENDED
from hedgerow.node.backlog_watch import BacklogWatch
from hedgerow.node.backlogs import ReaderFigures
from hedgerow.node.status import status_topic
from hedgerow.topics import is_wildcard, matches, split_shared, validate_filter
from hedgerow.web.fabric import StatusEvent
from hedgerow.web.scan import Scan
from hedgerow.web.view import MAX_ROWS, MAX_SEARCH, ClientRow, RetainedRow, SubscriptionRow, Viewer

if TYPE_CHECKING:
    from hedgerow.node.part import NodeContext

FILTERS_AT_ONCE = 10  # of one session, which may have 10,000

PROTOCOLS = {
    MQTT_3_1: "MQTT 3.1",
    MQTT_3_1_1: "MQTT 3.1.1",
    MQTT_5: "MQTT 5",
    MQTT_EXTENDED: "MQTT, renewals",
}

SomeFilters = tuple[Session, list[str]]


class LocalRows:
    """A `view.Local`. What `prepare` looked for is ready; what it did not is looked for in one slice."""

    def __init__(self, node: NodeContext, viewer: Viewer) -> None:
        self._node = node
        self._viewer = viewer
        self._now = node.clock()
        self._clients: dict[tuple[str, int], Scan[Session, Session]] = {}
        self._subscriptions: dict[tuple[str, int], Scan[SomeFilters, SubscriptionRow]] = {}
        self._retained: dict[tuple[str, int], Scan[Message, Message]] = {}

    async def prepare_clients(self, search: str, limit: int = MAX_ROWS) -> None:
        await self._scan_clients(search, limit).run_in_turns()
        await self.scan_subscriptions(search, limit).run_in_turns()

    async def prepare_retained(self, topic_filter: str, limit: int = MAX_ROWS) -> None:
        await self._scan_retained(topic_filter, limit).run_in_turns()

    # What pages ask for

    def clients(self, search: str, limit: int) -> tuple[Sequence[ClientRow], int]:
        scan = self._scan_clients(search, limit)
        return sorted(map(_client_row, scan.begun().first), key=lambda row: row.client_id), scan.total

    def subscriptions(self, search: str, limit: int) -> tuple[Sequence[SubscriptionRow], int]:
        scan = self.scan_subscriptions(search, limit)
        return sorted(scan.begun().first, key=lambda row: (row.filter, row.client_id)), scan.total

    def retained(self, topic_filter: str, limit: int) -> tuple[Sequence[RetainedRow], int]:
        scan = self._scan_retained(topic_filter, limit)
        return sorted(map(self._retained_row, scan.begun().first), key=lambda row: row.topic), scan.total

    def events(self, limit: int) -> Sequence[StatusEvent]:
        """Newest first, as whoever may read this node's status may see them."""
        node = self._node
        if not self._viewer.may_read(status_topic(node.node_id)):
            return ()
        history = node.event_log.history
        newest = history.newest(self._now, limit, with_clients=self._viewer.sees_clients)
        return [StatusEvent(each.number, each.at, each.kind, each.text) for each in newest]

    def backlogs(self) -> Sequence[ReaderFigures]:
        watch, viewer = self._node.find(BacklogWatch), self._viewer
        if watch is None or watch.backlogs is None:
            return ()
        return [
            each
            for each in watch.backlogs.largest
            if viewer.sees_clients or (viewer.user is not None and each.reader.user == viewer.user)
        ]

    # How they are found

    def _scan_clients(self, search: str, limit: int) -> Scan[Session, Session]:
        scan = self._clients.get((search, limit))
        if scan is None:
            wanted = search.casefold()[:MAX_SEARCH]
            scan = Scan(self.sessions(), lambda session: self.find_client(session, wanted), limit)
            self._clients[search, limit] = scan
        return scan

    def scan_subscriptions(self, search: str, limit: int) -> Scan[SomeFilters, SubscriptionRow]:
        scan = self._subscriptions.get((search, limit))
        if scan is None:
            wanted = search.casefold()[:MAX_SEARCH]
            some = self.some_filters()
            scan = Scan(some, lambda each: self.find_subscriptions(*each, wanted), limit)
            self._subscriptions[search, limit] = scan
        return scan

    def _scan_retained(self, topic_filter: str, limit: int) -> Scan[Message, Message]:
        scan = self._retained.get((topic_filter, limit))
        if scan is None:
            is_wanted = topic_test(topic_filter)
            values = list(self._node.broker.retained)
            scan = Scan(values, lambda message: self.find_retained(message, is_wanted), limit)
            self._retained[topic_filter, limit] = scan
        return scan

    def sessions(self) -> list[Session]:
        return list(self._node.broker.sessions.values())

    def _is_own(self, session: Session) -> bool:
        return self._viewer.user is not None and session.username == self._viewer.user

    # Asked of each of very many: what rules most of them out comes first.

    def find_client(self, session: Session, wanted: str) -> tuple[Session, ...]:
        if wanted and wanted not in session.client_id.casefold():
            address = session.connection.address if session.connection is not None else ""
            if wanted not in address and wanted not in (session.username or "").casefold():
                return ()
        is_seen = self._viewer.sees_clients or self._is_own(session)
        return (session,) if is_seen and not session.role.is_link else ()

    def some_filters(self) -> Iterator[SomeFilters]:
        """A few of each session at a time."""
        for session in self.sessions():
            is_seen = not session.role.is_link and (self._viewer.sees_clients or self._is_own(session))
            filters = list(session.subscriptions or ()) if is_seen else []
            yield session, filters[:FILTERS_AT_ONCE]
            for position in range(FILTERS_AT_ONCE, len(filters), FILTERS_AT_ONCE):
                yield session, filters[position : position + FILTERS_AT_ONCE]

    def find_subscriptions(
        self, session: Session, filters: list[str], wanted: str
    ) -> Sequence[SubscriptionRow]:
        if not filters:
            return ()
        is_own, client_id = self._is_own(session), session.client_id
        is_named = wanted in client_id.casefold()
        rows: list[SubscriptionRow] = []
        for full in filters:
            if is_named or wanted in full.casefold():
                name, topic_filter = split_shared(full)
                record = (session.subscriptions or {}).get(full)  # It may have been ended meanwhile.
                if record is not None and (is_own or self._viewer.may_read(topic_filter)):
                    rows.append(SubscriptionRow(client_id, topic_filter, record.subscription.qos, name or ""))
        return rows

    def find_retained(self, message: Message, is_wanted: Callable[[str], bool]) -> tuple[Message, ...]:
        is_over = message.expires_at is not None and message.expires_at <= self._now
        topic = message.topic
        return (message,) if not is_over and is_wanted(topic) and self._viewer.may_read(topic) else ()

    def _retained_row(self, message: Message) -> RetainedRow:
        age_s = None if message.published_at is None else max(self._now - message.published_at, 0.0)
        return RetainedRow(message.topic, message.payload, message.qos, age_s)


def _client_row(session: Session) -> ClientRow:
    connection = session.connection
    return ClientRow(
        session.client_id,
        session.username,
        connection.address if connection is not None else "",
        PROTOCOLS.get(session.protocol_version, ""),
        connection.transport if connection is not None else "",
        connection is not None,
        len(session.subscriptions or ()),
        session.waiting_count,
        connection.opened_at if connection is not None else None,
    )


def topic_test(text: str) -> Callable[[str], bool]:
    """Which topics somebody means: those that a filter matches, or that contain the text in any case."""
    text = text.strip()[:MAX_SEARCH]
    wanted = text.casefold()
    if not is_wildcard(text):
        return lambda topic: wanted in topic.casefold()
    try:
        validate_filter(text)
    except TopicError:
        return lambda topic: False
    if text == "#":
        return lambda topic: topic[:1] != "$"
    return lambda topic: matches(text, topic)
