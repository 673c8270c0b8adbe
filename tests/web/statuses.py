"""Statuses as nodes send them, and a fabric that has heard some."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from hedgerow.topics import STATUS_PREFIX
from hedgerow.web.fabric import Fabric

NOW = 1_794_773_497.0

HOSTILE = [
    "<script>alert(1)</script>",
    '" onload="alert(1)" x=\'',
    "</svg></title><img src=x onerror=alert(1)>",
    "line\nbreak\x00\x1b[31m\u202egnp",
    "half \ud800 surrogate",
    "javascript:alert(1)",
    "<>&'\"" * 12_000,
]


def link(to: str, **changes: object) -> dict[str, object]:
    told: dict[str, object] = {
        "kind": "neighbour", "name": to, "to": to, "state": "up", "round_trip_ms": 1.25, "queued": 3,
        "out": {"published": 1204, "away": 14, "expired": 0}, "in": {"published": 880, "duplicates": 10},
    }  # fmt: skip
    return {**told, **changes}


def status(node: str, number: int = 1, **changes: object) -> bytes:
    """As `node` would say it; its clock and its uptime go on with the number."""
    told: dict[str, object] = {
        "version": 1, "node": node, "number": number, "at": NOW + number, "uptime_s": 100.0 + number,
        "software": "0.1.0", "kind": "node", "beside": None, "urls": ["mqtt://127.0.0.1:1883"],
        "problem": None,
        "counts": {"clients": 3, "sessions": 4},
        "totals": {"received": 10 * number, "sent": 20 * number, "dropped": 0},
        "links": [], "hot": None, "events": [], "journal": None, "pipeline": {},
    }  # fmt: skip
    return json.dumps({**told, **changes}).encode()


def mesh(core: str, parents: Iterable[str] = (), **changes: object) -> dict[str, object]:
    told: dict[str, object] = {
        "core": core, "distance": 1, "parents": list(parents), "children": [], "member": True, "local": False,
    }  # fmt: skip
    return {**told, **changes}


def tell(fabric: Fabric, node: str, number: int = 1, **changes: object) -> None:
    fabric.receive(STATUS_PREFIX + node, status(node, number, **changes), NOW + number + 0.02)


def tell_meshes(fabric: Fabric, node: str, filters: Mapping[str, object], more_filters: int = 0) -> None:
    payload = json.dumps({"version": 1, "node": node, "filters": filters, "more_filters": more_filters})
    fabric.receive(f"{STATUS_PREFIX}{node}/meshes", payload.encode(), NOW)


def farm() -> Fabric:
    """Three nodes in a row: barn – north – south; barn has a bridge, farm/# a mesh with its core at north."""
    fabric = Fabric()
    for number in (1, 2):
        bridge = link("cloud.example:8883", kind="bridge", name="cloud")
        tell(fabric, "barn", number, links=[link("north"), bridge], hot=[["farm/wind", 19, "here"]])
        tell(fabric, "north", number, links=[link("barn"), link("south", state="down")])
        tell(fabric, "south", number, links=[link("north", state="down")])
    tell_meshes(fabric, "barn", {"farm/#": mesh("north", ["north"], local=True)})
    tell_meshes(fabric, "north", {"farm/#": mesh("north", distance=0, children=["barn"])})
    return fabric
