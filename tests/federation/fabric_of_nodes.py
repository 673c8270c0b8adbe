"""Federated nodes in memory: a virtual clock, links with a delay that may be cut or closed, stores of dicts.

    fabric = Fabric()
    fabric.line("a", "b", "c")
    fabric.advance(2)
    inbox = fabric["c"].subscribe("t/#")
    fabric["a"].publish("t/x", b"1")
    fabric.advance(1)
    assert inbox.payloads == [b"1"]

The fabric plays the shell of every node: it opens the links that are asked for, moves bytes, commits changes
and keeps the clock. `cut` is silent: bytes vanish, both ways and for good, and dials hear nothing. `close` is
what a reset is. A node that crashes starts again from what was committed; a frozen one does not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count, pairwise
from random import Random
from typing import Any

from hedgerow.bridges.section import FarAddress
from hedgerow.broker.connection import Connection
from hedgerow.federation.overlay.wire import Peer
from tests.broker.harness import START
from tests.federation.hosts import Host, Node, Pipe

DELAY_S = 0.002
DIAL_TIMEOUT_S = 5.0


class Fabric:
    def __init__(self, seed: int = 1, delay_s: float = DELAY_S) -> None:
        self.now = START
        self.random = Random(seed)
        self.delay_s = delay_s
        self.hosts: dict[str, Host] = {}
        self.pipes: list[Pipe] = []
        self.dials: list[tuple[float, str, str]] = []  # when, who, where
        self._apart: set[frozenset[str]] = set()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._wake_at: dict[Host, float] = {}

    def __getitem__(self, name: str) -> Any:
        return self.hosts[name]

    @property
    def nodes(self) -> list[Node]:
        return [host for host in self.hosts.values() if isinstance(host, Node)]

    # Topologies

    def add(self, name: str, *neighbours: str, **options: Any) -> Node:
        node = Node(self, name, neighbours, **options)
        self.hosts[name] = node
        node.settle()
        return node

    def add_foreign(self, name: str, **options: Any) -> Host:
        self.hosts[name] = host = Host(self, name, **options)
        host.settle()
        return host

    def build(self, edges: Iterable[tuple[str, str]], **options: Any) -> None:
        """Nodes that are each other's neighbours at both ends."""
        neighbours: dict[str, list[str]] = {}
        for one, other in edges:
            neighbours.setdefault(one, []).append(other)
            neighbours.setdefault(other, []).append(one)
        for name, others in neighbours.items():
            self.add(name, *others, **options)

    def line(self, *names: str, **options: Any) -> None:
        self.build(pairwise(names), **options)

    def ring(self, *names: str, **options: Any) -> None:
        self.build(zip(names, [*names[1:], names[0]], strict=True), **options)

    def grid(self, **options: Any) -> None:
        self.build(grid_edges(), **options)

    # The network

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        heappush(self._due, (self.now + delay_s, next(self._order), act))

    def wake(self, host: Host, at: float) -> None:
        self._wake_at[host] = at

    def dial(self, node: Node, peer: Peer) -> None:
        broker = node.broker
        name = peer.addresses[0].removeprefix("mqtt://")
        self.dials.append((self.now, node.name, name))

        def fail(reason: str) -> None:
            if node.broker is broker and not node.is_gone:
                node.federation.dial_failed(peer, reason)
                node.settle()

        def reach() -> None:
            if node.broker is broker and not node.is_gone:
                self._join(node, name, lambda now: node.federation.open(peer, peer.addresses[0], now))

        self._reach(node, name, reach, fail)

    def dial_home(self, node: Node, bridge: Any, address: FarAddress) -> None:
        broker = node.broker

        def fail(reason: str) -> None:
            if node.broker is broker and not node.is_gone:
                bridge.handle_dial_failed(address, reason, self.now)
                node.settle()

        def reach() -> None:
            if node.broker is broker and not node.is_gone:
                self._join(node, address.host, lambda now: bridge.open(address, now))

        self._reach(node, address.host, reach, fail)

    def _reach(self, node: Node, name: str, reach: Callable[[], None], fail: Callable[[str], None]) -> None:
        far = self.hosts.get(name)
        if far is None or (far.is_gone and not self.is_apart(node.name, name)):
            self.later(2 * self.delay_s, lambda: fail("connection refused"))
        elif self.is_apart(node.name, name):
            self.later(DIAL_TIMEOUT_S, lambda: fail("no answer in 5 s"))
        else:
            self.later(2 * self.delay_s, reach)

    def _join(self, node: Node, name: str, open_near: Callable[[float], Connection]) -> None:
        far = self.hosts[name]
        near_side = open_near(self.now)
        far_side = far.broker.open(self.now, node.name, True, self._certificate_of(node))
        pipe = self._lay_pipe(near_side, far_side, (node.name, name))
        pipe.is_cut = self.is_apart(node.name, name) or far.is_gone
        self.pipes.append(pipe)
        node.settle()
        far.settle()

    def _certificate_of(self, node: Node) -> str | None:
        """The user that its certificate proves it to be, where it dials; None: it has none."""
        return node.username

    def _lay_pipe(self, near: Connection, far: Connection, names: tuple[str, str]) -> Pipe:
        return Pipe(self, near, far, names)

    def forget(self, pipe: Pipe) -> None:
        if pipe in self.pipes:
            self.pipes.remove(pipe)

    def pipes_of(self, name: str) -> list[tuple[Pipe, int]]:
        return [(pipe, pipe.names.index(name)) for pipe in list(self.pipes) if name in pipe.names]

    def between(self, one: str, other: str) -> list[Pipe]:
        """The links that both ends take for open."""
        pipes = [pipe for pipe in self.pipes if set(pipe.names) == {one, other}]
        return [pipe for pipe in pipes if all(side.link is not None for side in pipe.sides)]

    def is_apart(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self._apart

    def cut(self, one: str, other: str) -> None:
        """Silently: nobody is told, and no new link comes about."""
        self._apart.add(frozenset((one, other)))
        for pipe in self.pipes:
            if set(pipe.names) == {one, other}:
                pipe.cut()

    def mend(self, one: str, other: str) -> None:
        self._apart.discard(frozenset((one, other)))

    def close(self, one: str, other: str) -> None:
        """Both ends are told at once, and may dial again."""
        for pipe in self.between(one, other):
            pipe.cut()
            for index in range(2):
                pipe.leave(index)
            self.forget(pipe)
            for name in pipe.names:
                self[name].settle()

    def part(self, *groups: Iterable[str]) -> None:
        sides = [set(group) for group in groups]
        for side in sides:
            for one in side:
                for other in set(self.hosts) - side:
                    self.cut(one, other)

    def heal(self) -> None:
        self._apart.clear()

    # Time

    def advance(self, seconds: float, until: Callable[[], bool] | None = None) -> None:
        """Let the time pass, stopping at all that happens on the way, or when `until` is true."""
        end = self.now + seconds
        while until is None or not until():
            host = min(self._wake_at, key=self._wake_at.__getitem__)
            wake_at = self._wake_at[host]
            at = min(wake_at, self._due[0][0] if self._due else float("inf"))
            if at > end:
                break
            self.now = max(self.now, at)
            if self._due and self._due[0][0] <= wake_at:
                heappop(self._due)[2]()
            else:
                self._wake_at[host] = float("inf")
                host.settle()
        else:
            return
        self.now = end

    def wait_for(self, condition: Callable[[], bool], within_s: float) -> float:
        """How long it took until `condition` held; an assertion if it did not within that time."""
        began_at = self.now
        self.advance(within_s, condition)
        assert condition(), f"not within {within_s} s"
        return self.now - began_at

    def settle_links(self, within_s: float = 15.0) -> None:
        """Until all static neighbours are linked, at both ends."""
        self.wait_for(lambda: all(self._is_linked(node) for node in self.nodes), within_s)
        self.advance(1.5)

    def _is_linked(self, node: Node) -> bool:
        wanted = {self[name].node_id for name in node.neighbours if isinstance(self[name], Node)}
        return wanted <= node.linked


def grid_edges(width: int = 3, height: int = 3) -> list[tuple[str, str]]:
    """Nodes are named by row and column: "00" to "22"."""
    edges = []
    for row in range(height):
        for column in range(width):
            if column + 1 < width:
                edges.append((f"{row}{column}", f"{row}{column + 1}"))
            if row + 1 < height:
                edges.append((f"{row}{column}", f"{row + 1}{column}"))
    return edges
