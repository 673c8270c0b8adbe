"""What `hedgerow top` shows, as values and as lines of text: no terminal, no clock.

A `TopSnapshot` is what is known of a fabric at one moment. Names, topics and texts come from other nodes:
whatever is no printable character becomes "?" here, so that a node's name cannot move the cursor, and a line
is never wider than it may be, in cells of the terminal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple
from unicodedata import combining, east_asian_width

from hedgerow.errors import counted, printable
from hedgerow.node.backlogs import NEAR
from hedgerow.web.fabric import Fabric, FabricNode, LinkStatus

MAX_HOT = 50
MAX_EVENTS = 100

PLAIN, TITLE, BAD, QUIET = "plain", "title", "bad", "quiet"
"""Styles of a line."""


class NodeRow(NamedTuple):
    node: str
    kind: str
    uptime_s: float
    clients: int
    received_per_s: float | None
    sent_per_s: float | None
    delay_s: float
    queued: int
    dropped: int
    missing: int
    silent_s: float | None
    problem: str | None
    backlog_share: float | None = None
    """Of the room that waiting messages may take."""


class LinkRow(NamedTuple):
    node: str
    to: str
    kind: str
    name: str
    state: str
    round_trip_ms: float | None
    queued: int


class HotRow(NamedTuple):
    topic: str
    score: float
    node: str
    served: str


class EventRow(NamedTuple):
    at: float
    node: str
    kind: str
    text: str


class TopSnapshot(NamedTuple):
    at: float
    nodes: tuple[NodeRow, ...]
    links: tuple[LinkRow, ...]
    hot: tuple[HotRow, ...]
    events: tuple[EventRow, ...]
    """Newest first."""

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        rows = {name: [row._asdict() for row in getattr(self, name)] for name in self._fields[1:]}
        return {"version": 1, "at": self.at, **rows}


class ScreenLine(NamedTuple):
    text: str
    style: str = PLAIN


SORTS: dict[str, Callable[[NodeRow], tuple[float, str]]] = {
    "name": lambda row: (0.0, row.node),
    "in": lambda row: (-(row.received_per_s or 0.0), row.node),
    "out": lambda row: (-(row.sent_per_s or 0.0), row.node),
    "clients": lambda row: (-row.clients, row.node),
    "delay": lambda row: (-row.delay_s, row.node),
    "queued": lambda row: (-row.queued, row.node),
    "drops": lambda row: (-row.dropped, row.node),
}


def take_snapshot(fabric: Fabric, now: float, sort: str = "name") -> TopSnapshot:
    nodes = [fabric.nodes[node_id] for node_id in sorted(fabric.nodes)]
    links = (_link_row(node, link) for node in nodes for link in node.status.links)
    hot = [
        HotRow(printable(each.topic), each.score, printable(node.node_id), printable(each.served))
        for node in nodes
        for each in node.status.hot or ()
    ]
    events = [
        EventRow(event.at, printable(node.node_id), printable(event.kind), printable(event.text))
        for node in nodes
        for event in islice(reversed(node.events), MAX_EVENTS)
    ]
    return TopSnapshot(
        now,
        tuple(sorted((_node_row(node, now) for node in nodes), key=SORTS[sort])),
        tuple(links),
        tuple(sorted(hot, key=lambda row: (-row.score, row.topic, row.node))[:MAX_HOT]),
        tuple(sorted(events, key=lambda row: -row.at)[:MAX_EVENTS]),
    )


def _node_row(node: FabricNode, now: float) -> NodeRow:
    status = node.status
    return NodeRow(
        printable(node.node_id),
        printable(status.kind),
        status.uptime_s,
        status.counts.get("clients", 0),
        None if node.rates is None else node.rates.received,
        None if node.rates is None else node.rates.sent,
        node.delay_s,
        status.counts.get("stored", 0) + sum(link.queued for link in status.links),
        status.totals.get("dropped", 0),
        node.missing,
        now - node.heard_at if node.is_silent(now) else None,
        printable(status.problem) if status.problem else None,
        None if status.backlog is None else status.backlog.share,
    )


def _link_row(node: FabricNode, link: LinkStatus) -> LinkRow:
    return LinkRow(
        printable(node.node_id),
        printable(link.to),
        printable(link.kind),
        printable(link.name),
        printable(link.state),
        link.round_trip_ms,
        link.queued,
    )


# From values to lines

VIEWS = ("all", "nodes", "links", "hot", "events")


def render(
    snapshot: TopSnapshot,
    width: int,
    height: int | None,
    *,
    view: str = "all",
    offset: int = 0,
    note: str = "",
) -> list[ScreenLine]:
    """At most `height` lines of at most `width` cells; None: as many as there are.

    With room for less than all, each part of `all` gets its share; the view of one part begins at `offset`.
    """
    parts = [part for name, part in zip(VIEWS[1:], _parts(snapshot), strict=True) if view in ("all", name)]
    top = [_summary(snapshot), *([ScreenLine(note, BAD)] if note else [])]
    if height is not None:
        room = height - len(top)
        parts = _share(parts, room) if view == "all" else [_scrolled(part, offset, room) for part in parts]
    lines = [*top, *(line for part in parts for line in part)]
    return [ScreenLine(cut(line.text, width), line.style) for line in lines[:height]]


def _summary(snapshot: TopSnapshot) -> ScreenLine:
    silent = sum(row.silent_s is not None for row in snapshot.nodes)
    # Each end tells of a link.
    links = {frozenset((row.node, row.to)) for row in snapshot.links}
    down = {frozenset((row.node, row.to)) for row in snapshot.links if row.state != "up"}
    received = sum(row.received_per_s or 0.0 for row in snapshot.nodes)
    sent = sum(row.sent_per_s or 0.0 for row in snapshot.nodes)
    text = (
        f"{clock(snapshot.at)}  "
        f"{counted(len(snapshot.nodes), 'node')}{f' ({silent} silent)' if silent else ''}, "
        f"{counted(len(links), 'link')}{f' ({len(down)} not up)' if down else ''}, "
        f"messages in {figure(received)}/s, out {figure(sent)}/s"
    )
    return ScreenLine(text, TITLE)


def _parts(snapshot: TopSnapshot) -> list[list[ScreenLine]]:
    """Each a heading and its rows."""
    nodes = [
        (
            row.node, row.kind, duration(row.uptime_s), str(row.clients), figure(row.received_per_s),
            figure(row.sent_per_s), milliseconds(row.delay_s * 1e3), str(row.queued), str(row.dropped),
            _remark(row),
        )
        for row in snapshot.nodes
    ]  # fmt: skip
    links = [
        (row.node, row.to, row.kind, row.state, milliseconds(row.round_trip_ms), str(row.queued), row.name)
        for row in snapshot.links
    ]
    hot = [(row.topic, figure(row.score), row.node, row.served) for row in snapshot.hot]
    events = [(clock(row.at), row.node, row.kind, row.text) for row in snapshot.events]
    node_styles = [
        BAD if row.problem else QUIET if row.silent_s is not None else PLAIN for row in snapshot.nodes
    ]
    return [
        _table(
            ("NODES", "KIND", "UP", "CLIENTS", "IN/S", "OUT/S", "DELAY", "QUEUED", "DROPS", ""),
            nodes,
            node_styles,
        ),
        _table(
            ("LINKS", "TO", "KIND", "STATE", "ROUND TRIP", "QUEUED", "NAME"),
            links,
            [PLAIN if row.state == "up" else BAD for row in snapshot.links],
        ),
        _table(("HOT TOPICS", "SCORE", "AT", "SERVED"), hot, [PLAIN] * len(hot)),
        _table(("EVENTS", "NODE", "KIND", ""), events, [PLAIN] * len(events)),
    ]


def _remark(row: NodeRow) -> str:
    remarks = []
    if row.silent_s is not None:
        remarks.append(f"silent for {duration(row.silent_s)}")
    if row.problem:
        remarks.append(row.problem)
    if row.backlog_share is not None and row.backlog_share >= NEAR:
        remarks.append(f"waiting messages take {row.backlog_share:.0%} of their room")
    if row.missing:
        remarks.append(f"{row.missing} statuses missing")
    return ", ".join(remarks)


MAX_COLUMN = 40
"""In cells, of all columns but the last: one long name leaves room for the others."""


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]], styles: Iterable[str]) -> list[ScreenLine]:
    cut_rows = [[*(cut(cell, MAX_COLUMN) for cell in row[:-1]), row[-1]] for row in rows]
    widths = [max(map(cells, column)) for column in zip(heading, *cut_rows, strict=True)]
    head = ScreenLine("  ".join(map(pad, heading, widths)).rstrip(), TITLE)
    body = [
        ScreenLine("  ".join(map(pad, row, widths)).rstrip(), style)
        for row, style in zip(cut_rows, styles, strict=True)
    ]
    return [ScreenLine(""), head, *(body or [ScreenLine("none", QUIET)])]


def _share(parts: list[list[ScreenLine]], room: int) -> list[list[ScreenLine]]:
    """Every part gets the same number of lines, and what one does not need goes to the others."""
    left = room
    shares: dict[int, int] = {}
    for number, part in sorted(enumerate(parts), key=lambda each: len(each[1])):
        share = min(len(part), left // (len(parts) - len(shares)))
        shares[number] = share
        left -= share
    return [_shorten(part, shares[number]) for number, part in enumerate(parts)]


def _shorten(part: list[ScreenLine], room: int) -> list[ScreenLine]:
    if len(part) <= room:
        return part
    if room < 4:  # a blank line, the heading, a row, and how many more there are
        return []
    return [*part[: room - 1], ScreenLine(f"… {len(part) - room + 1} more", QUIET)]


def _scrolled(part: list[ScreenLine], offset: int, room: int) -> list[ScreenLine]:
    head, rows = part[:2], part[2:]
    first = max(0, min(offset, len(rows) - (room - len(head))))
    return [*head, *rows[first:]]


# Text for a terminal


def cells(text: str) -> int:
    """How many columns a terminal takes for it."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in text)


def cut(text: str, width: int) -> str:
    if cells(text) <= width:
        return text
    kept = ""
    for letter in text:
        if cells(kept + letter) > width - 1:
            break
        kept += letter
    return f"{kept}…" if width > 0 else ""


def pad(text: str, width: int) -> str:
    return text + " " * (width - cells(text))


def clock(at: float) -> str:
    try:
        return time.strftime("%H:%M:%S", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return "--:--:--"  # a time that another node made up


def duration(seconds: float) -> str:
    whole = int(max(0.0, seconds))
    for unit, name, part, part_name in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= unit:
            return f"{whole // unit}{name}{whole % unit // part:02}{part_name}"
    return f"{whole}s"


def figure(value: float | None) -> str:
    if value is None:
        return "-"
    for limit, divisor, unit in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= limit:
            return f"{value / divisor:.4g}{unit}"
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}".removesuffix(".0")


def milliseconds(value: float | None) -> str:
    if value is None:
        return "-"
    if abs(value) >= 10_000:
        return f"{value / 1e3:,.0f} s"
    return f"{value:.0f} ms" if abs(value) >= 10 else f"{value:.1f} ms"
