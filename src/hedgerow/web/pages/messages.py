"""The message viewer: what a filter matches, live, newest first. It can be paused; one can publish."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from hedgerow.topics import is_wildcard
from hedgerow.web import charts
from hedgerow.web.markup import (
    Html,
    badge,
    empty,
    field_value,
    hidden,
    href,
    join,
    paragraph,
    payload,
    text,
    visible,
)  # fmt: skip
from hedgerow.web.view import MAX_FILTER, PAUSE, PUBLISH, MessageRow, View

PATH = "/messages"
TITLE = "Messages"


def filter_of(query: Mapping[str, str]) -> str:
    """What is watched; nothing before somebody has asked. Not cut: it would be another filter."""
    return query.get("filter", "")


def controls(view: View) -> Html:
    asked = filter_of(view.query)
    form = (
        f'<form id="watch" class="search" action="{PATH}" method="get">'
        '<label for="watch-filter">Topic filter</label>'
        f'<input id="watch-filter" name="filter" type="search" value="{field_value(asked)}" '
        f'placeholder="farm/#" maxlength="{MAX_FILTER}" '
        'autocomplete="off" autocapitalize="off" spellcheck="false" required>'
        "<button>Watch</button>"
    )
    if asked:
        label, query = ("Go on", {}) if view.is_paused else ("Pause", {PAUSE: "1"})
        form += f'<a class="button" href="{href(PATH, filter=asked, **query)}">{label}</a>'
    return Html(form + "</form>" + _publish_form(view, asked))


def render(view: View) -> Html:
    watch = view.watch
    if watch is None:
        return empty(
            "Nothing is watched.", "Give a topic filter: + stands for one level, # at the end for all below."
        )
    if watch.problem:
        return Html(f'<p class="problem" id="watch-problem">{text(watch.problem, 300)}</p>')
    if not watch.messages:
        hint = "New ones appear by themselves."
        if view.has_users:
            hint += " You see only what your user may read."
        return empty(f"No message yet that {visible(watch.filter)} matches.", hint)
    left = (
        paragraph(f"… at least {watch.left_out:,} more left out: they come faster than can be read.", "soft")
        if watch.left_out
        else Html("")
    )
    rows = [_message(row) for row in watch.messages]
    state = badge("paused", "fair") if view.is_paused else badge("live", "good")
    return join(
        [
            f'<p class="soft" id="watch-state">{state}</p>',
            left,
            '<ol class="messages" id="messages">',
            *rows,
            "</ol>",
        ]
    )


def _message(row: MessageRow) -> Html:
    retain = badge("retained", "dull") if row.retain else ""
    message_id = f'<span class="soft">{text(row.message_id, 60)}</span>' if row.message_id else ""
    return Html(
        f'<li id="message-{row.number}"><header>{charts.clock(row.at)}<b>{text(row.topic, 120)}</b>'
        f'<span class="soft">QoS {row.qos}</span>{retain}{message_id}</header>{payload(row.payload)}</li>'
    )


def _publish_form(view: View, asked: str) -> Html:
    if not view.viewer.token:
        return Html("")
    back = f"{PATH}?{urlencode({'filter': asked}, errors='replace')}" if asked else PATH
    topic = "" if is_wildcard(asked) else asked
    return Html(
        f'<details><summary>Publish</summary><form class="stacked" method="post" action="{PUBLISH}">'
        f"{hidden('token', view.viewer.token)}{hidden('back', back)}"
        '<label for="publish-topic">Topic</label>'
        f'<input id="publish-topic" name="topic" value="{field_value(topic)}" '
        'required autocomplete="off" autocapitalize="off" spellcheck="false">'
        '<label for="publish-payload">Payload</label>'
        '<textarea id="publish-payload" name="payload" rows="3"></textarea>'
        '<div class="row"><label for="publish-qos">QoS</label><select id="publish-qos" name="qos">'
        "<option>0</option><option>1</option><option>2</option></select>"
        '<label><input type="checkbox" name="retain" value="1"> Retain</label><button>Publish</button></div>'
        "</form></details>"
    )
