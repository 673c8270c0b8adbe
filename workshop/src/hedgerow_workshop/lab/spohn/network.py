"""The grid's links, in user space, so that it needs no rights.

A node is an address of loopback (`host`) and a port there, and knows of its neighbours only where their
common link begins: for each link and direction of dialling there is a `Link` of the lab that listens at the
node who dials. A cut of the link cuts both.
"""

from __future__ import annotations

from hedgerow_workshop.lab.conditions import Conditions
from hedgerow_workshop.lab.harness.programs import Scope
from hedgerow_workshop.lab.links import Host, Link
from hedgerow_workshop.lab.spohn import grid
from hedgerow_workshop.programs import free_port

LINE = Conditions(delay_s=grid.LINK_DELAY_S)


def host(node: str) -> str:
    """Its own, where no other program takes a port by chance before the broker has it."""
    return f"127.0.6.{int(node) + 1}"


class GridNetwork(Scope):
    """All links end with the block."""

    def __init__(self) -> None:
        super().__init__()
        self.ports = {node: free_port(host(node)) for node in grid.NODES}
        self._links: dict[tuple[str, str], Link] = {}

    async def open_links(self) -> None:
        for a, b in grid.LINKS:
            for near, far in ((a, b), (b, a)):
                link = Link((host(near), 0), (host(far), self.ports[far]), forward=LINE, backward=LINE)
                self._links[near, far] = await self._stack.enter_async_context(link)

    def address(self, near: str, far: str) -> Host:
        """Where a node dials a neighbour."""
        return self._links[near, far].address

    async def open_way(self, near: str, far: str) -> Host:
        """Where a client at a node dials a broker that is some hops away: one link for each hop."""
        way = grid.path(near, far)
        target = host(far), self.ports[far]
        for node in reversed(way[:-1]):
            link = Link((host(node), 0), target, forward=LINE, backward=LINE)
            target = (await self._stack.enter_async_context(link)).address
        return target

    def cut(self, a: str, b: str) -> None:
        for pair in ((a, b), (b, a)):
            self._links[pair].cut()

    def restore(self, a: str, b: str) -> None:
        for pair in ((a, b), (b, a)):
            self._links[pair].restore()

    def carried(self) -> dict[tuple[str, str], int]:
        """Bytes from one node to its neighbour so far, whoever dialled."""
        return {
            (a, b): link.forward.counters.bytes + self._links[b, a].backward.counters.bytes
            for (a, b), link in self._links.items()
        }
