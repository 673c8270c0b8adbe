"""The sender's half of QoS 1 and QoS 2 (MQTT 5 §4.3, §4.4, §4.6, §4.9), for broker and client alike.

An `Outbox` holds the deliveries that one receiver has not completed: those in flight, by packet
identifier and in the order in which they must be sent again, and behind them the queue that waits
for the receiver's Receive Maximum. It writes no bytes; whoever owns it encodes what `take` and
`resend` return.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from enum import IntEnum
from typing import Any, Final

from hedgerow.message import Message

MAX_PACKET_ID: Final = 65_535


class Stage(IntEnum):
    """How far a delivery has come."""

    QUEUED = 0
    SENT = 1  # PUBLISH sent; PUBACK or PUBREC awaited
    RELEASED = 2  # PUBREC received, PUBREL sent; PUBCOMP awaited


_SENT = Stage.SENT  # by a name of the module: a member is looked up in ten times the time


class Delivery:
    """One message on its way to one receiver at QoS 1 or 2."""

    __slots__ = (
        "group",
        "handle",
        "is_again",
        "message",
        "packet_id",
        "position",
        "qos",
        "queued_at",
        "retain",
        "size",
        "stage",
        "subscription_identifiers",
    )

    def __init__(
        self,
        message: Message,
        qos: int,
        retain: bool = False,
        subscription_identifiers: tuple[int, ...] = (),
        position: int = 0,
        packet_id: int = 0,
        stage: int = Stage.QUEUED,
        queued_at: float = 0.0,
    ) -> None:
        self.message = message
        self.qos = qos
        self.retain = retain
        self.subscription_identifiers = subscription_identifiers
        self.position = position  # where the log keeps the message; 0 when it does not, or not yet
        self.packet_id = packet_id
        self.stage = stage
        self.size = message.size  # looked at several times on its way
        self.queued_at = queued_at  # when, where the queue has an age limit
        self.is_again = False  # Another broker may have delivered it: DUP is set from the first time on.
        self.handle = 0  # a client's: what the application knows it by
        self.group: Any = None  # the broker's: the shared subscription that chose this receiver


class Outbox:
    __slots__ = ("bytes", "in_flight", "next_packet_id", "queue", "window")

    def __init__(self, window: int = MAX_PACKET_ID) -> None:
        self.window = window  # the receiver's Receive Maximum (§3.3.4)
        self.in_flight: dict[int, Delivery] = {}
        self.queue: deque[Delivery] = deque()
        self.bytes = 0  # of all that is queued or in flight
        self.next_packet_id = 1

    def __len__(self) -> int:
        return len(self.in_flight) + len(self.queue)

    @property
    def is_full(self) -> bool:
        """Nothing more can be put in flight."""
        return len(self.in_flight) >= self.window

    def push(self, delivery: Delivery) -> None:
        self.queue.append(delivery)
        self.bytes += delivery.size

    def take(self) -> Delivery | None:
        """The next queued delivery, now in flight with a packet identifier; None when it must wait."""
        if not self.queue or self.is_full:
            return None
        delivery = self.queue.popleft()
        self.bytes -= delivery.size
        self.start(delivery)
        return delivery

    def start(self, delivery: Delivery) -> None:
        """Put a delivery in flight, past the queue: for who knows that the queue is empty."""
        packet_id = self.allocate_packet_id()
        delivery.packet_id = packet_id
        delivery.stage = _SENT
        self.in_flight[packet_id] = delivery
        self.bytes += delivery.size

    def has_room_for(self, count: int) -> bool:
        """May so many be put in flight at once?"""
        return not self.queue and len(self.in_flight) + count <= self.window

    def start_run(self, messages: Sequence[Message], qos: int, queued_at: float) -> list[Delivery]:
        """As `start` for each, where `has_room_for` all."""
        in_flight = self.in_flight
        packet_id = self.next_packet_id
        sent = _SENT
        deliveries = []
        size = 0
        for message in messages:
            while packet_id in in_flight:
                packet_id = packet_id % MAX_PACKET_ID + 1
            delivery = in_flight[packet_id] = Delivery(message, qos, False, (), 0, packet_id, sent, queued_at)
            deliveries.append(delivery)
            size += delivery.size
            packet_id = packet_id % MAX_PACKET_ID + 1
        self.next_packet_id = packet_id
        self.bytes += size
        return deliveries

    def drop_oldest(self) -> Delivery:
        """Give up the head of the queue (expired, or no room). Never one in flight."""
        delivery = self.queue.popleft()
        self.bytes -= delivery.size
        return delivery

    def drop(self, is_useless: Callable[[Message], bool]) -> list[Delivery]:
        """Give up what has become useless, anywhere in the queue."""
        dropped = [each for each in self.queue if is_useless(each.message)]
        if dropped:
            self.queue = deque(each for each in self.queue if not is_useless(each.message))
            self.bytes -= sum(each.size for each in dropped)
        return dropped

    def remove(self, unwanted: Set[Delivery]) -> list[Delivery]:
        """Give these up, in flight or not; which of them were here."""
        found = [each for each in (*self.in_flight.values(), *self.queue) if each in unwanted]
        if found:
            self.in_flight = {key: each for key, each in self.in_flight.items() if each not in unwanted}
            self.queue = deque(each for each in self.queue if each not in unwanted)
            self.bytes -= sum(each.size for each in found)
        return found

    def finish(self, packet_id: int) -> Delivery:
        """Let go of a delivery in flight."""
        delivery = self.in_flight.pop(packet_id)
        self.bytes -= delivery.size
        return delivery

    def allocate_packet_id(self) -> int:
        """A packet identifier that no delivery in flight uses (MQTT-2.2.1-3, -4)."""
        packet_id, in_flight = self.next_packet_id, self.in_flight
        while packet_id in in_flight:
            packet_id = packet_id % MAX_PACKET_ID + 1
        self.next_packet_id = packet_id % MAX_PACKET_ID + 1
        return packet_id

    def acknowledged(self, packet_id: int) -> Delivery | None:
        """PUBACK: the delivery that it completes, or None when there is no such QoS 1 delivery."""
        delivery = self.in_flight.get(packet_id)
        if delivery is None or delivery.qos != 1:
            return None
        del self.in_flight[packet_id]
        self.bytes -= delivery.size
        return delivery

    def finish_run(self, packet_ids: Iterable[int], qos: int) -> list[Delivery]:
        """As `acknowledged` for each at QoS 1, or `completed` at QoS 2: those that are completed."""
        in_flight = self.in_flight
        finished = []
        size = 0
        for packet_id in packet_ids:
            delivery = in_flight.get(packet_id)
            if delivery is not None and delivery.qos == qos:
                del in_flight[packet_id]
                size += delivery.size
                finished.append(delivery)
        self.bytes -= size
        return finished

    def received(self, packet_id: int) -> Delivery | None:
        """PUBREC: the QoS 2 delivery to release with a PUBREL, or None when there is none."""
        delivery = self.in_flight.get(packet_id)
        if delivery is None or delivery.qos != 2:
            return None
        # To the end: PUBRELs are sent again in the order of the PUBRECs (MQTT-4.6.0-4).
        del self.in_flight[packet_id]
        self.in_flight[packet_id] = delivery
        delivery.stage = Stage.RELEASED
        return delivery

    def completed(self, packet_id: int) -> Delivery | None:
        """PUBCOMP, or a PUBREC that refuses: the delivery that is over, or None."""
        delivery = self.in_flight.get(packet_id)
        if delivery is None or delivery.qos != 2:
            return None
        return self.finish(packet_id)

    def resend(self) -> list[Delivery]:
        """What a resumed session sends first: PUBLISH (DUP) or PUBREL, by stage, in order (MQTT-4.4.0-1)."""
        return list(self.in_flight.values())
