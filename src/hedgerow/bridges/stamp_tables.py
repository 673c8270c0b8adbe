"""The tables of a carrier (`stamps.py`): messages that wait for their id, stamps that wait for their message,
and the ids of last values. Each is bounded, since strangers fill them, and nothing takes a scan to find.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import NamedTuple

from hedgerow.bridges.stamp_codec import Stamp
from hedgerow.message import Message, MessageId

HELD_BYTES = 800  # What a message takes here beside its bytes.


class StampBounds(NamedTuple):
    held: int = 10_000
    held_bytes: int = 16 * 1024 * 1024
    unmatched: int = 10_000
    """Anybody may publish stamps that match nothing."""
    values: int = 10_000


BOUNDS = StampBounds()


@dataclass(slots=True, eq=False)
class Held:
    message: Message
    context: object
    print: bytes
    due_at: float
    owner: str | None = None
    """Whose stamp it waits for; None: nobody led when it came."""


class HeldMessages:
    """Messages leave in the order of their topic, each once it has its id."""

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self.count = 0
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._bytes = 0
        self._waiting: OrderedDict[Held, None] = OrderedDict()  # by `due_at`
        self._by_print: dict[bytes, OrderedDict[Held, None]] = {}  # those that wait, as they came
        self._by_topic: dict[str, deque[Held]] = {}  # all
        self._leaving: list[tuple[Message, object]] = []

    def __len__(self) -> int:
        return self.count

    @property
    def is_too_full(self) -> bool:
        return bool(self._waiting) and (len(self._waiting) > self._max_count or self._bytes > self._max_bytes)

    @property
    def due_at(self) -> float:
        return next(iter(self._waiting)).due_at if self._waiting else float("inf")

    def add(self, held: Held) -> None:
        self._waiting[held] = None
        self._by_print.setdefault(held.print, OrderedDict())[held] = None
        self._by_topic.setdefault(held.message.topic, deque()).append(held)
        self.count += 1
        self._bytes += held.message.size + HELD_BYTES

    def waiting(self) -> list[Held]:
        return list(self._waiting)

    def first_waiting(self) -> Held:
        return next(iter(self._waiting))

    def wait_again(self, held: Held, due_at: float) -> None:
        held.due_at = due_at
        self._waiting.move_to_end(held)

    def find(self, print_: bytes) -> Held | None:
        """The first of those alike."""
        alike = self._by_print.get(print_)
        return next(iter(alike)) if alike else None

    def identify(self, held: Held) -> None:
        """Its message has its id now."""
        self._stop_waiting(held)
        self._let_leave(held.message.topic)

    def discard(self, held: Held) -> None:
        self._stop_waiting(held)
        self._by_topic[held.message.topic].remove(held)
        self.count -= 1
        self._bytes -= held.message.size + HELD_BYTES
        self._let_leave(held.message.topic)

    def _let_leave(self, topic: str) -> None:
        queue = self._by_topic[topic]
        while queue and queue[0].message.id is not None:
            first = queue.popleft()
            self.count -= 1
            self._bytes -= first.message.size + HELD_BYTES
            self._leaving.append((first.message, first.context))
        if not queue:
            del self._by_topic[topic]

    def take_leaving(self) -> list[tuple[Message, object]]:
        leaving, self._leaving = self._leaving, []
        return leaving

    def _stop_waiting(self, held: Held) -> None:
        del self._waiting[held]
        alike = self._by_print[held.print]
        del alike[held]
        if not alike:
            del self._by_print[held.print]


class UnmatchedStamps:
    """Each is kept for `keep_s`, and matches one message; those alike in order."""

    def __init__(self, keep_s: float, max_count: int) -> None:
        self._keep_s = keep_s
        self._max_count = max_count
        self._ids: dict[bytes, deque[tuple[float, MessageId]]] = {}
        self._order: deque[tuple[float, bytes]] = deque()  # also of those that matched

    def __len__(self) -> int:
        return len(self._order)

    def add(self, stamp: Stamp, now: float) -> int:
        """How many it had to forget."""
        message_id, print_ = stamp
        until = now + self._keep_s
        self._ids.setdefault(print_, deque()).append((until, message_id))
        self._order.append((until, print_))
        return self._forget_first() if len(self._order) > self._max_count else 0

    def take(self, print_: bytes, now: float) -> MessageId | None:
        ids = self._ids.get(print_)
        while ids:
            until, message_id = ids.popleft()
            if not ids:
                del self._ids[print_]
            if until > now:
                return message_id
        return None

    def expire(self, now: float) -> int:
        """How many it forgot."""
        count = 0
        while self._order and self._order[0][0] <= now:
            count += self._forget_first()
        return count

    def clear(self) -> None:
        self._ids.clear()
        self._order.clear()

    def _forget_first(self) -> int:
        until, print_ = self._order.popleft()
        ids = self._ids.get(print_)
        if not ids or ids[0][0] > until:
            return 0
        ids.popleft()
        if not ids:
            del self._ids[print_]
        return 1


class LastValueIds:
    """The id of each topic's last value at the foreign broker; of those seen last if there are many."""

    def __init__(self, max_count: int) -> None:
        self._max_count = max_count
        self._values: OrderedDict[bytes, tuple[bytes, MessageId]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def remember(self, topic_print: bytes, print_: bytes | None, message_id: MessageId) -> None:
        """`print_` None: the topic has no value any more."""
        if print_ is None:
            self._values.pop(topic_print, None)
            return
        self._values[topic_print] = print_, message_id
        self._values.move_to_end(topic_print)
        if len(self._values) > self._max_count:
            self._values.popitem(last=False)

    def clear(self) -> None:
        self._values.clear()

    def recall(self, topic_print: bytes, print_: bytes) -> MessageId | None:
        value = self._values.get(topic_print)
        return value[1] if value is not None and value[0] == print_ else None
