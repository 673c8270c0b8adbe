"""The last values that this node retains."""

from __future__ import annotations

from collections.abc import Sequence

from hedgerow.web import charts
from hedgerow.web.markup import Html, empty, ident, join, payload, table, text, visible
from hedgerow.web.pages.common import action, left_out, search_form
from hedgerow.web.view import CLEAR_RETAINED, MAX_ROWS, MAX_SEARCH, RetainedRow, View

PATH = "/retained"
TITLE = "Retained"

EVERYTHING = "#"


def filter_of(view: View) -> str:
    return view.query.get("filter", "")[:MAX_SEARCH] or EVERYTHING


def controls(view: View) -> Html:
    return search_form(view, PATH, "Topic filter", name="filter", value=filter_of(view))


def render(view: View) -> Html:
    asked = filter_of(view)
    found, total = view.local.retained(asked, MAX_ROWS)
    if not found:
        hint = "Publish with retain, or ask for another filter: + is one level, # at the end all below."
        if view.has_users:
            hint += " You see only what your user may read."
        return empty(f"Nothing is retained that {visible(asked)} matches.", hint)
    may_act = bool(view.viewer.token)
    rows: list[tuple[str, Sequence[Html]]] = [
        (ident("retained", row.topic), _cells(view, row, may_act)) for row in found
    ]
    head = ["Topic", "Value", "QoS#", "Age"]
    return join(
        [
            table(
                "retained",
                f"Retained values of {visible(view.node_id[:80])}",
                [*head, "Action"] if may_act else head,
                rows,
            ),
            left_out(len(rows), total),
        ]
    )


def _cells(view: View, row: RetainedRow, may_act: bool) -> list[Html]:
    cells = [
        text(row.topic),
        payload(row.payload),
        Html(str(row.qos)),
        charts.duration(row.age_s) if row.age_s is not None else Html("–"),
    ]
    if may_act:
        may_clear = view.viewer.is_administrator or view.viewer.may_write(row.topic)
        form = action(view, CLEAR_RETAINED, "Clear", PATH, {"topic": row.topic}, "danger")
        cells.append(form if may_clear else Html(""))
    return cells
