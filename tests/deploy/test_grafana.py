"""The Grafana dashboard: as the tool makes it, as Grafana reads it, and of metrics that there are."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.expressions import ExpressionError, Samples, evaluate

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = json.loads((ROOT / "deploy/grafana/hedgerow.json").read_text("utf-8"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
DRAWN = [panel for panel in PANELS if panel["type"] != "row"]
TARGETS = [(panel, target) for panel in DRAWN for target in panel["targets"]]

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


def test_every_line_is_drawn_of_what_nodes_have_and_named_after_its_node(scraped: Samples) -> None:
    for panel, target in TARGETS:
        where = f"{panel['title']}: {target['expr']}"
        lines = evaluate(target["expr"], scraped)
        assert isinstance(lines, list), where
        named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        if panel["type"] == "stat":
            assert [line.labels for line in lines] == [{}], where
            assert not named, where
            continue
        assert lines, where
        assert "id" in named, where
        legends = [tuple(line.labels[label] for label in sorted(named)) for line in lines]
        assert len(set(legends)) == len(legends), f"two lines of one name: {where}"
        assert len({each["legendFormat"] for each in panel["targets"]}) == len(panel["targets"])


def test_variables_choose_among_nodes(scraped: Samples) -> None:
    for each in DASHBOARD["templating"]["list"][1:]:
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", each["query"]["query"])
        assert found is not None
        lines = evaluate(found[1], scraped)
        assert isinstance(lines, list)
        assert all(found[2] in line.labels for line in lines)
        assert lines


def test_counters_are_shown_by_their_rate() -> None:
    for panel, target in TARGETS:
        if panel["title"] != "The ledger":  # which compares them
            for name in re.findall(r"\b\w+_total\b", target["expr"]):
                assert re.search(rf"(rate|increase)\({name}\[", target["expr"]), panel["title"]


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("hedgerow_nothing", "no node has hedgerow_nothing"),
        ('hedgerow_connections{colour="red"}', "no such label: {'colour'}"),
        ("sum by (colour) (hedgerow_connections)", "no such label: {'colour'}"),
        ("sum(hedgerow_connections", "None, and not )"),
        ("hedgerow_connections)", "what is ')'"),
        ("rate(hedgerow_messages_sent_total)", "of what time"),
        (
            "hedgerow_transport_connections * on (job, instance) hedgerow_transport_connections",
            "more than one",
        ),
        ("hedgerow_healthy ; hedgerow_healthy", "what is"),
    ],
)
def test_mistakes_are_found(expression: str, reason: str, scraped: Samples) -> None:
    scraped = scraped | {"hedgerow_transport_connections": 2 * scraped["hedgerow_transport_connections"]}
    with pytest.raises(ExpressionError, match=re.escape(reason)):
        evaluate(expression, scraped)
