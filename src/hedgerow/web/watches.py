"""The message viewer's subscriptions: what somebody who looks at `/messages` gets to see.

A watch is a port of the broker with one filter. It belongs to one viewer, and lives as long as a page asks
for it: `IDLE_S` after the last time it is gone, and with it the subscription. Nobody can have the node keep
much: there are `MAX_WATCHES` at a time, each with the last `MAX_MESSAGES` messages and `MAX_BYTES` of them.
Nor do much: what comes beyond `MAX_PER_S` in a second is left out, and the port is unsubscribed until the
next second, so that a busy topic costs a watched node 100 messages a second and not all of them. The filter
is reserved for as long as the watch is there: the rest of the fabric does not see it come and go.

A port is part of the node and sees everything, so rights are asked here, for each message when it comes. The
topics of bridge commands are shown to nobody: a section may hold a password.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from hedgerow.bridges.commands import DELETE_BRIDGE, NEW_BRIDGE
from hedgerow.broker.port import Port
from hedgerow.errors import TopicError
from hedgerow.message import Message
from hedgerow.topics import is_wildcard, matches, split_shared, validate_filter
from hedgerow.web.scan import Scan
from hedgerow.web.view import MAX_FILTER, MessageRow, WatchView

if TYPE_CHECKING:
    from hedgerow.node.part import NodeContext

MAX_WATCHES = 20
MAX_WATCHES_OF_ONE = 5  # of one viewer, who may have as many tabs
MAX_MESSAGES = 100
MIN_VALUES = 2_000  # retained ones that a watch begins by looking through, which takes a few milliseconds
MAX_PER_S = 100
MAX_BYTES = 1024 * 1024  # of payloads; the oldest messages go first, and one that is larger is cut
IDLE_S = 5.0
RELOAD_IDLE_S = 15.0  # after a whole page: without scripts it is loaded again every 5 s
PAUSED_S = 300.0  # how long a page that is paused may be looked at
SECOND_S = 1.0

Key = tuple[str, str]  # of the viewer, and the filter


class TooManyWatchesError(Exception):
    """There is no room for one more."""


class FilterWatch:
    """One filter of one viewer."""

    def __init__(self, node: NodeContext, topic_filter: str, may_read: Callable[[str], bool]) -> None:
        self.filter = topic_filter
        self.may_read = may_read
        self.left_out = 0
        self.ends_at = 0.0
        self.is_paused = False
        self._node = node
        self._messages: deque[MessageRow] = deque()
        self._bytes = 0
        self._number = 0
        self._second_ends_at = 0.0
        self._count = 0  # of this second
        self._timer: asyncio.TimerHandle | None = None
        self._port = Port(node.broker, "dashboard watch", self._deliver)

    def start(self) -> None:
        now = self._node.clock()
        for message in self._retained(now):
            self._keep(message, now)
        self._begin_listening()

    def _retained(self, now: float) -> list[Message]:
        """The values that it begins with, as far as they are found in a slice of time: the loop waits."""
        retained = self._node.broker.retained
        value = retained.get(self.filter)
        values = list(retained) if is_wildcard(self.filter) else [value] if value is not None else []

        def readable(message: Message) -> list[Message]:
            is_over = message.expires_at is not None and message.expires_at <= now
            is_wanted = not is_over and matches(self.filter, message.topic)
            return [message] if is_wanted and self._is_readable(message.topic) else []

        scan = Scan(values, readable, MAX_MESSAGES)
        scan.run(at_least=MIN_VALUES)
        return scan.first

    def set_paused(self, is_paused: bool) -> None:
        if is_paused is self.is_paused:
            return
        self.is_paused = is_paused
        if is_paused:
            self._stop_listening()
        else:
            self._begin_listening()

    def close(self) -> None:
        if not self.is_paused:
            self._stop_listening()
        self._port.close()

    def view(self) -> WatchView:
        # Rights may have changed since the message came.
        shown = [row for row in reversed(self._messages) if self.may_read(row.topic)]
        return WatchView(self.filter, shown, self.left_out)

    def _is_readable(self, topic: str) -> bool:
        return topic not in (NEW_BRIDGE, DELETE_BRIDGE) and self.may_read(topic)

    def _deliver(self, message: Message) -> None:
        now = self._node.clock()
        if now >= self._second_ends_at:
            self._second_ends_at, self._count = now + SECOND_S, 0
        self._count += 1
        if self._count <= MAX_PER_S:
            if self._is_readable(message.topic):
                self._keep(message, now)
            return
        if self._is_readable(message.topic):  # Who may not read it is not told that there was something.
            self.left_out += 1
        self._port.unsubscribe(self.filter)
        if self._timer is None:
            wait_s = max(self._second_ends_at - now, 0.0)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._listen_again)

    def _listen_again(self) -> None:
        self._timer = None
        if self._node.stopping:
            return
        self._port.listen(self.filter, self._node.clock())
        self._node.flush()

    def _begin_listening(self) -> None:
        self._node.broker.subscriptions.reserve(self.filter)
        self._port.listen(self.filter, self._node.clock())

    def _stop_listening(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._port.unsubscribe(self.filter)
        self._node.broker.subscriptions.release(self.filter)

    def _keep(self, message: Message, now: float) -> None:
        self._number += 1
        payload = message.payload[:MAX_BYTES]
        self._bytes += len(payload)
        while self._messages and (self._bytes > MAX_BYTES or len(self._messages) == MAX_MESSAGES):
            self._bytes -= len(self._messages.popleft().payload)
        self._messages.append(
            MessageRow(
                self._number,
                now,
                message.topic,
                payload,
                message.qos,
                message.retain,
                "" if message.id is None else str(message.id),
            )
        )


class Watches:
    """All of a node's, by viewer and filter."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._watches: dict[Key, FilterWatch] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._watches)

    def look(
        self,
        viewer: str,
        topic_filter: str,
        may_read: Callable[[str], bool],
        *,
        is_polled: bool = True,
        is_paused: bool = False,
    ) -> WatchView:
        """What this viewer's watch of the filter has; the first look begins it."""
        key = (viewer, topic_filter)
        watch = self._watches.get(key)
        try:
            if watch is None:
                watch = self._begin(key, may_read)
        except (TopicError, TooManyWatchesError) as error:
            return WatchView(topic_filter, problem=str(error))
        watch.may_read = may_read
        watch.set_paused(is_paused)
        idle_s = PAUSED_S if is_paused else IDLE_S if is_polled else RELOAD_IDLE_S
        watch.ends_at = self._node.clock() + idle_s
        self._node.flush()
        self._wake()
        return watch.view()

    def _begin(self, key: Key, may_read: Callable[[str], bool]) -> FilterWatch:
        viewer, topic_filter = key
        if len(topic_filter) > MAX_FILTER:
            raise TopicError(f"a filter of more than {MAX_FILTER} characters")
        if split_shared(topic_filter)[0] is not None:
            raise TopicError("a shared subscription would take messages from those who share it")
        validate_filter(topic_filter)
        self._end_due()
        own = [each for each in self._watches if each[0] == viewer]
        if len(own) >= MAX_WATCHES_OF_ONE:
            self._end(min(own, key=lambda each: self._watches[each].ends_at))
        elif len(self._watches) >= MAX_WATCHES:
            self._end_one_that_is_paused()
        watch = self._watches[key] = FilterWatch(self._node, topic_filter, may_read)
        watch.start()
        return watch

    def _end_one_that_is_paused(self) -> None:
        paused = [key for key, watch in self._watches.items() if watch.is_paused]
        if not paused:
            raise TooManyWatchesError(
                f"{MAX_WATCHES} others are watching messages at this node; try again later"
            )
        self._end(min(paused, key=lambda each: self._watches[each].ends_at))

    def _end(self, key: Key) -> None:
        self._watches.pop(key).close()

    def _end_due(self) -> None:
        now = self._node.clock()
        for key in [key for key, watch in self._watches.items() if watch.ends_at <= now]:
            self._end(key)

    def _wake(self) -> None:
        if self._timer is None and self._watches:
            wait_s = min(watch.ends_at for watch in self._watches.values()) - self._node.clock()
            self._timer = asyncio.get_running_loop().call_later(max(wait_s, 0.0), self._handle_timer)

    def _handle_timer(self) -> None:
        self._timer = None
        if self._node.stopping:
            return
        self._end_due()
        self._node.flush()
        self._wake()
