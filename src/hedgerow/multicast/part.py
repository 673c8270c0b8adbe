"""The multicast gateway of a node: a `Gateway` machine between the broker and an endpoint on the network.

What the broker publishes gathers in the member while a chunk of a client's bytes is handled, and leaves when
the node flushes, as what goes to the clients does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from hedgerow.message import Message
from hedgerow.multicast.config import Multicast
from hedgerow.multicast.gateway import Gateway
from hedgerow.multicast.io.endpoint import MulticastEndpoint
from hedgerow.node.part import NodeContext, Part

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from hedgerow.node.config import Config

DRAIN_S = 5.0  # for what waits, when the node stops


class MulticastPart(Part):
    """`start` makes the `gateway`. It goes on until the clients are gone: their wills flow too."""

    gateway: Gateway

    def __init__(self, node: NodeContext) -> None:
        super().__init__(node)
        self.endpoint = MulticastEndpoint(node.config.of(Multicast).options, hears_itself=False)
        self.endpoint.clock = node.clock
        self._is_open = False

    @property
    def urls(self) -> list[str]:
        return [self.endpoint.name]

    async def start(self) -> None:
        """Raises ConfigError saying what this machine or its network lacks."""
        node, endpoint = self.node, self.endpoint
        await endpoint.start()
        self.gateway = Gateway(node.broker, endpoint.member, node.config.of(Multicast).topics, node.clock())
        endpoint.on_messages = self._receive_messages
        endpoint.on_held = self._receive_held
        endpoint.when_taken = self.gateway.when_taken
        endpoint.on_opened = self._go_on
        endpoint.on_missed = self._note_missed
        self._is_open = True
        endpoint.flush()

    async def close(self) -> None:
        """What was published before still leaves, at the pace that the others can take."""
        if self._is_open:
            await self._drain()
            self._is_open = False
            self.gateway.close(self.node.clock())
        await self.endpoint.stop()

    async def _drain(self) -> None:
        gateway, give_up_at = self.gateway, self.node.clock() + DRAIN_S
        self.serve()
        while (deadline := min(gateway.deadline, give_up_at)) < give_up_at:
            await asyncio.sleep(max(0.001, deadline - self.node.clock()))
            gateway.handle_timer(self.node.clock())
            self.endpoint.flush()

    def reload(self, config: Config) -> Callable[[], None]:
        """The key file."""
        return partial(self.endpoint.set_keys, self.endpoint.read_keys())

    @property
    def has_work(self) -> bool:
        return self._is_open and self.gateway.has_work

    def serve(self) -> None:
        """Send what the gateway relayed since the last time, and see to what has to wait."""
        self.gateway.has_work = False
        if self.gateway.take_has_sent():
            self.endpoint.flush()
        for event in self.gateway.take_events():
            self.node.event_log.write(event, self.node.clock())

    @property
    def deadline(self) -> float:
        return self.gateway.deadline

    def handle_timer(self, now: float) -> None:
        self.gateway.handle_timer(now)

    def _go_on(self) -> None:
        """Receivers may be ready for what waits."""
        if self._is_open:
            self.gateway.handle_timer(self.node.clock())
            self.node.flush()

    def _note_missed(self, topic: str, messages: int) -> None:
        self.gateway.note_missed(messages)

    def _receive_messages(self, messages: list[Message]) -> None:
        self.gateway.receive_messages(messages, self.node.clock())
        self.node.flush()

    def _receive_held(self, messages: list[Message]) -> None:
        self.gateway.receive_held(messages, self.node.clock())
        self.node.flush()

    def status(self) -> Mapping[str, Any]:
        if not self._is_open:
            return {}
        endpoint, gateway = self.endpoint, self.gateway
        stats = endpoint.member.stats
        return {
            "multicast": {
                "receivers": endpoint.member.receiver_count,
                "unacknowledged_bytes": endpoint.member.unacknowledged_bytes,
                "waiting": gateway.to_group.waiting,
                "left_behind": stats.left_behind,
                "not_taken": stats.not_taken,
                "missed": stats.missed,
                "overruns": endpoint.overruns,
                "receive_buffer_bytes": endpoint.receive_buffer_bytes,
            }
        }

    def metrics(self) -> Iterable[Metric]:
        from hedgerow.multicast.metrics import multicast_metrics

        return multicast_metrics(self.gateway, self.endpoint)
