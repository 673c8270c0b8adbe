"""The document's network and what it found there, as data.

0 - 1 - 2        Nodes are numbered row by row. Subscribers are at 2 and 7, the publisher is at 6.
|   |   |        Node 2 is the core of the mesh, having the smallest id of those with subscribers.
3 - 4 - 5
|   |   |
6 - 7 - 8
"""

from __future__ import annotations

from collections.abc import Mapping

from hedgerow_workshop.lab.harness.measure import Spread

SIDE = 3
NODES = tuple(str(number) for number in range(SIDE * SIDE))
LINK_DELAY_S = 0.005
REDUNDANCY = 2
PAYLOAD_BYTES = 64
GAP_S = (0.05, 0.1)
COUNTS = (500, 1_000)
"""Of publications."""

PUBLISHER = "6"
SUBSCRIBERS = ("7", "2")
CORE = "2"
PARENTS: Mapping[str, frozenset[str]] = {
    "2": frozenset(),
    "1": frozenset("2"),
    "5": frozenset("2"),
    "4": frozenset("15"),
    "8": frozenset("5"),
    "7": frozenset("48"),
}
"""The members of the mesh, and each one's parents (its figure 5)."""


FEDERATED: Mapping[tuple[str, int], Spread] = {
    ("2", 500): Spread(34.64, 3.21),
    ("2", 1000): Spread(34.77, 3.17),
    ("7", 500): Spread(18.65, 3.20),
    ("7", 1000): Spread(18.61, 3.17),
}
"""Its table 2, in ms: by subscriber and number of publications."""

CENTRALISED: Mapping[tuple[str, str, int], Spread] = {
    ("2", "A", 500): Spread(34.59, 3.13),
    ("2", "B", 500): Spread(42.47, 4.37),
    ("2", "A", 1000): Spread(34.58, 3.23),
    ("2", "B", 1000): Spread(42.58, 4.48),
    ("7", "A", 500): Spread(18.63, 3.20),
    ("7", "B", 500): Spread(26.69, 4.77),
    ("7", "A", 1000): Spread(18.47, 3.22),
    ("7", "B", 1000): Spread(26.42, 4.56),
}
"""Its table 3, in ms: by the broker's node, subscriber, and number of publications."""


def place(node: str) -> tuple[int, int]:
    """Column and row."""
    row, column = divmod(int(node), SIDE)
    return column, row


def neighbours(node: str) -> list[str]:
    column, row = place(node)
    return [other for other in NODES if abs(place(other)[0] - column) + abs(place(other)[1] - row) == 1]


LINKS = tuple((a, b) for a in NODES for b in neighbours(a) if a < b)


def path(a: str, b: str) -> list[str]:
    """A shortest way, both ends included."""
    ways = {a: [a]}
    for node in (queue := [a]):
        for other in neighbours(node):
            if other not in ways:
                ways[other] = [*ways[node], other]
                queue.append(other)
    return ways[b]


def floor_ms(a: str, b: str) -> float:
    """What the links alone take."""
    return 1_000 * LINK_DELAY_S * (len(path(a, b)) - 1)


def published(broker: str, subscriber: str, count: int) -> Spread:
    """`broker` is the node of a centralised one, or "". Runs of another length count as the longest."""
    count = count if count in COUNTS else max(COUNTS)
    return CENTRALISED[broker, subscriber, count] if broker else FEDERATED[subscriber, count]
