"""The first page: the map, the fabric's figures, its nodes, and one node or link closely."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hedgerow.web import charts
from hedgerow.web.fabric import FabricNode
from hedgerow.web.map import KIND_MARKS, Edge, draw, edges_of
from hedgerow.web.markup import (
    Html,
    badge,
    code,
    empty,
    figures,
    heading,
    href,
    ident,
    join,
    link,
    outside_link,
    short,
    table,
    text,
)  # fmt: skip
from hedgerow.web.pages.common import count, no_controls, no_nodes, nodes_of
from hedgerow.web.pages.events import HEAD, event_cells, events_of
from hedgerow.web.pages.links import ledger_table
from hedgerow.web.status import BacklogStatus
from hedgerow.web.view import View

PATH = "/"
TITLE = "Map"

NEWEST_EVENTS = 8
KINDS = {
    "fixed": "fixed broker, which supports mobile ones",
    "mobile": "mobile broker",
    "sidecar": "sidecar: a federator beside another broker",
    "dashboard": "dashboard",
}
"""What a mark on the map stands for; a plain node has none."""

controls = no_controls


def render(view: View) -> Html:
    nodes = nodes_of(view)
    if not nodes:
        return no_nodes(view)
    edges = edges_of(nodes, view.now)
    asked_node, asked_link = view.query.get("node", ""), view.query.get("link", "")
    return join(
        [
            _summary(nodes, edges, view.now),
            '<div class="stage" id="stage">',
            draw(nodes, edges, view.now, chosen=asked_node or asked_link),
            _legend(nodes),
            "</div>",
            _closely(view, nodes, edges, asked_node, asked_link),
            _node_table(nodes, view.now),
            _works(nodes),
            _newest_events(view, nodes),
        ],
        "\n",
    )


def _summary(nodes: Sequence[FabricNode], edges: Sequence[Edge], now: float) -> Html:
    heard = [node for node in nodes if not node.is_silent(now)]
    rates = [node.rates for node in heard if node.rates is not None]
    delays = [node.delay_s for node in heard]
    lost = sum(node.lost for node in nodes)
    up = sum(edge.state == "up" for edge in edges)
    tiles = [
        (
            "Nodes",
            f"{len(heard)}",
            f"of {len(nodes)}" if len(heard) < len(nodes) else "heard",
            len(heard) < len(nodes),
        ),
        ("Links up", f"{up}", f"of {len(edges)}", up < len(edges)),
        ("Messages in", charts.number(sum(each.received for each in rates)), "a second", False),
        ("Messages out", charts.number(sum(each.sent for each in rates)), "a second", False),
        (
            "Clients",
            charts.number(sum(node.status.counts.get("clients", 0) for node in heard)),
            "connected",
            False,
        ),
        ("Delay", charts.delay(max(delays)) if delays else "–", "longest", False),
        ("Lost", charts.number(lost), "in all", lost > 0),
    ]
    inner = "".join(
        f'<div class="tile{" alert" if is_alert else ""}"><dt>{name}</dt>'
        f"<dd>{value}<small>{note}</small></dd></div>"
        for name, value, note, is_alert in tiles
    )
    return Html(f'<dl class="tiles" id="tiles">{inner}</dl>')


def _legend(nodes: Sequence[FabricNode]) -> Html:
    """Of links all that there may be, of nodes the marks that are on the map."""
    kinds = {node.status.kind for node in nodes}
    marks = [
        f"<span><b>{KIND_MARKS[kind]}</b> {words}</span>" for kind, words in KINDS.items() if kind in kinds
    ]
    return Html(
        '<p class="legend" id="legend"><span class="key up">up</span><span class="key bridge">bridge</span>'
        '<span class="key waiting">connecting</span><span class="key down">down</span>'
        f'<span class="key silent">silent</span>{"".join(marks)}<span class="hint">'
        "Point at a link for what went over it, choose a node or link for more. "
        f'<a href="{href("/topics")}">Choose a topic</a> to see its mesh.</span></p>'
    )


def _closely(
    view: View, nodes: Sequence[FabricNode], edges: Sequence[Edge], asked_node: str, asked_link: str
) -> Html:
    if asked_node:
        for node in nodes:
            if node.node_id == asked_node:
                return _one_node(node, edges, view.now)
        return empty(
            "No node of this name is heard.", "It may have been forgotten: that is after an hour of silence."
        )
    for edge in edges:
        if asked_link and edge.key == asked_link:
            close = link(Html("Close"), PATH)
            return join(
                [
                    '<section class="card" id="closely"><header><h2>Link</h2>',
                    close,
                    "</header>",
                    ledger_table("chosen-link", [edge]),
                    "</section>",
                ]
            )
    return Html("")


def _one_node(node: FabricNode, edges: Sequence[Edge], now: float) -> Html:
    status = node.status
    facts: list[tuple[str, Html]] = [
        ("Kind", text(status.kind)),
        ("Software", text(status.software)),
        ("Running for", charts.duration(status.uptime_s)),
        ("Heard", Html(f"{charts.duration(max(0.0, now - node.heard_at))} ago")),
        ("Delay", charts.delay(node.delay_s)),
        ("Statuses missing", count(node.missing)),
    ]
    if status.beside:
        facts.append(("Beside", outside_link(status.beside)))
    facts += [(name.replace("_", " ").capitalize(), count(value)) for name, value in status.counts.items()]
    facts += [
        (f"{name.replace('_', ' ').capitalize()} in all", count(value))
        for name, value in status.totals.items()
    ]
    facts += _backlog_facts(status.backlog, now)
    own = [edge for edge in edges if node.node_id in (edge.a, edge.b)]
    urls = "".join(f"<li>{outside_link(url)}</li>" for url in status.urls)
    return join(
        [
            f'<section class="card" id="closely"><header><h2>{text(node.node_id)}</h2>{_state(node, now)}'
            f"{link(Html('Close'), PATH)}</header>",
            _problem(node),
            f'<ul class="urls" id="urls">{urls}</ul>' if urls else "",
            figures("node-figures", facts),
            _pulse(node),
            ledger_table("node-links", own) if own else empty("It has no links."),
            "</section>",
        ]
    )


def _backlog_facts(backlog: BacklogStatus | None, now: float) -> Iterator[tuple[str, Html]]:
    if backlog is None:
        return
    yield "Messages waiting", count(backlog.messages)
    yield "Readers with a backlog", count(backlog.readers)
    yield "Size of what waits", charts.size(backlog.bytes)
    if backlog.limit is not None:
        yield "Room for it", charts.size(backlog.limit)
        yield "Share of the room", charts.share(backlog.share)
    if backlog.oldest_at is not None:
        yield "Oldest waits for", charts.duration(max(0.0, now - backlog.oldest_at))
    if backlog.full_in_s is not None:
        yield "Full in", charts.duration(backlog.full_in_s)


def _pulse(node: FabricNode) -> Html:
    history = list(node.history)
    received = charts.sparkline("pulse-in", "messages in", [each.received for each in history])
    sent = charts.sparkline("pulse-out", "messages out", [each.sent for each in history])
    dropped = charts.sparkline("pulse-dropped", "messages dropped", [each.dropped for each in history])
    rates = node.rates
    now_in, now_out, now_dropped = (
        (charts.rate(rates.received), charts.rate(rates.sent), charts.rate(rates.dropped))
        if rates
        else (Html("–"),) * 3
    )
    data = f"{charts.size(rates.bytes_received)}/s in, {charts.size(rates.bytes_sent)}/s out" if rates else ""
    return Html(
        f'<div class="pulse" id="pulse"><span>In {now_in}</span>{received}<span>Out {now_out}</span>{sent}'
        f'<span>Dropped {now_dropped}</span>{dropped}<span class="soft">{data}</span></div>'
    )


def _problem(node: FabricNode) -> Html:
    return (
        Html(f'<p class="problem">{text(node.status.problem, 300)}</p>') if node.status.problem else Html("")
    )


def _state(node: FabricNode, now: float) -> Html:
    if node.is_silent(now):
        return badge("silent", "dull")
    return badge("problem", "bad") if node.status.problem else badge("heard", "good")


def _node_table(nodes: Sequence[FabricNode], now: float) -> Html:
    rows = [(ident("row", node.node_id), _node_cells(node, now)) for node in nodes]
    head = [
        "Node",
        "State",
        "Kind",
        "Running for",
        "Clients#",
        "In#",
        "Out#",
        "Last minute",
        "Delay#",
        "Lost#",
    ]
    return table("nodes", "Nodes", head, rows)


def _node_cells(node: FabricNode, now: float) -> list[Html]:
    status, rates = node.status, node.rates
    points = [each.received + each.sent for each in node.history]
    return [
        link(text(node.node_id, 40), PATH, node=node.node_id),
        _state(node, now),
        text(status.kind, 20),
        charts.duration(status.uptime_s),
        count(status.counts.get("clients", 0)),
        charts.rate(rates.received) if rates else Html("–"),
        charts.rate(rates.sent) if rates else Html("–"),
        charts.sparkline(ident("spark", node.node_id), "messages in and out", points),
        charts.delay(node.delay_s),
        count(node.lost),
    ]


def _works(nodes: Sequence[FabricNode]) -> Html:
    """Journals and pipelines, of the nodes that have them."""
    cards = []
    for node in nodes:
        name = node.node_id
        if node.status.journal:
            facts = _facts(node.status.journal)
            cards.append(
                _work(ident("journal", name), "Journal", name, figures(ident("journal-of", name), facts))
            )
        for job, progress in node.status.pipeline.items():
            facts = _facts(progress)
            anchor = ident("pipeline", name, job)
            cards.append(
                _work(anchor, f"Pipeline {job[:40]}", name, figures(ident("progress", name, job), facts))
            )
    if not cards:
        return Html("")
    return join(
        [heading("Journal and pipeline", "works"), '<div class="cards" id="cards">', *cards, "</div>"]
    )


def _facts(told: Mapping[str, str]) -> list[tuple[str, Html]]:
    """As words: a journal tells messages/recorded, a pipeline rows_per_s."""
    names = (key.replace("/", " ").replace("_per_", "/").replace("_", " ") for key in told)
    return [
        (name[:1].upper() + name[1:], text(value, 60))
        for name, value in zip(names, told.values(), strict=True)
    ]


def _work(anchor: str, what: str, name: str, inner: Html) -> Html:
    return Html(
        f'<section class="card" id="{anchor}"><header><h3>{short(what, 60)}</h3>{code(name, 40)}'
        f"</header>{inner}</section>"
    )


def _newest_events(view: View, nodes: Sequence[FabricNode]) -> Html:
    rows = events_of(view, nodes)[:NEWEST_EVENTS]
    if not rows:
        return Html("")
    return join(
        [
            table("newest", "Newest events (UTC)", HEAD, map(event_cells, rows)),
            '<p class="soft" id="all-events">',
            link(Html("All events of the last hour"), "/events"),
            "</p>",
        ]
    )
