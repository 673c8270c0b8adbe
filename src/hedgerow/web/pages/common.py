"""What several pages share: which nodes a viewer sees, searching, forms with a token, and what empty pages
say.
"""

from __future__ import annotations

from html import escape

from hedgerow.topics import STATUS_FILTER
from hedgerow.web.charts import number
from hedgerow.web.fabric import FabricNode
from hedgerow.web.markup import Html, empty, field_value, hidden, join, paragraph
from hedgerow.web.view import MAX_SEARCH, View

STATE_BADGES = {"up": "good", "down": "bad", "silent": "dull"}
MAX_FIELD = 2000


def nodes_of(view: View) -> list[FabricNode]:
    return view.fabric.visible(view.viewer.may_read)


def search_of(view: View) -> str:
    return view.query.get("search", "")[:MAX_SEARCH]


def no_nodes(view: View) -> Html:
    if view.fabric.nodes or view.has_users:
        return empty(
            "No node that you may see.",
            f"Your user may not read {STATUS_FILTER} (an administrator can allow it in the ACL), "
            "or no node has said anything yet.",
        )
    return empty(
        "No node has said anything yet.", "Each tells its status once a second; this page follows by itself."
    )


def search_form(view: View, path: str, label: str, *, name: str = "search", value: str | None = None) -> Html:
    """Stands outside of the live part, so that typing survives; htmx sends what is typed with each poll."""
    typed = search_of(view) if value is None else value
    return Html(
        f'<form id="search" class="search" role="search" action="{path}" method="get">'
        f'<label for="search-words">{escape(label)}</label>'
        f'<input id="search-words" name="{name}" type="search" value="{field_value(typed)}" '
        f'maxlength="{MAX_SEARCH}" '
        'autocomplete="off" autocapitalize="off" spellcheck="false"><button>Search</button></form>'
    )


def no_controls(view: View) -> Html:
    return Html("")


def left_out(shown: int, total: int) -> Html:
    if total <= shown:
        return Html("")
    return paragraph(f"{shown:,} of {total:,} are shown: search for the rest.", "soft")


def action(view: View, path: str, label: str, back: str, fields: dict[str, str], kind: str = "") -> Html:
    """A button that does something, for somebody who is logged in; none for a name of 60 kB."""
    if not view.viewer.token or any(len(value) > MAX_FIELD for value in fields.values()):
        return Html("")
    inputs = join(hidden(name, value) for name, value in fields.items())
    return Html(
        f'<form class="action" method="post" action="{path}">{hidden("token", view.viewer.token)}'
        f'{hidden("back", back)}{inputs}<button class="{kind or "small"}">{escape(label)}</button></form>'
    )


def count(value: int) -> Html:
    return Html(f'<span title="{value:,}">{number(value)}</span>') if abs(value) >= 1000 else Html(str(value))
