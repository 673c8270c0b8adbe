"""The mobile broker's side: it owns every subscription, and matches a topic itself or has it matched.

The shell calls `link_up`, `link_down` for each connection to a fixed broker, gives in what it brings
(`receive_publication`), and after each input takes out publications, deliveries and events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import count

from hedgerow.duplicates import DuplicateLog
from hedgerow.message import Message
from hedgerow.mobility.delegation import addresses, codec
from hedgerow.mobility.delegation.events import (
    Delegated,
    DelegationEvent,
    DelegationRefused,
    DelegationStats,
    Introduced,
    Left,
    MissedWhileAway,
    Notification,
    Recovered,
    RoamingTold,
    TakenOver,
)
from hedgerow.mobility.delegation.limits import (
    ENTRIES_PER_DELEGATION,
    MAX_FIXED_BROKERS,
    MAX_REGISTRIES,
    TAKEOVER_AFTER_S,
    DelegationLimits,
)
from hedgerow.mobility.delegation.notifier import Matched, Notifier
from hedgerow.mobility.delegation.publications import (
    CONTENT,
    EVENTS,
    FROM_FIXED,
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
    StreamHeader,
    Unsubscription,
)
from hedgerow.mobility.delegation.registries import Registry, rows
from hedgerow.mobility.delegation.stream import Record, Stream
from hedgerow.mobility.delegation.subscriber_sets import packed
from hedgerow.mobility.delegation.travellers import Travellers
from hedgerow.mobility.delegation.uplink import Uplink
from hedgerow.topics import validate_filter


class MobileSide:
    """`epoch` is larger than in any life before whose state is lost: Unix time does.

    `adopts` is for a broker that stores nothing: what its former life has delegated it takes back as its own.
    """

    def __init__(
        self,
        broker_id: str,
        domain: str,
        epoch: int,
        accepted: DuplicateLog | None = None,
        takeover_after_s: float = TAKEOVER_AFTER_S,
        adopts: bool = False,
        limits: DelegationLimits | None = None,
    ) -> None:
        self.broker_id = addresses.validate_broker_id(broker_id)
        self.domain = domain
        self.takeover_after_s = takeover_after_s
        self.adopts = adopts
        self.limits = limits or DelegationLimits()
        self.stats = DelegationStats()
        self.notifier = Notifier(accepted if accepted is not None else DuplicateLog(), self.stats)
        self.registries = self.notifier.registries
        self.uplinks: dict[str, Uplink] = {}
        self.current: Uplink | None = None
        self.adopted: dict[str, set[str]] = {}
        """By callback, filters that were given back and that its client has not taken up yet."""
        self._epochs = count(epoch)
        self._events: list[DelegationEvent] = []
        self._travellers = Travellers(self.notifier, self._events)

    # Subscriptions, and which of them are delegated

    def subscribe(self, callback: str, topic_filter: str, qos: int, now: float) -> None:
        addresses.validate(callback)
        registry = self.registries.get(validate_filter(topic_filter))
        is_new = registry is None
        if registry is None:
            registry = self.registries.create(topic_filter)
        self.registries.add(registry, callback, qos, self.notifier.published)
        uplink = self.current
        if uplink is None:
            return
        if is_new:
            for known in self.uplinks.values():
                known.outside.add(topic_filter)
            uplink.fresh.append(topic_filter)
            uplink.stream.ahead = partial(self._tell_fresh, uplink, now)
        elif registry.is_delegated:
            record = self._write_registrations(uplink, (registry.as_registration(),), now)
            self.registries.renew(registry, record.number)
        self._start_over_if_overfull(uplink)

    def unsubscribe(self, callback: str, topic_filter: str, now: float) -> None:
        registry = self.registries.get(topic_filter)
        if registry is None or not self.registries.remove(registry, callback):
            return
        gone = Unsubscription(topic_filter, callback)
        if not len(registry):
            for known in self.uplinks.values():
                known.outside.remove(topic_filter)
            if not registry.is_delegated:
                gone = Unsubscription(topic_filter, addresses.of_broker(self.broker_id))
        if self.current is not None and (registry.is_delegated or not len(registry)):
            self.current.stream.put(PublicationKind.UNSUBSCRIPTION_SINGLE, gone, now)
            self._start_over_if_overfull(self.current)

    def delegate(self, topic_filters: Iterable[str], now: float) -> list[str]:
        """These went cold. Which of them are on their way now: none without a fixed broker to take them."""
        uplink = self.current
        if uplink is None or not uplink.stream.is_open or uplink.stream.is_overfull:
            return []
        chosen = [
            registry.as_registration()
            for topic_filter in dict.fromkeys(topic_filters)
            if (registry := self.registries.get(topic_filter)) is not None and not registry.is_delegated
        ]
        for row in rows(chosen):
            record = self._write_registrations(uplink, row, now)
            for registration in row:
                registry = self.registries.by_filter[registration.topic_filter]
                self.registries.deactivate(registry, record.number)
        return [registration.topic_filter for registration in chosen]

    def _write_registrations(self, uplink: Uplink, row: tuple[Registration, ...], now: float) -> Record:
        """These have these subscribers: those who are new are told by their addresses before."""
        names = {name for registration in row for name, _ in registration.entries}
        added, gone = uplink.change_addresses(names, self.registries)
        if added or gone:
            uplink.stream.put(PublicationKind.ADDRESSES, AddressChanges(added, gone), now)
        body = Registrations(tuple(packed(each, uplink.addresses) for each in row))
        record = uplink.stream.put(PublicationKind.DELEGATE, body, now)
        uplink.note(record)
        return record

    def recover(self, topic_filters: Iterable[str] | None, now: float) -> list[str]:
        """These went hot; None: all."""
        chosen = self.registries.activate(topic_filters)
        if self.current is not None:
            for start in range(0, len(chosen), ENTRIES_PER_DELEGATION):
                row = tuple(chosen[start : start + ENTRIES_PER_DELEGATION])
                self.current.stream.put(PublicationKind.RECOVER, Filters(row), now)
        return chosen

    def recover_all(self, now: float) -> None:
        """As before a move, or to have back what an earlier life has delegated and forgotten."""
        self.registries.activate()
        if self.current is not None:
            self.current.stream.put(PublicationKind.DEACTIVATE_ALL, EmptyBody(), now)

    def renew_clients(self, now: float) -> None:
        """This broker delegates nothing: its clients at the fixed one are to come and subscribe again."""
        if self.current is not None:
            self.current.stream.put(PublicationKind.DEACTIVATE_NO, EmptyBody(), now)

    def _tell_fresh(self, uplink: Uplink, now: float) -> None:
        """A client that subscribes to a thousand topics makes a few publications of it."""
        fresh, uplink.fresh = uplink.fresh, []
        known = (self.registries.get(topic_filter) for topic_filter in fresh)
        self._tell_own(uplink, (registry for registry in known if registry is not None), now)

    def _tell_own(self, uplink: Uplink, registries: Iterable[Registry], now: float) -> None:
        """These topics are matched here, from this number on."""
        for row in rows([registry.as_own(self.broker_id) for registry in registries]):
            uplink.note(uplink.stream.put(PublicationKind.DELEGATE, Registrations(row), now))

    def _start_over_if_overfull(self, uplink: Uplink) -> None:
        """A fixed broker that is away for long is told all anew, rather than every change meanwhile."""
        if uplink.stream.is_overfull and not uplink.stream.is_open:
            uplink.stream.start_over(next(self._epochs))

    # Fixed brokers

    def move_to(self, fixed_id: str, now: float, domain: str = "") -> None:
        """From now on this is the fixed broker; there may be a connection to it already, or later. It is of
        this domain; "": of that of this broker.

        Clients that are at the last one are to be called back before.
        """
        old = self.current
        if (known := self.uplinks.get(fixed_id)) is not None:
            known.stream.domain = domain or self.domain
        if old is not None and old.fixed_id == fixed_id:
            return
        uplink = self.uplinks.pop(fixed_id, None)
        if uplink is None:
            uplink = self._new_uplink(fixed_id, domain or self.domain)
        else:
            # It was to be left, and has been told so or not: it is told all topics after that.
            uplink.deactivated = uplink.farewell = None
            self._tell_own(uplink, self.registries, now)
            uplink.introduced = uplink.stream.process.number
        self.current = self.uplinks[fixed_id] = uplink
        self.registries.activate()
        if old is None:
            return
        if not old.stream.is_open:
            self._give_up(old, now)
        old.deactivated = old.stream.put(PublicationKind.DEACTIVATE_ALL, EmptyBody(), now).number
        if len(self.uplinks) > MAX_FIXED_BROKERS:
            oldest = next(iter(self.uplinks.values()))
            self._give_up(oldest, now)
            self._drop(oldest)

    def _new_uplink(self, fixed_id: str, domain: str) -> Uplink:
        stream = Stream(domain, self.broker_id, next(self._epochs), self.stats, self.limits)
        return Uplink(fixed_id, stream, addresses.of_broker(self.broker_id))

    @property
    def may_send_clients(self) -> bool:
        """There is one fixed broker here: clients may be sent to it.

        With two, an event that comes by one of them may come to the other later, and deliver to a client that
        has changed places between. One that was lost and given up counts when it is here again.
        """
        is_open = [uplink for uplink in self.uplinks.values() if uplink.stream.is_open]
        return is_open == [self.current]

    @property
    def may_delegate(self) -> bool:
        return (
            self.current is not None and self.current.stream.is_open and not self.current.stream.is_overfull
        )

    @property
    def has_clients_away(self) -> bool:
        """Is a client of this broker at a fixed one?"""
        return bool(self.notifier.away)

    def is_away(self, callback: str) -> bool:
        return callback in self.notifier.away

    def link_up(self, fixed_id: str, max_bytes: int = 0) -> None:
        """`max_bytes`: the largest packet that it takes; 0: any."""
        uplink = self.uplinks.get(fixed_id)
        if uplink is not None:
            uplink.stream.link_up(max_bytes)

    def link_down(self, fixed_id: str, now: float) -> None:
        uplink = self.uplinks.get(fixed_id)
        if uplink is not None:
            uplink.stream.link_down()
            if uplink.down_at is None:
                uplink.down_at = now

    def next_deadline(self) -> float | None:
        waiting = [u.down_at for u in self.uplinks.values() if u.down_at is not None and not u.is_lost]
        lost_at = min(waiting) + self.takeover_after_s if waiting else float("inf")
        due = min((uplink.stream.deadline for uplink in self.uplinks.values()), default=float("inf"))
        return None if lost_at == due == float("inf") else min(lost_at, due)

    def handle_timer(self, now: float) -> None:
        for uplink in list(self.uplinks.values()):
            down_at = uplink.down_at
            if down_at is not None and not uplink.is_lost and down_at + self.takeover_after_s <= now:
                if uplink is self.current:
                    self._take_over(uplink, now)
                else:
                    # It was lost before it could be left, and nobody dials it any more.
                    self._give_up(uplink, now)

    def _take_over(self, uplink: Uplink, now: float) -> None:
        uplink.is_lost = True
        topics = self.recover(None, now) if uplink is self.current else []
        events = sum(self.notifier.settle(uplink, unsettled) for unsettled in uplink.unsettled.values())
        self._events.append(TakenOver(uplink.fixed_id, len(topics), events))

    def _give_up(self, uplink: Uplink, now: float) -> None:
        """It is lost, and another is in its place."""
        self._travellers.forget(uplink)
        self._take_over(uplink, now)
        self.notifier.reclaim(uplink)
        self._write_elsewhere(uplink, now)
        # All here have it, and the other fixed broker is told: nothing waits for one that may never be back.
        uplink.unsettled.clear()

    def _write_elsewhere(self, uplink: Uplink, now: float) -> None:
        for message_id, unsettled in uplink.unsettled.items():
            if self.current is not None and message_id not in self.current.unsettled:
                self.notifier.write_again(self.current, unsettled, now)

    def _drop(self, uplink: Uplink) -> None:
        del self.uplinks[uplink.fixed_id]
        self._travellers.forget(uplink)

    # Events

    @property
    def generation(self) -> int:
        """Grows with each change that makes what `matched` gave void."""
        return self.registries.generation

    def matched(self, topic: str, here: Iterable[str], there: Mapping[str, int]) -> Matched:
        """`here` are those that the broker notifies itself, `there` (callback → QoS) clients that are at a
        fixed broker and have an active subscription. It is good for any event of that topic."""
        return self.notifier.matched(topic, here, there)

    def publish(self, message: Message, matched: Matched, now: float) -> None:
        """An event that was published here, and of which the broker has notified `matched.here`."""
        self.notifier.publish(message, matched, self.current, now)

    # Clients that move

    def announce(self, callback: str, now: float, username: str | None = None) -> int:
        """This client, which logged in here as this user, is to be sent to the fixed broker when
        `has_handled` says so of what is returned."""
        if self.current is None:
            raise ValueError("there is no fixed broker to send a client to")
        return self._travellers.announce(callback, username, self.current, now)

    def has_handled(self, number: int) -> bool:
        """The fixed broker knows of that announcement, and nothing has changed it."""
        return self._travellers.has_handled(number, self.current)

    def client_attached(self, callback: str, now: float) -> None:
        """It is connected here, wherever it was before, or was to go."""
        self._travellers.client_attached(callback, now)

    def hand_on(
        self, callback: str, qos: int, undelivered: Sequence[Message], now: float, is_again: bool = False
    ) -> None:
        """These waited here for a client that is at the fixed broker now."""
        self.notifier.hand_on(callback, qos, undelivered, now, is_again)

    def roam(self, body: Roaming, now: float, fixed_id: str | None = None) -> bool:
        """Of a session on its way; to the fixed broker that supports this one, unless it is another."""
        uplink = self.current if fixed_id is None else self.uplinks.get(fixed_id)
        if uplink is not None:
            uplink.stream.put(PublicationKind.ROAMING, body, now)
        return uplink is not None

    def miss(self, fixed_id: str, callback: str, delivery: tuple[Message, int, bool], now: float) -> bool:
        """What waited here for a client, at this QoS, and whether it may have got it; False: no room, yet."""
        uplink = self.uplinks.get(fixed_id)
        message, qos, is_again = delivery
        if uplink is None or not uplink.stream.has_room(message):
            return False
        event = EventBody(message, ((callback, qos),), is_again=is_again, is_missed=True)
        uplink.stream.put(PublicationKind.EVENT, event, now)
        return True

    # What fixed brokers write

    def receive_publication(self, fixed_id: str, publication: Message, now: float) -> None:
        uplink, topic = self.uplinks.get(fixed_id), publication.topic
        try:
            if uplink is None:
                raise codec.CodecError("it is not from the fixed broker of this one")
            kind, header, body = codec.read(publication)
            if kind not in EVENTS:
                domain, broker_id, _ = codec.split_topic(topic)
                # The document's prose has the sender in the topic, its examples the recipient.
                if broker_id not in (fixed_id, self.broker_id) or domain != uplink.stream.domain:
                    raise codec.CodecError("it is not from the fixed broker of this one")
            if kind not in FROM_FIXED:
                raise codec.CodecError(f"{kind.name} is for a mobile broker to write")
        except codec.CodecError as error:
            self.stats.refused += 1
            self._events.append(DelegationRefused(fixed_id, topic, str(error)))
            return
        if isinstance(body, HelloBody):
            self._handle_hello(uplink, header, body, now)
        elif uplink.stream.accept(kind, header, body, now):
            if kind in CONTENT:
                self._receive_event(uplink, kind, header, body, now)
            else:
                self._receive_agreement(uplink, kind, header, body, now)
            for written, told in uplink.postponed.take(uplink.stream.content.received):
                self._events.append(RoamingTold(fixed_id, told, written))
            self._advance(now)

    def _receive_event(
        self, uplink: Uplink, kind: PublicationKind, header: StreamHeader, body: Body, now: float
    ) -> None:
        uplink.advance(header.other_acknowledged, self.registries)
        if isinstance(body, EventBody) and body.is_missed:
            body.message.expire_from(now)
            self._events.append(MissedWhileAway(uplink.fixed_id, body, header.number))
        elif isinstance(body, EventBody):
            self.notifier.reading = header.number
            self.notifier.notify(uplink, uplink is self.current, body, header.acknowledged, now)
            self.notifier.reading = 0
        for record in uplink.stream.acknowledged(kind, header):
            uplink.forget(record, self.notifier.away)
        self._catch_up(uplink)

    def _receive_agreement(
        self, uplink: Uplink, kind: PublicationKind, header: StreamHeader, body: Body, now: float
    ) -> None:
        # What one that is being left has handled late, the new one has yet to hear of.
        fresh = uplink.told(header.acknowledged, self.registries) if uplink is self.current else ()
        for topic_filter in fresh:
            self._events.append(Delegated(uplink.fixed_id, topic_filter))
        self._handle(uplink, body, header, now)
        uplink.stream.acknowledged(kind, header)
        uplink.ahead = header.other, header.acknowledged
        self._catch_up(uplink)

    def _catch_up(self, uplink: Uplink) -> None:
        """No event is on its way that was written before what was agreed last."""
        written, acknowledged = uplink.ahead
        if uplink.stream.content.received >= written:
            uplink.advance(acknowledged, self.registries)

    def _handle(self, uplink: Uplink, body: Body, header: StreamHeader, now: float) -> None:
        match body:
            case GuestSubscription():
                self._travellers.handle_subscription(uplink, body)
            case Unsubscription():
                self._travellers.handle_unsubscription(uplink, body)
            case Registrations():
                for registration in body.topics:
                    self._handle_recovered(uplink, registration, header.acknowledged, now)
            case Serving():
                self._travellers.handle_serving(uplink, body, header.acknowledged)
            case Roaming() if addresses.owner_of(body.callback) == self.broker_id:
                uplink.postponed.add(header.other, body)

    def _handle_hello(self, uplink: Uplink, header: StreamHeader, hello: HelloBody, now: float) -> None:
        is_new = uplink.stream.receive_hello(header, hello, now)
        if is_new is None:
            return
        uplink.down_at = None
        if is_new:
            self._introduce(uplink, now)
        uplink.is_lost = False
        self._advance(now)

    def _introduce(self, uplink: Uplink, now: float) -> None:
        """One of the two knows nothing of the other: all topics are told, all of them active."""
        self.notifier.call_back(uplink)
        if uplink is self.current:
            self.registries.activate()
        for unsettled in uplink.unsettled.values():
            self.notifier.settle(uplink, unsettled)
        self.notifier.reclaim(uplink)
        if uplink is not self.current:
            # It knows nothing of this broker: there is nothing to take leave from.
            self._write_elsewhere(uplink, now)
            self._drop(uplink)
            return
        uplink.stream.begin_anew()
        uplink.postponed.clear()
        uplink.know_nothing(self.registries)
        self._tell_own(uplink, self.registries, now)
        uplink.introduced = uplink.stream.process.number
        before, uplink.unsettled = uplink.unsettled, {}
        for unsettled in before.values():
            self.notifier.write_again(uplink, unsettled, now)
        self._travellers.announce_again(uplink, now)
        self._events.append(Introduced(uplink.fixed_id))

    def _handle_recovered(self, uplink: Uplink, registration: Registration, cause: int, now: float) -> None:
        """`cause` is the number by which we asked for it, or of the delegation that is refused."""
        topic_filter = registration.topic_filter
        registry = self.registries.get(topic_filter)
        uplink.given_back(topic_filter, cause)
        if registry is None:
            self._adopt(uplink, registration, now)
            return
        if cause in registry.delegations and uplink is self.current:
            # What was written between it and the next attempt, nobody has matched.
            later = [number for number in registry.delegations if number > cause]
            if later:
                self.registries.set_told(topic_filter, False)
            else:
                self.recover([topic_filter], now)
            for unsettled in uplink.unsettled.values():
                if cause <= unsettled.record.other < min(later, default=uplink.stream.process.number + 1):
                    self.notifier.settle(uplink, unsettled)
        self._events.append(Recovered(uplink.fixed_id, topic_filter))

    def _adopt(self, uplink: Uplink, registration: Registration, now: float) -> None:
        """A topic that is unknown here: unsubscribed meanwhile, or delegated by a life that is forgotten."""
        topic_filter, entries, members = registration
        if self.adopts and len(self.registries.by_filter) < MAX_REGISTRIES:
            own = addresses.of_broker(self.broker_id)
            for callback, qos in entries:
                if addresses.owner_of(callback) == self.broker_id and callback != own:
                    self.subscribe(callback, topic_filter, qos, now)
                    self.adopted.setdefault(callback, set()).add(topic_filter)
        elif entries or members:
            gone = Unsubscription(topic_filter, addresses.of_broker(self.broker_id))
            uplink.stream.put(PublicationKind.UNSUBSCRIPTION_SINGLE, gone, now)

    def _advance(self, now: float) -> None:
        """Leave those that are to be left, once the new one knows all topics."""
        current = self.current
        if current is None or not current.has_handled(current.introduced):
            return
        for uplink in list(self.uplinks.values()):
            if uplink is current:
                continue
            if uplink.farewell is not None and uplink.passed >= uplink.farewell:
                self._drop(uplink)
                self._events.append(Left(uplink.fixed_id))
            elif uplink.farewell is None and uplink.has_handled(uplink.deactivated):
                if uplink.stream.content.kept:
                    continue  # Clients wait for it there, and a fixed broker that is left gives nothing back.
                uplink.farewell = uplink.stream.put(
                    PublicationKind.UNSUBSCRIPTION_ALL, EmptyBody(), now
                ).number

    # What comes out

    def take_publications(self, now: float = float("inf")) -> list[tuple[str, Message]]:
        """For each fixed broker, in order."""
        return [
            (uplink.fixed_id, publication)
            for uplink in self.uplinks.values()
            for publication in uplink.stream.take_publications(now)
        ]

    @property
    def has_deliveries(self) -> bool:
        return bool(self.notifier.deliveries)

    def take_deliveries(self) -> list[Notification]:
        deliveries, self.notifier.deliveries = self.notifier.deliveries, []
        return deliveries

    def take_events(self) -> list[DelegationEvent]:
        events = self._events[:]
        self._events.clear()
        return events
