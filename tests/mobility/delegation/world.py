"""Mobile and fixed brokers on links that are cut, replayed and resumed, and who was notified of what.

`World` carries the machines' publications, and keeps for each event whom it is due to: those subscribed when
it was published who stay so and, for an event from outside, are known to the fixed broker that handles it. It
is a plain record, with no opinion about how the machines do it.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from hedgerow.duplicates import DuplicateLog
from hedgerow.message import Message, MessageId
from hedgerow.mobility.delegation import addresses
from hedgerow.mobility.delegation.events import (
    ClientMoved,
    DelegationEvent,
    GuestSubscribed,
    GuestUnsubscribed,
    Notification,
)
from hedgerow.mobility.delegation.fixed import FixedSide
from hedgerow.mobility.delegation.limits import WINDOW_BYTES, DelegationLimits
from hedgerow.mobility.delegation.mobile import MobileSide
from hedgerow.mobility.delegation.registries import subscribers
from hedgerow.topics import matches

DOMAIN = "farm/sector1"
TAKEOVER_AFTER_S = 3.0

Wire = deque[Message]


@dataclass
class Link:
    """Between a mobile and a fixed broker. What was on it when it was cut may come when it is resumed."""

    up: Wire = field(default_factory=deque)
    down: Wire = field(default_factory=deque)
    is_connected: bool = False
    mobile_knows: bool = False
    """It has been told of the connection, and not yet of its end."""
    fixed_knows: bool = False


@dataclass(eq=False)
class Waiting:
    """A delivery at a fixed broker that these clients have not got."""

    delivery: Notification
    names: set[str]


class World:
    def __init__(
        self, mobile_ids: tuple[str, ...], fixed_ids: tuple[str, ...], window_bytes: int = WINDOW_BYTES
    ) -> None:
        self.now = 1_000.0
        self.epochs = 0
        self.sequence = 0
        self.limits = DelegationLimits(window_bytes=window_bytes)
        """Of all sides."""
        self.logs = {name: DuplicateLog(1 << 20) for name in mobile_ids + fixed_ids}
        self.mobiles: dict[str, MobileSide | None] = {name: self._new_mobile(name) for name in mobile_ids}
        self.fixed: dict[str, FixedSide | None] = {name: self._new_fixed(name) for name in fixed_ids}
        self.stopped: dict[str, MobileSide | FixedSide] = {}
        self.inboxes: dict[str, deque[Message]] = {name: deque() for name in fixed_ids}
        self.outboxes: dict[str, list[Waiting]] = {name: [] for name in fixed_ids}
        self.is_reading_late = False
        self.sessions: dict[str, list[Notification]] = {}
        """What waits at its mobile broker for a client that is not there."""
        self.where: dict[str, str] = {}
        """At which fixed broker a client is; "" for its mobile broker."""
        self.links = {(m, f): Link() for m in mobile_ids for f in fixed_ids}
        self.subscriptions: dict[str, set[str]] = {}
        """Callback → filters."""
        self.ever: dict[str, set[str]] = {}
        self.events: list[DelegationEvent] = []
        self.due: dict[MessageId, set[str]] = {}
        self.asked: dict[MessageId, set[str]] = {}
        """Who was subscribed when it was published, and is so since."""
        self.topics: dict[MessageId, str] = {}
        self.notified: Counter[tuple[MessageId, str]] = Counter()
        self.again: Counter[tuple[MessageId, str]] = Counter()
        self.outside: Counter[MessageId] = Counter()
        for name in (*mobile_ids, *fixed_ids):
            self.settle(name)

    def _new_mobile(self, name: str) -> MobileSide:
        self.epochs += 1_000
        return MobileSide(name, DOMAIN, self.epochs, self.logs[name], TAKEOVER_AFTER_S, limits=self.limits)

    def _new_fixed(self, name: str) -> FixedSide:
        self.epochs += 1_000
        return FixedSide(
            name,
            DOMAIN,
            self.epochs,
            lambda mobile: mobile in self.mobiles,
            self.logs[name],
            limits=self.limits,
        )

    # After each input: what came out is on its way.

    def settle(self, name: str) -> None:
        if name in self.mobiles:
            mobile = self.mobiles[name]
            assert mobile is not None
            for fixed_id, publication in mobile.take_publications():
                if self.links[name, fixed_id].is_connected:
                    self.links[name, fixed_id].up.append(publication)
            self._notify(mobile.take_deliveries())
            events = mobile.take_events()
            self.events += events
            for event in events:
                if isinstance(event, GuestSubscribed):
                    self.subscribe(event.wanted.callback, event.wanted.topic_filter, event.wanted.qos)
                elif isinstance(event, GuestUnsubscribed):
                    self.unsubscribe(event.callback, event.topic_filter)
                elif isinstance(event, ClientMoved) and event.is_at_fixed:
                    waiting = [delivery.message for delivery in self.sessions.pop(event.callback, [])]
                    mobile.hand_on(event.callback, 1, waiting, self.now)
                    self.settle(name)
        else:
            fixed = self.fixed[name]
            assert fixed is not None
            for mobile_id, publication in fixed.take_publications():
                if self.links[mobile_id, name].is_connected:
                    self.links[mobile_id, name].down.append(publication)
            self._queue(name, fixed.take_deliveries())
            events = fixed.take_events()
            self.events += events
            outside = fixed.take_outside()
            for event in events:
                if isinstance(event, ClientMoved):
                    self.hand_back(event.callback, name)
            for message in outside:
                assert message.id is not None
                self.outside[message.id] += 1
                for other in self.fixed:
                    if other != name:
                        self.give(other, message)

    def _count(self, deliveries: list[Notification]) -> None:
        for delivery in deliveries:
            message_id = delivery.message.id
            assert message_id is not None
            for callback, _ in delivery.callbacks:
                # An unsubscription takes its time to the fixed broker, as a subscription does.
                asked = any(matches(wanted, delivery.message.topic) for wanted in self.ever[callback])
                assert asked, f"{callback} never asked for {delivery.message.topic}"
                (self.again if delivery.is_again else self.notified)[message_id, callback] += 1
                assert self.notified[message_id, callback] <= 1, f"{callback} got {message_id} twice"

    def _notify(self, deliveries: list[Notification]) -> None:
        """By a mobile broker: what is for a client that is elsewhere waits in its session."""
        for delivery in deliveries:
            for pair in delivery.callbacks:
                single = Notification(delivery.message, (pair,), delivery.is_again, delivery.receipt)
                if self.where.get(pair[0]) and not delivery.is_again:
                    self.sessions.setdefault(pair[0], []).append(single)
                else:
                    self._count([single])

    # Clients at fixed brokers: what is delivered to them there waits until they read.

    def _queue(self, fixed_id: str, deliveries: list[Notification]) -> None:
        for delivery in deliveries:
            names = {callback for callback, _ in delivery.callbacks}
            self.outboxes[fixed_id].append(Waiting(delivery, names))
        if not self.is_reading_late:
            self.read(fixed_id)

    def read(self, fixed_id: str) -> None:
        """Clients that are there get what has waited for them."""
        for waiting in list(self.outboxes[fixed_id]):
            here = {name for name in waiting.names if self.where.get(name, fixed_id) == fixed_id}
            got = tuple(pair for pair in waiting.delivery.callbacks if pair[0] in here)
            delivery = waiting.delivery
            self._count([Notification(delivery.message, got, delivery.is_again, delivery.receipt)])
            self._release(fixed_id, waiting, here)
        if self.fixed[fixed_id] is not None:
            self._after(fixed_id)

    def _release(self, fixed_id: str, waiting: Waiting, names: set[str]) -> None:
        waiting.names -= names
        fixed = self.fixed[fixed_id]
        if not waiting.names:
            self.outboxes[fixed_id].remove(waiting)
            if waiting.delivery.receipt is not None and fixed is not None:
                fixed.settle(*waiting.delivery.receipt)

    def _after(self, fixed_id: str) -> None:
        """What was settled is told."""
        fixed = self.fixed[fixed_id]
        assert fixed is not None
        for mobile_id, publication in fixed.take_publications():
            if self.links[mobile_id, fixed_id].is_connected:
                self.links[mobile_id, fixed_id].down.append(publication)

    def attach(self, callback: str, fixed_id: str) -> None:
        fixed = self.fixed[fixed_id]
        assert fixed is not None
        self.where[callback] = fixed_id
        fixed.client_attached(callback, self.now)
        self.settle(fixed_id)

    def hand_back(self, callback: str, fixed_id: str) -> None:
        """It is gone from there, and what it did not get goes with it."""
        fixed = self.fixed[fixed_id]
        assert fixed is not None
        if self.where.get(callback) == fixed_id:
            self.where[callback] = ""
        mine = [waiting for waiting in self.outboxes[fixed_id] if callback in waiting.names]
        fixed.client_left(callback, [(waiting.delivery.message, 1) for waiting in mine], self.now)
        for waiting in mine:
            self._release(fixed_id, waiting, {callback})
        self.settle(fixed_id)

    def come_back(self, callback: str) -> None:
        owner = addresses.owner_of(callback) or ""
        mobile = self.mobiles[owner]
        assert mobile is not None
        self.where[callback] = ""
        self._count(self.sessions.pop(callback, []))
        mobile.client_attached(callback, self.now)
        self.settle(owner)

    def give(self, fixed_id: str, message: Message) -> None:
        """An event that reaches this fixed broker from outside; while it is dead, others keep it."""
        self.inboxes[fixed_id].append(message)
        self._drain(fixed_id)

    def _drain(self, fixed_id: str) -> None:
        fixed = self.fixed[fixed_id]
        inbox = self.inboxes[fixed_id]
        while fixed is not None and inbox:
            message = inbox.popleft()
            assert message.id is not None
            for callback in self.asked[message.id]:
                known = fixed.mobiles.get(addresses.owner_of(callback) or "")
                if message.id.origin == "outside" and known is not None:
                    for topic_filter in self.subscriptions.get(callback, ()):
                        entries = known.topics.get(topic_filter, {})
                        if matches(topic_filter, message.topic) and {known.own, callback} & set(entries):
                            self.due[message.id].add(callback)
            fixed.publish(message, self.now)
            self.settle(fixed_id)

    # Events and subscriptions

    def publish(self, origin: str, topic: str, *, qos: int = 1) -> MessageId:
        """At a mobile broker, or "outside"."""
        self.sequence += 1
        message_id = MessageId(origin, 1, self.sequence)
        asked = {
            callback
            for callback, filters in self.subscriptions.items()
            if any(matches(topic_filter, topic) for topic_filter in filters)
        }
        self.expect(message_id, topic)
        self.asked[message_id] = asked
        message = Message(topic, b"%d" % self.sequence, qos, id=message_id)
        if origin == "outside":
            for fixed_id in self.fixed:
                self.give(fixed_id, message)
        else:
            self.due[message_id] = {name for name in asked if addresses.owner_of(name) == origin}
            self.publish_at(origin, message)
        return message_id

    def publish_at(self, mobile_id: str, message: Message) -> None:
        """As a broker does: it notifies those who have an active subscription and are there."""
        mobile = self.mobiles[mobile_id]
        assert mobile is not None
        wanted = subscribers(
            registry
            for registry in mobile.registries
            if not registry.is_delegated and matches(registry.topic_filter, message.topic)
        )
        away = mobile.notifier.away
        here = {name: qos for name, qos in wanted.items() if name not in away}
        duplicates = mobile.stats.duplicates
        there = {name: qos for name, qos in wanted.items() if name in away}
        mobile.publish(message, mobile.matched(message.topic, here, there), self.now)
        if mobile.stats.duplicates == duplicates:
            self._notify([Notification(message, tuple(here.items()))])
        self.settle(mobile_id)

    def expect(self, message_id: MessageId, topic: str, *due: str) -> None:
        """An event that the test gives in by itself."""
        self.topics[message_id], self.asked[message_id], self.due[message_id] = topic, set(due), set(due)

    def subscribe(self, callback: str, topic_filter: str, qos: int = 1) -> None:
        owner = addresses.owner_of(callback)
        assert owner is not None
        mobile = self.mobiles[owner]
        assert mobile is not None
        self.subscriptions.setdefault(callback, set()).add(topic_filter)
        self.ever.setdefault(callback, set()).add(topic_filter)
        mobile.subscribe(callback, topic_filter, qos, self.now)
        self.settle(owner)

    def unsubscribe(self, callback: str, topic_filter: str) -> None:
        owner = addresses.owner_of(callback)
        assert owner is not None
        mobile = self.mobiles[owner]
        assert mobile is not None
        self.subscriptions.get(callback, set()).discard(topic_filter)
        for message_id, topic in self.topics.items():
            if matches(topic_filter, topic):
                self.due[message_id].discard(callback)
                self.asked[message_id].discard(callback)
        mobile.unsubscribe(callback, topic_filter, self.now)
        self.settle(owner)

    # Links

    def move(self, mobile_id: str, fixed_id: str) -> None:
        mobile = self.mobiles[mobile_id]
        assert mobile is not None
        mobile.move_to(fixed_id, self.now)
        self.settle(mobile_id)

    def connect(self, mobile_id: str, fixed_id: str, replay: int = 0, *, is_late: bool = False) -> None:
        """A new connection. The first `replay` publications of the last one come yet, on both ways: before
        the new ones, or behind those with which it begins."""
        mobile, fixed, link = self.mobiles[mobile_id], self.fixed[fixed_id], self.links[mobile_id, fixed_id]
        assert mobile is not None
        assert fixed is not None
        late = deque(list(link.up)[:replay]), deque(list(link.down)[:replay])
        self.cut(mobile_id, fixed_id)
        self.notice(mobile_id, fixed_id)
        link.up, link.down = (deque(), deque()) if is_late else late
        link.is_connected = link.mobile_knows = link.fixed_knows = True
        fixed.link_up(mobile_id)
        self.settle(fixed_id)
        mobile.link_up(fixed_id)
        self.settle(mobile_id)
        if is_late:
            link.up += late[0]
            link.down += late[1]

    def cut(self, mobile_id: str, fixed_id: str) -> None:
        """Nobody is told."""
        self.links[mobile_id, fixed_id].is_connected = False

    def notice(self, mobile_id: str, fixed_id: str, *, by_mobile: bool = True, by_fixed: bool = True) -> None:
        link = self.links[mobile_id, fixed_id]
        if link.is_connected:
            return
        mobile, fixed = self.mobiles[mobile_id], self.fixed[fixed_id]
        if by_mobile and link.mobile_knows and mobile is not None:
            link.mobile_knows = False
            mobile.link_down(fixed_id, self.now)
            self.settle(mobile_id)
        if by_fixed and link.fixed_knows and fixed is not None:
            link.fixed_knows = False
            fixed.link_down(mobile_id, self.now)
            self.settle(fixed_id)

    def carry(self, mobile_id: str, fixed_id: str, up: int, down: int) -> None:
        link = self.links[mobile_id, fixed_id]
        for _ in range(up):
            fixed = self.fixed[fixed_id]
            if not (link.is_connected and link.up and fixed is not None):
                break
            publication = link.up.popleft()
            fixed.receive_publication(mobile_id, publication, self.now)
            self.settle(fixed_id)
        for _ in range(down):
            mobile = self.mobiles[mobile_id]
            if not (link.is_connected and link.down and mobile is not None):
                break
            publication = link.down.popleft()
            mobile.receive_publication(fixed_id, publication, self.now)
            self.settle(mobile_id)

    def run(self) -> None:
        """Until nothing is on any link."""
        for _ in range(10_000):
            busy = [key for key, link in self.links.items() if link.is_connected and (link.up or link.down)]
            if not busy:
                return
            for mobile_id, fixed_id in busy:
                self.carry(mobile_id, fixed_id, 1, 1)
        raise AssertionError("it does not come to rest")

    # Misfortune

    def tick(self, seconds: float) -> None:
        self.now += seconds
        for name, side in (*self.mobiles.items(), *self.fixed.items()):
            if side is not None and (due_at := side.next_deadline()) is not None and due_at <= self.now:
                side.handle_timer(self.now)
                self.settle(name)

    def stop(self, name: str) -> None:
        """It does nothing, and all its links are lost, until it is revived."""
        for (mobile_id, fixed_id), link in self.links.items():
            if mobile_id == name:
                link.is_connected = link.mobile_knows = False
            if fixed_id == name:
                link.is_connected = link.fixed_knows = False
        side = self.mobiles.get(name) or self.fixed.get(name)
        if side is not None:
            self.stopped[name] = side
        (self.mobiles if name in self.mobiles else self.fixed)[name] = None

    def revive(self, name: str, *, with_memory: bool = True) -> None:
        """Without memory: it was killed, and is a new one."""
        side = self.stopped.pop(name)
        if not with_memory:
            self.logs[name] = DuplicateLog(1 << 20)
            side = self._new_mobile(name) if name in self.mobiles else self._new_fixed(name)
        if isinstance(side, MobileSide):
            self.mobiles[name] = side
        else:
            self.fixed[name] = side
        for other in self.fixed if name in self.mobiles else self.mobiles:
            side.link_down(other, self.now)
        if name in self.fixed and not with_memory:
            # Its clients' sessions are gone. What it had accepted from outside and not passed on, too.
            self.outboxes[name].clear()
            self.where = {client: "" if at == name else at for client, at in self.where.items()}
            for message_id in self.due:
                if message_id.origin == "outside":
                    self.due[message_id].clear()
        self.settle(name)
        if name in self.fixed:
            self._drain(name)

    def attached_at(self, fixed_id: str) -> list[str]:
        """The clients there; it may be stopped."""
        side = self.fixed[fixed_id] or self.stopped[fixed_id]
        assert isinstance(side, FixedSide)
        return list(side.attached)

    def heal(self) -> None:
        """Everybody is alive and connected, for long enough."""
        for name, side in (*self.mobiles.items(), *self.fixed.items()):
            if side is None:
                self.revive(name)
        for mobile_id, fixed_id in self.links:
            self.connect(mobile_id, fixed_id)
        self.run()
        for fixed_id, fixed in self.fixed.items():
            assert fixed is not None
            for callback in [name for name in fixed.attached if self.where.get(name, fixed_id) != fixed_id]:
                self.hand_back(callback, fixed_id)
            self.read(fixed_id)
        self.run()
        for callback in self.where:
            self.come_back(callback)
        self.run()
        self.tick(TAKEOVER_AFTER_S)
        self.run()

    def check(self) -> None:
        """Everybody got what was due."""
        for message_id, names in self.due.items():
            assert message_id.origin == "outside" or self.outside[message_id], f"{message_id} did not get out"
            for callback in names:
                count = self.notified[message_id, callback] + self.again[message_id, callback]
                assert count, f"{callback} did not get {message_id} ({self.topics[message_id]})"
