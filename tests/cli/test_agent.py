"""`hedgerow agent` as its user sees it: on real nodes, on Mosquittos, with a second agent beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from hedgerow import cli
from hedgerow_workshop.programs import free_port
from tests.conftest import StartMosquitto, StartNode
from tests.programs import Node, end, wait_until
from tests.waiting import PATIENCE_S

DETECTION_S = 0.6
FAST = ("--probe-interval", "0.2", "--probe-misses", "3")


class Agent:
    """A `hedgerow agent --json` process, and the events that it has printed."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self._output, self._log = directory / "events", directory / "log"
        command = [sys.executable, "-m", "hedgerow", "agent", "--json", *FAST, *arguments]
        with self._output.open("wb") as output, self._log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=output, stderr=log)

    @property
    def events(self) -> list[dict[str, Any]]:
        lines = self._output.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    @property
    def log(self) -> str:
        return self._log.read_text()

    def find(self, event: str, **fields: object) -> list[dict[str, Any]]:
        """The events of this name with these fields."""
        return [each for each in self.events if each["event"] == event and fields.items() <= each.items()]

    def wait_for(self, event: str, count: int = 1, **fields: object) -> dict[str, Any]:
        """The latest of so many."""
        wait_until(lambda: len(self.find(event, **fields)) >= count, f"{count} times {event} {fields}")
        return self.find(event, **fields)[count - 1]

    def end(self) -> None:
        if self.process.poll() is None:
            assert end(self.process) == 0
        assert "Traceback" not in self.log


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    with ExitStack() as running:

        def start(*arguments: str) -> Agent:
            directory = tmp_path / f"agent-{len(list(tmp_path.glob('agent-*'))) + 1}"
            directory.mkdir()
            started = Agent(directory, *arguments)
            running.callback(started.end)
            return started

        yield start


StartAgent = Callable[..., Agent]


@contextmanager
def subscribed(port: int, topic: str, directory: Path) -> Iterator[Callable[[], str]]:
    """What `hedgerow sub` prints, once it has subscribed."""
    output, log = directory / f"sub-{port}", directory / f"sub-{port}.log"
    command = [sys.executable, "-m", "hedgerow", "sub", f"mqtt://127.0.0.1:{port}", topic, "-v"]
    with output.open("wb") as opened, log.open("wb") as errors:
        process = subprocess.Popen(command, stdout=opened, stderr=errors)
    try:
        wait_until(lambda: process.poll() is None and is_subscribed(port, topic, output), "hedgerow sub")
        yield output.read_text
    finally:
        end(process)


def is_subscribed(port: int, topic: str, output: Path) -> bool:
    publish(port, topic, "are you there?")
    return "are you there?" in output.read_text()


def publish(port: int, topic: str, payload: str) -> None:
    assert cli.main(["pub", f"mqtt://127.0.0.1:{port}", topic, payload, "--qos", "1"]) == 0


def words(nodes: list[Node]) -> list[str]:
    return [f"n{number}=127.0.0.1:{node.port()}" for number, node in enumerate(nodes, 1)]


def three(start: StartNode) -> list[Node]:
    return [start("--id", f"node-{number}") for number in (1, 2, 3)]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hedgerow", "agent", *FAST, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)


def run_at_once(*commands: tuple[str, ...]) -> list[subprocess.CompletedProcess[str]]:
    """Those that do not disturb each other: most of their time they wait for someone to answer."""
    with ThreadPoolExecutor(len(commands)) as pool:
        return list(pool.map(lambda arguments: run(*arguments), commands))


def test_a_star_whose_hub_is_killed_is_rewired_and_carries_on(
    hedgerow_node: StartNode, agent: StartAgent, tmp_path: Path
) -> None:
    nodes = three(hedgerow_node)
    running = agent(*words(nodes))
    running.wait_for("bridge_up", broker="n1", far="n3")
    running.wait_for("bridge_up", broker="n2", far="n3")
    with subscribed(nodes[1].port(), "x", tmp_path) as received:
        publish(nodes[0].port(), "x", "by the hub")
        wait_until(lambda: "by the hub" in received(), "the message by the hub")
        nodes[2].kill9()
        lost = running.wait_for("broker_lost", broker="n3")
        assert lost["silent_s"] < DETECTION_S
        up = running.wait_for("bridge_up", broker="n1", far="n2")
        assert up["time"] - lost["time"] < DETECTION_S  # without waiting for anybody's probes
        running.wait_for("bridge_gone", broker="n1", far="n3")
        running.wait_for("bridge_gone", broker="n2", far="n3")
        publish(nodes[0].port(), "x", "the other way")
        wait_until(lambda: "the other way" in received(), "the message the other way")
        assert received().count("the other way") == 1
    nodes[2].start()
    running.wait_for("bridge_up", 2, broker="n1", far="n3")
    running.wait_for("bridge_gone", broker="n1", far="n2")


def test_a_stopped_hub_is_found_by_probes(hedgerow_node: StartNode, agent: StartAgent) -> None:
    nodes = three(hedgerow_node)
    running = agent(*words(nodes))
    running.wait_for("bridge_up", broker="n1", far="n3")
    running.wait_for("bridge_up", broker="n2", far="n3")
    assert nodes[2].process is not None
    os.kill(nodes[2].process.pid, signal.SIGSTOP)
    try:
        lost = running.wait_for("broker_lost", broker="n3")
        assert lost["silent_s"] >= DETECTION_S
        running.wait_for("bridge_up", broker="n1", far="n2")
    finally:
        os.kill(nodes[2].process.pid, signal.SIGCONT)
    running.wait_for("broker_found", 2, broker="n3")
    running.wait_for("bridge_gone", broker="n1", far="n2")


def test_when_the_acting_agent_is_killed_the_other_takes_over(
    hedgerow_node: StartNode, agent: StartAgent
) -> None:
    nodes = three(hedgerow_node)
    first = agent(*words(nodes), "--id", "a")
    first.wait_for("bridge_up", broker="n2", far="n3")
    second = agent(*words(nodes), "--id", "b")
    second.wait_for("bridge_up", broker="n2", far="n3")
    assert not second.find("acting_changed")
    killed_at = time.time()
    first.process.kill()
    first.process.wait()
    taken = second.wait_for("acting_changed", is_acting=True)
    # A second is for a machine with other things to do.
    assert killed_at < taken["time"] < killed_at + DETECTION_S + 1.0
    nodes[2].kill9()
    second.wait_for("bridge_up", broker="n1", far="n2")
    nodes[2].start()


def test_who_reads_the_events_may_go(hedgerow_node: StartNode, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "hedgerow", "agent", "--json", *FAST, *words([hedgerow_node()])]
    log = tmp_path / "log"
    os.close(reader)
    with log.open("wb") as opened:
        process = subprocess.Popen(command, stdout=writer, stderr=opened)
    os.close(writer)
    try:
        wait_until(lambda: "this agent acts" in log.read_text(), "the agent to act")
    finally:
        assert end(process) == 0
    assert "--json: no more events: Broken pipe" in log.read_text()
    assert "Traceback" not in log.read_text()


def test_two_mosquittos_are_joined_while_an_agent_runs(
    mosquitto: StartMosquitto, agent: StartAgent, tmp_path: Path
) -> None:
    one, two = mosquitto(), mosquitto()
    running = agent(f"m1=127.0.0.1:{one}", f"m2=127.0.0.1:{two}", "--data", str(tmp_path / "data"))
    running.wait_for("command_sent", action="create", carrier="agent")
    running.wait_for("bridge_up", broker="m1", far="m2")
    with subscribed(two, "x", tmp_path) as received:
        publish(one, "x", "through the agent")
        wait_until(lambda: "through the agent" in received(), "the message")
        assert received().count("through the agent") == 1
    running.process.kill()  # What it started must end with it, which `nothing_left_behind` looks at.
    running.process.wait()


def test_a_node_carries_the_bridge_to_a_mosquitto(
    hedgerow_node: StartNode, mosquitto: StartMosquitto, agent: StartAgent
) -> None:
    running = agent(f"m=127.0.0.1:{mosquitto()}", f"n=127.0.0.1:{hedgerow_node().port()}")
    running.wait_for("command_sent", action="create", broker="n", far="m", carrier="hedgerow")
    running.wait_for("bridge_up", broker="n", far="m")


def test_plan_and_once(hedgerow_node: StartNode) -> None:
    nodes = three(hedgerow_node)
    planned = run(*words(nodes), "--topology", "line", "--plan")
    assert (planned.returncode, planned.stdout) == (0, "create n1 – n2\ncreate n2 – n3\n")
    assert run(*words(nodes), "--topology", "line", "--plan").stdout == planned.stdout
    done = run(*words(nodes), "--topology", "line", "--once")
    assert (done.returncode, done.stdout) == (0, "")
    after = run(*words(nodes), "--topology", "line", "--plan")
    assert (after.returncode, after.stdout) == (0, "nothing to do\n")
    fourth = f"n4=127.0.0.1:{free_port()}"
    other, silent = run_at_once(
        ("--topology", "star", *words(nodes), fourth, "--plan"),
        ("--topology", "line", *words(nodes), fourth, "--once"),
    )
    assert other.stdout == "create n1 – n3\ndelete n1 – n2\n"
    assert other.stderr == "hedgerow agent: n4 does not answer\n"
    assert silent.returncode == 0
    assert silent.stderr.endswith("\nhedgerow agent: n4 does not answer\n")


def test_once_says_why_it_cannot(hedgerow_node: StartNode, mosquitto: StartMosquitto) -> None:
    nowhere = f"a=127.0.0.1:{free_port()}"
    ends = (f"a=127.0.0.1:{hedgerow_node().port()}", f"b=127.0.0.1:{hedgerow_node().port()}")
    *nobody, carried, bad = run_at_once(
        (nowhere, "--once", "--timeout", "1"),
        (nowhere, "--plan"),
        (f"a=127.0.0.1:{mosquitto()}", f"b=127.0.0.1:{mosquitto()}", "--once"),
        # A far end that nobody can connect to from there.
        (*ends, "--once", "--option", "bridge_cafile nowhere.pem", "--timeout", "2"),
    )
    for each in nobody:
        assert (each.returncode, each.stderr) == (1, "hedgerow agent: no broker answers\n")
    assert carried.returncode == 1
    reason = "a – b: an agent has to carry that bridge while it runs: leave out --once"
    assert carried.stderr.splitlines()[-1] == f"hedgerow agent: {reason}"
    assert bad.returncode == 1
    assert "not done in 2 s: " in bad.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "no brokers: name them, or give --file FILE or --mdns"),
        (["a=h:x"], 'broker a: port "x" in "mqtt://h:x" is not a number from 1 to 65535'),
        (["a=h:1", "a=h:2"], "broker a: given twice"),
        (["a=h:1", "--topology", "mesh"], "--topology: 'mesh' is no topology: there are star, line, tree"),
        (["--topology", "tree", "1", "a=h:1"], "--topology: tree: degree is a number from 2 on, not '1'"),
        (["a=h:1", "7"], "--topology: star does not take '7'"),
        (
            ["a=h:1", "--ghosts", "published", "--topology", "ring"],
            "--ghosts published: for --topology star or line",
        ),
        (["a=h:1", "--topic", "# sideways"], '--topic: "sideways" is none of out, in, both'),
        (["a=h:1", "--option", "colour red"], '--option: "colour" is no option of a bridge'),
        (["a=h:1", "--probe-interval", "soon"], '--probe-interval: "soon" is not a duration'),
        (["a=h:1", "--probe-misses", "0"], '--probe-misses: "0" is not a whole number from 1 to 1000'),
        (["a=h:1", "--id", "a/b"], '--id: "a/b" is not 1 to 64 letters'),
        (["a=h:1", "--once", "--plan"], "--plan and --once: one of them"),
        (["--file", "nowhere.toml"], "nowhere.toml: cannot be read: No such file or directory"),
        (["a=mqtts://h"], "bridges to a: mqtts:// needs ca_file"),
    ],
)
def test_bad_input_gets_one_line(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["agent", *arguments]) == cli.EXIT_USAGE
    error = capsys.readouterr().err
    line, *example = error.splitlines()
    assert line.startswith(f"hedgerow agent: {reason}")
    assert example in ([], [f"for example: {cli.COMMANDS['agent'].example}"])
