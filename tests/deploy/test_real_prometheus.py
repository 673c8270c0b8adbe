"""Prometheus itself scrapes nodes, and answers what the dashboard and the alerts ask.

The tests beside this one ask the same of `expressions`, which is there on every machine. Here it is held to
what it stands for.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.deploy.expressions import ExpressionError, Samples, Value, evaluate
from tests.deploy.prometheus import (
    FOLDER,
    Prometheus,
    beside_fabric,
    get_metrics,
    promtool,
    rules,
    run_prometheus,
    scrape,
)
from tests.deploy.test_grafana import TARGETS
from tests.programs import need_program, wait_until
from tests.waiting import PATIENCE_S

# What Grafana puts in for its variables when all is chosen.
ALL = {"$__rate_interval": "10s", "$job": ".*", "$node": ".*"}
EXPRESSIONS = [target["expr"] for _, target in TARGETS] + [rule["expr"] for rule in rules()]


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
        while (left := list(differences(prometheus, scrape(targets)))) and time.monotonic() < give_up_at:
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


def differences(prometheus: Prometheus, samples: Samples) -> Iterator[str]:
    if len(prometheus.query("count_over_time(up[1m]) > 1")) < len(samples["up"]):
        yield "not every node was scraped twice, which a rate needs"
        return
    for expression in EXPRESSIONS:
        # With `bool` a comparison leaves out nothing, as in `evaluate`.
        asked = re.sub("(==|>)", r"\1 bool", expression)
        for name, value in ALL.items():
            asked = asked.replace(name, value)
        theirs = lines_of(prometheus.query(asked))
        try:
            ours = lines_of(evaluate(expression, samples))
        except ExpressionError as error:
            yield f"{expression}: {error}"
        else:
            if ours != theirs or not theirs:
                yield f"{expression}:\n  ours   {ours}\n  theirs {theirs}"


def lines_of(value: Value) -> list[list[tuple[str, str]]]:
    assert isinstance(value, list)
    return sorted(
        sorted((name, text) for name, text in line.labels.items() if name != "__name__") for line in value
    )
