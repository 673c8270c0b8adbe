"""MQTT.js, the client of browsers and of Node.js. `mqttjs_peer.cjs` is its half of each scenario."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.interop.conftest import Reach
from tests.programs import need_node_package, need_program

PATIENCE_S = 30.0
SCRIPT = Path(__file__).with_name("mqttjs_peer.cjs")
VERSIONS = {"3.1": "3", "3.1.1": "4", "5": "5"}

every_version = pytest.mark.parametrize("version", VERSIONS.values(), ids=list(VERSIONS))


def run(scenario: str, reach: Reach, version: str, name: str) -> Any:
    environment = need_node_package("mqtt")
    url = f"{reach.scheme}://127.0.0.1:{reach.port}/mqtt"
    command = [need_program("node"), str(SCRIPT), scenario, url, version, name, str(reach.authority)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@every_version
def test_every_qos_arrives_once_and_in_order(reach: Reach, version: str, name: str) -> None:
    arrived = run("every_qos", reach, version, name)
    assert len(arrived) == 90
    for qos in (0, 1, 2):
        mine = [[int(payload), got] for topic, payload, got in arrived if topic == f"{name}/{qos}"]
        assert mine == [[number, qos] for number in range(30)]


@pytest.mark.parametrize("version", ["4", "5"], ids=["3.1.1", "5"])
def test_a_session_and_retained_messages(tcp: Reach, version: str, name: str) -> None:
    seen = run("session_and_retained", tcp, version, name)
    assert seen["present"] is True
    assert [(message["payload"], message["retain"]) for message in seen["queued"]] == [
        ("0", False),
        ("1", False),
        ("2", False),
    ]
    assert sorted((message["payload"], message["retain"]) for message in seen["retained"]) == [
        ("0", True),
        ("1", True),
        ("2", True),
    ]


@pytest.mark.parametrize("version", ["4", "5"], ids=["3.1.1", "5"])
def test_a_will(reach: Reach, version: str, name: str) -> None:
    message = run("will", reach, version, name)
    assert (message["topic"], message["payload"]) == (f"{name}/will", "gone")


def test_aliases_and_properties(tcp: Reach, name: str) -> None:
    seen = run("aliases_and_properties", tcp, "5", name)
    assert [(message["topic"], message["payload"]) for message in seen["arrived"]] == [
        (f"{name}/{number % 2}", f"{number}") for number in range(6)
    ]
    for message in seen["arrived"]:
        found = message["properties"]
        assert (found["contentType"], found["userProperties"]) == ("text/plain", {"a": ["1", "2"]})
        assert found["subscriptionIdentifier"] == 9
        assert found["topicAlias"] in (1, 2)
    assert seen["used"] == 2
