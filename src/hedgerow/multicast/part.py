"""The multicast gateway of a node: a `Gateway` machine between the broker and an endpoint on the network.

What the broker publishes gathers in the member while a chunk of a client's bytes is handled, and leaves when
the server flushes, as what goes to the clients does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hedgerow.message import Message
from hedgerow.multicast.gateway import Gateway
from hedgerow.multicast.io.endpoint import MulticastEndpoint

if TYPE_CHECKING:
    from hedgerow.node.server import Server


DRAIN_S = 5.0  # for what waits, when the node stops


class MulticastGateway:
    """`start` needs the server's broker, and makes `gateway`."""

    gateway: Gateway

    def __init__(self, server: Server) -> None:
        self.endpoint = MulticastEndpoint(server.config.multicast.options, hears_itself=False)
        self.endpoint.clock = server.clock
        self._server = server
        self._is_running = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def urls(self) -> list[str]:
        return [self.endpoint.name]

    async def start(self) -> None:
        """Raises ConfigError saying what this machine or its network lacks."""
        server, endpoint = self._server, self.endpoint
        await endpoint.start()
        self.gateway = Gateway(server.broker, endpoint.member, server.config.multicast.topics, server.clock())
        endpoint.on_messages = self._receive_messages
        endpoint.on_held = self._receive_held
        self._is_running = True
        endpoint.flush()

    async def stop(self) -> None:
        """What was published before still leaves, at the pace that the others can take."""
        if self._is_running:
            await self._drain()
            self._is_running = False
            self.gateway.close(self._server.clock())
        if self._timer is not None:
            self._timer.cancel()
        await self.endpoint.stop()

    async def _drain(self) -> None:
        give_up_at = self._server.clock() + DRAIN_S
        self.flush()
        while (deadline := min(self.gateway.deadline, give_up_at)) < give_up_at:
            await asyncio.sleep(max(0.001, deadline - self._server.clock()))
            self.gateway.handle_timer(self._server.clock())
            self.endpoint.flush()

    def reload_keys(self) -> None:
        """Read the key file again. Raises ConfigError, and then the old keys stay in force."""
        self.endpoint.reload_keys()
        self.endpoint.flush()

    def flush(self) -> None:
        """Send what the gateway relayed since the last time, and see to what has to wait."""
        if not self._is_running:
            return
        if self.gateway.take_has_sent():
            self.endpoint.flush()
        for event in self.gateway.take_events():
            self._server.event_log.write(event, self._server.clock())
        deadline = self.gateway.deadline
        if self._timer is None and deadline != float("inf"):
            delay_s = max(deadline - self._server.clock(), 0)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._handle_timer)

    def _handle_timer(self) -> None:
        self._timer = None
        self.gateway.handle_timer(self._server.clock())
        self.flush()

    def _receive_messages(self, messages: list[Message]) -> None:
        self.gateway.receive_messages(messages, self._server.clock())
        self._server.flush()

    def _receive_held(self, messages: list[Message]) -> None:
        self.gateway.receive_held(messages, self._server.clock())
        self._server.flush()
