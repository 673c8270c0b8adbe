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

from collections.abc import Callable, Iterable, Sequence
from itertools import count

from hedgerow.broker.pool import Pool
from hedgerow.duplicates import DuplicateLog
from hedgerow.message import Message, MessageId
from hedgerow.mobility.delegation import addresses, codec
from hedgerow.mobility.delegation.attached import Attached
from hedgerow.mobility.delegation.distributor import Distributor
from hedgerow.mobility.delegation.events import (
    CalledBack,
    DelegationEvent,
    DelegationRefused,
    DelegationStats,
    Forgotten,
    HandedBack,
    MissedWhileAway,
    Notification,
    Reborn,
    RenewTopics,
    RoamingTold,
)
from hedgerow.mobility.delegation.guests import NOT_ITS_OWN, Guests
from hedgerow.mobility.delegation.limits import (
    FORGET_AFTER_S,
    MAX_REGISTRIES,
    MIN_MOBILE_BROKERS,
    TAKEOVER_AFTER_S,
    DelegationLimits,
)
from hedgerow.mobility.delegation.publications import (
    ACTIONS,
    CONTENT,
    EVENTS,
    FROM_MOBILE,
    OF_GUESTS,
    PLAN_PREFIX,
    UNNUMBERED,
    AddressChanges,
    Body,
    EmptyBody,
    EventBody,
    Filters,
    GuestSubscription,
    HelloBody,
    PublicationKind,
    Registration,
    Registrations,
    Roaming,
    Serving,
    Unsubscription,
)
from hedgerow.mobility.delegation.registries import rows
from hedgerow.mobility.delegation.stream import Stream, Waiting
from hedgerow.mobility.delegation.subscriber_sets import unpacked
from hedgerow.mobility.delegation.topics_held import Mobile, Topics, Undone
from hedgerow.topics import STATUS_PREFIX

NOT_TOLD = "subscribers whose addresses it has not told"


class FixedSide:
    """`allows` says which mobile brokers may delegate here, `objection_to_guest` why a mobile broker may not
    bring a client of this id ("": of any) and this user (None: it may), `may_bring` whether it may bring
    clients of this user ("": anonymous ones), and so pass on their ids, `may_read` and `may_write` what a
    mobile broker may have of the events of others, and publish for others. `is_same`: whether two mobile
    brokers mean the same client by an id. `epoch` as in `MobileSide`."""

    def __init__(
        self,
        broker_id: str,
        domain: str,
        epoch: int,
        allows: Callable[[str], bool],
        seen: DuplicateLog | None = None,
        forget_after_s: float = FORGET_AFTER_S,
        takeover_after_s: float = TAKEOVER_AFTER_S,
        objection_to_guest: Callable[[str, str, str | None], str | None] = lambda *client: None,
        may_bring: Callable[[str, str], bool] = lambda mobile_id, username: True,
        may_read: Callable[[str, str], bool] = lambda mobile_id, topic: True,
        may_write: Callable[[str, str], bool] = lambda mobile_id, topic: True,
        is_same: Callable[[str, str, str], bool] = lambda client_id, first, second: False,
        limits: DelegationLimits | None = None,
    ) -> None:
        self.broker_id = addresses.validate_broker_id(broker_id)
        self.domain = domain
        self._epochs = count(epoch)
        self.forget_after_s = forget_after_s
        self.takeover_after_s = takeover_after_s
        self.stats = DelegationStats()
        self.mobiles: dict[str, Mobile] = {}
        self._spent_receipts = 0
        """No receipt of a mobile broker that was forgotten is higher."""
        self.limits = limits or DelegationLimits()
        self.attached = Attached(self.limits, self.whose)
        self._places = Pool(self.limits.mobile_brokers, MIN_MOBILE_BROKERS, 1)
        self._waiting: dict[str, Waiting] = {}  # by whose the mobile brokers are
        self.seen = seen if seen is not None else DuplicateLog()
        self._allows = allows
        self._may_write = may_write
        self._events: list[DelegationEvent] = []
        self._topics = Topics(self._events, self.limits.topic_bytes)
        self._distributor = Distributor(
            self.mobiles, self._topics, self.attached, self.seen, self.stats, may_read, may_bring, is_same
        )
        self._guests = Guests(
            self.mobiles,
            self.attached,
            self._distributor,
            self._epochs,
            objection_to_guest,
            self.stats,
            self._events,
        )

    # Mobile brokers come and go

    def whose(self, mobile_id: str) -> str:
        mobile = self.mobiles.get(mobile_id)
        return mobile.whose if mobile is not None else ""

    def link_up(self, mobile_id: str, max_bytes: int = 0, whose: str = "") -> None:
        """`max_bytes`: the largest packet that it takes; 0: any. `whose`: the user or address that it is of,
        by what it has proved."""
        mobile = self.mobiles.get(mobile_id)
        if mobile is not None and mobile.has_left:
            self._forget(mobile)
            mobile = None
        if mobile is None:
            why = self._objection(mobile_id, whose)
            if why:
                self.refuse(mobile_id, "", why)
                return
            waiting = self._waiting.setdefault(whose, Waiting())
            stream = Stream(self.domain, self.broker_id, next(self._epochs), self.stats, self.limits, waiting)
            stream.content.receipts_before = self._spent_receipts
            mobile = self.mobiles[mobile_id] = Mobile(mobile_id, stream, whose)
            self._places.change(whose, 1)
        mobile.gone_at = None
        mobile.is_lost = False
        mobile.stream.link_up(max_bytes)

    def _objection(self, mobile_id: str, whose: str) -> str | None:
        try:
            addresses.validate_broker_id(mobile_id)
        except addresses.CallbackError as error:
            return str(error)
        if not self._allows(mobile_id):
            return "it may not delegate here"
        has_place = self._places.has_room(whose, 1)
        return None if has_place else "too many mobile brokers, of this user or address or in all"

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
        due = float("inf")
        for mobile in self.mobiles.values():
            due = min(due, mobile.stream.deadline)
            if mobile.gone_at is not None:
                after_s = self.forget_after_s if mobile.is_lost else self.takeover_after_s
                due = min(due, mobile.gone_at + after_s)
        return None if due == float("inf") else due

    def handle_timer(self, now: float) -> None:
        for mobile in list(self.mobiles.values()):
            if mobile.gone_at is None:
                continue
            if not mobile.is_lost and mobile.gone_at + self.takeover_after_s <= now:
                mobile.is_lost = True
                self._call_back(self.attached.of(mobile.broker_id))
            if mobile.gone_at + self.forget_after_s <= now:
                self._forget(mobile)
                self._events.append(Forgotten(mobile.broker_id, "it did not come back"))

    def _forget(self, mobile: Mobile) -> None:
        self._topics.clear(mobile)
        self._topics.remove_addresses(mobile, tuple(mobile.addresses))
        self.attached.expect_none_of(mobile.broker_id)
        stream = mobile.stream
        spent = stream.content.receipts_before + stream.content.received
        self._spent_receipts = max(self._spent_receipts, spent)
        stream.waiting_bytes = 0
        del self.mobiles[mobile.broker_id]
        self._places.change(mobile.whose, -1)
        if not self._places.of(mobile.whose):
            del self._waiting[mobile.whose]

    # Events

    def publish(self, message: Message, now: float) -> None:
        """An event from elsewhere than a mobile broker: of a client here, or of another broker."""
        self._distributor.publish(message, now)

    def offer(self, mobile_id: str, topic_filter: str, message: Message, now: float) -> None:
        """A retained message, for a topic filter that this mobile broker has registered newly. Who has had it
        as an event drops it."""
        mobile = self.mobiles.get(mobile_id)
        if mobile is not None and topic_filter in mobile.topics:
            self._distributor.offer(mobile, message, now)

    def make_up(self, mobile_id: str, message: Message, is_again: bool, now: float) -> None:
        """An event from elsewhere that this mobile broker has missed; `is_again`: or perhaps it has not."""
        mobile = self.mobiles.get(mobile_id)
        if mobile is not None:
            self._distributor.make_up(mobile, EventBody(message, is_again=is_again), now)

    def settle(self, mobile_id: str, number: int) -> None:
        """The clients of one delivery with this receipt have got it, or have it handed back: `client_left`
        comes before this."""
        mobile = self.mobiles.get(mobile_id)
        if mobile is not None:
            mobile.stream.release(number)

    # Clients that move

    def callback_of(self, client_id: str) -> str | None:
        """Of a client that is here, or on its way, as a guest of its mobile broker's."""
        return self.attached.callback_of(client_id)

    def callback_for(self, client_id: str, username: str | None) -> str | None:
        """Of whoever connects under this id and has logged in as this user; None: it is not a guest."""
        return self._guests.callback_for(client_id, username)

    def turn_away(self, client_id: str, now: float) -> None:
        """A client of this broker's own has connected under an id that a mobile broker had announced."""
        self._guests.turn_away(client_id, now)

    def client_attached(self, callback: str, now: float) -> None:
        """A client of this name is connected here."""
        self._guests.client_attached(callback, now)

    def client_left(
        self, callback: str, undelivered: Sequence[tuple[Message, int]], now: float, is_again: bool = False
    ) -> None:
        """It is connected here no more; these messages, each with its QoS, it did not get. `is_again`: or it
        did, in a life of this broker that is forgotten.

        After `ClientMoved` it is for the messages alone.
        """
        self._guests.client_left(callback, undelivered, now, is_again)

    def subscribe(self, wanted: GuestSubscription, now: float) -> bool:
        """A client that is here asks for it: its mobile broker, who owns its subscriptions, is told. False:
        nobody is."""
        return self._guests.subscribe(wanted, now)

    def unsubscribe(self, callback: str, topic_filter: str, now: float) -> bool:
        return self._guests.unsubscribe(callback, topic_filter, now)

    # What mobile brokers write

    def receive_publication(self, sender: str, publication: Message, now: float) -> None:
        """`sender` is the mobile broker whose connection brought it."""
        mobile, topic = self.mobiles.get(sender), publication.topic
        try:
            if mobile is None:
                raise codec.CodecError("it may not delegate here")
            if not codec.is_numbered(publication):
                self._handle_unnumbered(mobile, publication, now)
                return
            kind, header, body = codec.read(publication)
            if kind not in EVENTS:
                self._check_topic(sender, topic)
            if kind not in FROM_MOBILE:
                raise codec.CodecError(f"{kind.name} is for a fixed broker to write")
        except codec.CodecError as error:
            self.refuse(sender, topic, str(error))
            return
        if isinstance(body, HelloBody):
            if mobile.stream.receive_hello(header, body, now):
                self._hand_back(mobile, now)
        elif mobile.stream.accept(kind, header, body, now):
            if isinstance(body, EventBody):
                mobile.undone.forget_before(header.other)
                self._handle_event(mobile, body, topic, header.other, now)
            elif isinstance(body, Roaming):
                self._postpone(mobile, body, topic, header.other)
            else:
                self._handle(mobile, kind, body, topic, now)
            for written, told in mobile.postponed.take(mobile.stream.content.received):
                self._events.append(RoamingTold(sender, told, written))
            if mobile.stream.content.received >= header.other and kind not in CONTENT:
                mobile.undone.forget_before(header.number)  # All events from before it have been read.
            mobile.stream.acknowledged(kind, header)
            undone = len(mobile.undone) + len(mobile.postponed)
            if mobile.stream.is_overfull or undone > self.limits.undone:
                # It asks, and never says that it has got the answers.
                self._forget(mobile)
                self._events.append(Forgotten(sender, "it acknowledges nothing"))

    def _postpone(self, mobile: Mobile, body: Roaming, topic: str, written: int) -> None:
        if addresses.owner_of(body.callback) == mobile.broker_id:
            mobile.postponed.add(written, body)
        else:
            self.refuse(mobile.broker_id, topic, NOT_ITS_OWN)

    def roam(self, mobile_id: str, body: Roaming, now: float) -> bool:
        """Of a session on its way. False: this mobile broker is not known."""
        mobile = self.mobiles.get(mobile_id)
        if mobile is None or mobile.has_left:
            return False
        mobile.stream.put(PublicationKind.ROAMING, body, now)
        return True

    def miss(self, mobile_id: str, callback: str, delivery: tuple[Message, int, bool], now: float) -> bool:
        """What waited here for a client, at this QoS, and whether it may have got it; False: no room, yet."""
        mobile = self.mobiles.get(mobile_id)
        message, qos, is_again = delivery
        if mobile is None or not mobile.stream.has_room(message):
            return False
        event = EventBody(message, ((callback, qos),), is_again=is_again, is_missed=True)
        mobile.stream.put(PublicationKind.NOTIFY, event, now)
        return True

    def waiting_for(self, mobile_id: str, callback: str) -> list[tuple[Message, bool]]:
        """Events from here that this mobile broker has not handled, but for those that name others of its
        clients alone; and whether it may have."""
        mobile = self.mobiles.get(mobile_id)
        if mobile is None:
            return []
        return [
            (record.event.message, record.is_sent)
            for record in mobile.stream.content.kept
            if record.kind == PublicationKind.NOTIFY
            and not record.event.is_missed
            and not record.event.is_handed_on
            and (record.event.is_to_match or any(name == callback for name, _ in record.event.callbacks))
        ]

    def written(self, mobile_id: str) -> int:
        """How many events have been written to this mobile broker."""
        mobile = self.mobiles.get(mobile_id)
        return mobile.stream.content.number if mobile is not None else 0

    def is_linked(self, mobile_id: str) -> bool:
        mobile = self.mobiles.get(mobile_id)
        return mobile is not None and mobile.stream.is_open

    def as_given(self, mobile_id: str, message_id: MessageId) -> MessageId | None:
        """The id that others know this by, of an event that this mobile broker has brought."""
        mobile = self.mobiles.get(mobile_id)
        return None if mobile is None else self._distributor.as_given(message_id, mobile)

    def _check_topic(self, sender: str, topic: str) -> str:
        """The action. The document's prose has the sender in the topic, its examples the recipient."""
        domain, broker_id, action = codec.split_topic(topic)
        if domain != self.domain:
            raise codec.CodecError("another domain")
        if broker_id not in (sender, self.broker_id):
            raise codec.CodecError("in the name of another broker")
        return action

    def _handle_unnumbered(self, mobile: Mobile, publication: Message, now: float) -> None:
        """What needs no list of ours, as published: also from one who numbers nothing."""
        action, payload = self._check_topic(mobile.broker_id, publication.topic), publication.payload
        kind = next((each for each in UNNUMBERED if ACTIONS[each] == action), None)
        if kind == PublicationKind.UNSUBSCRIPTION_SINGLE:
            callback = codec.read_callback(payload)
            for topic_filter in mobile.delegated:
                self._handle(mobile, kind, Unsubscription(topic_filter, callback), publication.topic, now)
        elif kind is None or payload:
            raise codec.CodecError("no number in a stream")
        else:
            self._handle(mobile, kind, EmptyBody(), publication.topic, now)

    def _handle(self, mobile: Mobile, kind: PublicationKind, body: Body, topic: str, now: float) -> None:
        match body:
            case Registrations():
                self._handle_delegate(mobile, body, topic, now)
            case AddressChanges():
                self._handle_addresses(mobile, body, topic)
            case Filters():
                self._give_back(mobile, body.topic_filters, now)
            case Unsubscription(topic_filter, callback):
                entries = mobile.topics.get(topic_filter, {})
                left = {name: qos for name, qos in entries.items() if name != callback}
                self._topics.set(mobile, topic_filter, left)
            case Serving():
                self._guests.handle_serving(mobile, body, topic, now)
            case EmptyBody() if kind == PublicationKind.DEACTIVATE_ALL:
                self._give_back(mobile, mobile.delegated, now)
            case EmptyBody() if kind == PublicationKind.UNSUBSCRIPTION_ALL:
                self._topics.clear(mobile)
                self.attached.expect_none_of(mobile.broker_id)
                mobile.has_left = True
                self._events.append(Forgotten(mobile.broker_id, "it took its leave"))
            case EmptyBody() if kind == PublicationKind.DEACTIVATE_NO:
                self._renew_topics(mobile)

    def _handle_event(self, mobile: Mobile, event: EventBody, topic: str, version: int, now: float) -> None:
        """`version`: how much was agreed when it was written. More may have been since."""
        if event.is_missed:
            self._events.append(MissedWhileAway(mobile.broker_id, event, mobile.stream.content.received))
            return
        is_status = _is_status(mobile.broker_id, event.message.topic)
        if event.message.topic[:1] == "$" and not is_status:
            self.refuse(
                mobile.broker_id, topic, "a plan comes from elsewhere: no mobile broker commands another"
            )
            return
        unknown = self.stats.unknown_callbacks
        # What its own clients have of it is between them and their broker.
        is_public = event.is_handed_on or is_status or self._may_write(mobile.broker_id, event.message.topic)
        if not is_public:
            self.refuse(mobile.broker_id, topic, f"no right to publish to {event.message.topic!r}")
        self._distributor.handle_event(mobile, event, is_public, version, now)
        if self.stats.unknown_callbacks != unknown:
            self._events.append(DelegationRefused(mobile.broker_id, topic, NOT_ITS_OWN))

    def _handle_delegate(self, mobile: Mobile, body: Registrations, topic: str, now: float) -> None:
        mobile.has_left = False  # It has come back before it was gone.
        for written in body.topics:
            registration = unpacked(written, mobile.addresses)
            why = NOT_TOLD if registration is None else self._objection_to(mobile, registration)
            if why or registration is None:
                self.refuse(mobile.broker_id, topic, why or "")
                self._give_back(mobile, [written.topic_filter], now)
            else:
                self._topics.set(mobile, registration.topic_filter, dict(registration.entries))

    def _handle_addresses(self, mobile: Mobile, body: AddressChanges, topic: str) -> None:
        """What is refused of it, registrations that speak of it are refused for."""
        self._topics.remove_addresses(mobile, body.removed)
        if not all(self._distributor.may_name(mobile, callback) for callback in body.added):
            self.refuse(mobile.broker_id, topic, NOT_ITS_OWN)
        elif len(mobile.addresses) + len(body.added) > self.limits.entries:
            self.refuse(mobile.broker_id, topic, "too many subscribers")
        elif not self._topics.add_addresses(mobile, body.added):
            self.refuse(mobile.broker_id, topic, "no room for more topics of this user or address")

    def _objection_to(self, mobile: Mobile, registration: Registration) -> str | None:
        before = mobile.topics.get(registration.topic_filter)
        if not _is_for(mobile, registration.topic_filter):
            return "a plan that is not its own"
        if before is None and len(mobile.topics) >= MAX_REGISTRIES:
            return "too many topics"
        if mobile.entries - len(before or ()) + len(registration.entries) > self.limits.entries:
            return "too many subscribers"
        if not self._topics.has_room(mobile, registration.topic_filter, dict(registration.entries)):
            return "no room for more topics of this user or address"
        if not all(self._distributor.may_name(mobile, callback) for callback, _ in registration.entries):
            return NOT_ITS_OWN
        return None

    def _give_back(self, mobile: Mobile, topic_filters: Iterable[str], now: float) -> None:
        """From here on the mobile broker matches these, and here is what it had delegated."""
        given: list[Registration] = []
        called_back: dict[str, None] = {}
        for topic_filter in topic_filters:
            entries = mobile.topics.get(topic_filter, {})
            before = tuple((name, qos) for name, qos in entries.items() if name != mobile.own)
            given.append(Registration(topic_filter, before))
            if guests := self.attached.may_be_of(mobile.broker_id):
                called_back.update((name, None) for name, _ in before if name in guests)
            own = {mobile.own: 2}
            has_room = entries or (
                len(mobile.topics) < MAX_REGISTRIES and self._topics.has_room(mobile, topic_filter, own)
            )
            if _is_for(mobile, topic_filter) and has_room:
                self._topics.set(mobile, topic_filter, own)
        for row in rows(given):
            mobile.stream.put(PublicationKind.RECOVERED, Registrations(row), now)
        self._call_back(called_back)

    def _call_back(self, callbacks: Iterable[str]) -> None:
        self._events.extend(CalledBack(callback) for callback in callbacks)

    def _hand_back(self, mobile: Mobile, now: float) -> None:
        """One of the two knows nothing of the other: its topics first, then what has waited."""
        left = mobile.stream.begin_anew()
        mobile.undone = Undone()
        mobile.postponed.clear()
        waited = (
            each.body.message for each in left if isinstance(each.body, EventBody) and not each.body.is_missed
        )
        self._events.append(Reborn(mobile.broker_id, tuple(waited)))
        self._topics.remove_addresses(mobile, tuple(mobile.addresses))
        delegated = mobile.delegated
        self.attached.expect_none_of(mobile.broker_id)
        self._give_back(mobile, delegated, now)
        for topic_filter in list(mobile.topics):
            if topic_filter not in delegated:
                self._topics.set(mobile, topic_filter, {})
        for record in left:
            if isinstance(record.body, EventBody) and not record.body.is_missed:
                body = record.body._replace(is_again=record.body.is_again or record.is_sent)
                mobile.stream.put(PublicationKind.NOTIFY, body, now)
        for callback in self.attached.of(mobile.broker_id):
            mobile.stream.put(PublicationKind.SERVING, Serving(callback, True), now)
        for record in left:
            if record.kind in OF_GUESTS:
                mobile.stream.put(record.kind, record.body, now)
        if delegated:
            self._events.append(HandedBack(mobile.broker_id, len(delegated)))

    def _renew_topics(self, mobile: Mobile) -> None:
        """Its own clients alone: who is allowed to delegate is not allowed to take those of others."""
        self._events.append(RenewTopics(mobile.broker_id, tuple(self.attached.of(mobile.broker_id))))

    def refuse(self, sender: str, topic: str, why: str) -> None:
        self.stats.refused += 1
        self._events.append(DelegationRefused(sender, topic, why))

    # What comes out

    def take_publications(self, now: float = float("inf")) -> list[tuple[str, Message]]:
        """For each mobile broker, in order."""
        return [
            (mobile.broker_id, publication)
            for mobile in self.mobiles.values()
            for publication in mobile.stream.take_publications(now)
        ]

    def take_deliveries(self) -> list[Notification]:
        """For clients that are attached here."""
        return self._distributor.take_deliveries()

    def take_outside(self) -> list[Message]:
        """Events that mobile brokers brought, each once: for subscribers that are no mobile broker's."""
        return self._distributor.take_outside()

    def take_events(self) -> list[DelegationEvent]:
        events = self._events[:]
        self._events.clear()
        return events


def _is_for(mobile: Mobile, topic_filter: str) -> bool:
    """The plan for one mobile broker is none of another one's business."""
    return topic_filter[:1] != "$" or topic_filter == PLAN_PREFIX + mobile.broker_id


def _is_status(broker_id: str, topic: str) -> bool:
    """What the mobile broker tells of itself, which needs no right; and of nobody else."""
    own = STATUS_PREFIX + broker_id
    return topic == own or topic.startswith(f"{own}/")
