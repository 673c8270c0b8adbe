"""The document around a page: head, navigation, notice, footer, and the element that htmx keeps live.

The live part of a page is served at the page's own path with `live=1` added to its query
(`/topics?search=farm&live=1`): the answer is then `page.render(view)` alone, as text/html. htmx asks each
second and morphs the answer into `<main id="live">` (`hx-swap="innerMorph"`), so that hover, focus, scroll
and open details survive; everything in a live part therefore has a stable id, or none inside something that
has one. What holds somebody's typing (`page.controls`) stands outside of it. A page is not polled while
`pause=1` is in its query. If the session has ended, a live request is answered with the header `HX-Redirect:
/login`: htmx then goes there. Answers with a 4xx or 5xx status are not swapped in.

Without htmx the same document carries `<meta http-equiv="refresh" content="5">`. There is no inline script
and no inline style: the policy `default-src 'self'; img-src 'self' data:` can be kept.
"""

from __future__ import annotations

from html import escape
from urllib.parse import urlencode

from hedgerow.web.markup import Html, hidden, text
from hedgerow.web.pages import PAGES, Page
from hedgerow.web.view import LIVE, LOG_OUT, View

STYLE_PATH = "/assets/style.css"
SCRIPT_PATH = "/assets/htmx.js"

REFRESH_S = 5  # without htmx
POLL_S = 1

# No style is put into the page by htmx, and an error's text does not take the place of what was last known.
# The history is the browser's own.
CONFIG = '{"includeIndicatorCSS":false,"history":false,"defaultTimeout":10000,"noSwap":[204,304,"4xx","5xx"]}'

# A hedge of three bushes: as an image in the address bar it needs no file of its own.
ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Cg fill='%232f7d4f'%3E%3Ccircle cx='4' cy='9' r='4'/%3E%3Ccircle cx='12' cy='9' r='4'/%3E"
    "%3Ccircle cx='8' cy='6' r='4'/%3E%3Crect y='9' width='16' height='5'/%3E%3C/g%3E%3C/svg%3E"
)


def document(page: Page, view: View, live: Html) -> str:
    """The whole page, `<!doctype html>` and all, with `live` in the element that is kept up to date."""
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">',
            _head(page, view),
            "<body>",
            '<a class="skip" href="#live">To the content</a>',
            _top(page, view),
            f'<div class="page"><h1>{escape(page.title)}</h1>',
            f'<p class="notice" role="status">{text(view.notice, 300)}</p>' if view.notice else "",
            f'<div class="controls" id="controls">{page.controls(view)}</div>',
            f'<main id="live" tabindex="-1"{_polling(page, view)}>',
            live,
            "</main></div>\n</body>\n</html>\n",
        ]
    )


def _is_polled(page: Page, view: View) -> bool:
    return page.is_polled and not view.is_paused


def _head(page: Page, view: View) -> str:
    refresh = script = ""
    if view.is_live:
        script = (
            f'<meta name="htmx-config" content=\'{CONFIG}\'>\n<script src="{SCRIPT_PATH}" defer></script>\n'
        )
    elif _is_polled(page, view):
        refresh = f'<meta http-equiv="refresh" content="{REFRESH_S}">\n'
    return (
        '<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="same-origin">\n'
        f"<title>{escape(page.title)} · {text(view.node_id, 1000)} · Hedgerow</title>\n"
        f'<link rel="icon" href="{ICON}">\n<link rel="stylesheet" href="{STYLE_PATH}">\n{refresh}{script}'
        + (_without_script() if view.is_live and _is_polled(page, view) else "")
        + "</head>"
    )


def _without_script() -> str:
    return f'<noscript><meta http-equiv="refresh" content="{REFRESH_S}"></noscript>\n'


def _top(page: Page, view: View) -> str:
    items = "".join(
        f'<li><a href="{each.path}"{_current(each, page)}>{escape(each.title)}</a></li>' for each in PAGES
    )
    nav = f'<nav aria-label="Pages"><ul>{items}</ul></nav>' if page in PAGES else ""
    return (
        '<header class="top"><a class="brand" href="/"><span class="leaf" aria-hidden="true"></span>'
        f'Hedgerow</a><span class="here" title="The node that shows it">{text(view.node_id, 40)}</span>'
        f"{nav}{_user(view)}</header>"
    )


def _current(each: Page, page: Page) -> str:
    return ' aria-current="page"' if each.path == page.path else ""


def _user(view: View) -> str:
    if view.viewer.user is None or not view.viewer.token:
        return ""
    return (
        f'<form class="user" method="post" action="{LOG_OUT}">{hidden("token", view.viewer.token)}'
        f'<span>{text(view.viewer.user, 30)}</span><button class="small">Log out</button></form>'
    )


def _polling(page: Page, view: View) -> str:
    if not view.is_live or not _is_polled(page, view):
        return ""
    address = f"{page.path}?{urlencode({**view.query, LIVE: '1'}, errors='replace')}"
    trigger = f"every {POLL_S}s"
    include = ""
    if page.is_searched:
        trigger += ", input from:#search delay:200ms"
        include = ' hx-include="#search"'
    return f' hx-get="{escape(address)}" hx-trigger="{trigger}" hx-swap="innerMorph" hx-sync="drop"{include}'
