"""Machines, and the links between them.

A machine is driven as a shell would drive it: it is given packets, the time and news of its neighbours, and
after each of these its packets are taken and its deadline is read. What is in a packet is the machines' own
affair.

A link comes up `dial_s` after both ends live and nothing is cut. Its end is told to machines as a program
would learn of it: at once, after the link's delay, if an end was killed and its system closed the connection;
after `detection_s` if the end fell silent or the link was cut, as a probe finds out. A cut that was shorter
is never noticed. A node that returns before its silence was noticed is gone and there again in one moment,
since its neighbours see a second connection of the same node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Generic, Protocol, TypeVar

from hedgerow.errors import HedgerowError
from hedgerow_workshop.sim.events import Events
from hedgerow_workshop.sim.links import VirtualConditions, VirtualDirection, VirtualLink

MAX_RINGS_AT_ONCE = 1_000  # a machine whose deadline is always due would stop the clock for ever


class Machine(Protocol):
    """What takes part in a network."""

    @property
    def deadline(self) -> float | None:
        """When `handle_timer` is due."""

    def add_neighbour(self, neighbour: str, now: float) -> None: ...
    def remove_neighbour(self, neighbour: str, now: float) -> None: ...
    def receive(self, neighbour: str, data: Any, now: float) -> None: ...
    def handle_timer(self, now: float) -> None: ...
    def take_packets(self) -> Iterable[tuple[str, Any]]: ...


M = TypeVar("M", bound=Machine)


@dataclass(slots=True)
class Node(Generic[M]):
    name: str
    machine: M
    lives: bool = True
    lives_since: float = 0.0
    silent: bool = False
    """It died without a word."""
    ways: dict[str, VirtualDirection] = field(default_factory=dict)
    """Neighbour → the direction that leads to it."""
    rings_at: float = math.inf
    rings_at_once: int = 0


@dataclass(slots=True)
class Packets:
    sent: int = 0
    arrived: int = 0
    lost: int = 0
    """On a link, with its connection, or before a dead node."""
    unsent: int = 0
    """To one that was no neighbour, or no longer."""


class SimulationError(HedgerowError):
    """A machine, or the use of the network, that cannot go on."""


class Network(Generic[M]):
    """`make(name, now)` gives a node's machine, when it is added and each time that it returns."""

    def __init__(
        self,
        make: Callable[[str, float], M],
        random: Random,
        *,
        detection_s: float = 1.5,
        dial_s: float = 0.01,
    ) -> None:
        self.events = Events()
        self.nodes: dict[str, Node[M]] = {}
        self.packets = Packets()
        self.connections = 0
        """How many links have come up, each as often as it did."""
        self.up = 0
        """How many links are up."""
        self.watch: Callable[[str, str, Any], None] | None = None
        """Told of each packet that is sent on a link: sender, receiver, data."""
        self._make = make
        self._random = random
        self._detection_s = detection_s
        self._dial_s = dial_s

    # What a network consists of

    def add(self, name: str) -> M:
        if name in self.nodes:
            raise SimulationError(f"there is a node {name} already")
        node = Node(name, self._make(name, self.now), lives_since=self.now)
        self.nodes[name] = node
        self._drain(node)
        return node.machine

    def join(
        self, a: str, b: str, forward: VirtualConditions, backward: VirtualConditions | None = None
    ) -> VirtualLink:
        if a == b or b in self.nodes[a].ways:
            raise SimulationError(f"{a} and {b} cannot be joined (again)")
        link = VirtualLink(a, b, forward, backward or forward)
        self.nodes[a].ways[b] = link.forward
        self.nodes[b].ways[a] = link.backward
        self._review(link)
        return link

    def link(self, a: str, b: str) -> VirtualLink:
        return self.nodes[a].ways[b].link

    def links(self) -> Iterator[VirtualLink]:
        for name, node in self.nodes.items():
            yield from (way.link for way in node.ways.values() if way.link.forward.sender == name)

    # Time

    @property
    def now(self) -> float:
        return self.events.now

    def run(self, until_at: float) -> None:
        self.events.run(until_at)

    def tell(self, name: str, act: Callable[[M, float], object]) -> None:
        """Something happens to a machine from outside of the network. A dead one does not hear it."""
        node = self.nodes[name]
        if node.lives:
            act(node.machine, self.now)
            self._drain(node)

    # What goes wrong

    def kill(self, name: str, *, silent: bool = False) -> None:
        node = self.nodes[name]
        if not node.lives:
            raise SimulationError(f"{name} is dead already")
        node.lives = False
        node.silent = silent
        node.rings_at = math.inf
        for way in node.ways.values():
            way.link.lost_an_end = True
            self._review(way.link)

    def bring_back(self, name: str) -> M:
        node = self.nodes[name]
        if node.lives:
            raise SimulationError(f"{name} lives")
        node.lives = True
        node.lives_since = self.now
        node.machine = self._make(name, self.now)
        for way in node.ways.values():
            self._review(way.link)
        self._drain(node)
        return node.machine

    def cut(self, a: str, b: str, *, one_way: bool = False) -> None:
        """Silently; `one_way`: only from a to b."""
        self._set_cut(a, b, one_way, True)

    def restore(self, a: str, b: str, *, one_way: bool = False) -> None:
        self._set_cut(a, b, one_way, False)

    def change(self, a: str, b: str, **conditions: float) -> None:
        """Other conditions, from a to b, for what is sent from now on."""
        way = self.nodes[a].ways[b]
        way.conditions = replace(way.conditions, **conditions)

    def _set_cut(self, a: str, b: str, one_way: bool, is_cut: bool) -> None:
        self.nodes[a].ways[b].is_cut = is_cut
        if not one_way:
            self.nodes[b].ways[a].is_cut = is_cut
        self._review(self.link(a, b))

    # Links as their ends see them

    def _review(self, link: VirtualLink) -> None:
        a, b = (self.nodes[end] for end in link.ends)
        works = a.lives and b.lives and not (link.forward.is_cut or link.backward.is_cut)
        if works == link.works:
            return
        link.works = works
        link.changes += 1
        if works:
            after_s = self._dial_s
        elif link.forward.is_cut or link.backward.is_cut or any(not n.lives and n.silent for n in (a, b)):
            after_s = self._detection_s
        else:
            # Behind what is still on its way: the end of a connection comes last.
            after_s = max(w.conditions.delay_s + w.conditions.jitter_s for w in (link.forward, link.backward))
        self.events.plan(self.now + after_s, self._notice, link, link.changes)

    def _notice(self, link: VirtualLink, change: int) -> None:
        if change != link.changes:
            return
        if link.is_up and (not link.works or link.lost_an_end):
            link.is_up = False
            link.connection += 1
            self.up -= 1
            self._tell_ends(link)
        if link.works and not link.is_up:
            link.is_up = True
            link.up_at = self.now
            self.up += 1
            self.connections += 1
            link.lost_an_end = False
            self._tell_ends(link)

    def _tell_ends(self, link: VirtualLink) -> None:
        a, b = (self.nodes[end] for end in link.ends)
        for node, other in ((a, b), (b, a)):
            # A node that came back meanwhile has a new machine, which never had the neighbour to lose.
            if not node.lives or (not link.is_up and node.lives_since > link.up_at):
                continue
            act = node.machine.add_neighbour if link.is_up else node.machine.remove_neighbour
            act(other.name, self.now)
            self._drain(node)

    # Packets and timers

    def _drain(self, node: Node[M]) -> None:
        """Take what a machine has to say, and arm its timer anew."""
        machine, events, counted = node.machine, self.events, self.packets
        now = events.now
        for neighbour, data in machine.take_packets():
            way = node.ways.get(neighbour)
            if way is None or not way.link.is_up:
                counted.unsent += 1
                continue
            counted.sent += 1
            if self.watch is not None:
                self.watch(node.name, neighbour, data)
            at = way.arrives_at(now, self._random)
            if at is None:
                counted.lost += 1
            else:
                events.plan(at, self._arrive, way, way.link.connection, data)
        deadline = machine.deadline
        if deadline is not None and deadline < node.rings_at:
            node.rings_at = max(deadline, now)
            events.plan(node.rings_at, self._ring, node, machine)

    def _arrive(self, way: VirtualDirection, connection: int, data: Any) -> None:
        link = way.link
        node = self.nodes[way.receiver]
        if connection != link.connection or not link.is_up or not node.lives or way.is_cut:
            self.packets.lost += 1
            return
        self.packets.arrived += 1
        node.machine.receive(way.sender, data, self.now)
        self._drain(node)

    def _ring(self, node: Node[M], machine: M) -> None:
        if node.rings_at != self.now or node.machine is not machine:
            return
        node.rings_at = math.inf
        deadline = machine.deadline
        if deadline is not None and deadline <= self.now:
            machine.handle_timer(self.now)
            self._count_rings(node)
        self._drain(node)

    def _count_rings(self, node: Node[M]) -> None:
        deadline = node.machine.deadline
        is_due = deadline is not None and deadline <= self.now
        node.rings_at_once = node.rings_at_once + 1 if is_due else 0
        if node.rings_at_once > MAX_RINGS_AT_ONCE:
            raise SimulationError(f"{node.name}: its timer is always due, at {self.now}")
