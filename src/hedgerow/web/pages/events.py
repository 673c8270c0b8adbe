"""What happened in the last hour: joined, lost, healed, delegated, recovered, refused, full, connected,
disconnected.
"""

from __future__ import annotations

from collections.abc import Sequence

from hedgerow.web import charts
from hedgerow.web.fabric import FabricNode
from hedgerow.web.markup import Html, badge, empty, ident, join, link, table, text
from hedgerow.web.pages.common import left_out, nodes_of, search_form, search_of
from hedgerow.web.view import MAX_ROWS, View

PATH = "/events"
TITLE = "Events"

BADGES = {
    "joined": "good", "healed": "good", "recovered": "good", "connected": "good",
    "lost": "bad", "refused": "bad", "full": "bad", "delegated": "fair", "disconnected": "dull",
}  # fmt: skip

MAX_OWN = 1000
HEAD = ["At", "Node", "Event", "What"]

Told = tuple[float, int, str, str, str]
"""When, the event's number, node, kind, text: newest is the greatest."""


def controls(view: View) -> Html:
    return search_form(view, PATH, "Search events")


def render(view: View) -> Html:
    rows = events_of(view, nodes_of(view), search_of(view))
    if not rows:
        what = "No event has these words." if search_of(view) else "Nothing happened in the last hour."
        return empty(what, "Nodes that join or are lost, links that heal, and refusals are told here.")
    shown = rows[:MAX_ROWS]
    return join(
        [
            table("events", "Events of the last hour, newest first (UTC)", HEAD, map(event_cells, shown)),
            left_out(len(shown), len(rows)),
        ]
    )


def events_of(view: View, nodes: Sequence[FabricNode], search: str = "") -> list[Told]:
    """Of all nodes that are seen, newest first: of this one the whole hour, of the others their newest."""
    own = view.local.events(MAX_OWN)
    found: list[Told] = [(each.at, each.number, view.node_id, each.kind, each.text) for each in own]
    for node in nodes:
        if not own or node.node_id != view.node_id:
            found += [(each.at, each.number, node.node_id, each.kind, each.text) for each in node.events]
    if search:
        words = search.casefold()
        found = [row for row in found if words in f"{row[2]} {row[3]} {row[4]}".casefold()]
    found.sort(reverse=True)
    return found


def event_cells(event: Told) -> tuple[str, Sequence[Html]]:
    """A row of a table of events."""
    at, number, name, kind, words = event
    return ident("event", name, str(number), str(int(at))), [
        charts.clock(at),
        link(text(name, 40), "/", node=name),
        badge(kind, BADGES.get(kind, "dull")),
        text(words, 200),
    ]
