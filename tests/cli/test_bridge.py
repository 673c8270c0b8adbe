"""`hedgerow bridge` beside a running node, and beside brokers that know no such commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hedgerow import cli
from hedgerow.cli import bridge
from hedgerow.node.passwords import set_password
from hedgerow_workshop.programs import free_port
from tests.conftest import StartMosquitto, StartNode
from tests.programs import wait_until

Run = Callable[..., tuple[int, str, str]]

NOWHERE = "127.0.0.1:1"
SECTION = "connection north\naddress 127.0.0.1:{port}\ntopic # both 1\n"


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """`run("list", url=URL)`: status, output and complaints of the command."""

    def run(*words: str, url: str = "") -> tuple[int, str, str]:
        capfd.readouterr()
        status = cli.main(["bridge", *words, *(["--url", url] if url else [])])
        captured = capfd.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def url(hedgerow_node: StartNode) -> str:
    return hedgerow_node().urls["mqtt"]


def states(run: Run, url: str) -> dict[str, dict[str, Any]]:
    status, output, complaints = run("list", "--json", url=url)
    assert (status, complaints) == (0, "")
    found = [json.loads(line) for line in output.splitlines() if line != "no bridges"]
    return {state["connection"]: state for state in found}


def test_from_words_to_a_bridge_and_back(run: Run, url: str) -> None:
    far = f"127.0.0.1:{free_port()}"
    assert run("list", url=url) == (0, "no bridges\n", "")
    words = ("new", "north", far, "-t", "a/# both 1", "--topic", "b in", "-o", "restart_timeout 9")
    assert run(*words, url=url) == (0, "north: created\n", "")
    (state,) = states(run, url).values()
    assert (state["connection"], state["topics"]) == ("north", ["a/# both 1", "b in"])
    assert run("del", "north", url=url) == (0, "north: deleted\n", "")
    assert run("list", url=url) == (0, "no bridges\n", "")


def test_a_file_of_sections(run: Run, url: str, tmp_path: Path) -> None:
    north = SECTION.format(port=free_port())
    file = tmp_path / "bridges.conf"
    file.write_text(north + north.replace("north", "south"))
    assert run("new", str(file), url=url) == (0, "north: created\nsouth: created\n", "")
    assert states(run, url).keys() == {"north", "south"}
    status, output, complaints = run("new", str(file), url=url)
    assert (status, output) == (1, "")
    assert complaints.startswith("hedgerow bridge: north: there is a bridge north already")
    changed = north.replace("both 1", "out 2")
    command = [sys.executable, "-m", "hedgerow", "bridge", "new", "-", "--replace", "--url", url]
    assert subprocess.check_output(command, input=changed.encode()) == b"north: replaced\n"
    assert states(run, url)["north"]["topics"] == ["# out 2"]


def test_a_table_of_bridges(run: Run, url: str, hedgerow_node: StartNode) -> None:
    far = hedgerow_node("--id", "far-node")
    away = free_port()
    run("new", "near", f"127.0.0.1:{far.port()}", "-t", "# both 1", url=url)
    run("new", "away", f"127.0.0.1:{away}", "-t", "x out", "-t", "y in 2", url=url)
    wait_until(lambda: states(run, url)["near"]["state"] == "up", "the bridge to be up")
    wait_until(lambda: states(run, url)["away"]["reason"] != "", "the other one to know why not")
    status, output, _ = run("list", url=url)
    head, first, second = output.splitlines()
    assert status == 0
    assert head.split()[:3] == ["NAME", "STATE", "ADDRESS"]
    assert first.startswith("away  ")
    assert f"127.0.0.1:{away}" in first
    assert "x out 0, y in 2" in first or "x, y in 2" in first
    assert second.split()[:4] == ["near", "up", f"127.0.0.1:{far.port()}", "far-node"]
    assert second.index("up") == head.index("STATE")


@pytest.mark.parametrize("version", ["5", "311", "31"])
def test_every_version_gets_its_answer(run: Run, url: str, version: str) -> None:
    assert run("new", "north", NOWHERE, "-t", "#", "-V", version, url=url) == (0, "north: created\n", "")
    refused = (1, "", "hedgerow bridge: south: there is no bridge south\n")
    assert run("del", "south", "-V", version, url=url) == refused


def test_one_refusal_does_not_stop_the_others(run: Run, url: str) -> None:
    run("new", "north", NOWHERE, "-t", "#", url=url)
    status, output, complaints = run("del", "south", "north", url=url)
    assert (status, output, complaints) == (
        1,
        "north: deleted\n",
        "hedgerow bridge: south: there is no bridge south\n",
    )


def test_bridges_outlive_the_node(run: Run, hedgerow_node: StartNode, tmp_path: Path) -> None:
    file = tmp_path / "bridges.conf"
    file.write_text(SECTION.format(port=1).replace("north", "filed"))
    node = hedgerow_node("--data", str(tmp_path / "data"), "--bridge", str(file))
    url = node.urls["mqtt"]
    for name in ("east", "west"):
        run("new", name, NOWHERE, "-t", "#", "-o", "remote_username anna", "-o", "remote_password x", url=url)
    run("del", "west", "filed", url=url)
    assert states(run, url).keys() == {"east"}
    node.kill9()
    node.start()
    assert states(run, url).keys() == {"east", "filed"}
    node.restart()
    assert states(run, url).keys() == {"east", "filed"}


# With access rules


def with_users(folder: Path, rules: str) -> list[str]:
    """Flags for a node with the users anna, bob and eve, and an ACL."""
    for user in ("anna", "bob", "eve"):
        set_password(folder / "passwords", user, b"x", create=user == "anna", iterations=1_000)
    (folder / "acl").write_text(rules)
    return ["--passwords", str(folder / "passwords"), "--acl", str(folder / "acl"), "--administrator", "anna"]


@pytest.mark.parametrize("version", ["5", "311"])
def test_who_may_command(run: Run, hedgerow_node: StartNode, tmp_path: Path, version: str) -> None:
    rules = "user bob\ntopic readwrite $SYS/broker/bridge/#\nuser eve\ntopic #\n"
    url = hedgerow_node(*with_users(tmp_path, rules)).urls["mqtt"]
    words = (NOWHERE, "-t", "#", "-P", "x", "-V", version, "-u")
    assert run("list", "-u", "anna", "-P", "x", url=url) == (0, "no bridges\n", "")
    assert run("new", "a", *words, "anna", url=url) == (0, "a: created\n", "")
    assert run("new", "b", *words, "bob", url=url) == (0, "b: created\n", "")
    status, output, complaints = run("new", "c", *words, "eve", url=url)
    assert (status, output) == (1, "")
    assert "either this client may not command it" in complaints
    assert [line.split()[0] for line in run("list", "-u", "bob", "-P", "x", url=url)[1].splitlines()[1:]] == [
        "a",
        "b",
    ]


def test_without_access_rules_this_machine_may_and_a_name_is_no_right(run: Run, url: str) -> None:
    assert run("new", "north", NOWHERE, "-t", "#", "-u", "anybody", url=url)[0] == 0


# Brokers that are something else


@pytest.mark.parametrize("version", ["5", "311"])
def test_mosquitto_has_no_such_commands(run: Run, mosquitto: StartMosquitto, version: str) -> None:
    url = f"mqtt://127.0.0.1:{mosquitto('sys_interval 1')}"
    status, output, complaints = run("new", "north", NOWHERE, "-t", "#", "-V", version, url=url)
    assert (status, output) == (1, "")
    refused = ": the server refused: not authorized; either this client may not command it, or it is no"
    silent = " did not answer in 3 s: is it a Hedgerow node?"
    assert complaints.startswith(f"hedgerow bridge: {url}{refused if version == '5' else silent}")


def test_mosquitto_has_no_such_states(run: Run, mosquitto: StartMosquitto) -> None:
    url = f"mqtt://127.0.0.1:{mosquitto('sys_interval 1')}"
    status, output, complaints = run("list", url=url)
    assert (status, output) == (1, "")
    assert complaints.startswith(f'hedgerow bridge: {url} is no Hedgerow node, but "mosquitto version ')


def test_a_broker_that_says_nothing(run: Run, hedgerow_node: StartNode) -> None:
    url = hedgerow_node("--sys-interval", "0").urls["mqtt"]
    assert "told of no bridge in 3 s" in run("list", url=url)[2]
    run("new", "north", NOWHERE, "-t", "#", url=url)
    assert run("list", url=url)[1].splitlines()[1].startswith("north ")


def test_nobody_there(run: Run) -> None:
    status, _, complaints = run("list", url=f"mqtt://127.0.0.1:{free_port()}")
    assert status == 3
    assert "refused" in complaints.lower()


# What is asked for is wrong


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "what to do? There are new, del, list"),
        (("add", "x"), '"add" is none of new, del, list'),
        (("del",), "del NAME: which bridge?"),
        (("list", "x"), 'what is "x"? list takes options alone'),
        (("new",), "new takes FILE, or - for standard input, or NAME and ADDRESS with -t TOPIC"),
        (("new", "north", "-t", "#"), "new takes FILE"),
        (("new", "north", "h"), "a bridge carries topics: give them with -t"),
        (("new", "north", "h", "-t", "# sideways"), 'topic 1: "sideways" is none of out, in, both'),
        (("new", "north", "h", "-t", "#", "-o", "qos 1"), '"qos" is no option of a bridge'),
        (("new", "north", "h", "-t", "#", "-o", "address g"), "-o address: it is given already"),
        (("new", "nowhere.conf"), "nowhere.conf: cannot be read: No such file or directory"),
        (("udp://localhost", "list"), "udp://localhost:12345: a node is commanded over MQTT"),
        (("mqtt://localhost/a/b", "list"), "a URL without a topic"),
    ],
)
def test_mistakes_are_told_without_a_broker(run: Run, words: tuple[str, ...], complaint: str) -> None:
    status, output, complaints = run(*words)
    assert (status, output) == (2, "")
    assert complaint in complaints


def test_a_mistake_in_a_file_is_told_with_its_line(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "bridges.conf"
    file.write_text(SECTION.format(port=1) + "# south\nconnection south\nadress h\n")
    status, _, complaints = run("new", str(file))
    assert status == 2
    assert f'{file}:6: "adress" is no option of a bridge; the nearest is address' in complaints


def test_what_others_said_is_fit_for_a_terminal() -> None:
    state = json.dumps({"connection": "north", "reason": "\x1b[2J\n", "since": 1e300}).encode()
    odd = [b"", b"[]", b"\xff", b"[" * 100_000, b'{"in": 7, "topics": {}, "since": "x"}']
    _, row, *others = bridge.table([state, *odd])
    assert "?[2J?" in row
    assert row.isprintable()
    assert len(others) == len(odd)
