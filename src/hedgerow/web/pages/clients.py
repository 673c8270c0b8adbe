"""This node's clients and their subscriptions, with search: for who may not see those of others, its own."""

from __future__ import annotations

from collections.abc import Sequence

from hedgerow.node.backlogs import ReaderFigures
from hedgerow.web import charts
from hedgerow.web.markup import Html, badge, empty, heading, ident, join, paragraph, table, text, visible
from hedgerow.web.pages.common import action, count, left_out, search_form, search_of
from hedgerow.web.view import DISCONNECT_CLIENT, END_SESSION, MAX_ROWS, ClientRow, View

PATH = "/clients"
TITLE = "Clients"


def controls(view: View) -> Html:
    return search_form(view, PATH, "Search clients, users, addresses, filters")


def render(view: View) -> Html:
    own = "" if view.viewer.sees_clients else paragraph("Clients of others are for administrators.", "soft")
    return join([own, _clients(view), _backlogs(view), _subscriptions(view)], "\n")


def _clients(view: View) -> Html:
    search = search_of(view)
    found, total = view.local.clients(search, MAX_ROWS)
    is_all = view.viewer.sees_clients
    title = heading(
        f"Clients of {visible(view.node_id[:80])}" if is_all else "Your clients", "clients-heading"
    )
    if not found:
        hint = "" if search else "Connect one: hedgerow sub, mosquitto_sub, or any MQTT client."
        nobody = "No client is connected." if is_all else "No client of your user is connected."
        return join([title, empty("No client has these words." if search else nobody, hint)])
    may_act = bool(view.viewer.token) and view.viewer.is_administrator
    head = ["Client", "State", "User", "Address", "Protocol", "Subscriptions#", "Queued#", "Connected for"]
    rows = [(ident("client", row.client_id), _cells(view, row, may_act)) for row in found]
    return join(
        [
            title,
            table("clients", "Clients", [*head, "Action"] if may_act else head, rows),
            left_out(len(found), total),
        ]
    )


def _cells(view: View, row: ClientRow, may_act: bool) -> list[Html]:
    way = (
        f"{row.protocol} · {row.transport}"
        if row.protocol and row.transport
        else row.protocol or row.transport
    )
    cells = [
        text(row.client_id, 48),
        badge("connected", "good") if row.connected else badge("away", "dull"),
        text(row.user, 40) if row.user else Html("–"),
        text(row.address, 60) if row.address else Html("–"),
        text(way, 40) if way else Html("–"),
        count(row.subscriptions),
        count(row.queued),
        charts.duration(max(0.0, view.now - row.since)) if row.since is not None else Html("–"),
    ]
    if may_act:
        what, label = (DISCONNECT_CLIENT, "Disconnect") if row.connected else (END_SESSION, "End session")
        cells.append(action(view, what, label, PATH, {"client_id": row.client_id}, "danger"))
    return cells


def _backlogs(view: View) -> Html:
    """For whom most waits, links included."""
    found = view.local.backlogs()
    if not found:
        return Html("")
    rows = [(ident("backlog", each.reader.name), _backlog_cells(each, view.now)) for each in found]
    head = ["For", "Kind", "State", "Messages#", "Size#", "Share of the room#", "Oldest", "Full in"]
    return join([heading("Backlogs", "backlogs-heading"), table("backlogs", "Backlogs", head, rows)])


def _backlog_cells(figures: ReaderFigures, now: float) -> list[Html]:
    reader, oldest_at = figures.reader, figures.reader.oldest_at
    return [
        text(reader.name, 48),
        Html("link" if reader.is_link else "client"),
        badge("connected", "good") if reader.is_connected else badge("away", "dull"),
        count(reader.messages),
        charts.size(reader.bytes),
        charts.share(figures.share),
        Html("–") if oldest_at is None else charts.duration(max(0.0, now - oldest_at)),
        Html("–") if figures.full_in_s is None else charts.duration(figures.full_in_s),
    ]


def _subscriptions(view: View) -> Html:
    search = search_of(view)
    found, total = view.local.subscriptions(search, MAX_ROWS)
    title = heading("Subscriptions", "subscriptions-heading")
    if not found:
        none = "Nobody subscribes to anything." if view.viewer.sees_clients else "None of them subscribes."
        return join([title, empty("No subscription has these words." if search else none)])
    rows: list[tuple[str, Sequence[Html]]] = [
        (
            ident("subscription", row.client_id, row.shared, row.filter),
            [
                text(row.filter),
                text(row.client_id, 48),
                Html(str(row.qos)),
                text(row.shared, 40) if row.shared else Html("–"),
            ],
        )
        for row in found
    ]
    head = ["Filter", "Client", "QoS#", "Shared by"]
    return join([title, table("subscriptions", "Subscriptions", head, rows), left_out(len(rows), total)])
