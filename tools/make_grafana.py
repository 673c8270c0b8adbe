"""Writes deploy/grafana/hedgerow.json, the Grafana dashboard, from the table of its panels.

`python tools/make_grafana.py` writes the file; with `--check` it only says whether the file is up to date.

Every expression is multiplied by `hedgerow_node_info`, which is 1: so each line is named after its node, and
the variables at the top of the dashboard choose nodes by their names.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

PATH = Path(__file__).resolve().parents[1] / "deploy/grafana/hedgerow.json"

NODES = 'hedgerow_node_info{job=~"$job",id=~"$node"}'
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
SCHEMA_VERSION = 39  # of Grafana 10.4; later ones read it
WIDTH = 24
ROW_HEIGHT = 1


class Panel(NamedTuple):
    """A panel; `lines` are expressions and the names of what they give."""

    title: str
    description: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    width: int = 8
    height: int = 7
    red_above: float | None = None
    lowest: float | None = 0


def per_second(counter: str) -> str:
    return f"rate({counter}[$__rate_interval])"


def of_nodes(expression: str) -> str:
    """With the name of the node as the label `id`, for the nodes that were chosen."""
    return f"{expression} * on (job, instance) group_left (id) {NODES}"


def each(expression: str, suffix: str = "") -> tuple[str, str]:
    """A line for each node, and what `suffix` adds to its name."""
    return of_nodes(expression), "{{id}}" + (f" {suffix}" if suffix else "")


def stat(title: str, description: str, expression: str, unit: str = "short", **options: Any) -> Panel:
    return Panel(title, description, unit, ((expression, ""),), "stat", 3, 4, **options)


ROWS: dict[str, tuple[Panel, ...]] = {
    "Overview": (
        stat("Nodes", "Nodes that Prometheus reaches.", f"count({NODES})"),
        stat(
            "With a problem",
            "Nodes that cannot do all of their work: a full disk, a journal that misses messages.",
            f"sum({of_nodes('(1 - hedgerow_healthy)')})",
            red_above=1,
        ),
        stat("Clients", "Clients that are connected.", f"sum({of_nodes('hedgerow_clients')})"),
        stat(
            "Messages in",
            "Publications received.",
            f"sum({of_nodes(per_second('hedgerow_messages_received_total'))})",
            "cps",
        ),
        stat(
            "Messages out",
            "Publications sent to subscribers.",
            f"sum({of_nodes(per_second('hedgerow_messages_sent_total'))})",
            "cps",
        ),
        stat(
            "Dropped",
            "Deliveries given up in the last hour.",
            f"sum({of_nodes('increase(hedgerow_messages_dropped_total[1h])')})",
            red_above=1,
        ),
        stat(
            "Queued",
            "Messages that wait for their subscribers.",
            f"sum({of_nodes('hedgerow_queued_messages')})",
        ),
        stat(
            "Bridges down",
            "Bridges that are not up.",
            f"sum({of_nodes('(1 - hedgerow_bridge_up)')})",
            red_above=1,
        ),
    ),
    "Messages": (
        Panel(
            "Received",
            "Publications received from clients.",
            "cps",
            (each(per_second("hedgerow_messages_received_total")),),
        ),
        Panel(
            "Sent",
            "Publications sent to clients.",
            "cps",
            (each(per_second("hedgerow_messages_sent_total")),),
        ),
        Panel(
            "Not delivered",
            "Dropped for slow readers and full queues, expired while they waited, or refused.",
            "cps",
            (
                each(per_second("hedgerow_messages_dropped_total"), "dropped"),
                each(per_second("hedgerow_messages_expired_total"), "expired"),
                each(per_second("hedgerow_messages_refused_total"), "refused"),
            ),
        ),
        Panel(
            "Bytes",
            "All bytes between the node and its clients.",
            "Bps",
            (
                each(per_second("hedgerow_received_bytes_total"), "in"),
                each(per_second("hedgerow_sent_bytes_total"), "out"),
            ),
        ),
        Panel(
            "Waiting",
            "Messages that wait for their subscribers.",
            "short",
            (each("hedgerow_queued_messages"),),
        ),
        Panel(
            "Room for what waits",
            "The share that waiting messages take of the room that they may. At 1 publishers wait.",
            "percentunit",
            (each("hedgerow_backlog_stored_bytes / hedgerow_backlog_limit_bytes"),),
        ),
        Panel(
            "Oldest that waits",
            "For how long the oldest of the waiting messages has waited.",
            "s",
            (each("hedgerow_backlog_oldest_age_seconds"),),
        ),
        Panel(
            "Retained",
            "Retained messages.",
            "short",
            (each("hedgerow_retained_messages"),),
        ),
    ),
    "Clients": (
        Panel(
            "Connections",
            "Open connections, by transport.",
            "short",
            (each("hedgerow_transport_connections", "{{transport}}"),),
        ),
        Panel(
            "Sessions and subscriptions",
            "Sessions with and without a connection.",
            "short",
            (each("hedgerow_sessions", "sessions"), each("hedgerow_subscriptions", "subscriptions")),
        ),
        Panel(
            "Comings and refusals",
            "Connections opened and refused, and clients that broke a rule.",
            "cps",
            (
                each(per_second("hedgerow_connections_opened_total"), "opened"),
                each(per_second("hedgerow_connections_refused_total"), "refused"),
                each(per_second("hedgerow_protocol_errors_total"), "broke a rule"),
            ),
        ),
    ),
    "Links between nodes": (
        Panel(
            "Neighbours",
            "Nodes that each one is linked to.",
            "short",
            (each("hedgerow_federation_neighbours"),),
        ),
        Panel(
            "Round trips",
            "How far away each neighbour is.",
            "s",
            (each("hedgerow_federation_round_trip_seconds", "→ {{neighbour}}"),),
        ),
        Panel(
            "Waiting for neighbours",
            "Messages that a neighbour has not acknowledged, also while it is away.",
            "short",
            (each("hedgerow_federation_queued_messages", "→ {{neighbour}}"),),
        ),
        Panel(
            "Passed on",
            "Messages that were published for a neighbour (out) or by it (in), and passed on.",
            "cps",
            (each(per_second("hedgerow_federation_messages_relayed_total"), "{{direction}} {{neighbour}}"),),
        ),
        Panel(
            "Not passed on",
            "By reason. Duplicates are copies that came by another way: they are what keeps messages from "
            "being lost, and no loss.",
            "cps",
            (
                each(
                    per_second("hedgerow_federation_messages_dropped_total"),
                    "{{direction}} {{neighbour}}: {{reason}}",
                ),
            ),
        ),
        Panel(
            "The ledger",
            "Messages published for neighbours that were neither passed on nor dropped, nor wait: 0, but for "
            "those on their way at the moment of the scrape, and less than 0 by what had waited when a node "
            "started again.",
            "short",
            (
                each(
                    '(sum by (job, instance) (hedgerow_federation_messages_published_total{direction="out"})'
                    " - sum by (job, instance)"
                    ' (hedgerow_federation_messages_relayed_total{direction="out"})'
                    " - sum by (job, instance)"
                    ' (hedgerow_federation_messages_dropped_total{direction="out"})'
                    " - sum by (job, instance) (hedgerow_federation_queued_messages))"
                ),
            ),
            lowest=None,
        ),
    ),
    "Bridges": (
        Panel("Up", "1 while the bridge is up.", "short", (each("hedgerow_bridge_up", "{{bridge}}"),)),
        Panel(
            "Passed on",
            "Messages that bridges passed on.",
            "cps",
            (each(per_second("hedgerow_bridge_messages_relayed_total"), "{{bridge}} {{direction}}"),),
        ),
        Panel(
            "Waiting and not passed on",
            "Messages that wait for the far broker, and those that bridges dropped, each second.",
            "short",
            (
                each("hedgerow_bridge_queued_messages", "{{bridge}} waiting"),
                each(
                    per_second("hedgerow_bridge_messages_dropped_total"),
                    "{{bridge}} {{direction}}: {{reason}}",
                ),
            ),
        ),
    ),
    "Mobile brokers and hot topics": (
        Panel(
            "Hot topics",
            "Topics that were ranked: kept here (in), or delegated to the fixed broker (out).",
            "short",
            (each("hedgerow_hot_topics", "{{registry}}"),),
            width=6,
        ),
        Panel(
            "Delegated filters",
            "Topic filters that the fixed broker matches.",
            "short",
            (each("hedgerow_mobility_delegated_filters"),),
            width=6,
        ),
        Panel(
            "Links",
            "Mobile brokers that are linked to a fixed one; of a mobile broker, whether it has its link.",
            "short",
            (each("hedgerow_mobility_links_up"),),
            width=6,
        ),
        Panel(
            "Between mobile and fixed brokers",
            "Publications that were ignored, refused, expired or did not fit.",
            "cps",
            (
                each(per_second("hedgerow_mobility_ignored_total"), "ignored"),
                each(per_second("hedgerow_mobility_refused_total"), "refused"),
                each(per_second("hedgerow_mobility_expired_total"), "expired"),
                each(per_second("hedgerow_mobility_overflowed_total"), "overflowed"),
            ),
            width=6,
        ),
    ),
    "Multicast and sensors": (
        Panel(
            "Between broker and multicast",
            "Messages by direction and by what became of them.",
            "cps",
            (each(per_second("hedgerow_gateway_messages_total"), "{{direction}}: {{what}}"),),
        ),
        Panel(
            "Multicast lost",
            "Frames of QoS 1 and 2 that nobody could send again; datagrams that came too fast here.",
            "cps",
            (
                each(per_second("hedgerow_multicast_lost_total"), "lost"),
                each(per_second("hedgerow_multicast_overruns_total"), "overruns"),
            ),
        ),
        Panel(
            "Sensors",
            "Packets of UDP sensors that were taken, passed on, and dropped as malformed or too many.",
            "cps",
            (
                each(per_second("hedgerow_sensor_packets_published_total"), "taken"),
                each(per_second("hedgerow_sensor_packets_forwarded_total"), "passed on"),
                each(per_second("hedgerow_sensor_packets_malformed_total"), "malformed"),
                each(per_second("hedgerow_sensor_packets_limited_total"), "limited"),
            ),
        ),
    ),
    "Journal and store": (
        Panel(
            "Recorded",
            "Messages recorded in the journal, and those that it missed for want of room.",
            "cps",
            (
                each(per_second("hedgerow_journal_messages_total"), "recorded"),
                each(per_second("hedgerow_journal_missed_total"), "missed"),
            ),
        ),
        Panel(
            "Not on the disk yet",
            "Bytes that the journal holds in memory.",
            "bytes",
            (each("hedgerow_journal_buffered_bytes"),),
        ),
        Panel(
            "Time of a commit",
            "From gathering a batch to having it on the disk, on average: acknowledgements wait for it.",
            "s",
            (
                each(
                    f"({per_second('hedgerow_commit_seconds_total')}"
                    f" / {per_second('hedgerow_commits_total')})"
                ),
            ),
        ),
    ),
    "Process": (
        Panel("CPU", "1: one whole core.", "percentunit", (each(per_second("process_cpu_seconds_total")),)),
        Panel("Memory", "Resident memory.", "bytes", (each("process_resident_memory_bytes"),)),
        Panel(
            "Lateness",
            "The latest timer of the last minute: how long clients may wait for their turn.",
            "s",
            (each("hedgerow_loop_lateness_maximum_seconds"),),
        ),
        Panel(
            "Open files",
            "Of those that the process may open.",
            "percentunit",
            (each("(process_open_fds / process_max_fds)"),),
            width=12,
        ),
        Panel(
            "Up since",
            "Time since the node started.",
            "s",
            (each("(time() - hedgerow_start_time_seconds)"),),
            width=12,
        ),
    ),
}


def make_panels() -> list[dict[str, Any]]:
    """From left to right, and a new line where the next panel has no room."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        number = len(panels) + 1
        grid = {"x": 0, "y": y, "w": WIDTH, "h": ROW_HEIGHT}
        panels.append(
            {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": grid, "panels": []}
        )
        x, y = 0, y + ROW_HEIGHT
        height = 0
        for panel in row:
            if x + panel.width > WIDTH:
                x, y, height = 0, y + height, 0
            grid = {"x": x, "y": y, "w": panel.width, "h": panel.height}
            panels.append(make_panel(panel, len(panels) + 1, grid))
            x, height = x + panel.width, max(height, panel.height)
        y += height
    return panels


def make_panel(panel: Panel, number: int, grid: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.red_above is not None:
        steps.append({"color": "red", "value": panel.red_above})
    defaults: dict[str, Any] = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    options: dict[str, Any]
    if panel.kind == "stat":
        options = {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value",
            "graphMode": "area",
        }
        defaults["noValue"] = "0"
    else:
        if panel.lowest is not None:
            defaults["min"] = panel.lowest
        defaults["custom"] = {"lineWidth": 1, "fillOpacity": 8, "showPoints": "never"}
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": grid,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
            for index, (expression, legend) in enumerate(panel.lines)
        ],
    }


def variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "sort": 1,
        "hide": 0,
    }


def make_dashboard() -> dict[str, Any]:
    return {
        "uid": "hedgerow",
        "title": "Hedgerow",
        "description": "Nodes of a Hedgerow fabric: messages, clients, links, bridges, journals.",
        "tags": ["hedgerow", "mqtt"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Prometheus",
                    "type": "datasource",
                    "query": "prometheus",
                    "current": {},
                    "hide": 0,
                    "refresh": 1,
                    "regex": "",
                },
                variable("job", "Job", "label_values(hedgerow_node_info, job)"),
                variable("node", "Node", 'label_values(hedgerow_node_info{job=~"$job"}, id)'),
            ]
        },
        "panels": make_panels(),
    }


def render() -> str:
    return json.dumps(make_dashboard(), indent=1, ensure_ascii=False) + "\n"


def main(words: list[str]) -> int:
    text = render()
    if words == ["--check"]:
        is_current = PATH.exists() and PATH.read_text("utf-8") == text
        print(f"{PATH.name} is {'up to date' if is_current else 'old: run python tools/make_grafana.py'}")
        return 0 if is_current else 1
    PATH.write_text(text, "utf-8")
    print(f"{PATH.name}: {len(make_panels())} panels")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
