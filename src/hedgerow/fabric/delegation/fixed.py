"""The fixed broker's side: it matches topics that mobile brokers have delegated, for several of them.

For each topic filter of a mobile broker it holds either that broker's own callback, and sends it events to be
matched there, or the callbacks of subscribers. Those whose client is attached here are delivered to; for all
others one publication goes to the mobile broker, which need not match. What a mobile broker cannot be sent
waits in its stream, within the limits; after `forget_after_s` it is forgotten. One that comes back without
its memory is handed back its topics first, then what has waited.

A mobile broker speaks for itself alone: the broker id in its topics is that of its connection (the shell says
whose that is), the domain is ours, and a callback belongs to it, or is a network address whose client is here
and nobody else's. Whatever breaks this is refused, counted and reported with the sender.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hedgerow.duplicates import DuplicateLog
from hedgerow.fabric.delegation import callbacks as addresses
from hedgerow.fabric.delegation import codec
from hedgerow.fabric.delegation.codec import (
    Body,
    Event,
    Filters,
    Hello,
    Kind,
    Nothing,
    Registration,
    Registrations,
    Serving,
    Unsubscription,
)
from hedgerow.fabric.delegation.events import (
    ClientMoved,
    DelegationEvent,
    Delivery,
    Forgotten,
    HandedBack,
    Refused,
    RenewTopics,
    Stats,
)
from hedgerow.fabric.delegation.limits import (
    FORGET_AFTER_S,
    MAX_ENTRIES,
    MAX_MOBILE_BROKERS,
    MAX_REGISTRIES,
)
from hedgerow.fabric.delegation.registries import rows
from hedgerow.fabric.delegation.stream import Stream
from hedgerow.message import Message
from hedgerow.topics import TopicTree

Key = tuple[str, str]
"""Mobile broker and topic filter."""


@dataclass(slots=True)
class Mobile:
    """What is known of one mobile broker."""

    broker_id: str
    stream: Stream
    topics: dict[str, dict[str, int]] = field(default_factory=dict)
    """Topic filter → callback → QoS."""
    entries: int = 0
    gone_at: float | None = None
    has_left: bool = False

    @property
    def own(self) -> str:
        return addresses.of_broker(self.broker_id)


class FixedSide:
    """`allows` says which mobile brokers may delegate here. `epoch` as in `MobileSide`."""

    def __init__(
        self,
        broker_id: str,
        domain: str,
        epoch: int,
        allows: Callable[[str], bool],
        seen: DuplicateLog | None = None,
        forget_after_s: float = FORGET_AFTER_S,
    ) -> None:
        self.broker_id = addresses.validate_broker_id(broker_id)
        self.domain = domain
        self.epoch = epoch
        self.forget_after_s = forget_after_s
        self.stats = Stats()
        self.mobiles: dict[str, Mobile] = {}
        self.attached: set[str] = set()
        self.seen = seen if seen is not None else DuplicateLog()
        self._allows = allows
        self._tree: TopicTree[Key, dict[str, int]] = TopicTree()
        self._deliveries: list[Delivery] = []
        self._outside: list[Message] = []
        self._events: list[DelegationEvent] = []

    # Mobile brokers come and go

    def link_up(self, mobile_id: str, now: float) -> None:
        mobile = self.mobiles.get(mobile_id)
        if mobile is not None and mobile.has_left:
            self._forget(mobile)
            mobile = None
        if mobile is None:
            why = self._objection(mobile_id)
            if why:
                self._refuse(mobile_id, "", why)
                return
            stream = Stream(self.domain, self.broker_id, self.epoch, self.stats)
            self.epoch += 1
            mobile = self.mobiles[mobile_id] = Mobile(mobile_id, stream)
        mobile.gone_at = None
        mobile.stream.link_up()

    def restore_mobile(self, mobile: Mobile, topics: Mapping[str, dict[str, int]]) -> None:
        """One that was stored."""
        self.mobiles[mobile.broker_id] = mobile
        for topic_filter, entries in topics.items():
            self._set_topic(mobile, topic_filter, entries)

    def _objection(self, mobile_id: str) -> str | None:
        try:
            addresses.validate_broker_id(mobile_id)
        except addresses.CallbackError as error:
            return str(error)
        if not self._allows(mobile_id):
            return "it may not delegate here"
        return "too many mobile brokers" if len(self.mobiles) >= MAX_MOBILE_BROKERS else None

    def link_down(self, mobile_id: str, now: float) -> None:
        mobile = self.mobiles.get(mobile_id)
        if mobile is None:
            return
        mobile.stream.link_down()
        if mobile.gone_at is None:
            mobile.gone_at = now
        if mobile.has_left:
            self._forget(mobile)

    def next_deadline(self) -> float | None:
        gone = [mobile.gone_at for mobile in self.mobiles.values() if mobile.gone_at is not None]
        return min(gone) + self.forget_after_s if gone else None

    def handle_timer(self, now: float) -> None:
        for mobile in list(self.mobiles.values()):
            if mobile.gone_at is not None and mobile.gone_at + self.forget_after_s <= now:
                self._forget(mobile)
                self._events.append(Forgotten(mobile.broker_id, "it did not come back"))

    def _forget(self, mobile: Mobile) -> None:
        for topic_filter in list(mobile.topics):
            self._set_topic(mobile, topic_filter, {})
        del self.mobiles[mobile.broker_id]

    # Events

    def publish(self, message: Message, now: float) -> None:
        """An event from elsewhere than a mobile broker: of a client here, or of another broker."""
        if message.id is None:
            raise ValueError("an event has an id")
        if self.seen.seen(message.id):
            self.stats.duplicates += 1
            return
        self._offer(message, None, now)

    def _offer(self, message: Message, but: Mobile | None, now: float) -> None:
        """To every mobile broker that has subscribers for it."""
        found: dict[str, dict[str, int]] = {}
        for (mobile_id, _), entries in self._tree.match(message.topic):
            if but is None or mobile_id != but.broker_id:
                _add(found.setdefault(mobile_id, {}), entries)
        for mobile_id, wanted in found.items():
            mobile = self.mobiles[mobile_id]
            is_to_match = wanted.pop(mobile.own, None) is not None
            here = self._deliver(message, wanted)
            rest = tuple((name, qos) for name, qos in wanted.items() if name not in here)
            if rest or is_to_match:
                served = tuple(here) if is_to_match else ()
                self._notify(mobile, Event(message, rest, served, is_to_match), now)

    def _handle_event(self, mobile: Mobile, event: Event, now: float) -> None:
        """An event that was published at the mobile broker, or that follows a client to here."""
        message = event.message
        assert message.id is not None
        message.expire_from(now)
        wanted = {name: qos for name, qos in event.callbacks if self._may_name(mobile, name)}
        self.stats.unknown_callbacks += len(event.callbacks) - len(wanted)
        is_known = event.is_handed_on or self.seen.seen(message.id)
        if not is_known:
            matched: dict[str, int] = {}
            for (mobile_id, _), entries in self._tree.match(message.topic):
                if mobile_id == mobile.broker_id:
                    _add(matched, entries)
            # It has matched on its own what it matches on its own.
            done = {mobile.own, *event.served}
            _add(wanted, {name: qos for name, qos in matched.items() if name not in done})
        here = self._deliver(message, wanted)
        rest = tuple((name, qos) for name, qos in wanted.items() if name not in here)
        if rest:
            self._notify(mobile, Event(message, rest, is_handed_on=event.is_handed_on), now)
        if not is_known:
            self._outside.append(message)
            self._offer(message, mobile, now)

    def _notify(self, mobile: Mobile, event: Event, now: float) -> None:
        is_lasting = event.message.qos > 0 or mobile.stream.is_open
        if mobile.has_left or not is_lasting or not mobile.stream.has_room(event.message):
            self.stats.overflowed += 1
            return
        mobile.stream.put(Kind.NOTIFY, event, now)

    def _deliver(self, message: Message, wanted: Mapping[str, int]) -> dict[str, int]:
        """Those whose client is here."""
        here = {name: qos for name, qos in wanted.items() if name in self.attached}
        if here:
            self._deliveries.append(Delivery(message, tuple(here.items())))
        return here

    # Clients that move

    def client_attached(self, callback: str, now: float) -> None:
        """A client of this name is connected here."""
        if callback in self.attached:
            return
        self.attached.add(callback)
        owner = self.mobiles.get(addresses.owner_of(callback) or "")
        if owner is not None and not owner.has_left:
            self._tell(owner, Serving(callback, True), now)

    def client_left(self, callback: str, undelivered: Sequence[tuple[Message, int]], now: float) -> None:
        """It is connected here no more; these messages, each with its QoS, it did not get."""
        self.attached.discard(callback)
        owner = self.mobiles.get(addresses.owner_of(callback) or "")
        if owner is None or owner.has_left:
            return
        self._tell(owner, Serving(callback, False), now)
        for message, qos in undelivered:
            self._notify(owner, Event(message, ((callback, qos),), is_handed_on=True), now)

    def _tell(self, mobile: Mobile, serving: Serving, now: float) -> None:
        mobile.stream.put(Kind.SERVING, serving, now)
        if mobile.stream.is_overfull and not mobile.stream.is_open:
            # Clients came and went for a long time: when it is back, it is told who is here.
            mobile.stream.start_over(self.epoch)
            self.epoch += 1

    # What mobile brokers write

    def receive_publication(self, sender: str, topic: str, payload: bytes, now: float) -> None:
        """`sender` is the mobile broker whose connection brought it."""
        mobile = self.mobiles.get(sender)
        try:
            domain, broker_id, action = codec.split_topic(topic)
            if mobile is None:
                raise codec.CodecError("it may not delegate here")
            if domain != self.domain:
                raise codec.CodecError("another domain")
            if broker_id != sender:
                raise codec.CodecError("in the name of another broker")
            if action == codec.ACTIONS[Kind.DEACTIVATE_NO] and not payload:
                self._renew_topics(mobile)
                return
            kind, header, body = codec.decode(action, payload)
            if kind not in codec.FROM_MOBILE:
                raise codec.CodecError(f"{kind.name} is for a fixed broker to write")
        except codec.CodecError as error:
            self._refuse(sender, topic, str(error))
            return
        if isinstance(body, Hello):
            if mobile.stream.receive_hello(header, body, now):
                self._hand_back(mobile, now)
        elif mobile.stream.accept(kind, header):
            self._handle(mobile, kind, body, topic, now)
            mobile.stream.acknowledged(header.acknowledged)
            if mobile.stream.is_overfull:
                # It asks, and never says that it has got the answers.
                self._forget(mobile)
                self._events.append(Forgotten(sender, "it acknowledges nothing"))

    def _handle(self, mobile: Mobile, kind: Kind, body: Body, topic: str, now: float) -> None:
        match body:
            case Event():
                self._handle_event(mobile, body, now)
            case Registrations():
                self._handle_delegate(mobile, body, topic, now)
            case Filters():
                self._give_back(mobile, body.topic_filters, now)
            case Unsubscription(topic_filter, callback):
                entries = mobile.topics.get(topic_filter, {})
                left = {name: qos for name, qos in entries.items() if name != callback}
                self._set_topic(mobile, topic_filter, left)
            case Serving(callback, is_there):
                if is_there and self._may_name(mobile, callback) and callback in self.attached:
                    self.attached.discard(callback)
                    mobile.stream.put(Kind.SERVING, Serving(callback, False), now)
                    self._events.append(ClientMoved(callback, False))
            case Nothing() if kind == Kind.DEACTIVATE_ALL:
                self._give_back(mobile, _delegated(mobile), now)
            case Nothing() if kind == Kind.UNSUBSCRIPTION_ALL:
                for topic_filter in list(mobile.topics):
                    self._set_topic(mobile, topic_filter, {})
                mobile.has_left = True
                self._events.append(Forgotten(mobile.broker_id, "it took its leave"))
            case Nothing() if kind == Kind.DEACTIVATE_NO:
                self._renew_topics(mobile)

    def _handle_delegate(self, mobile: Mobile, body: Registrations, topic: str, now: float) -> None:
        mobile.has_left = False  # It has come back before it was gone.
        for registration in body.topics:
            why = self._objection_to(mobile, registration)
            if why:
                self._refuse(mobile.broker_id, topic, why)
                self._give_back(mobile, [registration.topic_filter], now)
            else:
                self._set_topic(mobile, registration.topic_filter, dict(registration.entries))

    def _objection_to(self, mobile: Mobile, registration: Registration) -> str | None:
        before = mobile.topics.get(registration.topic_filter)
        if before is None and len(mobile.topics) >= MAX_REGISTRIES:
            return "too many topics"
        if mobile.entries - len(before or ()) + len(registration.entries) > MAX_ENTRIES:
            return "too many subscribers"
        if not all(self._may_name(mobile, callback) for callback, _ in registration.entries):
            return "a callback that is not its own, nor of a client here"
        return None

    def _may_name(self, mobile: Mobile, callback: str) -> bool:
        owner = addresses.owner_of(callback)
        if owner is not None:
            return owner == mobile.broker_id
        if callback not in self.attached:
            return False
        others = (other for other in self.mobiles.values() if other is not mobile)
        return not any(callback in entries for other in others for entries in other.topics.values())

    def _give_back(self, mobile: Mobile, topic_filters: Iterable[str], now: float) -> None:
        """From here on the mobile broker matches these, and here is what it had delegated."""
        given: list[Registration] = []
        for topic_filter in topic_filters:
            entries = mobile.topics.get(topic_filter, {})
            before = tuple((name, qos) for name, qos in entries.items() if name != mobile.own)
            given.append(Registration(topic_filter, before))
            if entries or len(mobile.topics) < MAX_REGISTRIES:
                self._set_topic(mobile, topic_filter, {mobile.own: 2})
        for row in rows(given):
            mobile.stream.put(Kind.RECOVERED, Registrations(row), now)

    def _hand_back(self, mobile: Mobile, now: float) -> None:
        """One of the two knows nothing of the other: its topics first, then what has waited."""
        left = mobile.stream.begin_anew()
        delegated = _delegated(mobile)
        self._give_back(mobile, delegated, now)
        for topic_filter in list(mobile.topics):
            if topic_filter not in delegated:
                self._set_topic(mobile, topic_filter, {})
        for record in left:
            if isinstance(record.body, Event):
                mobile.stream.put(Kind.NOTIFY, record.body, now)
        for callback in self.attached:
            if addresses.owner_of(callback) == mobile.broker_id:
                mobile.stream.put(Kind.SERVING, Serving(callback, True), now)
        if delegated:
            self._events.append(HandedBack(mobile.broker_id, len(delegated)))

    def _renew_topics(self, mobile: Mobile) -> None:
        """Its own clients alone: who is allowed to delegate is not allowed to take those of others."""
        clients = (name for name in self.attached if addresses.owner_of(name) == mobile.broker_id)
        self._events.append(RenewTopics(mobile.broker_id, tuple(sorted(clients))))

    def _set_topic(self, mobile: Mobile, topic_filter: str, entries: dict[str, int]) -> None:
        mobile.entries += len(entries) - len(mobile.topics.pop(topic_filter, ()))
        key = mobile.broker_id, topic_filter
        if entries:
            mobile.topics[topic_filter] = entries
            self._tree.set(topic_filter, key, entries)
        else:
            self._tree.remove(topic_filter, key)

    def _refuse(self, sender: str, topic: str, why: str) -> None:
        self.stats.refused += 1
        self._events.append(Refused(sender, topic, why))

    # What comes out

    def take_publications(self) -> list[tuple[str, Message]]:
        """For each mobile broker, in order."""
        return [
            (mobile.broker_id, publication)
            for mobile in self.mobiles.values()
            for publication in mobile.stream.take_publications()
        ]

    def take_deliveries(self) -> list[Delivery]:
        """For clients that are attached here."""
        deliveries, self._deliveries = self._deliveries, []
        return deliveries

    def take_outside(self) -> list[Message]:
        """Events that mobile brokers brought, each once: for subscribers that are no mobile broker's."""
        outside, self._outside = self._outside, []
        return outside

    def take_events(self) -> list[DelegationEvent]:
        events, self._events = self._events, []
        return events


def _add(wanted: dict[str, int], entries: Mapping[str, int]) -> None:
    for name, qos in entries.items():
        wanted[name] = max(qos, wanted.get(name, 0))


def _delegated(mobile: Mobile) -> list[str]:
    return [topic_filter for topic_filter, entries in mobile.topics.items() if mobile.own not in entries]
