"""A client's session on its way from one broker to another: what both ends of that do.

A client that comes to another mobile broker than the one that has its session gets it there. The session goes
from the mobile broker to the fixed one, and from there to the other, each time in the same four steps
(`Roaming`):

1. OFFER: its subscriptions. Whoever offers goes on serving it.
2. READY: the other side is subscribed. Both have what is published now, and whoever has it twice knows it by
   its id.
3. What waited, as events that were missed, and END. Whoever offered is subscribed no longer.
4. KEPT: the other side has stored it, in front of what has come since. Whoever offered lets go of it.

No event is lost between two brokers, as one of them is subscribed at each moment, and each is in its order:
what the first one had, then what only the second has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field

from hedgerow.broker.broker import Broker
from hedgerow.broker.changes import SubscriptionRecord
from hedgerow.broker.deliveries import enqueue
from hedgerow.broker.handle_subscribe import subscribe_for
from hedgerow.broker.log_reading import waiting
from hedgerow.broker.publishing import deliver_to
from hedgerow.broker.session import Session
from hedgerow.message import Message, MessageId
from hedgerow.mobility.delegation.limits import ENTRIES_PER_DELEGATION, MAX_HAD, RECORD_BYTES
from hedgerow.mobility.delegation.publications import GuestSubscription, Roaming, RoamingStep
from hedgerow.mobility.sessions import may_have_come, take_queued
from hedgerow.mqtt.outbox import Delivery, Stage
from hedgerow.mqtt.packets import Subscription
from hedgerow.topics import TopicTree, matches, split_shared

NEVER = 2**32 - 1  # seconds: as Session Expiry Interval has it (§3.1.2.11.2)
MAX_ROAMING_FILTERS = 10_000  # of one session
MAX_STAGED_BYTES = 512 * 1024 * 1024  # of sessions on their way to here, in all

Waited = tuple[Message, int, bool]
"""What waits for a client: at which QoS, and whether it may have got it."""


class Noted:
    """Which events a client has got lately."""

    def __init__(self) -> None:
        self._ids: dict[MessageId, None] = {}

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._ids

    def __iter__(self) -> Iterator[MessageId]:
        return iter(self._ids)

    def add(self, message_id: MessageId) -> None:
        self._ids.pop(message_id, None)
        self._ids[message_id] = None
        if len(self._ids) > MAX_HAD:
            del self._ids[next(iter(self._ids))]


@dataclass(slots=True)
class Giving:
    """A session that is offered to another broker."""

    to: str
    number: int
    subscriptions: tuple[GuestSubscription, ...]
    is_open: bool = False
    """The other side is READY."""
    left: deque[Waited] | None = None
    """What is yet to be written there; None: it is not known yet."""
    had: tuple[MessageId, ...] = ()
    is_ended: bool = False


@dataclass(slots=True)
class Taking:
    """A session that another broker offers."""

    number: int
    username: str | None = None
    expiry_s: float = 0.0
    subscriptions: list[GuestSubscription] = field(default_factory=list)
    missed: list[Waited] = field(default_factory=list)
    bytes: int = 0
    is_ready: bool = False
    """All of its subscriptions are told."""
    is_open: bool = False
    """It is subscribed here, and the other side knows."""
    is_ended: bool = False
    is_stored: bool = False
    """What was missed is put into the session here, or is about to be."""
    is_fresh: bool = False
    """Its client had no session here before."""
    arrived: dict[MessageId, int] = field(default_factory=dict)
    """What waits since for what its client has asked for here by itself, by which of the other side's events
    it came; 0: before the session was offered."""
    until: int | None = None
    """The first of those events that was written when the other side was subscribed no more."""

    def covers(self, message: Message) -> bool:
        """Is it among what was missed, or has its client had it there?"""
        number = self.arrived.get(message.id) if message.id is not None else None
        if number is None or self.until is None or number >= self.until:
            return False
        return any(matches(each.topic_filter, message.topic) for each in self.subscriptions)


def size_of(message: Message) -> int:
    return message.size + RECORD_BYTES


def may_roam(session: Session) -> bool:
    """Is it one that outlives its connections, that is its client's alone, and whose client has proved to be
    somebody? Anyone could ask for another."""
    if session.username is None:
        return False
    held = session.subscriptions or {}
    is_alone = all(split_shared(name)[0] is None for name in held)
    return session.role.is_movable and session.expiry_s > 0 and is_alone and len(held) <= MAX_ROAMING_FILTERS


def subscriptions_of(session: Session, callback: str) -> tuple[GuestSubscription, ...]:
    """What begins with $ is each broker's own."""
    return tuple(
        GuestSubscription(
            name,
            callback,
            record.subscription.qos,
            record.subscription.no_local,
            record.subscription.retain_as_published,
            record.subscription_identifier,
        )
        for name, record in (session.subscriptions or {}).items()
        if not name.startswith("$")
    )


def expiry_of(session: Session, now: float) -> int:
    """How long the session is to last yet, if its client does not come."""
    left = session.expiry_s if session.expires_at is None else session.expires_at - now
    return int(min(NEVER, max(1.0, left)))


def offers(callback: str, giving: Giving, session: Session, now: float) -> Iterator[Roaming]:
    rows = range(0, max(1, len(giving.subscriptions)), ENTRIES_PER_DELEGATION)
    expiry_s = expiry_of(session, now)
    for start in rows:
        row = giving.subscriptions[start : start + ENTRIES_PER_DELEGATION]
        is_more = start + ENTRIES_PER_DELEGATION < len(giving.subscriptions)
        yield Roaming(
            callback, RoamingStep.OFFER, giving.number, session.username, is_more, expiry_s, tuple(row)
        )


def take_offer(taking: Taking, body: Roaming) -> None:
    taking.username = body.username
    taking.expiry_s = float("inf") if body.expiry_s == NEVER else float(body.expiry_s)
    room = MAX_ROAMING_FILTERS - len(taking.subscriptions)
    taking.subscriptions += body.subscriptions[:room]
    taking.is_ready = not body.is_more


def subscribe_all(broker: Broker, session: Session, wanted: Sequence[GuestSubscription]) -> None:
    """What its client has asked for again meanwhile stays as it is."""
    for each in wanted:
        if each.topic_filter not in (session.subscriptions or ()):
            subscription = Subscription(each.topic_filter, each.qos, each.no_local, each.retain_as_published)
            subscribe_for(broker, session, SubscriptionRecord(subscription, each.identifier))


def waiting_in(broker: Broker, session: Session) -> deque[Waited]:
    """All of it stays in the session, too. What the client has received at QoS 2 is not among it."""
    found: deque[Waited] = deque()
    for delivery in waiting(broker, session):
        if delivery.stage != Stage.RELEASED:
            broker.identify_late(delivery.message)
            found.append((delivery.message, delivery.qos, may_have_come(delivery)))
    return found


def merge(
    broker: Broker,
    session: Session,
    missed: Sequence[Waited],
    had: Container[MessageId] = (),
    given: Container[MessageId] = (),
    covers: Callable[[Message], bool] = lambda message: False,
) -> int:
    """Put what it missed in front of what waits. `had`: its client has got it elsewhere. `given`: here, or it
    waits. `covers`: of what waits, it is among what was missed, or its client has had it elsewhere. Of what
    waits and was missed as well the former counts: whoever brings the latter may have made it up."""
    queued = take_queued(broker, session)
    behind = {each.message.id: each.message for each in queued}
    done = {each.message.id for each in session.loaded()}
    held: TopicTree[str, None] = TopicTree()
    for topic_filter in (session.subscriptions or ()) if missed else ():
        held.set(topic_filter, topic_filter, None)
    count = 0
    for message, qos, is_again in missed:
        assert message.id is not None
        is_given = message.id in given and message.id not in behind
        if message.id in done or message.id in had or is_given:
            continue
        done.add(message.id)
        count += 1
        true = behind.get(message.id, message)
        filters = [topic_filter for topic_filter, _ in held.match(true.topic)]
        broker.durability.store_separately()
        deliver_to(broker, session, true, None, qos, is_again, filters=filters)
    for each in queued:
        message = each.message
        if message.id not in done and message.id not in had and not covers(message):
            _put_back(broker, session, each, may_have_come(each))
    return count


def mark(broker: Broker, session: Session, ids: Container[MessageId]) -> None:
    """Of what waits for it, these may have come to its client elsewhere."""
    for each in take_queued(broker, session):
        _put_back(broker, session, each, may_have_come(each) or each.message.id in ids)


def _put_back(broker: Broker, session: Session, taken: Delivery, is_again: bool) -> None:
    """As what it was. To look for it among ten thousand filters, each time, would take minutes."""
    if session.may_read(broker.access, taken.message.topic):
        delivery = Delivery(taken.message, taken.qos, taken.retain, taken.subscription_identifiers)
        delivery.is_again = is_again
        broker.durability.store_separately()
        enqueue(broker, session, delivery)
