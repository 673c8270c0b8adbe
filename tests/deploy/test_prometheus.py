"""The examples for Prometheus: what it reads, and alerts on metrics that there are."""

from __future__ import annotations

import re

import yaml

from hedgerow.node.config import Config
from hedgerow.node.metrics import LEDGER_DROPS
from tests.deploy.prometheus import FOLDER, named_in, read, rules


def test_nodes_are_scraped_where_they_serve_and_the_rules_are_found() -> None:
    config = read("prometheus.yml")
    assert [(FOLDER / name).is_file() for name in config["rule_files"]] == [True]
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "hedgerow"
    assert job["static_configs"][0]["targets"] == [str(address) for address in Config().http]


def test_the_log_in_for_other_machines_has_only_to_be_uncommented() -> None:
    text = (FOLDER / "prometheus.yml").read_text("utf-8")
    uncommented = re.sub(r"^    # (scheme:|basic_auth:|  )", r"    \1", text, flags=re.MULTILINE)
    (job,) = yaml.safe_load(uncommented)["scrape_configs"]
    assert job["scheme"] == "https"
    assert set(job["basic_auth"]) == {"username", "password_file"}
    assert "targets" in job["static_configs"][0]


def test_alerts_are_on_what_nodes_have(metrics: set[str]) -> None:
    for rule in rules():
        named = named_in(rule["expr"])
        assert named or rule["expr"].startswith("up{")
        assert named <= metrics, rule["alert"]


def test_alerts_have_names_severities_and_say_what_is_the_matter() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) > 10
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"Hedgerow[A-Za-z]+", rule["alert"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
        assert rule["annotations"]["summary"].endswith(".")
        assert f"`{rule['alert']}`" in (FOLDER.parents[1] / "docs/monitoring.md").read_text("utf-8")


def test_reasons_in_expressions_are_those_of_the_ledger() -> None:
    for rule in rules():
        for reasons in re.findall(r'reason=~"([^"]*)"', rule["expr"]):
            assert set(reasons.split("|")) <= set(LEDGER_DROPS["out"])
