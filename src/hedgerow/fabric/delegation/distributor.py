"""What a fixed broker does with an event: to clients that are here, to mobile brokers, and outside.

For a mobile broker of whose subscribers none is here the word is "all": it knows whom it has delegated. So an
event costs as much as topic filters match it, and not as there are subscribers behind them.
"""

from __future__ import annotations

from collections.abc import Mapping

from hedgerow.duplicates import DuplicateLog
from hedgerow.fabric.delegation import callbacks as addresses
from hedgerow.fabric.delegation.attached import Attached
from hedgerow.fabric.delegation.codec import Event, Kind
from hedgerow.fabric.delegation.events import Delivery, Stats
from hedgerow.fabric.delegation.topics_held import Found, Mobile, Topics
from hedgerow.message import Message


class Distributor:
    def __init__(
        self,
        mobiles: Mapping[str, Mobile],
        topics: Topics,
        attached: Attached,
        seen: DuplicateLog,
        stats: Stats,
    ) -> None:
        self._mobiles = mobiles
        self._topics = topics
        self._attached = attached
        self._seen = seen
        self._stats = stats
        self._deliveries: list[Delivery] = []
        self._outside: list[Message] = []

    def publish(self, message: Message, now: float) -> None:
        if message.id is None:
            raise ValueError("an event has an id")
        if self._seen.seen(message.id):
            self._stats.duplicates += 1
            return
        self._distribute(message, self._topics.match(message.topic), None, now)

    def offer(self, mobile: Mobile, message: Message, now: float) -> None:
        if message.id is None:
            raise ValueError("an event has an id")
        self.notify(mobile, Event(message, is_to_match=True), now)

    def _distribute(
        self, message: Message, found: Mapping[str, Found], source: Mobile | None, now: float
    ) -> None:
        """To every mobile broker that has subscribers for it."""
        for mobile_id, matched in found.items():
            mobile = self._mobiles[mobile_id]
            is_to_match = matched.is_to_match
            if not self._attached.has_any_of(mobile_id):
                is_all = bool(matched.registries)
                self.notify(mobile, Event(message, is_to_match=is_to_match, is_all=is_all), now)
                continue
            wanted = matched.subscribers()
            here = self._deliver(message, wanted, source)
            rest = tuple((name, qos) for name, qos in wanted.items() if name not in here)
            if rest or is_to_match:
                served = tuple(here) if is_to_match else ()
                self.notify(mobile, Event(message, rest, served, is_to_match), now)

    def handle_event(self, mobile: Mobile, event: Event, now: float) -> None:
        """An event that was published at the mobile broker, or that follows a client to here."""
        message = event.message
        assert message.id is not None
        if message.topic[:1] == "$":
            self._stats.refused += 1  # A plan comes from the fixed broker's side: none commands another.
            return
        message.expire_from(now)
        source = mobile if message.qos else None
        wanted = {name: qos for name, qos in event.callbacks if self.may_name(mobile, name)}
        self._stats.unknown_callbacks += len(event.callbacks) - len(wanted)
        is_known = event.is_handed_on or self._seen.seen(message.id)
        found = {} if is_known else self._topics.match(message.topic)
        # It has matched on its own what it matches on its own.
        matched = found.pop(mobile.broker_id, None)
        if matched is not None and matched.registries:
            if not wanted and not event.served and not self._attached.has_any_of(mobile.broker_id):
                self.notify(mobile, Event(message, is_all=True), now)
            else:
                done = set(event.served)
                for name, qos in matched.subscribers().items():
                    if name not in done:
                        wanted[name] = max(qos, wanted.get(name, 0))
        if wanted:
            here = self._deliver(message, wanted, source)
            rest = tuple((name, qos) for name, qos in wanted.items() if name not in here)
            if rest:
                self.notify(mobile, Event(message, rest, is_handed_on=event.is_handed_on), now)
        if not is_known:
            self._outside.append(message)
            self._distribute(message, found, source, now)

    def notify(self, mobile: Mobile, event: Event, now: float) -> None:
        is_lasting = event.message.qos > 0 or mobile.stream.is_open
        if mobile.has_left or not is_lasting or not mobile.stream.has_room(event.message):
            self._stats.overflowed += 1
            return
        mobile.stream.put(Kind.NOTIFY, event, now)

    def _deliver(self, message: Message, wanted: Mapping[str, int], source: Mobile | None) -> dict[str, int]:
        """Those whose client is here; `source` is the mobile broker that is to keep it until they have it."""
        here = {name: qos for name, qos in wanted.items() if name in self._attached}
        if here:
            told = None
            if source is not None:
                told = source.broker_id, source.stream.hold()
            self._deliveries.append(Delivery(message, tuple(here.items()), receipt=told))
        return here

    def may_name(self, mobile: Mobile, callback: str) -> bool:
        owner = addresses.owner_of(callback)
        if owner is not None:
            return owner == mobile.broker_id
        if callback not in self._attached:
            return False
        others = (other for other in self._mobiles.values() if other is not mobile)
        return not any(callback in entries for other in others for entries in other.topics.values())

    def take_deliveries(self) -> list[Delivery]:
        deliveries, self._deliveries = self._deliveries, []
        return deliveries

    def take_outside(self) -> list[Message]:
        outside, self._outside = self._outside, []
        return outside
