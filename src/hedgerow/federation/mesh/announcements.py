"""NEW_REGULAR_TOPIC: clients tell the federator beside their broker what they are subscribed to.

This is for brokers whose log cannot be read. A client publishes to `hedgerow/federation/NEW_REGULAR_TOPIC`,
or to `hedgerow/federation/NEW_REGULAR_TOPIC/NAME` with a name of its own (1 to 255 bytes). The payload is
one of

- text: the UTF-8 bytes of one filter, and at most one line end (0A, or 0D 0A) after it. It is subscribed
  to.
- JSON, if the first byte is `{` (7B): an object with any of the keys `subscribe`, `unsubscribe`, `publish`,
  each with a filter or a list of filters. `publish` is the document's first publication: it is allowed, and
  means nothing, since publications find their way by the meshes.
- a packet of federators (`wire.py`), if the first byte is 01: `01 03`, and for each filter `01`
  (subscribed) or `00` (no longer), `01 00`, the number of its bytes in groups of seven bits, the bytes.
- nothing: all that was announced under this name ends.

So `mosquitto_pub -t hedgerow/federation/NEW_REGULAR_TOPIC -m 'field/+/soil'` is all that it takes. In front
of a filter `$share/GROUP/` is taken off; filters of local topics (`regular.py`) are ignored.

Announcements under different names are apart: a filter is wanted while anyone announces it. Those without a
name share them, so that one can end what another announced. An announcement ends after `ANNOUNCEMENT_S`
unless it is repeated. A retained one holds as long as the broker retains it: a retained message of the same
name replaces it, an empty one ends it, and if it is not sent again after our next SUBSCRIBE it is gone.
Where the broker takes the retain flag off what it forwards (MQTT 3.1.1), we know it from our next SUBSCRIBE
on.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from hedgerow.errors import TopicError
from hedgerow.federation.interests.regular import regular_filter
from hedgerow.federation.mesh import wire
from hedgerow.federation.mesh.wire import MeshKind, RegularTopic, WireError
from hedgerow.rates import Allowance

NEW_REGULAR_TOPIC = "hedgerow/federation/NEW_REGULAR_TOPIC"
TOPIC_FILTER = f"{NEW_REGULAR_TOPIC}/#"  # It matches the topic without a name, too.

ANNOUNCEMENT_S = 24 * 3600.0
RESENT_WITHIN_S = 10.0  # After a SUBACK, what the broker retains has come.
NEVER = float("inf")

# Whoever may publish to this broker can announce. A filter that nobody is subscribed to costs traffic.
MAX_NAME_BYTES = 255
MAX_NAMES = 1_000
MAX_ANNOUNCED = 20_000
MAX_ANNOUNCED_PER_NAME = 5_000
MAX_PAYLOAD_BYTES = 64 * 1024
MAX_FILTER_BYTES = 1_024
MESSAGES_PER_S = 200.0
BURST_S = 10.0  # After a SUBSCRIBE all that is retained comes at once: MAX_NAMES fit twice.

JSON_KEYS = {"subscribe", "unsubscribe", "publish"}


class Announcement(NamedTuple):
    subscribed: tuple[str, ...] = ()
    unsubscribed: tuple[str, ...] = ()


class Announcements:
    def __init__(
        self,
        *,
        max_names: int = MAX_NAMES,
        max_announced: int = MAX_ANNOUNCED,
        max_announced_per_name: int = MAX_ANNOUNCED_PER_NAME,
    ) -> None:
        self.ignored: Counter[str] = Counter()
        """Messages and filters by reason."""
        self._max_names = max_names
        self._max_announced = max_announced
        self._max_announced_per_name = max_announced_per_name
        self._names: dict[str, dict[str, float]] = {}  # name → filter → when it ends
        self._size = 0
        self._ends_at: dict[tuple[str, str], float] = {}  # in the order of time, since all last equally long
        self._counts: dict[str, int] = {}
        self._changed: dict[str, None] = {}
        self._not_resent: set[str] = set()
        self._sweep_at = NEVER
        self._allowance = Allowance(MESSAGES_PER_S, BURST_S)

    def __contains__(self, topic_filter: str) -> bool:
        return topic_filter in self._counts

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def deadline(self) -> float:
        return min(self._sweep_at, next(iter(self._ends_at.values()), NEVER))

    def connected(self) -> None:
        """Before we SUBSCRIBE again: what is still retained will be sent."""
        self._not_resent = {name for name, filters in self._names.items() if NEVER in filters.values()}
        self._sweep_at = NEVER

    def subscribed(self, now: float) -> None:
        self._sweep_at = now + RESENT_WITHIN_S

    def disconnected(self) -> None:
        self._sweep_at = NEVER  # What did not come may have been on its way.

    def receive(self, topic: str, payload: bytes, retain: bool, now: float) -> None:
        name = topic.removeprefix(NEW_REGULAR_TOPIC).removeprefix("/")
        if len(name.encode(errors="replace")) > MAX_NAME_BYTES:
            self.ignored["name"] += 1
        elif not self._allowance.take(now):
            self.ignored["rate"] += 1
        elif not payload:
            self._end(name, list(self._names.get(name, ())))
        else:
            try:
                announcement = read_announcement(payload)
            except WireError as error:
                self.ignored[str(error)] += 1
            else:
                self._apply(name, announcement, retain, now)

    def handle_timer(self, now: float) -> None:
        while next(iter(self._ends_at.values()), NEVER) <= now:
            name, topic_filter = next(iter(self._ends_at))
            self._end(name, [topic_filter])
        if self._sweep_at <= now:
            self._sweep_at = NEVER
            for name in self._not_resent:
                self._end(name, self._retained(name))
            self._not_resent.clear()

    def take_changed(self) -> list[str]:
        """Filters that may be wanted now and were not, or the other way round."""
        changed = list(self._changed)
        self._changed.clear()
        return changed

    def _apply(self, name: str, announcement: Announcement, retain: bool, now: float) -> None:
        subscribed = self._regular(announcement.subscribed)
        if retain:
            self._not_resent.discard(name)
            self._end(name, set(self._retained(name)) - set(subscribed))
        held = self._names.get(name, {})
        unsubscribed = self._regular(announcement.unsubscribed)
        self._end(name, [gone for gone in unsubscribed if held.get(gone, NEVER) != NEVER])
        for topic_filter in subscribed:
            self._hold(name, topic_filter, NEVER if retain else now + ANNOUNCEMENT_S)

    def _regular(self, filters: Iterable[str]) -> list[str]:
        found = []
        for topic_filter in filters:
            try:
                inner = regular_filter(topic_filter)
            except TopicError:
                self.ignored["filter"] += 1
                continue
            if inner is None:
                self.ignored["local topic"] += 1
            elif len(inner.encode()) > MAX_FILTER_BYTES:
                self.ignored["too large"] += 1
            else:
                found.append(inner)
        return found

    def _retained(self, name: str) -> list[str]:
        return [topic_filter for topic_filter, at in self._names.get(name, {}).items() if at == NEVER]

    def _hold(self, name: str, topic_filter: str, ends_at: float) -> None:
        held = self._names.get(name)
        if held is None:
            if (
                name and len(self._names) >= self._max_names
            ):  # Without a name there is always room for one more.
                self.ignored["full"] += 1
                return
            held = {}
        before = held.get(topic_filter)
        if before == NEVER:
            return
        if before is None:
            if self._size >= self._max_announced or len(held) >= self._max_announced_per_name:
                self.ignored["full"] += 1
                return
            self._names[name] = held
            self._size += 1
            self._counts[topic_filter] = self._counts.get(topic_filter, 0) + 1
            self._changed[topic_filter] = None
        held[topic_filter] = ends_at
        self._ends_at.pop((name, topic_filter), None)
        if ends_at != NEVER:
            self._ends_at[name, topic_filter] = ends_at

    def _end(self, name: str, filters: Iterable[str]) -> None:
        held = self._names.get(name)
        if held is None:
            return
        for topic_filter in filters:
            if held.pop(topic_filter, None) is None:
                continue
            self._size -= 1
            self._ends_at.pop((name, topic_filter), None)
            self._counts[topic_filter] -= 1
            if not self._counts[topic_filter]:
                del self._counts[topic_filter]
            self._changed[topic_filter] = None
        if not held:
            del self._names[name]


def read_announcement(payload: bytes) -> Announcement:
    """What is announced, filters as they are; raises WireError, whose text is the reason."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise WireError("too large")
    if payload[0] == wire.VERSION:
        return _read_packet(payload)
    if payload[:1] == b"{":
        return _read_json(payload)
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        raise WireError("malformed") from None
    return Announcement((text.removesuffix("\r\n" if text.endswith("\r\n") else "\n"),))


def _read_packet(payload: bytes) -> Announcement:
    kind, entries = wire.decode(payload)
    if kind is not MeshKind.NEW_REGULAR_TOPIC:
        raise WireError("kind")
    topics = [entry for entry in entries if isinstance(entry, RegularTopic)]
    return Announcement(
        tuple(entry.topic_filter for entry in topics if entry.is_subscribed),
        tuple(entry.topic_filter for entry in topics if not entry.is_subscribed),
    )


def _read_json(payload: bytes) -> Announcement:
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError):  # The second by thousands of brackets.
        raise WireError("malformed") from None
    if not isinstance(fields, dict) or not fields.keys() <= JSON_KEYS:
        raise WireError("malformed")
    lists = {key: value if isinstance(value, list) else [value] for key, value in fields.items()}
    if not all(isinstance(item, str) for items in lists.values() for item in items):
        raise WireError("malformed")
    return Announcement(tuple(lists.get("subscribe", ())), tuple(lists.get("unsubscribe", ())))
