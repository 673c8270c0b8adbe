"""A drawing of the mesh that formed, to be laid beside the document's figure 5."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hedgerow_workshop.lab.harness.figures import COLOURS, open_axes
from hedgerow_workshop.lab.spohn import grid
from hedgerow_workshop.lab.spohn.record import State

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
