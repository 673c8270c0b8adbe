"""Publishing and subscribing with no server: `multicast://`, whose options `multicast/io/options.py` reads.

QoS 0 is sent once. QoS 1 and 2 are sent no faster than receivers take them, kept until those have
acknowledged them, and sent again to whoever missed them. A publication at QoS 1 or 2 has ended when it was
sent: `publish` waits while a receiver is too far behind, for as long as the patience of the URL says. What
needs a server (sessions, wills, user names, shared subscriptions) is refused in words.

A subscription that is full: with QoS 0, further messages are dropped and counted. With QoS 1 or 2 the bus
stops reading, and those who publish at QoS 1 or 2 wait for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from hedgerow.client.options import BusOptions
from hedgerow.client.transport import Inbox, State, StateChange, Transport, settle
from hedgerow.client.urls import BusUrl
from hedgerow.errors import HedgerowError, RefusedError
from hedgerow.message import Message
from hedgerow.mqtt.reasons import Reason
from hedgerow.multicast.io.endpoint import MulticastEndpoint
from hedgerow.multicast.io.options import MulticastOptions, read_options
from hedgerow.topics import split_shared

# Publications at QoS 1 and 2 that may wait for their turn: beyond them `publish` waits.
MAX_WAITING = 100_000
MAX_WAITING_BYTES = 64 * 1024 * 1024  # as much as the member then keeps of them for repairs
WAITING_BYTES = 400  # what a message takes beside its bytes

# What was published without waiting leaves when the bus is closed, unless none of it can for so long and the
# patience with receivers.
CLOSE_TIMEOUT_S = 5.0

LACKING = {
    "name": "user names and passwords; a key file (?key=FILE) keeps others out",
    "will": "wills",
    "session": "sessions",
    "tls": "TLS; a key file (?key=FILE) encrypts",
    "properties": "properties of CONNECT",
    "origin": "ids of an origin: each member gives its own",
    "route": "way to it: a bind address, a proxy or a path",
}


async def open_transport(address: BusUrl, options: BusOptions) -> Transport:
    options.refuse(LACKING, "multicast has no server, and so no")
    transport = MulticastTransport(read_options(address.host, address.port, address.rest), options.on_state)
    await transport.open()
    return transport


class MulticastTransport(Transport):
    def __init__(
        self,
        options: MulticastOptions,
        on_state: Callable[[StateChange], None] | None = None,
        *,
        max_waiting: int = MAX_WAITING,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        super().__init__(on_state)
        self.overflowing = True  # Nobody can be stopped, only not listened to.
        self.endpoint = MulticastEndpoint(options)
        self.endpoint.on_messages = self._receive
        self.endpoint.on_held = self._receive_held
        self.endpoint.on_missed = self._note_missed
        self.endpoint.on_opened = self._publish_waiting
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: deque[tuple[Message, asyncio.Future[None]]] = deque()
        self._waiting_bytes = 0
        self._max_waiting = max_waiting, max_waiting_bytes
        self._has_no_local = False

    # From open to closed.

    async def open(self) -> None:
        self.set_state(StateChange(State.CONNECTING))
        try:
            await self.endpoint.start()
        except BaseException as error:
            self._finish(str(error))
            raise
        self.set_state(StateChange(State.CONNECTED))

    async def close(self, *, at_once: bool = False) -> None:
        if self.state is State.CLOSED:
            return
        try:
            timeout_s = CLOSE_TIMEOUT_S + self.endpoint.options.patience_s
            while self._waiting and not at_once:
                left, _ = await asyncio.wait([self._waiting[0][1]], timeout=timeout_s)
                at_once = not left
        finally:
            self._finish("")
            await self.endpoint.stop()

    def _finish(self, reason: str) -> None:
        for _, result in self._waiting:
            settle(result, HedgerowError("the bus was closed"))
        self._waiting.clear()
        self._waiting_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
        self.finish(reason=reason)

    # Publishing.

    async def send(self, message: Message) -> None:
        if message.qos == 0:
            self.check_open()
            self.endpoint.publish(message)
        else:
            while not self._has_room(message):
                await asyncio.wait([self._waiting[0][1]])
            await self.send_nowait(message)
        if self.is_turn_over():
            await asyncio.sleep(0)

    def send_nowait(self, message: Message) -> asyncio.Future[None]:
        self.check_open()
        if message.qos == 0 or not (self._waiting or self.wait_s > 0):
            self.endpoint.publish(message)
            return self._done
        if not self._has_room(message):
            raise HedgerowError(f"{len(self._waiting)} publications wait for their turn: no room")
        self.endpoint.member.check(message)
        result: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((message, result))
        self._waiting_bytes += message.size + WAITING_BYTES
        if len(self._waiting) == 1:
            self._publish_later(self.wait_s)
        return result

    def _has_room(self, message: Message) -> bool:
        """The first always has."""
        most, most_bytes = self._max_waiting
        waiting_bytes = self._waiting_bytes + message.size + WAITING_BYTES
        fits = len(self._waiting) < most and waiting_bytes <= most_bytes
        return fits or not self._waiting

    @property
    def wait_s(self) -> float:
        """Until receivers are thought to be ready for more, if they do not say so before."""
        return self.endpoint.member.ready_at - self.endpoint.clock()

    def _publish_waiting(self) -> None:
        waiting = self._waiting
        while waiting and (wait_s := self.wait_s) <= 0:
            message, result = waiting.popleft()
            self._waiting_bytes -= message.size + WAITING_BYTES
            try:
                self.endpoint.publish(message)
            except HedgerowError as error:
                settle(result, error)
            else:
                settle(result, None)
        if waiting:
            self._publish_later(wait_s)

    def _publish_later(self, wait_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(wait_s, self._publish_waiting)

    # Subscribing.

    async def open_subscription(self, inbox: Inbox) -> None:
        self.check_open()
        if inbox.options.since is not None:
            text = "nothing is recorded by multicast; a node with a journal can tell of the past"
            raise RefusedError(text, Reason.IMPLEMENTATION_SPECIFIC_ERROR)
        for topic_filter in inbox.topic_filters:
            if split_shared(topic_filter)[0] is not None:
                raise RefusedError(
                    f"{topic_filter}: nobody shares messages out by multicast",
                    Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
                )
        self.add_route(inbox)
        self._has_no_local |= inbox.options.no_local
        member, now = self.endpoint.member, self.endpoint.clock()
        for topic_filter in dict.fromkeys(inbox.topic_filters):
            member.subscribe(topic_filter, now, inbox.options.qos)
        # Those that this member has already are for the new subscription alone.
        for message in {each.topic: each for each in member.take_held()}.values():
            self._give_held(inbox, message)
        self.endpoint.flush()

    def close_subscription(self, inbox: Inbox, left: list[Message]) -> None:
        if inbox not in self.inboxes:
            return
        self.remove_route(inbox)
        member, now = self.endpoint.member, self.endpoint.clock()
        for topic_filter in dict.fromkeys(inbox.topic_filters):
            member.unsubscribe(topic_filter, now, inbox.options.qos)
        self.regulate()
        self.endpoint.flush()

    async def unsubscribe(self, topic_filter: str) -> None:
        self.check_open()
        for inbox in [each for each in self.inboxes if topic_filter in each.topic_filters]:
            self.close_subscription(inbox, [])
            inbox.end(None)

    def regulate(self) -> None:
        self.endpoint.set_reading(not any(inbox.options.qos for inbox in self._full))

    # What arrives.

    def _note_missed(self, topic: str, messages: int) -> None:
        for inbox in self.find_route(topic):
            if inbox.options.qos:
                inbox.missed += messages

    def _receive(self, messages: list[Message]) -> None:
        topic, qos = messages[0].topic, messages[0].qos
        alike: list[Message] = []  # What comes by multicast comes in runs: each is queued at once.
        for message in messages:
            if message.topic != topic or message.qos != qos:
                self._receive_alike(topic, qos, alike)
                topic, qos, alike = message.topic, message.qos, []
            if message.retain or self._has_no_local:
                self._receive_alike(topic, qos, alike)
                alike = []
                for inbox in self.find_route(topic):
                    self._give(inbox, message)
            else:
                alike.append(message)
        self._receive_alike(topic, qos, alike)

    def _receive_alike(self, topic: str, qos: int, messages: list[Message]) -> None:
        """Messages of one topic and QoS, to be had as they are unless a subscription's QoS is lower."""
        if messages:
            for inbox in self.find_route(topic):
                if qos <= inbox.options.qos:
                    inbox.put_all(messages)
                else:
                    for message in messages:
                        self._give(inbox, message)

    def _give(self, inbox: Inbox, message: Message) -> None:
        options = inbox.options
        if options.no_local and message.id is not None and message.id.origin == self.endpoint.member.origin:
            return
        retain = message.retain and options.retain_as_published
        if message.qos > options.qos or message.retain is not retain:
            message = replace(message, qos=min(message.qos, options.qos), retain=retain)
        inbox.put(message)

    def _receive_held(self, messages: list[Message]) -> None:
        for message in messages:
            for inbox in self.find_route(message.topic):
                self._give_held(inbox, message)

    def _give_held(self, inbox: Inbox, message: Message) -> None:
        options = inbox.options
        if options.retain_handling != 2 and message.payload:
            qos = min(message.qos, options.qos)
            inbox.put(message if message.qos == qos else replace(message, qos=qos))
