"""What records say: how long it took to heal, in seconds, and which mesh there was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hedgerow_workshop.lab.harness.measure import first_heard
from hedgerow_workshop.lab.spohn import grid
from hedgerow_workshop.lab.spohn.record import Misfortune, SpohnRecord, State


def heals(record: SpohnRecord, misfortune: Misfortune) -> Iterator[tuple[str, float]]:
    """For each node or link that failed: how long until every subscriber had received something from every
    publisher that was published after it. Where that never came, until the end of the run."""
    hearings = list(record.hearings())
    for failure in record.happened:
        if failure.misfortune is misfortune:
            heard = [first_heard([hearing], failure.at) for hearing in hearings]
            worst = max(record.ended_at if at is None else at for at in heard)
            yield failure.what, worst - failure.at


def said_distances(record: SpohnRecord) -> list[tuple[int, int]]:
    """What each broker takes its distance for, and the fewest links to the core."""
    found = list(record.distances)
    for states in record.states:
        for node, state in states.items():
            mesh = state.get("filters", {}).get(record.topic)
            if mesh is not None and mesh["core"] in grid.NODES:
                found.append((mesh["distance"], len(grid.path(node, mesh["core"])) - 1))
    return found


def link_differences(states: Mapping[str, State]) -> list[str]:
    """Where nodes are linked to others than the grid has it; nothing when all is as it should be."""
    return [f"node {node} {said}" for node in grid.NODES for said in _wrong_links(node, states.get(node))]


def mesh_differences(states: Mapping[str, State], topic_filter: str) -> list[str]:
    """These, and what of the mesh is not as in the document's figure 5."""
    found = link_differences(states)
    for node, state in sorted(states.items()):
        found += [f"node {node} {said}" for said in _wrong_mesh(node, state["filters"].get(topic_filter))]
    return found


def _wrong_links(node: str, state: State | None) -> Iterator[str]:
    if state is None:
        yield "has said nothing"
    elif (neighbours := sorted(state["neighbours"])) != grid.neighbours(node):
        yield f"has the neighbours {_names(neighbours)}, not {_names(grid.neighbours(node))}"


def _wrong_mesh(node: str, mesh: Mapping[str, Any] | None) -> Iterator[str]:
    if mesh is None:
        yield "knows no mesh"
        return
    if mesh["core"] != grid.CORE:
        yield f"takes {mesh['core']} for the core, not {grid.CORE}"
    if bool(mesh["member"]) != (node in grid.PARENTS):
        yield "is a member" if mesh["member"] else "is no member"
    elif node in grid.PARENTS and set(mesh["parents"]) != grid.PARENTS[node]:
        yield f"has the parents {_names(mesh['parents'])}, not {_names(sorted(grid.PARENTS[node]))}"


def _names(nodes: list[str]) -> str:
    return ", ".join(nodes) or "none"
