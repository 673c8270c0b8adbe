"""`hedgerow dash`, as its user sees it: a fabric in a browser, from a machine that runs no node of it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from urllib.request import urlopen

import pytest

from hedgerow.cli import dash
from hedgerow.errors import ConfigError
from hedgerow.federation.config import FederationConfig
from hedgerow.node.config import Config
from hedgerow.node.passwords import set_password
from tests.cli.serving import Serving
from tests.conftest import StartNode
from tests.programs import wait_until


class Dash(Serving):
    def __init__(self, directory: Path, *arguments: str) -> None:
        super().__init__(directory, "dash", "--http", "127.0.0.1:0", *arguments)

    def get(self, path: str) -> tuple[int, str]:
        listening, _ = self.output.splitlines()
        connection = HTTPConnection(listening.removeprefix("listening http://"), timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def says(self, path: str, *words: str) -> bool:
        _, page = self.get(path)
        return all(word in page for word in words)


StartDash = Callable[..., Dash]


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[StartDash]:
    with ExitStack() as running:

        def start(*arguments: str) -> Dash:
            started = Dash(tmp_path, *arguments)
            running.callback(started.end)
            started.wait()
            return started

        yield start


def read(*words: str, machine_id: Path = dash.MACHINE_ID) -> Config:
    parser = argparse.ArgumentParser()
    dash.add_arguments(parser)
    return dash.read_configuration(parser.parse_intermixed_args(words), machine_id)


def test_it_shows_a_fabric_that_it_joins(hedgerow_node: StartNode, dashboard: StartDash) -> None:
    barn = hedgerow_node("--id", "barn", "--federation")
    house = hedgerow_node("--id", "house", "--neighbour", barn.urls["mqtt"])
    shown = dashboard(house.urls["mqtt"], "--id", "screen")
    listening, where = shown.output.splitlines()
    assert listening.startswith("listening http://127.0.0.1:")
    assert where == listening.replace("listening", "dashboard")
    wait_until(lambda: shown.says("/?live=1", "barn", "house", "screen"), "all nodes on the map")
    assert "Not linked" not in shown.get("/")[1]


def test_it_says_why_a_node_that_is_not_federated_refuses(
    hedgerow_node: StartNode, dashboard: StartDash
) -> None:
    node = hedgerow_node("--id", "barn")
    shown = dashboard(node.urls["mqtt"])
    reason = (
        f"no link to {node.urls['mqtt']}: refused: this node is in no federation; start it with --federation"
    )
    wait_until(lambda: reason in shown.log, "the reason in the log")
    wait_until(lambda: shown.says("/", f"Not linked to any node: {reason}"), "the reason on the page")


def test_it_says_that_it_has_not_the_key(
    hedgerow_node: StartNode, dashboard: StartDash, tmp_path: Path
) -> None:
    for name in ("right", "wrong"):
        (tmp_path / name).write_text(f"{name} key of sixteen bytes or more")
        (tmp_path / name).chmod(0o600)
    node = hedgerow_node("--id", "barn", "--federation", "--federation-key", str(tmp_path / "right"))
    shown = dashboard(node.urls["mqtt"], "--federation-key", str(tmp_path / "wrong"))
    wait_until(lambda: shown.says("/", "Not linked to any node: no link to", "key"), "the reason on the page")
    shown.end()
    shown = dashboard(node.urls["mqtt"], "--federation-key", str(tmp_path / "right"))
    wait_until(lambda: shown.says("/?live=1", "barn"), "the node on the map")


def test_it_has_users_of_its_own(hedgerow_node: StartNode, dashboard: StartDash, tmp_path: Path) -> None:
    set_password(tmp_path / "passwords", "anna", b"secret", create=True, iterations=10)
    node = hedgerow_node("--federation")
    shown = dashboard(node.urls["mqtt"], "--passwords", str(tmp_path / "passwords"))
    assert shown.get("/")[0] == 303
    assert shown.get("/login")[0] == 200


def test_every_node_with_an_http_port_has_a_dashboard(hedgerow_node: StartNode) -> None:
    node = hedgerow_node("--id", "barn", "--http", "127.0.0.1:0")
    with urlopen(node.urls["http"], timeout=30) as answer:
        assert answer.status == 200
        assert "barn" in answer.read().decode()


def test_it_is_a_node_without_listeners_that_has_the_urls_as_neighbours() -> None:
    config = read("mqtt://barn", "mqtts://house:8884", "--http", "127.0.0.1:9000")
    assert [str(url) for url in config.of(FederationConfig).neighbours] == [
        "mqtt://barn:1883",
        "mqtts://house:8884",
    ]
    assert (config.mqtt, config.mqtts, config.ws, config.wss) == ((), (), (), ())
    assert config.data is None


def test_its_name_is_the_same_at_each_start_and_another_elsewhere() -> None:
    name = read("mqtt://barn").id
    assert name is not None
    assert name.startswith("dashboard-")
    assert read("mqtt://barn").id == name
    assert read("mqtt://house").id != name
    assert read("mqtt://barn", "--id", "screen").id == "screen"


def test_no_two_dashboards_have_one_name(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    names = [read("mqtt://barn", machine_id=missing).id]
    names += [read("mqtt://barn", "--http", "localhost:0", machine_id=missing).id for _ in range(2)]
    for machine in ("one", "other"):
        (tmp_path / machine).write_text(f"{machine}\n")
        names.append(read("mqtt://barn", machine_id=tmp_path / machine).id)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "which fabric?"),
        (("http://barn",), "no transport"),
        (("barn:1883",), "as one it is mqtt://barn:1883"),
        (("mqtt://barn", "--http", "off"), "a dashboard is seen at an address"),
        (("mqtt://barn", "--administrator", "anna"), "--passwords"),
        (("mqtt://barn", "--https", "localhost:1"), "--certificate"),
    ],
)
def test_what_makes_no_sense_is_refused(words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(*words)
    assert reason in str(refused.value)
