"""The live map: nodes, the links between them with their ledgers, and the mesh of one topic over it, as SVG.

Links lie under the nodes; over both, each link has a wide invisible line that shows its ledger while the
pointer or the keyboard's focus is on it, so that the panel is above everything. Everything that is morphed
has an id of its own and stands in a group that is always there: htmx makes no SVG elements itself, it only
moves and changes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from hedgerow.web.charts import milliseconds, number
from hedgerow.web.fabric import FabricNode, LinkStatus, MeshPlace
from hedgerow.web.map_layout import HEIGHT, MANY, WIDTH, Point, place
from hedgerow.web.markup import MAX_TITLE, Html, href, ident, short, visible

RADIUS = 17
MAX_NAME = 16
MAX_GHOST_NAME = 20  # host:port
MAX_GHOSTS = 100  # ends of links that no status was heard of
MAX_EDGES = 600
MAX_TIP_LINE = 58
MANY_EDGES = 100  # then a panel has a line for each end, and the whole ledger is a click away

TIP_WIDTH = 400
WHOLE = f"0 0 {WIDTH} {HEIGHT}"
MIDDLE = f"0 {HEIGHT // 2 - 90} {WIDTH} 180"  # of a node that is alone
HANGING_KINDS = ("mobile", "dashboard")
# Two Mosquittos, each at localhost with a federator beside it, are not one broker.
_OWN_MACHINE = re.compile(r"(?:[a-z]+://)?(?:localhost|127(?:\.\d{1,3}){3}|\[?::1\]?)(?::\d{1,5})?")
KIND_MARKS = {"node": "", "sidecar": "S", "mobile": "M", "fixed": "F", "dashboard": "D"}


@dataclass(slots=True)
class Edge:
    """A link between two, with what each end says of it."""

    a: str
    b: str
    key: str
    """The id of its element on the page."""
    ends: list[tuple[str, LinkStatus]] = field(default_factory=list)
    state: str = "up"
    """up, waiting, down, or silent where nobody who knows was heard."""

    @property
    def kind(self) -> str:
        return self.ends[0][1].kind


def edges_of(nodes: Sequence[FabricNode], now: float) -> list[Edge]:
    """One for each pair that a node names a link of."""
    edges: dict[tuple[str, str], Edge] = {}
    heard: dict[tuple[str, str], set[str]] = {}
    known = {node.node_id for node in nodes}
    for node in nodes:
        is_silent = node.is_silent(now)
        for end in node.status.links:
            to = end.to or end.name
            if to not in known and _OWN_MACHINE.fullmatch(to):
                to = f"{to}@{node.node_id}"
            pair = (node.node_id, to) if node.node_id < to else (to, node.node_id)
            edge = edges.get(pair)
            if edge is None:
                if len(edges) == MAX_EDGES:
                    continue
                edge = edges[pair] = Edge(*pair, ident("edge", *pair))
                heard[pair] = set()
            edge.ends.append((node.node_id, end))
            if not is_silent:
                heard[pair].add(state_of(end.state))
    for pair, states in heard.items():
        edges[pair].state = next((state for state in ("down", "waiting", "up") if state in states), "silent")
    return list(edges.values())


def state_of(state: str) -> str:
    if state == "up":
        return "up"
    return "down" if state in ("down", "stopped", "lost", "refused") else "waiting"


def draw(
    nodes: Sequence[FabricNode],
    edges: Sequence[Edge],
    now: float,
    *,
    chosen: str = "",
    mesh: Mapping[str, MeshPlace] | None = None,
) -> Html:
    """The map. `chosen` is a node's id or an edge's key; with a mesh, what is not of it steps back."""
    places = places_of(nodes, edges)
    known = {node.node_id for node in nodes}
    is_many = len(nodes) > MANY
    kinds = "map" + (" of-mesh" if mesh is not None else "") + (" many" if is_many else "")
    pieces = [
        f'<svg class="{kinds}" id="map" viewBox="{WHOLE if len(places) > 1 else MIDDLE}" '
        'role="group" aria-label="Map of the fabric">'
        '<defs id="map-defs"><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto-start-reverse"><path d="M0 0L8 4L0 8z"/></marker></defs>',
        '<g id="map-links">',
    ]
    drawn = [edge for edge in edges if edge.a in places and edge.b in places and edge.a != edge.b]
    pieces += [_line(edge, places, chosen) for edge in drawn]
    pieces.append('</g><g id="map-mesh">')
    if mesh:
        pieces += _arrows(mesh, places)
    pieces.append('</g><g id="map-nodes">')
    cores = {each.core for each in mesh.values()} if mesh else set()
    pieces += [_ghost(name, places[name], name in cores) for name in places if name not in known]
    for node in nodes:
        kinds = _kinds(node, now, chosen, mesh, cores)
        pieces.append(_node(node, places[node.node_id], now, kinds, is_many))
    pieces.append('</g><g id="map-hits">')
    if mesh is None:
        pieces += [_hit(edge, places, len(drawn) > MANY_EDGES) for edge in drawn]
    pieces.append("</g></svg>")
    return Html("".join(pieces))


def places_of(nodes: Sequence[FabricNode], edges: Sequence[Edge]) -> dict[str, Point]:
    ring = {node.node_id for node in nodes if node.status.kind not in HANGING_KINDS}
    known = {node.node_id for node in nodes}
    hangers: dict[str, str] = {}
    for edge in edges:
        for hanger, anchor in ((edge.a, edge.b), (edge.b, edge.a)):
            if anchor not in ring or hanger in ring:
                continue
            if hanger in known:
                if edge.state == "up" or hanger not in hangers:
                    hangers[hanger] = anchor
            elif hanger not in hangers and len(hangers) < MAX_GHOSTS + len(known):
                hangers[hanger] = anchor
    return place(ring | (known - hangers.keys()), hangers)


def _line(edge: Edge, places: Mapping[str, Point], chosen: str) -> str:
    a, b = places[edge.a], places[edge.b]
    key = edge.key
    kind = "bridge" if edge.kind == "bridge" else "near"
    mark = " chosen" if key == chosen else ""
    return (
        f'<line id="{key}" class="link {edge.state} {kind}{mark}" '
        f'x1="{a.x}" y1="{a.y}" x2="{b.x}" y2="{b.y}"/>'
    )


def _hit(edge: Edge, places: Mapping[str, Point], is_brief: bool) -> str:
    a, b = _shortened(places[edge.a], places[edge.b])
    lines = tip_lines(edge, is_brief)
    height = 17 * len(lines) + 14
    x = min((a.x + b.x) // 2 + 14, WIDTH - TIP_WIDTH - 4)
    y = max(min((a.y + b.y) // 2 + 14, HEIGHT - height - 4), 4)
    words = '</tspan><tspan x="12" dy="17">'.join(lines)
    key = edge.key
    return (
        f'<a id="hit-{key}" class="hit" href="/?link={key}" aria-label="Link {lines[0]}">'
        f'<line x1="{a.x}" y1="{a.y}" x2="{b.x}" y2="{b.y}"/>'
        f'<g class="tip" id="tip-{key}" transform="translate({x} {y})" aria-hidden="true">'
        f'<rect width="{TIP_WIDTH}" height="{height}" rx="8"/>'
        f'<text y="5"><tspan x="12" dy="17">{words}</tspan></text></g></a>'
    )


def tip_lines(edge: Edge, is_brief: bool = False) -> list[str]:
    """The ledger of a link, from both of its ends; escaped."""
    lines = [f"{edge.a[:24]} – {edge.b[:24]} · {edge.kind[:20]} · {edge.state}"]
    for name, end in edge.ends[:4]:
        trip = "" if end.round_trip_ms is None else f" · {milliseconds(end.round_trip_ms)}"
        if is_brief:
            out, in_ = end.out_ledger.get("published", 0), end.in_ledger.get("published", 0)
            lines.append(f"{name[:16]}: {end.state[:12]}{trip} · out {out}, in {in_}")
        else:
            lines.append(f"{name[:24]}: {end.state[:20]}{trip} · {end.queued} queued")
            if end.out_ledger:
                lines.append(f"   out {ledger_line(end.out_ledger)}")
            if end.in_ledger:
                lines.append(f"   in {ledger_line(end.in_ledger)}")
    cut = [line if len(line) <= MAX_TIP_LINE else line[: MAX_TIP_LINE - 1] + "…" for line in lines]
    # Some hundred panels are made each second: one escape for all lines of one, where nothing is odd in it.
    if "".join(cut).isprintable():
        return escape("\n".join(cut)).split("\n")
    return [short(line, MAX_TIP_LINE) for line in cut]


def ledger_line(ledger: Mapping[str, int]) -> str:
    """What is not zero, in the ledger's own order; of a link on which nothing is counted, that."""
    if not ledger:
        return "not counted"
    return ", ".join([f"{name} {count}" for name, count in ledger.items() if count]) or "nothing yet"


def _shortened(a: Point, b: Point, by: float = RADIUS + 9) -> tuple[Point, Point]:
    """The line without the two circles at its ends: those are the nodes' own."""
    across, down = b.x - a.x, b.y - a.y
    part = min(by / max(math.hypot(across, down), 1.0), 0.45)
    across, down = int(across * part), int(down * part)
    return Point(a.x + across, a.y + down), Point(b.x - across, b.y - down)


def _arrows(mesh: Mapping[str, MeshPlace], places: Mapping[str, Point]) -> list[str]:
    """From each node of the mesh to its parents."""
    arrows = []
    for name, each in mesh.items():
        for parent in each.parents:
            if name in places and parent in places and name != parent:
                a, b = _shortened(places[name], places[parent])
                arrows.append(
                    f'<line id="{ident("arrow", name, parent)}" class="arrow" marker-end="url(#arrow)" '
                    f'x1="{a.x}" y1="{a.y}" x2="{b.x}" y2="{b.y}"/>'
                )
    return arrows


def _kinds(
    node: FabricNode, now: float, chosen: str, mesh: Mapping[str, MeshPlace] | None, cores: set[str]
) -> str:
    """The classes of a node's element."""
    status, name = node.status, node.node_id
    kinds = ["node", "kind-" + (status.kind if status.kind in KIND_MARKS else "other")]
    if node.is_silent(now):
        kinds.append("silent")
    elif status.problem:
        kinds.append("troubled")
    if name == chosen:
        kinds.append("chosen")
    if mesh is not None:
        each = mesh.get(name)
        kinds.append("outside" if each is None else part_in(each))
        if name in cores:
            kinds.append("core")
    return " ".join(kinds)


def part_in(mesh: MeshPlace) -> str:
    """local: it has subscribers; member: it passes messages on; aware: it knows the way to the core alone."""
    return "local" if mesh.is_local else "member" if mesh.is_member else "aware"


def _node(node: FabricNode, at: Point, now: float, kinds: str, is_many: bool) -> str:
    name, kind = node.node_id, node.status.kind
    if node.is_silent(now):
        doing = "silent"
    elif node.rates is None:
        doing = "…"
    else:
        doing = f"↓{number(node.rates.received)} ↑{number(node.rates.sent)}/s"
    label = escape(f"{visible(kind[:20])} {visible(name[:80])}, {doing}")
    return (
        f'<a id="{ident("node", name)}" class="{kinds}" href="{href("/", node=name[:MAX_TITLE])}" '
        f'aria-label="{label}" transform="translate({at.x} {at.y})"><title>{short(name, 200)}</title>'
        f'<circle class="halo" r="{RADIUS + 6}"/><circle class="disc" r="{RADIUS}"/>'
        f'<text class="mark" y="5">{KIND_MARKS.get(kind, "?")}</text>'
        f"{_ray(name, at) if is_many else _caption(name, at, doing)}</a>"
    )


def _caption(name: str, at: Point, doing: str) -> str:
    """Name and rates, on the side where no links are."""
    name_y, rate_y = (-RADIUS - 26, -RADIUS - 12) if at.y < HEIGHT / 2 else (RADIUS + 19, RADIUS + 34)
    return (
        f'<text class="name" y="{name_y}">{short(name, MAX_NAME)}</text>'
        f'<text class="rate" y="{rate_y}">{doing}</text>'
    )


def _ray(name: str, at: Point) -> str:
    """The name alone, away from the middle: of many nodes no two names meet."""
    degrees = round(math.degrees(math.atan2(at.y - HEIGHT / 2, at.x - WIDTH / 2)))
    is_left = abs(degrees) > 90
    turn, side, x = (degrees + 180, " to-left", -RADIUS) if is_left else (degrees, " to-right", RADIUS)
    return f'<text class="name{side}" transform="rotate({turn})" x="{x}" y="4">{short(name, MAX_NAME)}</text>'


def _ghost(name: str, at: Point, is_core: bool) -> str:
    """Somebody that links lead to and that no status was heard of."""
    kind = "ghost core" if is_core else "ghost"
    name_y = -RADIUS - 4 if at.y < HEIGHT / 2 else RADIUS + 14
    here = name.partition("@")[0]  # whose machine that is can be seen: it stands beside its node
    label = here if _OWN_MACHINE.fullmatch(here) else name
    return (
        f'<g id="{ident("ghost", name)}" class="{kind}" transform="translate({at.x} {at.y})">'
        f'<title>{short(name, 200)}: no status is heard of it</title><circle r="{RADIUS - 5}"/>'
        f'<text class="name" y="{name_y}">{short(label, MAX_GHOST_NAME)}</text></g>'
    )
