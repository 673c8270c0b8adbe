"""Nine federated brokers on the grid, and what they say of themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from hedgerow_workshop.lab.clients import Clients
from hedgerow_workshop.lab.processes import together
from hedgerow_workshop.lab.spohn import grid, measure
from hedgerow_workshop.lab.spohn.clients import POLL_S, Watch
from hedgerow_workshop.lab.spohn.network import Network
from hedgerow_workshop.lab.spohn.nodes import Node, Nodes

LINKED_S = 20.0


class Federation:
    """All of it runs within the block, and is linked when the block begins, unless that takes too long."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.network = Network()
        self.nodes = {name: Node(kind, name, self.network, directory / f"node-{name}") for name in grid.NODES}
        self._programs = Nodes(self.nodes.values())
        self._clients = Clients()
        self.watch = Watch(self._clients)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with self._stack as stack:
            await stack.enter_async_context(self.network)
            await stack.enter_async_context(self._programs)
            await stack.enter_async_context(self._clients)
            await self.network.open()
            await self._programs.start()
            await together(self.watch.open(node) for node in self.nodes.values())
            # A sidecar cannot learn of subscriptions that were there before it.
            await self._wait_until_none(lambda: measure.link_differences(self.watch.states), LINKED_S)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def url(self, node: str) -> str:
        """For a client beside the broker."""
        return self.nodes[node].broker.url

    def check(self) -> None:
        """Raise for whatever has ended that should run."""
        self._programs.check()
        self._clients.check()

    async def wait_until_whole(
        self, topic_filter: str, patience_s: float, besides: Collection[str] = ()
    ) -> float | None:
        """When all neighbours are connected and the filter's mesh is the document's, but for differences that
        are known; None: not in time."""
        known = set(besides)
        return await self._wait_until_none(
            lambda: set(measure.mesh_differences(self.watch.states, topic_filter)) - known, patience_s
        )

    async def _wait_until_none(
        self, differences: Callable[[], Collection[str]], patience_s: float
    ) -> float | None:
        give_up_at = time.monotonic() + patience_s
        while differences():
            self.check()
            if time.monotonic() > give_up_at:
                return None
            await asyncio.sleep(POLL_S)
        return time.monotonic()
