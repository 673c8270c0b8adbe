"""Prometheus itself scrapes nodes, and answers what the dashboard and the alerts ask."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.deploy.prometheus import (
    FOLDER,
    Prometheus,
    beside_fabric,
    get_metrics,
    promtool,
    rules,
    run_prometheus,
)
from tests.deploy.test_grafana import TARGETS, VARIABLES, labels_named
from tests.programs import need_program, wait_until
from tests.waiting import PATIENCE_S

# What Grafana puts in for its variables when all is chosen.
ALL = {"$__rate_interval": "10s", "$job": ".*", "$node": ".*"}


def test_promtool_finds_nothing_to_mend_in_the_configuration() -> None:
    promtool("check", "config", str(FOLDER / "prometheus.yml"))  # and the rules that it names


def test_nodes_are_read_and_every_expression_is_answered(tmp_path: Path) -> None:
    need_program("prometheus")
    asyncio.run(beside_fabric(partial(watch, tmp_path), tmp_path))


def watch(folder: Path, targets: list[str]) -> None:
    """One test, for what takes long is that Prometheus begins to scrape 5 s after it is started."""
    with run_prometheus(folder, targets) as prometheus:
        give_up_at = time.monotonic() + PATIENCE_S
        # The nodes are still finding each other.
        while (left := list(lacking(prometheus, targets))) and time.monotonic() < give_up_at:
            time.sleep(0.1)
        assert not left, "\n".join(left)
        wait_until(lambda: all(rule["health"] != "unknown" for rule in rules_in(prometheus)), "the rules")
        assert [rule["name"] for rule in rules_in(prometheus)] == [rule["alert"] for rule in rules()]
        # All is well.
        assert [
            rule for rule in rules_in(prometheus) if rule["health"] != "ok" or rule["state"] == "firing"
        ] == []
        assert prometheus.complaints == []
    for target in targets:
        promtool("check", "metrics", standard_input=get_metrics(target))


def rules_in(prometheus: Prometheus) -> list[dict[str, Any]]:
    return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]


def lacking(prometheus: Prometheus, targets: list[str]) -> Iterator[str]:
    """Expressions that nothing is drawn of, or not as it should be."""
    if len(prometheus.query("count_over_time(up[1m]) > 1")) < len(targets):
        yield "not every node was scraped twice, which a rate needs"
        return
    for panel, target in TARGETS:
        where = f"{panel['title']}: {target['expr']}"
        lines = ask(prometheus, target["expr"])
        named = labels_named(target)
        legends = {tuple(line.get(label) for label in named) for line in lines}
        if not lines:
            yield f"nothing is drawn of {where}"
        elif panel["type"] == "stat" and lines != [{}]:
            yield f"more than one figure of {where}"
        elif any(None in legend for legend in legends) or len(legends) < len(lines):
            yield f"a line without a name of its own, of {where}"
    for expression, label in VARIABLES:
        if not all(label in line for line in ask(prometheus, expression) or [{}]):
            yield f"no {label} to choose of {expression}"
    yield from (rule["alert"] for rule in rules() if not ask(prometheus, rule["expr"]))


def ask(prometheus: Prometheus, expression: str) -> list[dict[str, str]]:
    """The labels of each line. With `bool` a comparison leaves out none."""
    asked = re.sub("(==|>|<)", r"\1 bool", expression)
    for name, value in ALL.items():
        asked = asked.replace(name, value)
    return prometheus.query(asked)
