"""Links between nodes and bridges to other brokers: state, round trips, queues, ledgers."""

from __future__ import annotations

from collections.abc import Sequence

from hedgerow.web import charts
from hedgerow.web.map import Edge, edges_of, ledger_line, state_of
from hedgerow.web.markup import Html, badge, code, empty, heading, hidden, ident, join, link, table, text
from hedgerow.web.pages.common import (
    STATE_BADGES,
    action,
    count,
    left_out,
    no_nodes,
    nodes_of,
    search_form,
    search_of,
)  # fmt: skip
from hedgerow.web.view import DELETE_BRIDGE, MAX_ROWS, NEW_BRIDGE, View

PATH = "/links"
TITLE = "Links"

_SECTION = "connection north\naddress north.example:1883\ntopic farm/# both 1"


def controls(view: View) -> Html:
    return join([search_form(view, PATH, "Search links"), _new_bridge(view)])


def render(view: View) -> Html:
    nodes = nodes_of(view)
    if not nodes:
        return no_nodes(view)
    edges = edges_of(nodes, view.now)
    words = search_of(view).casefold()
    if words:
        edges = [edge for edge in edges if words in _words(edge)]
    bridges = [edge for edge in edges if edge.kind == "bridge"]
    others = [edge for edge in edges if edge.kind != "bridge"]
    parts = [
        heading("Between nodes", "neighbours"),
        ledger_table("neighbour-table", others)
        if others
        else empty(
            "No links between nodes.",
            "Start a node with --federation, and another with --join URL, the address of the first.",
        ),
        heading("Bridges", "bridges"),
        ledger_table("bridge-table", bridges)
        if bridges
        else empty("No bridges.", "Make one: hedgerow bridge new north HOST --topic 'farm/# both 1'"),
        _deletions(view, bridges),
    ]
    return join(parts, "\n")


def ledger_table(anchor: str, edges: Sequence[Edge]) -> Html:
    """A row for each end of each link: what this end has sent and got."""
    ends = [(edge, name, end) for edge in edges for name, end in edge.ends]
    rows: list[tuple[str, Sequence[Html]]] = []
    for position, (edge, name, end) in enumerate(ends[:MAX_ROWS]):
        kind = STATE_BADGES.get(state_of(end.state) if edge.state != "silent" else "silent", "fair")
        rows.append(
            (
                ident(anchor, name, end.kind, end.to, end.name, str(position)),
                [
                    link(text(name, 32), "/", node=name),
                    link(text(end.to or end.name, 32), "/", link=edge.key),
                    text(end.kind, 20),
                    badge(end.state or "unknown", kind),
                    charts.milliseconds(end.round_trip_ms),
                    count(end.queued),
                    text(ledger_line(end.out_ledger), 160),
                    text(ledger_line(end.in_ledger), 160),
                ],
            )
        )
    head = ["Node", "To", "Kind", "State", "Round trip#", "Queued#", "Out", "In"]
    return join(
        [table(anchor, "Links, as each end sees them", head, rows), left_out(len(rows), len(ends))],
    )


def _words(edge: Edge) -> str:
    return " ".join(
        [edge.a, edge.b, edge.state, *(f"{end.kind} {end.name}" for _, end in edge.ends)]
    ).casefold()


def _may_command(view: View) -> bool:
    return bool(view.viewer.token) and view.viewer.is_administrator


def _deletions(view: View, bridges: Sequence[Edge]) -> Html:
    """Only this node's own bridges can be taken away here."""
    if not _may_command(view):
        return Html("")
    names = sorted(
        {end.name for edge in bridges for name, end in edge.ends if name == view.node_id and end.name}
    )
    forms = [
        f"<li>{code(name, 40)}{action(view, DELETE_BRIDGE, 'Delete', PATH, {'name': name}, 'danger')}</li>"
        for name in names[:MAX_ROWS]
    ]
    return join(['<ul class="actions" id="bridge-actions">', *forms, "</ul>"]) if forms else Html("")


def _new_bridge(view: View) -> Html:
    if not _may_command(view):
        return Html("")
    form = (
        f'<form method="post" action="{NEW_BRIDGE}" class="stacked">'
        f"{hidden('token', view.viewer.token)}{hidden('back', PATH)}"
        '<label for="section">Section, as in a configuration file</label>'
        f'<textarea id="section" name="section" rows="4" required placeholder="{_SECTION}"></textarea>'
        "<button>Create</button></form>"
    )
    return join(
        [
            "<details><summary>New bridge</summary>",
            f'<p class="soft">At {text(view.node_id)}.</p>',
            form,
            "</details>",
        ]
    )
