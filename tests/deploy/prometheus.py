"""Prometheus with the examples of `deploy/`, and nodes for it to look at, or for us without it."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from hedgerow_workshop.programs import free_port
from tests.node.peers import connected, port_of
from tests.node.whole_fabric import whole_fabric
from tests.programs import ROOT, end, need_program, wait_until

FOLDER = ROOT / "deploy/prometheus"
RULES = FOLDER / "hedgerow.rules.yml"
ANSWER_S = 30.0

get_url = build_opener(ProxyHandler({})).open  # by no proxy, whatever the environment says

Result = TypeVar("Result")


def read(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text("utf-8"))
    return document


def rules() -> list[dict[str, Any]]:
    return [rule for group in read(RULES.name)["groups"] for rule in group["rules"]]


async def beside_fabric(look: Callable[[list[str]], Result], folder: Path) -> Result:
    """What `look` returns, in a thread, given the addresses at which nodes serve their metrics meanwhile."""
    async with whole_fabric(folder) as servers, connected(port_of(servers["barn"]), "a client"):
        targets = [f"127.0.0.1:{port_of(server, 'http')}" for server in servers.values()]
        return await asyncio.to_thread(look, targets)


def get_metrics(target: str) -> str:
    with get_url(f"http://{target}/metrics", timeout=ANSWER_S) as response:
        return str(response.read(), "utf-8")


def served(targets: list[str]) -> set[str]:
    """The names of all metrics of these nodes."""
    families = (text_string_to_metric_families(get_metrics(target)) for target in targets)
    return {sample.name for found in families for family in found for sample in family.samples}


def named_in(expression: str) -> set[str]:
    """The metrics that an expression is of."""
    return set(re.findall(r"\b(?:hedgerow|process)_\w+", expression))


def promtool(*words: str, standard_input: str = "") -> None:
    """Fails with what it complains of."""
    done = subprocess.run(
        [need_program("promtool"), *words],
        input=standard_input,
        capture_output=True,
        text=True,
        timeout=ANSWER_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


class Prometheus:
    def __init__(self, port: int, log: Path) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/"
        self._log = log

    @property
    def complaints(self) -> list[str]:
        """Of what it scrapes and evaluates."""
        return re.findall(
            "(?i).*level=(?:warn|error).*(?:scrape|rule) manager.*", self._log.read_text("utf-8")
        )

    def query(self, expression: str) -> list[dict[str, str]]:
        """The labels of each line, without its name."""
        found = [each["metric"] for each in self.get("query", query=expression)["result"]]
        return [{name: text for name, text in labels.items() if name != "__name__"} for labels in found]

    def get(self, what: str, **parameters: str) -> Any:
        try:
            with get_url(f"{self._url}{what}?{urlencode(parameters)}", timeout=ANSWER_S) as response:
                return json.load(response)["data"]
        except HTTPError as error:
            pytest.fail(f"{parameters}: {error.read().decode()}")


@contextmanager
def run_prometheus(directory: Path, targets: list[str]) -> Iterator[Prometheus]:
    """With the example's configuration, but for these targets, and two scrapes a second."""
    program = need_program("prometheus")
    config = read("prometheus.yml")
    config["global"] = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
    config["rule_files"] = [str(FOLDER / name) for name in config["rule_files"]]
    config["scrape_configs"][0]["static_configs"] = [{"targets": targets}]
    path, log = directory / "prometheus.yml", directory / "prometheus.log"
    path.write_text(json.dumps(config))

    def is_ready(process: subprocess.Popen[bytes]) -> bool:
        return process.poll() is not None or b"Server is ready" in log.read_bytes()

    for _ in range(5):  # Someone else may take the port between our look and its.
        port = free_port()
        options = [f"--config.file={path}", f"--storage.tsdb.path={directory / 'data'}"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [program, *options, f"--web.listen-address=127.0.0.1:{port}"], stdout=output, stderr=output
            )
        try:
            wait_until(partial(is_ready, process), "Prometheus to run")
            if process.poll() is None:
                yield Prometheus(port, log)
                return
        finally:
            end(process)
        assert b"address already in use" in log.read_bytes(), log.read_text()
    pytest.fail("Prometheus found no free port")
