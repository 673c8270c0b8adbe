"""The gateway: chosen topics flow between this node's broker and a group without one, both ways.

It joins the broker's `Port` and a *member* of the group. No message goes round or comes twice, however many
gateways stand on one network and whatever other links its node has: a port hears a message once and never
itself, and what comes from the group is asked of the node's duplicate log, which all its links share, by the
fabric-wide id that every message keeps on its way. `$` topics stay where they are, since they speak of one
broker.

Retained messages are state. What the broker has at the start is *held* by the member, which answers late
subscribers with it but sends nothing. What others answer to the member is taken over, unless the broker has
that value, or one that was published later: a member that was away answers with old values.

A group takes messages at QoS 1 and 2 only as fast as its members can. What clients publish faster waits
here, within a limit.

What comes from the group at QoS 1 and 2 waits here where the broker has no room for it, and counts as taken
(`when_taken`) only when the broker has it and, where it has a store or a journal, when they do. Until then
its sender keeps it, and waits.

Each direction has a ledger that balances: what was published is relayed, held, waiting, or dropped for one
reason.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from hedgerow.broker.broker import Broker
from hedgerow.broker.port import Port
from hedgerow.errors import RefusedError, TopicError
from hedgerow.message import Message
from hedgerow.mqtt.reasons import Reason
from hedgerow.topics import split_shared, validate_filter

MAX_WAITING_BYTES = 16 * 1024 * 1024  # A client may publish for as long as it likes.
MAX_EVENTS = 16  # between two looks at them
WAITING_BYTES = 400  # What a message takes beside its bytes.
LOOK_AGAIN_S = 0.05  # for room at the broker


class GroupMember(Protocol):
    """What the gateway needs of the group's side."""

    @property
    def ready_at(self) -> float:
        """When it takes the next message at QoS 1 or 2."""

    def publish(self, message: Message, now: float) -> object:
        """Send it under its own id. Raises RefusedError when it cannot."""

    def hold(self, message: Message, now: float) -> object:
        """Answer late subscribers with this retained message. Raises RefusedError when it cannot."""

    def subscribe(self, topic_filter: str, now: float) -> object: ...

    def unsubscribe(self, topic_filter: str, now: float) -> object: ...


@dataclass(slots=True)
class GatewayLedger:
    """One direction: `published` is the sum of all others."""

    published: int = 0
    relayed: int = 0
    held: int = 0
    waiting: int = 0
    duplicates: int = 0
    outdated: int = 0
    """Last values that the broker has, or has a later one of."""
    too_large: int = 0
    overflowed: int = 0
    """There was no more room to wait."""
    missed: int = 0
    """From the group: their sender has them no more."""
    refused: int = 0
    """A topic that does not flow, or a retained message that the broker has no room for."""

    def count_refusal(self, error: RefusedError) -> None:
        if error.reason_code == Reason.PACKET_TOO_LARGE:
            self.too_large += 1
        else:
            self.refused += 1


@dataclass(slots=True)
class NotRelayed:
    """A publication that clients have, and the group does not get."""

    level: ClassVar[int] = logging.WARNING
    lines_a_minute: ClassVar[int] = 1
    address: str
    """The topic: a line a minute for each."""
    reason: str

    def __str__(self) -> str:
        return f"{self.address} is not passed on by multicast: {self.reason}"


def check_filter(topic_filter: str) -> str:
    """Return the filter if a gateway can take it. Raises TopicError."""
    validate_filter(topic_filter)
    if split_shared(topic_filter)[0] is not None or topic_filter.startswith("$"):
        raise TopicError(f"topics that begin with $ stay on their broker: {topic_filter!r}")
    return topic_filter


class Gateway:
    """`to_group` and `to_broker` are the ledgers. After `close` nothing flows."""

    def __init__(
        self,
        broker: Broker,
        member: GroupMember,
        topic_filters: Iterable[str],
        now: float,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        self.to_group = GatewayLedger()
        self.to_broker = GatewayLedger()
        self._broker = broker
        self._member = member
        self._filters = [check_filter(each) for each in topic_filters]
        self._waiting: deque[Message] = deque()
        self._waiting_bytes = 0
        self._max_waiting_bytes = max_waiting_bytes
        self._arrived: deque[Message | Callable[[], None]] = deque()
        self._look_again_at = float("inf")
        self._events: list[NotRelayed] = []
        self.has_work = False
        """There is something to send, to report or to wait for that was not there before."""
        self._has_sent = False
        self._told: set[str] = set()  # topics, at the start: filters may overlap
        self._port = Port(broker, "multicast gateway", self._hold, "multicast")
        # First the broker's side: what it retains is known before the group answers with the same.
        for topic_filter in self._filters:
            self._port.subscribe(topic_filter, now)
        self._port.deliver = self._send
        self._told.clear()
        for topic_filter in self._filters:
            member.subscribe(topic_filter, now)

    @property
    def forgotten(self) -> int:
        """How many ids the node's duplicate log had no room to remember."""
        return self._broker.duplicates.forgotten

    def receive_messages(self, messages: Iterable[Message], now: float) -> None:
        """What the member heard in the group."""
        for message in messages:
            if message.qos and (self._arrived or not self._has_room_for(message)):
                self.to_broker.published += 1
                self.to_broker.waiting += 1
                self._arrived.append(message)
                self._look_later(now)
            else:
                self._receive(message, False, now)

    def when_taken(self, done: Callable[[], None]) -> None:
        """Call it when the broker has taken all that was received so far, and has stored it."""
        if self._arrived:
            self._arrived.append(done)
        else:
            self._broker.durability.when_committed(done, self._port.share)

    def receive_held(self, messages: Iterable[Message], now: float) -> None:
        """Last values that the member was told when it subscribed."""
        for message in messages:
            self._receive(message, True, now)

    def note_missed(self, messages: int) -> None:
        """They were published in the group, and will not come."""
        self.to_broker.published += messages
        self.to_broker.missed += messages

    def take_has_sent(self) -> bool:
        """Whether the member was given something to send since this was last asked."""
        has_sent, self._has_sent = self._has_sent, False
        return has_sent

    @property
    def deadline(self) -> float:
        """When `handle_timer` is next needed."""
        return min(self._member.ready_at if self._waiting else float("inf"), self._look_again_at)

    def handle_timer(self, now: float) -> None:
        while self._waiting and self._member.ready_at <= now:
            self._send_next(now)
        if self._look_again_at <= now:
            self._take_arrived(now)

    def close(self, now: float) -> None:
        """What waits leaves at once: it can still be repaired, but not sent later."""
        self._take_arrived(now, is_over=True)
        self._port.close()
        while self._waiting:
            self._send_next(now)
        for topic_filter in self._filters:
            self._member.unsubscribe(topic_filter, now)

    # From the broker

    def _hold(self, message: Message) -> None:
        """A retained message, at the start."""
        ledger = self.to_group
        ledger.published += 1
        if message.topic in self._told:
            ledger.duplicates += 1
            return
        self._told.add(message.topic)
        try:
            self._member.hold(message, self._broker.now)
        except RefusedError as error:
            self._refuse(message, error)
        else:
            ledger.held += 1

    def _send(self, message: Message) -> None:
        ledger = self.to_group
        ledger.published += 1
        self.has_work = True
        now = self._broker.now
        if not message.qos or (not self._waiting and self._member.ready_at <= now):
            self._publish_to_group(message, now)
        elif self._waiting_bytes + message.size + WAITING_BYTES > self._max_waiting_bytes:
            ledger.overflowed += 1
        else:
            ledger.waiting += 1
            self._waiting.append(message)
            self._waiting_bytes += message.size + WAITING_BYTES

    def _send_next(self, now: float) -> None:
        message = self._waiting.popleft()
        self._waiting_bytes -= message.size + WAITING_BYTES
        self.to_group.waiting -= 1
        self.has_work = True
        self._publish_to_group(message, now)

    def _publish_to_group(self, message: Message, now: float) -> None:
        try:
            self._member.publish(message, now)
        except RefusedError as error:
            self._refuse(message, error)
        else:
            self.to_group.relayed += 1
            self._has_sent = True

    def _refuse(self, message: Message, error: RefusedError) -> None:
        self.to_group.count_refusal(error)
        if len(self._events) < MAX_EVENTS:
            self._events.append(NotRelayed(message.topic, str(error)))

    def take_events(self) -> list[NotRelayed]:
        events, self._events = self._events, []
        return events

    # From the group

    def _has_room_for(self, message: Message) -> bool:
        return self._port.closed or message.topic.startswith("$") or self._port.has_room_for(message)

    def _look_later(self, now: float) -> None:
        self._look_again_at = now + LOOK_AGAIN_S
        self.has_work = True

    def _take_arrived(self, now: float, is_over: bool = False) -> None:
        """`is_over`: there will be no better time; what has no room is passed on, and not acknowledged."""
        self._look_again_at = float("inf")
        while self._arrived:
            arrived = self._arrived[0]
            if not isinstance(arrived, Message):
                if not is_over:
                    self._broker.durability.when_committed(arrived, self._port.share)
            elif is_over or self._has_room_for(arrived):
                self.to_broker.published -= 1
                self.to_broker.waiting -= 1
                self._receive(arrived, False, now)
            else:
                self._look_later(now)
                return
            self._arrived.popleft()

    def _receive(self, message: Message, is_held: bool, now: float) -> None:
        ledger = self.to_broker
        ledger.published += 1
        if message.topic.startswith("$") or self._port.closed:
            ledger.refused += 1
        elif is_held and self._is_outdated(message):
            # Not remembered as having been here: a link's queue may still bring it, for those who hear all.
            ledger.outdated += 1
        elif self._port.is_duplicate(message):
            ledger.duplicates += 1
        elif self._publish_to_broker(message, now):
            ledger.relayed += 1
        else:
            ledger.refused += 1

    def _publish_to_broker(self, message: Message, now: float) -> bool:
        try:
            return self._port.publish(message, now)
        except TopicError:
            return False

    def _is_outdated(self, message: Message) -> bool:
        """Does the broker have this value, or a newer one? As members decide it: by time, then by origin."""
        kept = self._broker.retained.newest(message.topic, self._broker.now)
        return kept is not None and _age_key(kept) >= _age_key(message)


def _age_key(message: Message) -> tuple[float, str]:
    return message.published_at or 0.0, message.id.origin if message.id is not None else ""
