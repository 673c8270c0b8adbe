"""The mobile broker's side: it owns every subscription, and matches a topic itself or has it matched.

The shell calls `link_up`, `link_down` for each connection to a fixed broker, gives in what it brings
(`receive_publication`), and after each input takes out publications, deliveries and events. What is stored is
`DuplicateLog` pages, and `state.py`'s snapshot, before what was taken out leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hedgerow.duplicates import DuplicateLog
from hedgerow.fabric.delegation import callbacks as addresses
from hedgerow.fabric.delegation import codec
from hedgerow.fabric.delegation.codec import (
    Body,
    Event,
    Filters,
    Header,
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
    Delegated,
    DelegationEvent,
    Delivery,
    Left,
    Recovered,
    Refused,
    Stats,
    TakenOver,
)
from hedgerow.fabric.delegation.limits import (
    ENTRIES_PER_DELEGATION,
    MAX_FIXED_BROKERS,
    MAX_REGISTRIES,
    TAKEOVER_AFTER_S,
)
from hedgerow.fabric.delegation.notifier import Notifier
from hedgerow.fabric.delegation.registries import Registry, rows
from hedgerow.fabric.delegation.stream import Record, Stream
from hedgerow.fabric.delegation.uplink import Uplink
from hedgerow.message import Message
from hedgerow.topics import TopicTree, validate_filter


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
    ) -> None:
        self.broker_id = addresses.validate_broker_id(broker_id)
        self.domain = domain
        self.takeover_after_s = takeover_after_s
        self.adopts = adopts
        self.stats = Stats()
        self.notifier = Notifier(accepted if accepted is not None else DuplicateLog(), self.stats)
        self.registries = self.notifier.registries
        self.uplinks: dict[str, Uplink] = {}
        self.current: Uplink | None = None
        self.epoch = epoch
        self._events: list[DelegationEvent] = []

    # Subscriptions, and which of them are delegated

    def subscribe(self, callback: str, topic_filter: str, qos: int, now: float) -> None:
        addresses.validate(callback)
        registry = self.registries.get(validate_filter(topic_filter))
        is_new = registry is None
        if registry is None:
            registry = Registry(topic_filter)
            self.registries.put(registry)
        self.registries.add(registry, callback, qos, self.notifier.published)
        uplink = self.current
        if uplink is None:
            return
        if is_new:
            for known in self.uplinks.values():
                known.outside.set(topic_filter, topic_filter, registry)
            self._tell_own(uplink, [registry], now)
        elif registry.is_delegated:
            registrations = Registrations((registry.as_registration(),))
            registry.delegations.append(uplink.stream.put(Kind.DELEGATE, registrations, now).number)
        self._start_over_if_overfull(uplink)

    def unsubscribe(self, callback: str, topic_filter: str, now: float) -> None:
        registry = self.registries.get(topic_filter)
        if registry is None or not self.registries.remove(registry, callback):
            return
        gone = Unsubscription(topic_filter, callback)
        if not registry.entries:
            for known in self.uplinks.values():
                known.outside.remove(topic_filter, topic_filter)
            if not registry.is_delegated:
                gone = Unsubscription(topic_filter, addresses.of_broker(self.broker_id))
        if self.current is not None and (registry.is_delegated or not registry.entries):
            self.current.stream.put(Kind.UNSUBSCRIPTION_SINGLE, gone, now)
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
            record = uplink.stream.put(Kind.DELEGATE, Registrations(row), now)
            for topic_filter, _ in row:
                self.registries.deactivate(self.registries.by_filter[topic_filter], record.number)
                uplink.flips.append((record.number, topic_filter, False))
        return [topic_filter for topic_filter, _ in chosen]

    def recover(self, topic_filters: Iterable[str] | None, now: float) -> list[str]:
        """These went hot; None: all."""
        chosen = self.registries.activate(topic_filters)
        if self.current is not None:
            for start in range(0, len(chosen), ENTRIES_PER_DELEGATION):
                row = tuple(chosen[start : start + ENTRIES_PER_DELEGATION])
                self.current.stream.put(Kind.RECOVER, Filters(row), now)
        return chosen

    def recover_all(self, now: float) -> None:
        """As before a move, or to have back what an earlier life has delegated and forgotten."""
        self.registries.activate()
        if self.current is not None:
            self.current.stream.put(Kind.DEACTIVATE_ALL, Nothing(), now)

    def _tell_own(self, uplink: Uplink, registries: Iterable[Registry], now: float) -> None:
        """These topics are matched here, from this number on."""
        for row in rows([registry.as_own(self.broker_id) for registry in registries]):
            record = uplink.stream.put(Kind.DELEGATE, Registrations(row), now)
            uplink.flips.extend((record.number, topic_filter, True) for topic_filter, _ in row)

    def _start_over_if_overfull(self, uplink: Uplink) -> None:
        """A fixed broker that is away for long is told all anew, rather than every change meanwhile."""
        if uplink.stream.is_overfull and not uplink.stream.is_open:
            uplink.stream.start_over(self.epoch)
            self.epoch += 1

    # Fixed brokers

    def move_to(self, fixed_id: str, now: float) -> None:
        """From now on this is the fixed broker; there may be a connection to it already, or later.

        Clients that are at the last one are to be called back before.
        """
        old = self.current
        if old is not None and old.fixed_id == fixed_id:
            return
        uplink = self.uplinks.pop(fixed_id, None)
        if uplink is None:
            uplink = Uplink(fixed_id, Stream(self.domain, self.broker_id, self.epoch, self.stats))
            self.epoch += 1
        else:
            # It was to be left, and has been told so or not: it is told all topics after that.
            uplink.deactivated = uplink.farewell = None
            self._tell_own(uplink, self.registries, now)
            uplink.introduced = uplink.stream.number
        self.current = self.uplinks[fixed_id] = uplink
        self.registries.activate()
        if old is None:
            return
        if not old.stream.is_open:
            self._give_up(old, now)
        old.deactivated = old.stream.put(Kind.DEACTIVATE_ALL, Nothing(), now).number
        if len(self.uplinks) > MAX_FIXED_BROKERS:
            oldest = next(iter(self.uplinks.values()))
            self._give_up(oldest, now)
            self._drop(oldest)

    @property
    def may_send_clients(self) -> bool:
        """There is one fixed broker, and it is here: clients may be sent to it.

        With two, an event that comes by one of them may come to the other later, and deliver to a client that
        has changed places between.
        """
        return len(self.uplinks) == 1 and self.current is not None and self.current.stream.is_open

    def link_up(self, fixed_id: str, now: float) -> None:
        uplink = self.uplinks.get(fixed_id)
        if uplink is not None:
            uplink.stream.link_up()

    def link_down(self, fixed_id: str, now: float) -> None:
        uplink = self.uplinks.get(fixed_id)
        if uplink is not None:
            uplink.stream.link_down()
            if uplink.down_at is None:
                uplink.down_at = now

    def next_deadline(self) -> float | None:
        waiting = [u.down_at for u in self.uplinks.values() if u.down_at is not None and not u.is_lost]
        return min(waiting) + self.takeover_after_s if waiting else None

    def handle_timer(self, now: float) -> None:
        for uplink in list(self.uplinks.values()):
            down_at = uplink.down_at
            if down_at is not None and not uplink.is_lost and down_at + self.takeover_after_s <= now:
                self._take_over(uplink, now)

    def _take_over(self, uplink: Uplink, now: float) -> None:
        uplink.is_lost = True
        topics = self.recover(None, now) if uplink is self.current else []
        events = sum(self.notifier.settle(uplink, unsettled) for unsettled in uplink.unsettled.values())
        self._events.append(TakenOver(uplink.fixed_id, len(topics), events))

    def _give_up(self, uplink: Uplink, now: float) -> None:
        """It is lost, and another is in its place."""
        self.notifier.call_back(uplink)
        self._take_over(uplink, now)
        self.notifier.reclaim(uplink)
        self._write_elsewhere(uplink, now)

    def _write_elsewhere(self, uplink: Uplink, now: float) -> None:
        for message_id, unsettled in uplink.unsettled.items():
            if self.current is not None and message_id not in self.current.unsettled:
                self.notifier.write_again(self.current, unsettled, now)

    def _drop(self, uplink: Uplink) -> None:
        del self.uplinks[uplink.fixed_id]
        self.notifier.call_back(uplink)

    # Events

    def publish(self, message: Message, now: float) -> None:
        """An event that was published here."""
        self.notifier.publish(message, self.current, now)

    # Clients that move

    def client_attached(self, callback: str, now: float) -> None:
        """It is connected here, wherever it was before."""
        uplink = self.notifier.away.pop(callback, None)
        if uplink is None:
            return
        uplink.stream.put(Kind.SERVING, Serving(callback, True), now)
        self._events.append(ClientMoved(callback, False))
        if uplink.is_lost:
            for unsettled in uplink.unsettled.values():
                self.notifier.settle(uplink, unsettled, only=callback)
            self.notifier.reclaim(uplink, only=callback)

    def hand_on(self, callback: str, qos: int, undelivered: Sequence[Message], now: float) -> None:
        """These waited here for a client that is at the fixed broker now."""
        self.notifier.hand_on(callback, qos, undelivered, now)

    def _handle_serving(self, uplink: Uplink, serving: Serving) -> None:
        callback = serving.callback
        if not serving.is_here:
            if self.notifier.away.get(callback) is uplink:
                del self.notifier.away[callback]
                self._events.append(ClientMoved(callback, False))
        elif not self.registries.knows(callback):
            self.stats.unknown_callbacks += 1
        else:
            # It may have come back meanwhile. Then what goes there is sent back, and soon we are told.
            self.notifier.away[callback] = uplink
            uplink.ever_served.add(callback)
            self._events.append(ClientMoved(callback, True))

    # What fixed brokers write

    def receive_publication(self, fixed_id: str, topic: str, payload: bytes, now: float) -> None:
        uplink = self.uplinks.get(fixed_id)
        try:
            domain, broker_id, action = codec.split_topic(topic)
            if uplink is None or broker_id != fixed_id or domain != self.domain:
                raise codec.CodecError("it is not from the fixed broker of this one")
            kind, header, body = codec.decode(action, payload)
            if kind not in codec.FROM_FIXED:
                raise codec.CodecError(f"{kind.name} is for a mobile broker to write")
        except codec.CodecError as error:
            self.stats.refused += 1
            self._events.append(Refused(fixed_id, topic, str(error)))
            return
        if isinstance(body, Hello):
            self._handle_hello(uplink, header, body, now)
        elif uplink.stream.accept(kind, header):
            self._flip(uplink, header.acknowledged)
            self._handle(uplink, header, body, now)
            for record in uplink.stream.acknowledged(header.acknowledged):
                self._forget_settled(uplink, record)
            self._advance(now)

    def _handle(self, uplink: Uplink, header: Header, body: Body, now: float) -> None:
        match body:
            case Event():
                self.notifier.notify(uplink, uplink is self.current, body, now)
            case Registrations():
                for registration in body.topics:
                    self._handle_recovered(uplink, registration, header.acknowledged, now)
            case Serving():
                self._handle_serving(uplink, body)

    def _handle_hello(self, uplink: Uplink, header: Header, hello: Hello, now: float) -> None:
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
        uplink.flips.clear()
        uplink.outside = TopicTree()
        for registry in self.registries:
            uplink.outside.set(registry.topic_filter, registry.topic_filter, registry)
        self._tell_own(uplink, self.registries, now)
        uplink.introduced = uplink.stream.number
        before, uplink.unsettled = uplink.unsettled, {}
        for unsettled in before.values():
            self.notifier.write_again(uplink, unsettled, now)

    def _handle_recovered(self, uplink: Uplink, registration: Registration, cause: int, now: float) -> None:
        """`cause` is the number by which we asked for it, or of the delegation that is refused."""
        topic_filter = registration.topic_filter
        registry = self.registries.get(topic_filter)
        if registry is None:
            self._adopt(uplink, registration, now)
            return
        uplink.outside.set(topic_filter, topic_filter, registry)
        if cause in registry.delegations and uplink is self.current:
            # What was written between it and the next attempt, nobody has matched.
            later = [number for number in registry.delegations if number > cause]
            if not later:
                self.recover([topic_filter], now)
            for unsettled in uplink.unsettled.values():
                if cause < unsettled.record.number < min(later, default=uplink.stream.number + 1):
                    self.notifier.settle(uplink, unsettled)
        self._events.append(Recovered(uplink.fixed_id, topic_filter))

    def _adopt(self, uplink: Uplink, registration: Registration, now: float) -> None:
        """A topic that is unknown here: unsubscribed meanwhile, or delegated by a life that is forgotten."""
        topic_filter, entries = registration
        if self.adopts and len(self.registries.by_filter) < MAX_REGISTRIES:
            own = addresses.of_broker(self.broker_id)
            for callback, qos in entries:
                if addresses.owner_of(callback) == self.broker_id and callback != own:
                    self.subscribe(callback, topic_filter, qos, now)
        elif entries:
            gone = Unsubscription(topic_filter, addresses.of_broker(self.broker_id))
            uplink.stream.put(Kind.UNSUBSCRIPTION_SINGLE, gone, now)

    def _flip(self, uplink: Uplink, acknowledged: int) -> None:
        flips = uplink.flips
        while flips and flips[0][0] <= acknowledged:
            _, topic_filter, is_here = flips.popleft()
            registry = self.registries.get(topic_filter)
            if registry is None:
                continue
            if is_here:
                uplink.outside.set(topic_filter, topic_filter, registry)
            else:
                uplink.outside.remove(topic_filter, topic_filter)
                self._events.append(Delegated(uplink.fixed_id, topic_filter))

    def _forget_settled(self, uplink: Uplink, record: Record) -> None:
        if record.kind == Kind.EVENT and not record.event.is_handed_on:
            assert record.event.message.id is not None
            uplink.unsettled.pop(record.event.message.id, None)
        if not uplink.stream.records:
            uplink.ever_served = {name for name, at in self.notifier.away.items() if at is uplink}
            uplink.reclaimed.clear()

    def _advance(self, now: float) -> None:
        """Leave those that are to be left, once the new one knows all topics."""
        current = self.current
        if current is None or not current.has_handled(current.introduced):
            return
        for uplink in list(self.uplinks.values()):
            if uplink is current:
                continue
            if uplink.has_handled(uplink.farewell):
                self._drop(uplink)
                self._events.append(Left(uplink.fixed_id))
            elif uplink.farewell is None and uplink.has_handled(uplink.deactivated):
                uplink.farewell = uplink.stream.put(Kind.UNSUBSCRIPTION_ALL, Nothing(), now).number

    # What comes out

    def take_publications(self) -> list[tuple[str, Message]]:
        """For each fixed broker, in order."""
        return [
            (uplink.fixed_id, publication)
            for uplink in self.uplinks.values()
            for publication in uplink.stream.take_publications()
        ]

    def take_deliveries(self) -> list[Delivery]:
        deliveries, self.notifier.deliveries = self.notifier.deliveries, []
        return deliveries

    def take_events(self) -> list[DelegationEvent]:
        events, self._events = self._events, []
        return events
