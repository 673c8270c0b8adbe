"""Which filters the clients of a stock Mosquitto have subscribed to, read from the log that it publishes.

With `log_dest topic` and `log_type subscribe`, `unsubscribe` and `notice` the broker publishes a line for
each subscription, connection and disconnection (`TOPICS`). `SubscriptionLog` is given these lines and tells
when the first client of a filter has come and the last one has gone. The first line after our own SUBSCRIBE
is our own: it shows what stands before each line (Unix time, a format of the administrator's, nothing), and
that the broker does publish its log. Until then `is_live` is False.

Federators are clients too. Their subscriptions, and those to local topics, are known of and are no interest
of anybody: `known` is to be compared with what the broker counts.

Client ids and filters are free text and may hold blanks, so a line can have several readings. The one that
names a client we know of counts, and among several of those the one with the longest name, since a filter
seldom holds a blank. An unsubscription with several readings takes nothing away: to hear too much loses no
message. So a name that imitates the log's words takes nothing from another client, unless that one has
filters such as `a 0 b`.

What the log does not say:

- The flag c of a connection is Clean Start. With MQTT 5 the session's expiry is another matter, which no
  line tells. With c0 the subscriptions stay until the broker says that the session expired. With c1 they
  stay for `uncertain_s` and are remembered after that, since many clients clean up at their first
  connection only, and return with c0 to a session that still has them.
- Lines are cut at 999 bytes. Such a line is not used: what it was cut to could be another's name.
- Clients on WebSocket leave without a line (2.0.11).
- What the broker's own bridges take out of it.
- What was subscribed before we came: `counted` is to be compared with what the broker counts. Lines that
  waited for us in a session from an earlier life are read once our own has come.
- When the session of a client ends that left and may have one: `counted` gives both bounds.
- Which kinds of lines the broker publishes at all: `unheard` names those of which none has come yet. The
  federator sees to it that there is one of each (`log_probe.py`).
- After a restart of the broker, who was back before us. So whoever was there before the last connection and
  has not been heard since is in doubt, and not forgotten until someone knows better.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum

from hedgerow.errors import TopicError
from hedgerow.federation.interests.log_lines import (
    CUT_LINE_BYTES,
    MAX_TIMESTAMP,
    NOTICE_TOPIC,
    SUBSCRIBE_TOPIC,
    TOPICS,
    UNSUBSCRIBE_TOPIC,
    ConnectionNotice,
    Departed,
    read_notice,
    read_subscription,
    read_unsubscription,
    timestamp_like,
)
from hedgerow.federation.interests.regular import regular_filter

MAX_CLIENTS = 20_000
MAX_SUBSCRIPTIONS = 100_000  # of clients; and of federators, who must not take the place of clients, as many
# One client that subscribes to everything one by one is not all of them.
MAX_SUBSCRIPTIONS_PER_CLIENT = 10_000
MAX_EARLY_LINES = 500  # Mosquitto keeps 1,000 messages for a client, unless it is told otherwise.

SHARED = "$share/"
LEAVING_TOPICS = (UNSUBSCRIBE_TOPIC, NOTICE_TOPIC)
NOBODY = "<unknown>"  # how the broker calls whoever did not get as far as to have an id


class AtDeparture(Enum):
    """What becomes of a client's subscriptions when it disconnects."""

    END = "end"
    STAY = "stay"
    UNCERTAIN = "uncertain"


class _Client:
    __slots__ = (
        "at_departure",
        "connection",
        "filters",
        "has_left",
        "is_asleep",
        "is_own",
        "keeps",
        "shared",
    )

    def __init__(self, at_departure: AtDeparture, connection: int, is_own: bool) -> None:
        self.at_departure = at_departure
        self.connection = connection
        """The one of ours on which it was last heard of."""
        self.is_own = is_own
        self.filters: dict[str, str | None] = {}  # as subscribed → what is of interest
        self.shared = 0
        """How many of them are shared, which the broker counts by themselves."""
        self.keeps = False
        """Its session surely outlives its connection."""
        self.has_left = False
        self.is_asleep = False
        """Its subscriptions are remembered, and do not count."""


@dataclass(slots=True)
class SubscriptionLogStats:
    lines: int = 0
    notices: int = 0
    """Lines about connections. None at all: the broker lacks `log_type notice` or `connection_messages`."""
    early: int = 0
    """Before our own subscription was seen, and not read later."""
    cut: int = 0
    unreadable: int = 0
    ambiguous: int = 0
    """Unsubscriptions with several readings: nothing was taken away."""
    overflowed: int = 0
    """Clients and subscriptions beyond the bounds."""


class SubscriptionLog:
    def __init__(
        self,
        client_id: str,
        own_prefix: str | None = None,
        *,
        own_filters: Collection[str] = (),
        uncertain_s: float = 60.0,
        max_clients: int = MAX_CLIENTS,
        max_subscriptions: int = MAX_SUBSCRIPTIONS,
        max_subscriptions_per_client: int = MAX_SUBSCRIPTIONS_PER_CLIENT,
    ) -> None:
        """`client_id` reads the log. It, and ids that begin with `own_prefix`, are federators'.
        It is subscribed to `own_filters` before it is to the log, so that no line tells of them."""
        self.stats = SubscriptionLogStats()
        self.known = 0
        """Subscriptions of anyone, as Mosquitto counts them: shared ones are not among them."""
        self._client_id = client_id
        self._own_line = re.compile(
            rf"(?P<timestamp>.*){re.escape(client_id)} [012] {re.escape(SUBSCRIBE_TOPIC)}", re.DOTALL
        )
        self._own_filters = own_filters
        self._own_prefix = client_id if own_prefix is None else own_prefix
        self._uncertain_s = uncertain_s
        self._max_clients = max_clients
        self._max_subscriptions = max_subscriptions
        self._max_subscriptions_per_client = max_subscriptions_per_client
        self._timestamp: re.Pattern[str] | None = None
        self._is_live = False
        self._connection = 0
        self._clients: dict[str, _Client] = {}
        self._asleep: dict[str, None] = {}
        self._sleep_at: dict[str, float] = {}  # in the order of time, since all wait equally long
        self._subscriptions = {False: 0, True: 0}  # is it a federator's?
        self._counts: dict[str, int] = {}  # filter → subscriptions that count
        self._told: set[str] = set()
        self._changed: dict[str, None] = {}
        self.has_missed = False
        """Lines that waited for us, since they were too many."""
        self._early: list[tuple[str, str]] = []
        self._keeps_early = False
        self._heard: set[str] = set()  # topics, on this connection

    @property
    def is_live(self) -> bool:
        """Has the broker published our own subscription, on this connection?"""
        return self._is_live

    @property
    def filters(self) -> set[str]:
        return set(self._counts)

    def __contains__(self, topic_filter: str) -> bool:
        return topic_filter in self._counts

    @property
    def deadline(self) -> float:
        return next(iter(self._sleep_at.values()), float("inf"))

    def connected(self, *, is_new_session: bool) -> None:
        """Our client has a new connection, and is about to subscribe to `TOPICS`.

        A session that was kept brings lines from before that, which begin as those did that we know.
        """
        self._is_live = False
        self._heard.clear()
        self._connection += 1
        self._early.clear()
        self.has_missed = False
        if is_new_session:
            self._timestamp = None
            self._forget(self._client_id)
        self._keeps_early = not is_new_session and self._timestamp is None

    @property
    def unheard(self) -> tuple[str, ...]:
        """`TOPICS` on which nothing has come on this connection that tells of clients who leave something.
        While there are any, what has been left may be known still."""
        return tuple(topic for topic in LEAVING_TOPICS if topic not in self._heard)

    def counted(self, *, shared: bool) -> tuple[int, int]:
        """How many of the subscriptions that we know of the broker still counts: at least, at most."""
        at_least = at_most = 0
        for client in self._clients.values():
            size = client.shared if shared else len(client.filters) - client.shared
            at_most += size
            if not client.has_left or client.keeps:
                at_least += size
        return at_least, at_most

    def in_doubt(self, *, with_sessions: bool) -> list[str]:
        """Clients not heard of on this connection, if the broker restarted before it.

        Those whose session ends with their connection; `with_sessions`: all, the broker has kept none.
        """
        return [
            client_id
            for client_id, client in self._clients.items()
            if client.connection != self._connection
            and (with_sessions or client.at_departure is not AtDeparture.STAY)
        ]

    def count_of(self, client_ids: Iterable[str]) -> int:
        """How many of `known` are theirs."""
        clients = [self._clients[client_id] for client_id in client_ids]
        return sum(
            not topic_filter.startswith(SHARED)
            for client in clients
            if not client.is_asleep
            for topic_filter in client.filters
        )

    def forget(self, client_ids: Iterable[str]) -> None:
        for client_id in client_ids:
            self._forget(client_id)

    def note(self, client_id: str, topic_filters: Iterable[str]) -> None:
        """Subscriptions of a federator of which somebody else tells, since no line may have."""
        for topic_filter in topic_filters:
            self._add(client_id, topic_filter)

    def receive(self, topic: str, payload: bytes, now: float) -> None:
        """One publication on one of `TOPICS`."""
        if topic not in TOPICS:
            return
        self.stats.lines += 1
        if len(payload) >= CUT_LINE_BYTES:
            self.stats.cut += 1
            return
        try:
            line = payload.decode()
        except UnicodeDecodeError:
            self.stats.unreadable += 1
            return
        if not self._is_live and topic == SUBSCRIBE_TOPIC:
            self._look_for_own(line)
            if self._is_live:
                self._begin(now)
        if self._timestamp is None:
            self._note_early(topic, line)
        else:
            self._read(self._timestamp, topic, line, now)

    def _begin(self, now: float) -> None:
        early, self._early = self._early, []
        assert self._timestamp is not None
        for topic, line in early:
            self._read(self._timestamp, topic, line, now)
        self._heard.clear()  # The broker may have been configured anew since those lines.
        for topic_filter in self._own_filters:
            self._add(self._client_id, topic_filter)

    def _note_early(self, topic: str, line: str) -> None:
        if self._keeps_early and len(self._early) < MAX_EARLY_LINES:
            self._early.append((topic, line))
        else:
            self.stats.early += 1
            self.has_missed = self._keeps_early

    def _read(self, like: re.Pattern[str], topic: str, line: str, now: float) -> None:
        timestamp = like.match(line)
        if timestamp is None:
            self.stats.unreadable += 1
            return
        body = line[timestamp.end() :]
        if topic == NOTICE_TOPIC:
            self._handle_notice(body, now)
        elif topic == SUBSCRIBE_TOPIC:
            self._handle_subscribe(body)
        else:
            self._heard.add(topic)
            self._handle_unsubscribe(body)

    def handle_timer(self, now: float) -> None:
        while self.deadline <= now:
            client_id = next(iter(self._sleep_at))
            del self._sleep_at[client_id]
            client = self._clients[client_id]
            client.is_asleep = True
            self._asleep[client_id] = None
            self._count_all(client, -1)

    def take_changes(self) -> list[tuple[str, bool]]:
        """(filter, has it subscribers now), for each that changed since this was last called."""
        changes = []
        for topic_filter in self._changed:
            is_wanted = topic_filter in self._counts
            if is_wanted != (topic_filter in self._told):
                changes.append((topic_filter, is_wanted))
                (self._told.add if is_wanted else self._told.remove)(topic_filter)
        self._changed.clear()
        return changes

    def _look_for_own(self, line: str) -> None:
        own = self._own_line.fullmatch(line)
        if own is None or len(own["timestamp"]) > MAX_TIMESTAMP:
            return
        if self._timestamp is not None and (known := self._timestamp.match(line)):
            # Lines of others may come first in a session that was kept. One whose name ends as ours teaches
            # nothing.
            self._is_live = known.end() == own.end("timestamp")
            return
        self._timestamp = timestamp_like(own["timestamp"])
        self._is_live = True

    def _handle_subscribe(self, body: str) -> None:
        readings = read_subscription(body)
        if not readings:
            self.stats.unreadable += 1
            return
        # Whom no reading names connected before we came. The last reading has the longest name.
        known = [reading for reading in readings if reading[0] in self._clients]
        self._add(*(known or readings)[-1])

    def _handle_unsubscribe(self, body: str) -> None:
        readings = [
            (client, topic_filter)
            for client_id, topic_filter in read_unsubscription(body)
            if (client := self._clients.get(client_id)) is not None and topic_filter in client.filters
        ]
        if len(readings) > 1:
            self.stats.ambiguous += 1
            return
        for client, topic_filter in readings:
            self._subscriptions[client.is_own] -= 1
            interest = client.filters.pop(topic_filter)
            client.shared -= topic_filter.startswith(SHARED)
            if not client.is_asleep:
                self._count(topic_filter, interest, -1)

    def _handle_notice(self, body: str, now: float) -> None:
        notice = read_notice(body)
        if notice is None:
            return
        self.stats.notices += 1
        if isinstance(notice, ConnectionNotice):
            self._handle_connected(notice)
        elif isinstance(notice, Departed):
            self._heard.add(NOTICE_TOPIC)
            self._handle_departure(notice.client_id, now)
        else:
            self._forget(notice.client_id)

    def _handle_connected(self, notice: ConnectionNotice) -> None:
        client_id, is_mqtt_5, is_clean = notice
        if client_id == NOBODY:
            return
        old = self._clients.get(client_id)
        if old is not None and (is_clean or old.at_departure is AtDeparture.END):
            self._forget(client_id)
        client = self._client(client_id)
        if client is None:
            return
        client.connection = self._connection
        client.has_left = False
        # With MQTT 5 it depends on the session's expiry, which no line tells.
        client.keeps = not is_mqtt_5 and not is_clean
        self._sleep_at.pop(client_id, None)
        if client.is_asleep:
            client.is_asleep = False
            del self._asleep[client_id]
            self._count_all(client, +1)
        if not is_clean:
            client.at_departure = AtDeparture.STAY
        else:
            client.at_departure = AtDeparture.UNCERTAIN if is_mqtt_5 else AtDeparture.END

    def _handle_departure(self, client_id: str, now: float) -> None:
        client = self._clients.get(client_id)
        if client is None or client.is_asleep:
            return
        client.has_left = True
        if client.at_departure is AtDeparture.END or not client.filters:
            self._forget(client_id)
        elif client.at_departure is AtDeparture.UNCERTAIN:
            self._sleep_at.setdefault(client_id, now + self._uncertain_s)

    def _client(self, client_id: str) -> _Client | None:
        """The client's record, a new one if need be; None when there is no room."""
        client = self._clients.get(client_id)
        if client is not None:
            return client
        if len(self._clients) >= self._max_clients:
            if not self._asleep:
                self.stats.overflowed += 1
                return None
            self._forget(next(iter(self._asleep)))
        # Until its connection is seen nothing tells, and to stay is what loses no message.
        client = self._clients[client_id] = _Client(
            AtDeparture.STAY, self._connection, is_own=self._is_own(client_id)
        )
        return client

    def _is_own(self, client_id: str) -> bool:
        return client_id == self._client_id or client_id.startswith(self._own_prefix)

    def _add(self, client_id: str, topic_filter: str) -> None:
        try:
            interest = regular_filter(topic_filter)
        except TopicError:
            self.stats.unreadable += 1
            return
        client = self._client(client_id)
        if client is None:
            return
        client.connection = self._connection
        client.has_left = False
        if topic_filter in client.filters:
            return
        is_greedy = not client.is_own and len(client.filters) >= self._max_subscriptions_per_client
        if is_greedy or self._subscriptions[client.is_own] >= self._max_subscriptions:
            self.stats.overflowed += 1
            return
        client.filters[topic_filter] = interest = None if client.is_own else interest
        client.shared += topic_filter.startswith(SHARED)
        self._subscriptions[client.is_own] += 1
        if not client.is_asleep:
            self._count(topic_filter, interest, +1)

    def _forget(self, client_id: str) -> None:
        client = self._clients.pop(client_id, None)
        if client is None:
            return
        self._asleep.pop(client_id, None)
        self._sleep_at.pop(client_id, None)
        self._subscriptions[client.is_own] -= len(client.filters)
        if not client.is_asleep:
            self._count_all(client, -1)

    def _count_all(self, client: _Client, change: int) -> None:
        for topic_filter, interest in client.filters.items():
            self._count(topic_filter, interest, change)

    def _count(self, topic_filter: str, interest: str | None, change: int) -> None:
        if not topic_filter.startswith(SHARED):
            self.known += change
        if interest is None:
            return
        count = self._counts.get(interest, 0) + change
        if count:
            self._counts[interest] = count
        else:
            del self._counts[interest]
        self._changed[interest] = None
