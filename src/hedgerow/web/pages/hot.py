"""The busiest topics, with their scores at each node that counts them, and where each is served."""

from __future__ import annotations

from collections.abc import Sequence

from hedgerow.web import charts
from hedgerow.web.markup import Html, badge, empty, ident, join, link, table, text
from hedgerow.web.pages.common import left_out, no_nodes, nodes_of, search_form, search_of
from hedgerow.web.view import MAX_ROWS, View

PATH = "/hot"
TITLE = "Hot topics"

BAR = 100


def controls(view: View) -> Html:
    return search_form(view, PATH, "Search topics")


def render(view: View) -> Html:
    nodes = nodes_of(view)
    if not nodes:
        return no_nodes(view)
    if all(node.status.hot is None for node in nodes):
        return empty("No hot topics are counted.", "Start a node with --hot-topics.")
    words = search_of(view).casefold()
    may_read = view.viewer.may_read
    found = sorted(
        (
            (-each.score, each.topic, node.node_id, each.served)
            for node in nodes
            for each in node.status.hot or ()
            if (not words or words in each.topic.casefold()) and may_read(each.topic)
        ),
    )
    if not found:
        return empty("No topic has these words." if words else "No topic is busy, or none that you may read.")
    top = max(-found[0][0], 1e-9)
    rows: list[tuple[str, Sequence[Html]]] = [
        (
            ident("hot", name, topic),
            [
                text(topic),
                _bar(-score, top),
                link(text(name, 40), "/", node=name),
                badge("itself", "good") if served == "here" else link(text(served, 40), "/", node=served),
                link(Html("messages"), "/messages", filter=topic),
            ],
        )
        for score, topic, name, served in found[:MAX_ROWS]
    ]
    head = ["Topic", "Score#", "Counted at", "Served by", "See"]
    return join([table("hot", "Hot topics, busiest first", head, rows), left_out(len(rows), len(found))])


def _bar(score: float, top: float) -> Html:
    width = max(0, min(BAR, round(BAR * score / top)))
    return Html(
        f'<span class="score">{charts.number(score)}'
        f'<svg class="bar" viewBox="0 0 {BAR} 8" aria-hidden="true">'
        f'<rect class="whole" width="{BAR}" height="8" rx="4"/>'
        f'<rect width="{width}" height="8" rx="4"/></svg></span>'
    )
