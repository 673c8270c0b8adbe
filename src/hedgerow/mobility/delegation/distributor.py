"""What a fixed broker does with an event: to clients that are here, to mobile brokers, and outside.

To a mobile broker the word is "all": it knows whom it has delegated. So an event costs as much as topic
filters match it, and not as there are subscribers behind them. Those of them whose client is here are served
here, and the word is "all but these"; only where they are the most of all are the others listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from hedgerow.broker.ids import alias_of_broker, goes_round, user_of
from hedgerow.duplicates import DuplicateLog
from hedgerow.message import Message, MessageId
from hedgerow.mobility.delegation import addresses
from hedgerow.mobility.delegation.attached import Attached
from hedgerow.mobility.delegation.events import DelegationStats, Notification
from hedgerow.mobility.delegation.publications import EventBody, PublicationKind
from hedgerow.mobility.delegation.topics_held import MatchedRegistries, Mobile, Topics


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
    ) -> None:
        self._mobiles = mobiles
        self._topics = topics
        self._attached = attached
        self._seen = seen
        self._stats = stats
        self._may_read = may_read
        self._may_bring = may_bring
        self._deliveries: list[Notification] = []
        self._outside: list[Message] = []

    def publish(self, message: Message, now: float) -> None:
        if message.id is None:
            raise ValueError("an event has an id")
        if self._seen.seen(message.id):
            self._stats.duplicates += 1
            return
        self._distribute(EventBody(message), self._topics.match(message.topic), None, now)

    def offer(self, mobile: Mobile, message: Message, now: float) -> None:
        if message.id is None:
            raise ValueError("an event has an id")
        if self._may_read(mobile.broker_id, message.topic):
            self.notify(mobile, EventBody(message, is_to_match=True), now)

    def make_up(self, mobile: Mobile, event: EventBody, now: float) -> None:
        found = self._topics.match(event.message.topic).get(mobile.broker_id)
        if found is not None:
            self._distribute(event, {mobile.broker_id: found}, None, now)

    def _distribute(
        self, event: EventBody, found: Mapping[str, MatchedRegistries], source: Mobile | None, now: float
    ) -> None:
        """To every mobile broker that has subscribers for it."""
        message, is_again = event.message, event.is_again
        for mobile_id, matched in found.items():
            here, others = matched.divide(self._attached.may_be_of(mobile_id))
            self._deliver(event, here, source)
            is_to_match, is_all = matched.is_to_match, others is None
            if (others or is_to_match or is_all) and self._may_read(mobile_id, message.topic):
                rest = tuple(others.items()) if others else ()
                served = tuple(here) if is_to_match or is_all else ()
                notification = EventBody(message, rest, served, is_to_match, is_all=is_all, is_again=is_again)
                self.notify(self._mobiles[mobile_id], notification, now)

    def handle_event(self, mobile: Mobile, event: EventBody, is_public: bool, now: float) -> None:
        """An event that was published at the mobile broker, or that follows a client to here. `is_public`:
        also for others than its own clients."""
        message = event.message
        assert message.id is not None
        message.expire_from(now)
        source = mobile if message.qos else None
        wanted = {name: qos for name, qos in event.callbacks if self.may_name(mobile, name)}
        self._stats.unknown_callbacks += len(event.callbacks) - len(wanted)
        public = self._as_given(message.id, mobile)
        is_known = event.is_handed_on or public is None or self._seen.seen(public)
        found = {} if is_known else self._topics.match(message.topic)
        # It has matched on its own what it matches on its own.
        matched = found.pop(mobile.broker_id, None)
        self._answer(mobile, event, wanted, matched or MatchedRegistries(), source, now)
        if is_public and public is not None and not is_known:
            if public != message.id:
                message = replace(message, id=public)
            self._outside.append(message)
            self._distribute(event._replace(message=message), found, source, now)

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
        done = frozenset(event.served)
        excepted, others = matched.divide(self._attached.may_be_of(mobile.broker_id) | done)
        is_all = others is None
        for name, qos in {**excepted, **(others or {})}.items():
            if name not in done:
                wanted[name] = max(qos, wanted.get(name, 0))
        here = {name: qos for name, qos in wanted.items() if name in self._attached}
        self._deliver(event, here, source)
        rest = tuple(pair for pair in wanted.items() if pair[0] not in here)
        if rest or is_all:
            served = tuple(excepted) if is_all else ()
            notification = EventBody(
                event.message, rest, served, False, event.is_handed_on, is_all, event.is_again
            )
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

    def _as_given(self, message_id: MessageId, mobile: Mobile) -> MessageId | None:
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
