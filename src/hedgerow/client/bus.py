"""What an application has in hand: a `Bus`, and the `Subscription`s made on it.

An application written against these runs over any transport. They have what applications may call and
nothing else; what transports need is in `transport.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from math import ceil
from types import TracebackType

from hedgerow.client.transport import (
    QUEUE_BYTES,
    QUEUE_MESSAGES,
    Inbox,
    State,
    SubscribeOptions,
    Transport,
)
from hedgerow.errors import ConfigError
from hedgerow.message import MAX_NUMBER, Message, MessageId, Properties
from hedgerow.mqtt.ids import may_bear


class Subscription:
    """The messages that match one or more topic filters, each once, in the order of their arrival.

    `async for message in bus.subscribe(…)` subscribes when the loop begins and unsubscribes when it
    is left. `async with bus.subscribe(…) as messages` subscribes before the block is entered, which
    is what a program needs that publishes and wants the answer.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    @property
    def topic_filters(self) -> tuple[str, ...]:
        return self._inbox.topic_filters

    @property
    def dropped(self) -> int:
        """QoS 0 messages that were dropped because this subscription did not keep up."""
        return self._inbox.dropped

    @property
    def missed(self) -> int:
        """Messages at QoS 1 and 2 that will not come by multicast: nobody has them any more."""
        return self._inbox.missed

    async def __aenter__(self) -> Subscription:
        await self._inbox.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __aiter__(self) -> AsyncGenerator[Message, None]:
        return self._inbox.messages()

    def batches(self) -> AsyncGenerator[list[Message], None]:
        """The same messages in lists of all that have arrived, for those who write them in bulk."""
        return self._inbox.batches()

    def close(self) -> None:
        """Unsubscribe, unless `keep` was asked for. The loops over this subscription end."""
        self._inbox.close()


class Bus:
    """A place to publish to and subscribe at. `hedgerow.connect` makes one.

    To be used on the event loop on which it was made.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @property
    def state(self) -> State:
        return self._transport.state

    @property
    def closed(self) -> bool:
        return self.state is State.CLOSED

    @property
    def origin(self) -> str | None:
        """The name under which this bus gives ids to what it publishes, if it does."""
        return self._transport.origin

    @property
    def client_id(self) -> str | None:
        """Our name at the server, which may have assigned it. None: there is no server."""
        return self._transport.client_id

    @property
    def version(self) -> int | None:
        """The MQTT version that is spoken: 5, 4 (3.1.1) or 3 (3.1). None: it is not MQTT."""
        return self._transport.version

    @property
    def broker_name(self) -> str | None:
        """The name of the server in the fabric, if it is a node that takes ids from this bus."""
        return self._transport.broker_name

    async def publish(
        self,
        topic: str,
        payload: bytes | str = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
        id: MessageId | None = None,  # noqa: A002 - as `Message.id`
    ) -> None:
        """Publish a message. Returns when the transport has taken it: at QoS 1 and 2 when the other
        side has acknowledged it, which may be after a reconnection. RefusedError when it will not.

        payload     bytes, or text that is sent as UTF-8
        qos         0: at most once, 1: at least once, 2: exactly once
        retain      the server keeps it for those who subscribe later, in the place of the topic's last one
        properties  of MQTT 5, by the specification's names: `{"content_type": "text/plain"}`
        id          for a bus that gives ids (`connect(…, origin=…)`): this one, not the next of its own
        """
        await self._transport.send(self._make_message(topic, payload, qos, retain, properties, id))

    def publish_nowait(
        self,
        topic: str,
        payload: bytes | str = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties | None = None,
        id: MessageId | None = None,  # noqa: A002 - as `Message.id`
    ) -> asyncio.Future[None]:
        """Publish without waiting; the future ends as `publish` would. Raises when there is no room."""
        return self._transport.send_nowait(self._make_message(topic, payload, qos, retain, properties, id))

    def _make_message(
        self,
        topic: str,
        payload: bytes | str,
        qos: int,
        retain: bool,
        properties: Properties | None,
        message_id: MessageId | None,
    ) -> Message:
        if message_id is not None:
            self._check_id(message_id)
        data = payload.encode() if isinstance(payload, str) else bytes(payload)
        return Message(topic, data, qos, retain, properties if properties is not None else {}, message_id)

    def _check_id(self, message_id: MessageId) -> None:
        if self.origin is None:
            raise ConfigError("this bus gives no ids: connect with origin=NAME, over MQTT 5")
        origin, epoch, sequence = message_id
        if not may_bear(origin) or not (0 <= epoch <= MAX_NUMBER and 0 <= sequence <= MAX_NUMBER):
            raise ValueError(f"no id that the fabric has: {message_id!r}")

    async def send(self, message: Message) -> None:
        """Publish a ready-made message; see `publish`."""
        await self._transport.send(message)

    def send_nowait(self, message: Message) -> asyncio.Future[None]:
        """Publish a ready-made message without waiting; see `publish_nowait`."""
        return self._transport.send_nowait(message)

    def subscribe(
        self,
        *topic_filters: str,
        qos: int = 0,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        properties: Properties | None = None,
        keep: bool = False,
        queue_messages: int = QUEUE_MESSAGES,
        queue_bytes: int = QUEUE_BYTES,
        since: str | datetime | timedelta | None = None,
    ) -> Subscription:
        """A subscription, active once a loop over it begins or `async with` is entered.

        qos                  the highest QoS at which messages are to arrive
        no_local             not what this bus itself publishes
        retain_as_published  `Message.retain` as the publisher set it, not only for messages that were kept
        retain_handling      retained messages: 0 always, 1 if the subscription is new to the server's
                             session, 2 never
        properties           of MQTT 5's SUBSCRIBE
        keep                 leave the subscription to the server's session when the loop is left
        queue_messages       so many may wait here, and no more than
        queue_bytes          so many bytes of them, before the server is stopped
        since                first what a node's journal has, from this time, or so long ago; or from where a
                             word says: "1h", "last-100", "position-12345", "all". Retained messages do not
                             come then
        """
        options = SubscribeOptions(
            qos,
            no_local,
            retain_as_published,
            retain_handling,
            properties or {},
            keep,
            queue_messages,
            queue_bytes,
            _replay_start(since),
        )
        return Subscription(Inbox(self._transport, topic_filters, options))

    async def unsubscribe(self, topic_filter: str) -> None:
        """End every subscription with this filter, here and at the other side."""
        await self._transport.unsubscribe(topic_filter)

    def acknowledge(self, message: Message) -> None:
        """With `manual_acknowledgement`: the application is done with a QoS 1 or 2 message."""
        self._transport.acknowledge(message)

    async def close(self) -> None:
        """Send what was published, end every subscription, and leave."""
        await self._transport.close()

    async def wait_closed(self) -> None:
        """Return when the bus is closed; raises what closed it, if that was an error."""
        await self._transport.wait_closed()

    async def __aenter__(self) -> Bus:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._transport.close(at_once=error is not None)


def _replay_start(since: str | datetime | timedelta | None) -> str | None:
    """In the words of the server."""
    if isinstance(since, timedelta):
        return f"{ceil(since.total_seconds())}s"
    if isinstance(since, datetime):
        return f"@{since.astimezone(UTC).timestamp():.6f}"
    return since
