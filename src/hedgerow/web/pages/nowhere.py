"""What a browser gets that asks for a page that there is not: that it is so, and the way back."""

from __future__ import annotations

from hedgerow.web.markup import Html, code, link
from hedgerow.web.pages.common import no_controls
from hedgerow.web.view import View

TITLE = "There is no such page"

controls = no_controls


def render(view: View) -> Html:
    where = code(view.query.get("path", ""))
    return Html(f'<p class="empty">Nothing is at {where}.<br>{link(Html("To the map"), "/")}</p>')
