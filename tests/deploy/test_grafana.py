"""The Grafana dashboard: as the tool makes it, as Grafana reads it, and of metrics that there are."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.deploy.prometheus import named_in

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = json.loads((ROOT / "deploy/grafana/hedgerow.json").read_text("utf-8"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
DRAWN = [panel for panel in PANELS if panel["type"] != "row"]
TARGETS = [(panel, target) for panel in DRAWN for target in panel["targets"]]
VARIABLES = [
    re.fullmatch(r"label_values\((.+), (\w+)\)", each["query"]["query"]).groups()  # type: ignore[union-attr]
    for each in DASHBOARD["templating"]["list"][1:]
]
"""The expression of each, and the label that is chosen by it."""

# As many sections as the fabric has parts; a dashboard that lost one would look all right.
ROWS = ["Overview", "Messages", "Clients", "Links between nodes", "Bridges"]
ROWS += ["Mobile brokers and hot topics", "Multicast and sensors", "Journal and store", "Process"]


def test_the_file_is_what_the_tool_makes() -> None:
    command = [sys.executable, str(ROOT / "tools/make_grafana.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_rows_are_in_order() -> None:
    assert [panel["title"] for panel in PANELS if panel["type"] == "row"] == ROWS


def test_it_is_a_dashboard_that_can_be_imported_anywhere() -> None:
    assert DASHBOARD["schemaVersion"] >= 36  # since then a data source is an object
    assert DASHBOARD["uid"] == "hedgerow"
    assert "id" not in DASHBOARD  # of one Grafana, where another dashboard may have it
    first, *others = DASHBOARD["templating"]["list"]
    assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus")
    assert [each["name"] for each in others] == ["job", "node"]
    for each in (*others, *DRAWN, *(target for _, target in TARGETS)):
        assert each["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_panels_have_ids_titles_units_and_descriptions_of_their_own() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for panel in DRAWN:
        assert panel["type"] in ("stat", "timeseries")
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        names = [target["refId"] for target in panel["targets"]]
        assert len(set(names)) == len(names) > 0


def test_no_panel_lies_on_another_or_beyond_the_edge() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in PANELS:
        grid = panel["gridPos"]
        assert grid["w"] > 0
        assert grid["h"] > 0
        assert 0 <= grid["x"] <= 24 - grid["w"]
        for x in range(grid["x"], grid["x"] + grid["w"]):
            for y in range(grid["y"], grid["y"] + grid["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies on {taken[x, y]}"
                taken[x, y] = panel["title"]


def labels_named(target: dict[str, Any]) -> list[str]:
    return re.findall(r"{{(\w+)}}", target["legendFormat"])


def test_every_line_is_drawn_of_what_nodes_have(metrics: set[str]) -> None:
    for expression in [*(target["expr"] for _, target in TARGETS), *(each for each, _ in VARIABLES)]:
        assert named_in(expression), expression
        assert named_in(expression) <= metrics, expression


def test_every_line_is_named_after_its_node_and_unlike_the_others_of_its_panel() -> None:
    for panel in DRAWN:
        legends = [target["legendFormat"] for target in panel["targets"]]
        assert len(set(legends)) == len(legends), panel["title"]
        for target in panel["targets"]:
            assert ("id" in labels_named(target)) == (panel["type"] != "stat"), panel["title"]


def test_counters_are_shown_by_their_rate() -> None:
    for panel, target in TARGETS:
        if panel["title"] != "The ledger":  # which compares them
            for name in re.findall(r"\b\w+_total\b", target["expr"]):
                assert re.search(rf"(rate|increase)\({name}\[", target["expr"]), panel["title"]
