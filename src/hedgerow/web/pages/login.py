"""Log-in: a user's name and password, of the node's password file."""

from __future__ import annotations

from hedgerow.web.markup import Html, hidden
from hedgerow.web.pages.common import no_controls
from hedgerow.web.view import LOG_IN, View

PATH = LOG_IN
TITLE = "Log in"

controls = no_controls


def render(view: View) -> Html:
    return Html(
        f'<form class="card stacked login" method="post" action="{LOG_IN}">'
        f"{hidden('back', view.query.get('back', '/'))}{hidden('token', view.viewer.token)}"
        '<label for="user">User</label>'
        '<input id="user" name="user" autocomplete="username" autocapitalize="off" spellcheck="false" '
        "required autofocus>"
        '<label for="password">Password</label>'
        '<input id="password" name="password" type="password" autocomplete="current-password" required>'
        "<button>Log in</button></form>"
    )
