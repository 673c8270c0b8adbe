"""Drawings of the mesh that formed and of what its links carried, beside the document's figures 5 and 6."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hedgerow_workshop.lab.harness.figures import COLOURS, open_axes
from hedgerow_workshop.lab.spohn import grid
from hedgerow_workshop.lab.spohn.record import State, Transmissions

LINK, MESH, MEMBER, CORE = "#ccc", COLOURS[0], COLOURS[2], COLOURS[1]
ROLES = {grid.PUBLISHER: "publisher"} | dict.fromkeys(grid.SUBSCRIBERS, "subscriber")


def draw_mesh(path: Path, title: str, states: Mapping[str, State], topic_filter: str) -> None:
    """Members filled, the core of another colour, arrows from each member to its parents."""
    figure, axes = open_axes((5, 5), (0, 0, 1, 1))
    places = {node: (column, -row) for node in grid.NODES for column, row in [grid.place(node)]}
    for a, b in grid.LINKS:
        axes.plot(*zip(places[a], places[b], strict=True), "-", color=LINK, linewidth=2, zorder=1)
    meshes = {node: state["filters"].get(topic_filter, {}) for node, state in states.items()}
    for node, place in places.items():
        mesh = meshes.get(node, {})
        is_member = bool(mesh.get("member"))
        colour = (CORE if mesh["core"] == node else MEMBER) if is_member else "white"
        axes.plot(*place, "o", markersize=34, color=colour, markeredgecolor="#777", zorder=2)
        axes.annotate(node, place, ha="center", va="center", color="white" if is_member else "#555", zorder=4)
        if node in ROLES:
            beyond = 0.3 if place[1] == 0 else -0.3  # outside of the grid, where no arrow is
            axes.annotate(ROLES[node], (place[0], place[1] + beyond), ha="center", va="center", color="#555")
        for parent in mesh.get("parents", ()) if is_member else ():
            if parent in places:
                arrow = {"arrowstyle": "-|>", "color": MESH, "lw": 2, "shrinkA": 20, "shrinkB": 20}
                axes.annotate("", places[parent], place, arrowprops=arrow, zorder=3)
    axes.set_title(title, y=0.93)
    axes.set_xlim(-0.6, grid.SIDE - 0.4)
    axes.set_ylim(-grid.SIDE + 0.4, 0.7)
    axes.axis("off")
    figure.savefig(path)


def draw_transmissions(
    path: Path, title: str, transmissions: Mapping[str, Transmissions], count: int
) -> None:
    """An arrow for each link and direction that carried something, with how often a publication took it, and
    how often it had come to the other end by another way before."""
    figure, axes = open_axes((6, 6), (0, 0, 1, 1))
    places = {node: (1.4 * column, -1.4 * row) for node in grid.NODES for column, row in [grid.place(node)]}
    for a, b in grid.LINKS:
        axes.plot(*zip(places[a], places[b], strict=True), "-", color=LINK, linewidth=1, zorder=1)
    for node, place in places.items():
        axes.plot(*place, "o", markersize=30, color="white", markeredgecolor="#777", zorder=2)
        axes.annotate(node, place, ha="center", va="center", color="#555", zorder=4)
    for link, (sent, redundant) in transmissions.items():
        (ax, ay), (bx, by) = (places[node] for node in link.split("-"))
        if not sent:
            continue
        side = 0.09 * (by - ay) / 1.4, -0.09 * (bx - ax) / 1.4  # Each direction has its own side of the link.
        colour = COLOURS[1] if redundant > sent / 2 else MESH
        arrow = {"arrowstyle": "-|>", "color": colour, "lw": 2, "shrinkA": 17, "shrinkB": 17}
        ends = [(x + side[0], y + side[1]) for x, y in ((bx, by), (ax, ay))]
        axes.annotate("", ends[0], ends[1], arrowprops=arrow, zorder=3)
        text = f"{sent / count:.2f}" + (f" ({redundant / count:.2f})" if redundant else "")
        middle = (ax + bx) / 2 + 1.5 * side[0], (ay + by) / 2 + 2.6 * side[1]
        beside = "center" if ax != bx else ("left" if side[0] > 0 else "right")
        axes.annotate(text, middle, ha=beside, va="center", fontsize=7, color=colour, zorder=4)
    axes.set_title(title, y=0.95)
    axes.set_xlim(-0.6, 1.4 * (grid.SIDE - 1) + 0.6)
    axes.set_ylim(-1.4 * (grid.SIDE - 1) - 0.6, 0.8)
    axes.axis("off")
    figure.savefig(path)
