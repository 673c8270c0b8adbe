"""Which filters the clients of a stock Mosquitto have subscribed to, read from the log that it publishes.

With `log_dest topic` and `log_type subscribe`, `unsubscribe` and `notice` the broker publishes a line for
each subscription, connection and disconnection (`TOPICS`). `SubscriptionLog` is given these lines and tells
when the first client of a filter has come and the last one has gone. The first line after our own SUBSCRIBE
is our own: it shows what stands before each line (Unix time, a format of the administrator's, nothing), and
that the broker does publish its log. Until then `is_live` is False.

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
- What was subscribed before we came.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from hedgerow.errors import TopicError
from hedgerow.topics import split_shared, validate_filter

SUBSCRIBE_TOPIC = "$SYS/broker/log/M/subscribe"
UNSUBSCRIBE_TOPIC = "$SYS/broker/log/M/unsubscribe"
NOTICE_TOPIC = "$SYS/broker/log/N"
TOPICS = (SUBSCRIBE_TOPIC, UNSUBSCRIBE_TOPIC, NOTICE_TOPIC)
"""In the order in which to subscribe to them: our own line comes on the first."""

CUT_LINE_BYTES = 999
MAX_TIMESTAMP = 64  # characters; a format of the administrator's

MAX_CLIENTS = 20_000
MAX_SUBSCRIPTIONS = 100_000
MAX_SUBSCRIPTIONS_PER_CLIENT = (
    10_000  # One client that subscribes to everything one by one is not all of them.
)

# A refused CONNECT may leave ", not authorised." with the id of a client that is still there.
DEPARTURES = (
    " disconnected.",
    " closed its connection.",
    " has exceeded timeout, disconnecting.",
    " disconnected due to malformed packet.",
    " disconnected due to protocol error.",
    " disconnected due to oversize packet.",
    " disconnected due to oversize payload.",
    " disconnected due to out of memory.",
    " disconnected due to QoS too high or retain not supported.",
    " disconnected due to using not allowed feature"
    " (QoS too high, retain not supported, or bad AUTH method).",
    " been disconnected by administrative action.",
)
NOBODY = "<unknown>"  # how the broker calls whoever did not get as far as to have an id

# The last "(p…)" is the broker's own: greedy, so that one inside of the id stays there.
_CONNECTED = re.compile(
    r"New (?:client|bridge) connected from \S*:\d+ as (?P<client_id>.*)"
    r" \(p(?P<protocol>\d+), c(?P<clean>[01]), k\d+(?:, u'.*')?\)\.",
    re.DOTALL,
)
_QOS = re.compile(r"(?= [012] )")  # of no width: in "a 0 1 b" there are two places
_MQTT_5 = "5"
_SAME_KIND = re.compile(r"\s+|\d+|[^\W\d_]+|.", re.DOTALL)


class AtDeparture(Enum):
    """What becomes of a client's subscriptions when it disconnects."""

    END = "end"
    STAY = "stay"
    UNCERTAIN = "uncertain"


class _Client:
    __slots__ = ("at_departure", "filters", "is_asleep")

    def __init__(self, at_departure: AtDeparture) -> None:
        self.at_departure = at_departure
        self.filters: dict[str, str] = {}  # as subscribed, with $share → without
        self.is_asleep = False
        """Its subscriptions are remembered, and do not count."""


@dataclass(slots=True)
class SubscriptionLogStats:
    lines: int = 0
    notices: int = 0
    """Lines about connections. None at all: the broker lacks `log_type notice` or `connection_messages`."""
    early: int = 0
    """Before our own subscription was seen."""
    cut: int = 0
    unreadable: int = 0
    ambiguous: int = 0
    """Unsubscriptions with several readings: nothing was taken away."""
    overflowed: int = 0
    """Clients and subscriptions beyond the bounds."""


class SubscriptionLog:
    def __init__(self, client_id: str, own_prefix: str | None = None, *, uncertain_s: float = 60.0) -> None:
        """`client_id` reads the log. Ids that begin with `own_prefix` are ours, and not looked at."""
        self.stats = SubscriptionLogStats()
        self._own_line = re.compile(
            rf"(?P<timestamp>.*){re.escape(client_id)} [012] {re.escape(SUBSCRIBE_TOPIC)}", re.DOTALL
        )
        self._own_prefix = client_id if own_prefix is None else own_prefix
        self._uncertain_s = uncertain_s
        self._timestamp: re.Pattern[str] | None = None
        self._clients: dict[str, _Client] = {}
        self._asleep: dict[str, None] = {}
        self._sleep_at: dict[str, float] = {}  # in the order of time, since all wait equally long
        self._subscriptions = 0
        self._counts: dict[str, int] = {}  # filter → subscriptions that count
        self._told: set[str] = set()
        self._changed: dict[str, None] = {}

    @property
    def is_live(self) -> bool:
        """Has the broker published our own subscription?"""
        return self._timestamp is not None

    @property
    def filters(self) -> set[str]:
        return set(self._counts)

    @property
    def deadline(self) -> float:
        return next(iter(self._sleep_at.values()), float("inf"))

    def connected(self, *, broker_restarted: bool) -> None:
        """Our client has a new connection, and is about to subscribe to `TOPICS`.

        If the same broker ran on, what we knew is still the best guess. Otherwise only sessions that outlive
        a connection can have outlived the broker.
        """
        self._timestamp = None
        if broker_restarted:
            ended = [name for name, it in self._clients.items() if it.at_departure is AtDeparture.END]
            for client_id in ended:
                self._forget(client_id)

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
        if self._timestamp is None and not (topic == SUBSCRIBE_TOPIC and self._learn_timestamp(line)):
            self.stats.early += 1
            return
        assert self._timestamp is not None
        timestamp = self._timestamp.match(line)
        if timestamp is None:
            self.stats.unreadable += 1
            return
        body = line[timestamp.end() :]
        if topic == NOTICE_TOPIC:
            self._handle_notice(body, now)
        elif body.startswith(self._own_prefix):
            pass
        elif topic == SUBSCRIBE_TOPIC:
            self._handle_subscribe(body)
        else:
            self._handle_unsubscribe(body)

    def handle_timer(self, now: float) -> None:
        while self.deadline <= now:
            client_id = next(iter(self._sleep_at))
            del self._sleep_at[client_id]
            client = self._clients[client_id]
            client.is_asleep = True
            self._asleep[client_id] = None
            for topic_filter in client.filters.values():
                self._count(topic_filter, -1)

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

    def _learn_timestamp(self, line: str) -> bool:
        """From our own line: digits stand for digits, letters for letters, blanks for blanks."""
        own = self._own_line.fullmatch(line)
        if own is None or len(own["timestamp"]) > MAX_TIMESTAMP:
            return False
        # The separator is as it is: a blank after it begins a client id.
        time, separator, _ = own["timestamp"].rpartition(": ")
        self._timestamp = re.compile(_SAME_KIND.sub(lambda run: _any_like(run[0]), time) + separator)
        return True

    def _handle_subscribe(self, body: str) -> None:
        readings = [
            (body[: place.start()], body[place.start() + len(" 0 ") :]) for place in _QOS.finditer(body)
        ]
        readings = [reading for reading in readings if reading[0] and reading[1]]
        if not readings:
            self.stats.unreadable += 1
            return
        # Whom no reading names connected before we came. The last reading has the longest name.
        known = [reading for reading in readings if reading[0] in self._clients]
        self._add(*(known or readings)[-1])

    def _handle_unsubscribe(self, body: str) -> None:
        readings = [
            (client, topic_filter)
            for client_id, topic_filter in _split_at_blanks(body)
            if (client := self._clients.get(client_id)) is not None and topic_filter in client.filters
        ]
        if len(readings) > 1:
            self.stats.ambiguous += 1
            return
        for client, topic_filter in readings:
            self._subscriptions -= 1
            self._drop(client, client.filters.pop(topic_filter))

    def _handle_notice(self, body: str, now: float) -> None:
        connected = _CONNECTED.fullmatch(body)
        if connected is not None:
            self.stats.notices += 1
            self._handle_connected(connected["client_id"], connected["protocol"], connected["clean"] == "1")
        elif body.startswith("Client "):
            for ending in DEPARTURES:
                if body.endswith(ending):
                    self.stats.notices += 1
                    self._handle_departure(body.removeprefix("Client ").removesuffix(ending), now)
                    return
            client_id, separator, _ = body.removeprefix("Client ").rpartition(" disconnected: ")
            if separator:  # The rest is the system's name for an error, which no client chooses.
                self._handle_departure(client_id, now)
        elif body.startswith("Bad socket read/write on client "):
            client_id, _, _ = body.removeprefix("Bad socket read/write on client ").rpartition(": ")
            self._handle_departure(client_id, now)
        elif body.startswith("Expiring client ") and body.endswith(" due to timeout."):
            self._forget(body.removeprefix("Expiring client ").removesuffix(" due to timeout."))

    def _handle_connected(self, client_id: str, protocol: str, is_clean: bool) -> None:
        if client_id.startswith(self._own_prefix) or client_id == NOBODY:
            return
        old = self._clients.get(client_id)
        if old is not None and (is_clean or old.at_departure is AtDeparture.END):
            self._forget(client_id)
        client = self._client(client_id)
        if client is None:
            return
        self._sleep_at.pop(client_id, None)
        if client.is_asleep:
            client.is_asleep = False
            del self._asleep[client_id]
            for topic_filter in client.filters.values():
                self._count(topic_filter, +1)
        if not is_clean:
            client.at_departure = AtDeparture.STAY
        else:
            client.at_departure = AtDeparture.UNCERTAIN if protocol == _MQTT_5 else AtDeparture.END

    def _handle_departure(self, client_id: str, now: float) -> None:
        client = self._clients.get(client_id)
        if client is None or client.is_asleep:
            return
        if client.at_departure is AtDeparture.END or not client.filters:
            self._forget(client_id)
        elif client.at_departure is AtDeparture.UNCERTAIN:
            self._sleep_at.setdefault(client_id, now + self._uncertain_s)

    def _client(self, client_id: str) -> _Client | None:
        """The client's record, a new one if need be; None when there is no room."""
        client = self._clients.get(client_id)
        if client is not None:
            return client
        if len(self._clients) >= MAX_CLIENTS:
            if not self._asleep:
                self.stats.overflowed += 1
                return None
            self._forget(next(iter(self._asleep)))
        # Until its connection is seen nothing tells, and to stay is what loses no message.
        client = self._clients[client_id] = _Client(AtDeparture.STAY)
        return client

    def _add(self, client_id: str, topic_filter: str) -> None:
        try:
            _, inner = split_shared(topic_filter)
            validate_filter(inner)
        except TopicError:
            self.stats.unreadable += 1
            return
        if inner.startswith("$"):
            return  # The broker's own affairs: each broker has its own.
        client = self._client(client_id)
        if client is None or topic_filter in client.filters:
            return
        is_full = self._subscriptions >= MAX_SUBSCRIPTIONS
        if is_full or len(client.filters) >= MAX_SUBSCRIPTIONS_PER_CLIENT:
            self.stats.overflowed += 1
            return
        client.filters[topic_filter] = inner
        self._subscriptions += 1
        if not client.is_asleep:
            self._count(inner, +1)

    def _drop(self, client: _Client, topic_filter: str) -> None:
        if not client.is_asleep:
            self._count(topic_filter, -1)

    def _forget(self, client_id: str) -> None:
        client = self._clients.pop(client_id, None)
        if client is None:
            return
        self._asleep.pop(client_id, None)
        self._sleep_at.pop(client_id, None)
        self._subscriptions -= len(client.filters)
        for topic_filter in client.filters.values():
            self._drop(client, topic_filter)

    def _count(self, topic_filter: str, change: int) -> None:
        count = self._counts.get(topic_filter, 0) + change
        if count:
            self._counts[topic_filter] = count
        else:
            del self._counts[topic_filter]
        self._changed[topic_filter] = None


def _any_like(run: str) -> str:
    """The pattern of what a run of digits, letters or blanks in a timestamp can be at another time."""
    if run.isspace():
        return r"\s+"
    if run.isdecimal():
        return r"\d+"
    return r"[^\W\d_]+" if run.isalpha() else re.escape(run)


def _split_at_blanks(text: str) -> Iterator[tuple[str, str]]:
    at = text.find(" ")
    while at >= 0:
        yield text[:at], text[at + 1 :]
        at = text.find(" ", at + 1)
