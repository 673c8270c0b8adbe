"""The dashboard's pages: a module each, with PATH, TITLE, `render(view)` for the live part and
`controls(view)`.

A server puts each of PAGES at its path: with `live=1` in the query `page.render(view)` alone, else
`frame.document(page, view, page.render(view))`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hedgerow.web.markup import Html
from hedgerow.web.pages import (
    clients,
    events,
    hot,
    links,
    login,
    messages,
    nowhere,
    overview,
    retained,
    topics,
)
from hedgerow.web.view import View


@dataclass(frozen=True, slots=True)
class Page:
    path: str
    title: str
    render: Callable[[View], Html]
    """The live part, which is asked for each second."""
    controls: Callable[[View], Html]
    """What stands around it and is not: search forms, buttons."""
    is_polled: bool = True
    is_searched: bool = True
    """What is typed into its search form goes with each poll."""


PAGES = (
    Page(overview.PATH, overview.TITLE, overview.render, overview.controls, is_searched=False),
    Page(topics.PATH, topics.TITLE, topics.render, topics.controls),
    Page(hot.PATH, hot.TITLE, hot.render, hot.controls),
    Page(links.PATH, links.TITLE, links.render, links.controls),
    Page(clients.PATH, clients.TITLE, clients.render, clients.controls),
    Page(retained.PATH, retained.TITLE, retained.render, retained.controls),
    # A watch for each letter that is typed would be a subscription for each.
    Page(messages.PATH, messages.TITLE, messages.render, messages.controls, is_searched=False),
    Page(events.PATH, events.TITLE, events.render, events.controls),
)
"""Those of the navigation, in its order."""

LOGIN = Page(login.PATH, login.TITLE, login.render, login.controls, is_polled=False, is_searched=False)
"""Not in the navigation. `view.notice` says why a log-in failed; `back` in its query is where to go after."""

NOWHERE = Page("", nowhere.TITLE, nowhere.render, nowhere.controls, is_polled=False, is_searched=False)
"""For paths that nothing is at; `path` in its query is which."""
