"""What many filters cost: the control traffic of a federation, by their number and by where they are.

On the document's grid, each filter has subscribers at two brokers, so that it has a mesh. They are added at
once, then the announcements of some intervals are counted, then what one more filter costs. A run is a pure
function of its parameters, as `configuration` is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hedgerow.federation.mesh.federator import Federator
from hedgerow_workshop.sim.broker import Activity, Broker
from hedgerow_workshop.sim.chance import stream
from hedgerow_workshop.sim.links import VirtualConditions
from hedgerow_workshop.sim.network import Network
from hedgerow_workshop.sim.topologies import grid

SIZE = 9
SETTLED_S = 12.0
INTERVALS = 6
INTERVAL_S = 5.0
CHANGE_S = 0.25  # within which everyone has heard of one more filter
QUIET_TRIES = 1_000
WIDE = "site/#"


@dataclass(frozen=True, slots=True)
class LinkTraffic:
    packets: float
    size: float
    """In bytes."""


@dataclass(frozen=True, slots=True)
class FilterParameters:
    placing: str
    count: int
    seed: int = 1


@dataclass(frozen=True, slots=True)
class FilterTraffic:
    """On each link, mean."""

    parameters: FilterParameters
    beginning: LinkTraffic
    """Until all filters are known everywhere."""
    announcement: LinkTraffic
    """Of one announcement and the memberships that answer it."""
    change: LinkTraffic
    """Of one filter more."""


def _at_one(number: int) -> tuple[int, int]:
    return 2, 7


def _spread(number: int) -> tuple[int, int]:
    return number % SIZE, (number + 5) % SIZE


PLACINGS: dict[str, Callable[[int], tuple[int, int]]] = {
    "one": _at_one,
    "spread": _spread,
    "covered": _at_one,
}
"""The two brokers that have subscribers of filter number n. `covered`: and of one that is wider than all."""


def name_of(number: int) -> str:
    return f"site/{number % 7}/machine/{number:05}/temperature"


def measure_filters(parameters: FilterParameters) -> FilterTraffic:
    return _Run(parameters).measure()


class _Run:
    def __init__(self, parameters: FilterParameters) -> None:
        self._parameters = parameters
        self._packets = self._bytes = 0
        chance = stream(parameters.seed, "brokers").random
        activity = Activity()
        self._network: Network[Broker] = Network(
            lambda name, now: Broker(Federator(name, now, random=chance), activity),
            stream(parameters.seed, "links"),
        )
        self._network.watch = self._watch
        edges = grid(SIZE, stream(parameters.seed, "topology"))
        self._links = len(edges)
        for node in range(SIZE):
            self._network.add(str(node))
        for a, b in edges:
            self._network.join(str(a), str(b), VirtualConditions())

    def measure(self) -> FilterTraffic:
        parameters, network = self._parameters, self._network
        network.run(1)
        names = {number: name_of(number) for number in range(parameters.count)}
        by_node: dict[int, list[str]] = {}
        for number, name in names.items():
            for node in PLACINGS[parameters.placing](number):
                by_node.setdefault(node, [WIDE] if parameters.placing == "covered" else []).append(name)
        for node, filters in by_node.items():
            self._subscribe(node, filters)
        network.run(network.now + SETTLED_S)
        beginning = self._take(1)
        announced = self._announcements()
        network.run(network.now + INTERVALS * INTERVAL_S)
        announcement = self._take(self._announcements() - announced)
        self._wait_for_quiet()
        self._take(1)
        for node in PLACINGS[parameters.placing](parameters.count):
            self._subscribe(node, [name_of(parameters.count)])
        network.run(network.now + CHANGE_S)
        return FilterTraffic(parameters, beginning, announcement, self._take(1))

    def _watch(self, sender: str, receiver: str, data: object) -> None:
        assert isinstance(data, bytes)
        self._packets += 1
        self._bytes += len(data)

    def _take(self, occasions: int) -> LinkTraffic:
        traffic = LinkTraffic(
            self._packets / self._links / max(occasions, 1), self._bytes / self._links / max(occasions, 1)
        )
        self._packets = self._bytes = 0
        return traffic

    def _subscribe(self, node: int, filters: list[str]) -> None:
        def act(broker: Broker, now: float) -> None:
            for topic_filter in filters:
                broker.subscribe(topic_filter, now)

        self._network.tell(str(node), act)

    def _announcements(self) -> int:
        return sum(self._federator(node).stats.announcements for node in range(SIZE))

    def _federator(self, node: int) -> Federator:
        federator = self._network.nodes[str(node)].machine.federator
        assert isinstance(federator, Federator)
        return federator

    def _wait_for_quiet(self) -> None:
        """Until no announcement is on its way, or due while a change is measured."""
        for _ in range(QUIET_TRIES):
            if min(self._federator(node).deadline for node in range(SIZE)) > self._network.now + CHANGE_S:
                return
            self._network.run(self._network.now + 0.01)
