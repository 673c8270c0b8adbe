"""What a fixed broker does with an event: to clients that are here, to mobile brokers, and outside.

What is delegated is matched here. Subscribers whose clients are here are notified here, and the callbacks of
the others, which this broker cannot reach, are appended to the event: their mobile broker need not match it.
Who they are is found once for a topic, and again when subscribers or clients have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from hedgerow.broker.ids import alias_of_broker, goes_round, user_of
from hedgerow.duplicates import DuplicateLog
from hedgerow.message import Message, MessageId
from hedgerow.mobility.delegation import addresses
from hedgerow.mobility.delegation.attached import Attached
from hedgerow.mobility.delegation.events import DelegationStats, Notification
from hedgerow.mobility.delegation.publications import EventBody, PublicationKind
from hedgerow.mobility.delegation.topics_held import MatchedRegistries, Mobile, Topics

MAX_REMEMBERED = 4_096  # topics whose subscribers are known by heart
MAX_REMEMBERED_NAMES = 500_000  # in all of them


class Distributor:
    def __init__(
        self,
        mobiles: Mapping[str, Mobile],
        topics: Topics,
        attached: Attached,
        seen: DuplicateLog,
        stats: DelegationStats,
        may_read: Callable[[str, str], bool],
        may_bring: Callable[[str, str], bool],
        is_same: Callable[[str, str, str], bool],
    ) -> None:
        self._mobiles = mobiles
        self._topics = topics
        self._attached = attached
        self._seen = seen
        self._stats = stats
        self._may_read = may_read
        self._may_bring = may_bring
        self._is_same = is_same
        self._deliveries: list[Notification] = []
        self._outside: list[Message] = []
        self._matched: dict[str, dict[str, MatchedRegistries]] = {}
        self._remembered = 0
        self._generations = (0, 0)

    def _match(self, topic: str) -> dict[str, MatchedRegistries]:
        """By mobile broker."""
        generations = self._topics.generation, self._attached.generation
        is_full = len(self._matched) >= MAX_REMEMBERED or self._remembered >= MAX_REMEMBERED_NAMES
        if generations != self._generations or is_full:
            self._matched.clear()
            self._remembered, self._generations = 0, generations
        found = self._matched.get(topic)
        if found is None:
            found = self._matched[topic] = self._topics.match(topic)
            for mobile_id, matched in found.items():
                self._remembered += matched.divide(self._attached.may_be_of(mobile_id))
        return found

    def publish(self, message: Message, now: float) -> None:
        if message.id is None:
            raise ValueError("an event has an id")
        if self._seen.seen(message.id):
            self._stats.duplicates += 1
            return
        self._distribute(EventBody(message), self._match(message.topic), None, now)

    def offer(self, mobile: Mobile, message: Message, now: float) -> None:
        if message.id is None:
            raise ValueError("an event has an id")
        if self._may_read(mobile.broker_id, message.topic):
            self.notify(mobile, EventBody(message, is_to_match=True), now)

    def make_up(self, mobile: Mobile, event: EventBody, now: float) -> None:
        found = self._match(event.message.topic).get(mobile.broker_id)
        if found is not None:
            self._distribute(event, {mobile.broker_id: found}, None, now)

    def _distribute(
        self,
        event: EventBody,
        found: Mapping[str, MatchedRegistries],
        source: Mobile | None,
        now: float,
        brought_by: str = "",
    ) -> None:
        """To every mobile broker that has subscribers for it."""
        message = event.message
        for mobile_id, matched in found.items():
            is_again = event.is_again or self._may_have_had(event.served, brought_by, mobile_id)
            self._deliver(event._replace(is_again=is_again), matched.here, source)
            is_to_match = matched.is_to_match
            if (matched.beyond or is_to_match) and self._may_read(mobile_id, message.topic):
                served = tuple(matched.here) if is_to_match else ()
                notification = EventBody(message, matched.beyond, served, is_to_match, is_again=is_again)
                self.notify(self._mobiles[mobile_id], notification, now)

    def _may_have_had(self, served: Iterable[str], brought_by: str, mobile_id: str) -> bool:
        """Has a client come here since, from the mobile broker that brings it and had it for this client?"""
        return any(
            (client_id := addresses.client_id_of(name)) is not None
            and addresses.owner_of(name) == brought_by
            and self._is_same(client_id, brought_by, mobile_id)
            for name in served
        )

    def handle_event(
        self, mobile: Mobile, event: EventBody, is_public: bool, version: int, now: float
    ) -> None:
        """An event that was published at the mobile broker, or that follows a client to here. `is_public`:
        also for others than its own clients."""
        message = event.message
        assert message.id is not None
        message.expire_from(now)
        source = mobile if message.qos else None
        wanted = {name: qos for name, qos in event.callbacks if self.may_name(mobile, name)}
        self._stats.unknown_callbacks += len(event.callbacks) - len(wanted)
        public = self.as_given(message.id, mobile)
        is_known = event.is_handed_on or public is None or self._seen.seen(public)
        found = {} if is_known else dict(self._match(message.topic))
        # It has matched on its own what it matches on its own.
        matched = found.pop(mobile.broker_id, None)
        if not is_known and (then := self._topics.match_as_of(mobile, message.topic, version)) is not None:
            then.divide(self._attached.may_be_of(mobile.broker_id))
            matched = then
        self._answer(mobile, event, wanted, matched or MatchedRegistries(), source, now)
        if is_public and public is not None and not is_known:
            if public != message.id:
                message = replace(message, id=public)
            self._outside.append(message)
            self._distribute(event._replace(message=message), found, source, now, mobile.broker_id)

    def _answer(
        self,
        mobile: Mobile,
        event: EventBody,
        wanted: dict[str, int],
        matched: MatchedRegistries,
        source: Mobile | None,
        now: float,
    ) -> None:
        """To the mobile broker that brought it, and its clients here: for those whom it wants notified, and
        those who match and whom it has not served."""
        if not wanted and not event.served:
            here, rest = matched.here, matched.beyond
        else:
            done = frozenset(event.served)
            for name, qos in (*matched.here.items(), *matched.beyond):
                if name not in done:
                    wanted[name] = max(qos, wanted.get(name, 0))
            here = {name: qos for name, qos in wanted.items() if name in self._attached}
            rest = tuple(pair for pair in wanted.items() if pair[0] not in here)
        self._deliver(event, here, source)
        if rest:
            notification = EventBody(event.message, rest, (), False, event.is_handed_on, event.is_again)
            self.notify(mobile, notification, now)

    def notify(self, mobile: Mobile, event: EventBody, now: float) -> None:
        is_lasting = event.message.qos > 0 or mobile.stream.is_open
        if mobile.has_left or not is_lasting or not mobile.stream.has_room(event.message):
            self._stats.overflowed += 1
            return
        mobile.stream.put(PublicationKind.NOTIFY, event, now)

    def _deliver(self, event: EventBody, here: Mapping[str, int], source: Mobile | None) -> None:
        """Their clients are here; `source` is the mobile broker that is to keep it until they have it."""
        if here:
            told = None
            if source is not None:
                told = source.broker_id, source.stream.hold()
            self._deliveries.append(Notification(event.message, tuple(here.items()), event.is_again, told))

    def may_name(self, mobile: Mobile, callback: str) -> bool:
        owner = addresses.owner_of(callback)
        if owner is not None:
            return owner == mobile.broker_id
        if callback not in self._attached:
            return False
        others = (other for other in self._mobiles.values() if other is not mobile)
        return not any(callback in entries for other in others for entries in other.topics.values())

    def as_given(self, message_id: MessageId, mobile: Mobile) -> MessageId | None:
        """As others get it: an id that this mobile broker may give, its own or one of a user whose clients it
        may bring. None: it goes round.

        One that claimed the next ids of others would have their messages dropped here.
        """
        origin = message_id.origin
        user = user_of(origin)
        if origin == mobile.broker_id or (user is not None and self._may_bring(mobile.broker_id, user)):
            return message_id
        alias = alias_of_broker(mobile.broker_id, origin)
        return None if alias is None or goes_round(alias) else message_id._replace(origin=alias)

    def take_deliveries(self) -> list[Notification]:
        deliveries, self._deliveries = self._deliveries, []
        return deliveries

    def take_outside(self) -> list[Message]:
        outside, self._outside = self._outside, []
        return outside
