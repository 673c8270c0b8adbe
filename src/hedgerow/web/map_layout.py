"""Where nodes stand on the map: a pure function of who is there, with no simulation and no chance.

Nodes stand on an ellipse, each at the angle that a hash of its id gives. Those that would stand too near to
each other are moved apart, together as little as can be (the squares of the moves are least). So a node that
comes or goes moves its neighbours by a part of a place, and the others hardly. Whatever hangs on one node (a
mobile broker, a foreign broker at a bridge) stands further out, beside that node. O(n log n).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from math import cos, pi, sin
from typing import NamedTuple

WIDTH, HEIGHT = 1000, 600
INNER = (350.0, 200.0)  # half axes of the ellipse
OUTER = (440.0, 258.0)
MANY = 18  # nodes: then their names stand like rays
NEAREST = 0.8  # of an even share of the circle
NEAREST_OF_MANY = 0.92
ASIDE = 0.025  # of a turn: straight behind its node a hanger's link would run through the name


class Point(NamedTuple):
    x: int
    y: int


def place(nodes: Iterable[str], hangers: Mapping[str, str] | None = None) -> dict[str, Point]:
    """A place for each node, and for each hanger, given with the node that it hangs on."""
    marks = {node: _mark(node) for node in nodes}
    order = sorted(marks, key=lambda node: (marks[node], node))
    angles = _spread([marks[node] / 2**64 for node in order])
    places = {node: _point(angle, INNER) for node, angle in zip(order, angles, strict=True)}
    if len(order) == 1:
        places[order[0]] = Point(WIDTH // 2, HEIGHT // 2)
    places.update(_hang(dict(zip(order, angles, strict=True)), hangers or {}, places))
    return places


def _spread(wanted: Sequence[float]) -> list[float]:
    """Turns (0 to 1) in this order, at least NEAREST of an even share apart, else as wanted."""
    count = len(wanted)
    if count < 2:
        return list(wanted)
    apart = (NEAREST if count <= MANY else NEAREST_OF_MANY) / count
    # The circle is cut where there is most room: there the two ends disturb each other least.
    room = [(wanted[(at + 1) % count] - wanted[at]) % 1.0 for at in range(count)]
    start = (room.index(max(room)) + 1) % count
    unrolled = [wanted[(start + at) % count] + (start + at >= count) for at in range(count)]
    turns = [
        turn + at * apart for at, turn in enumerate(_rising(t - i * apart for i, t in enumerate(unrolled)))
    ]
    length, middle = turns[-1] - turns[0], (turns[0] + turns[-1]) / 2
    if length > 1.0 - apart:
        turns = [middle + (turn - middle) * (1.0 - apart) / length for turn in turns]
    return [turns[(at - start) % count] % 1.0 for at in range(count)]


def _rising(values: Iterable[float]) -> list[float]:
    """The numbers nearest to these of which none is less than the one before it."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, size = value, 1
        while pools and pools[-1][0] > mean:
            other, others = pools.pop()
            mean, size = (mean * size + other * others) / (size + others), size + others
        pools.append((mean, size))
    return [mean for mean, size in pools for _ in range(size)]


def _hang(
    angles: Mapping[str, float], hangers: Mapping[str, str], places: Mapping[str, Point]
) -> dict[str, Point]:
    """Beside each other in the direction of what they hang on, never two at one place."""
    by_anchor: dict[str, list[str]] = {}
    for hanger in sorted(hangers):
        if hanger not in places and hangers[hanger] in angles:
            by_anchor.setdefault(hangers[hanger], []).append(hanger)
    count = sum(map(len, by_anchor.values()))
    step = min(0.05, 1.0 / count) if count else 0.0
    wanted = sorted(
        (angles[anchor] + _aside(angles[anchor]) + step * (position - (len(each) - 1) / 2), hanger)
        for anchor, each in by_anchor.items()
        for position, hanger in enumerate(each)
    )
    found: dict[str, Point] = {}
    last = float("-inf")
    for angle, hanger in wanted:
        last = max(angle, last + step)
        found[hanger] = _point(last, OUTER)
    return found


def _aside(turn: float) -> float:
    """To the side that leads away from the vertical: on the other it would stand on its node's caption."""
    return -ASIDE if sin(4 * pi * turn) > 0 else ASIDE


def _point(turn: float, axes: tuple[float, float]) -> Point:
    angle = 2 * pi * turn
    return Point(round(WIDTH / 2 + axes[0] * cos(angle)), round(HEIGHT / 2 + axes[1] * sin(angle)))


def _mark(node: str) -> int:
    return int.from_bytes(blake2b(node.encode(errors="surrogatepass"), digest_size=8).digest(), "big")
