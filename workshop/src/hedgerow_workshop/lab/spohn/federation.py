"""Nine federated brokers on the grid, and what they say of themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from pathlib import Path

from hedgerow_workshop.lab.harness.clients import Clients
from hedgerow_workshop.lab.harness.programs import Scope, together, wait_until
from hedgerow_workshop.lab.spohn import grid, measure
from hedgerow_workshop.lab.spohn.clients import StateWatch
from hedgerow_workshop.lab.spohn.network import GridNetwork
from hedgerow_workshop.lab.spohn.nodes import GridNode
from hedgerow_workshop.lab.spohn.record import Transmissions

LINKED_S = 20.0


class GridFederation(Scope):
    """All of it runs within the block, and is linked when the block begins, unless that takes too long."""

    foreign: Collection[str] = ()
    """Nodes with a federator that is not ours."""

    def __init__(self, kind: str, directory: Path) -> None:
        super().__init__()
        self.kind = kind
        self.network = GridNetwork()
        self.nodes = {
            name: GridNode(kind, name, self.network, directory / f"node-{name}", self.foreign)
            for name in grid.NODES
            if name not in self.foreign
        }
        self._clients = Clients()
        self.watch = StateWatch(self._clients)

    async def open(self) -> None:
        await self._stack.enter_async_context(self.network)
        for node in self.nodes.values():
            self._stack.callback(node.kill)
        await self._stack.enter_async_context(self._clients)
        await self.network.open_links()
        await together(node.start() for node in self.nodes.values())
        await together(self.watch.open(node) for node in self.nodes.values())
        # A sidecar cannot learn of subscriptions that were there before it.
        await wait_until(self._is_linked, LINKED_S, self.check)

    def _is_linked(self) -> bool:
        return not measure.link_differences(self.watch.states)

    async def count_transmissions(self) -> dict[str, Transmissions]:
        """So far, by link and direction."""
        counted = await asyncio.gather(*(asyncio.to_thread(node.sent) for node in self.nodes.values()))
        found = dict(zip(self.nodes, counted, strict=True))
        return {
            f"{a}-{b}": Transmissions(found[a][b][0], found[b][a][1])
            for a in found
            for b in found[a]
            if b in found
        }

    def url(self, node: str) -> str:
        """For a client beside the broker."""
        return self.nodes[node].broker.url

    def check(self) -> None:
        """Raise for whatever has ended that should run."""
        for node in self.nodes.values():
            for program in node.programs:
                program.check()
        self._clients.check()

    async def wait_until_whole(
        self, topic_filter: str, patience_s: float, besides: Collection[str] = ()
    ) -> float | None:
        """When all neighbours are connected and the filter's mesh is the document's, but for differences that
        are known; None: not in time."""
        known = set(besides)
        is_whole = await wait_until(
            lambda: known.issuperset(measure.mesh_differences(self.watch.states, topic_filter)),
            patience_s,
            self.check,
        )
        return time.monotonic() if is_whole else None
