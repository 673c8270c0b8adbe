"""`hedgerow top`: what it shows of a fabric, and that the terminal is as it was afterwards."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hedgerow import cli
from hedgerow.cli import top, top_view
from hedgerow.cli.terminal import ENTER, LEAVE
from hedgerow.cli.top_view import BAD, QUIET, ScreenLine, cells, cut, render, take_snapshot
from hedgerow.federation.tunnel.frames import quote_node_id
from hedgerow.web.fabric import Fabric
from tests.conftest import StartMosquitto, StartNode
from tests.programs import run_node, wait_until
from tests.waiting import PATIENCE_S

NOW = 1_800_000_000.0
HEDGEROW = [sys.executable, "-m", "hedgerow"]


def tell(fabric: Fabric, node: str, number: int = 1, now: float = NOW, **more: Any) -> None:
    """A status of a node, as if it came now."""
    status = {"version": 1, "node": node, "number": number, "at": now - 0.004, "uptime_s": 100.0 + number}
    fabric.receive(f"$hedgerow/status/{node}", json.dumps({**status, **more}).encode(), now)


def link(to: str, **more: Any) -> dict[str, Any]:
    return {
        "kind": "neighbour",
        "name": to,
        "to": to,
        "state": "up",
        "round_trip_ms": 1.25,
        "queued": 0,
        **more,
    }


@pytest.fixture
def farm() -> Fabric:
    """Three nodes: one busy, one late and with trouble, one silent."""
    fabric = Fabric()
    for number, received in enumerate((100, 140), 1):
        tell(
            fabric,
            "barn",
            number,
            NOW + number,
            counts={"clients": 3, "stored": 2},
            totals={"received": received, "sent": received * 10, "dropped": 5},
            links=[link("house", queued=7), link("mill"), link("tower", state="down", round_trip_ms=None)],
            hot=[["farm/wind", 19, "here"], ["farm/soil", 40, "tower"]],
            events=[{"number": 1, "at": NOW, "kind": "joined", "text": "house is a neighbour"}],
        )
    tell(fabric, "house", 1, NOW + 2, at=NOW + 1, problem="the disk is full")
    tell(fabric, "attic", 1, NOW - 60, kind="mobile")
    return fabric


def test_a_node_whose_room_is_nearly_full_says_so() -> None:
    fabric = Fabric()
    backlog = {"readers": 1, "messages": 9, "bytes": 85, "limit": 100}
    tell(fabric, "barn", 1, NOW, backlog=backlog)
    tell(fabric, "house", 1, NOW, backlog={**backlog, "bytes": 60})
    text = text_of(render(take_snapshot(fabric, NOW), 200, None))
    assert text.count("their room") == 1
    assert "waiting messages take 85% of their room" in text


def text_of(lines: list[ScreenLine]) -> str:
    return "\n".join(line.text for line in lines)


# What is shown


def test_a_link_is_one_though_both_of_its_ends_tell_of_it() -> None:
    fabric = Fabric()
    tell(fabric, "barn", 1, NOW, links=[link("house"), link("mill", state="down")])
    tell(fabric, "house", 1, NOW, links=[link("barn", state="down")])
    tell(fabric, "mill", 1, NOW, links=[link("barn", state="down")])
    assert "3 nodes, 2 links (2 not up), " in render(take_snapshot(fabric, NOW), 200, None)[0].text


def test_everything_is_shown(farm: Fabric) -> None:
    lines = render(take_snapshot(farm, NOW + 2), 200, None)
    rows = [re.split(r"  +", line.text) for line in lines]
    assert "3 nodes (1 silent), 3 links (1 not up), messages in 40/s, out 400/s" in lines[0].text
    assert ["barn", "node", "1m42s", "3", "40", "400", "4.0 ms", "9", "5"] in rows
    assert ["attic", "mobile", "1m41s", "0", "-", "-", "4.0 ms", "0", "0", "silent for 1m02s"] in rows
    assert ["house", "node", "1m41s", "0", "-", "-", "1000 ms", "0", "0", "the disk is full"] in rows
    assert ["barn", "house", "neighbour", "up", "1.2 ms", "7", "house"] in rows
    assert ["barn", "tower", "neighbour", "down", "-", "0", "tower"] in rows
    hot = [row for row in rows if row[0].startswith("farm/")]
    assert hot == [["farm/soil", "40", "barn", "tower"], ["farm/wind", "19", "barn", "here"]]
    assert any(row[1:] == ["barn", "joined", "house is a neighbour"] for row in rows)
    heading, *nodes = (line.text for line in lines[2:6])
    assert {text.index("4.0 ms") for text in nodes if "4.0 ms" in text} == {heading.index("DELAY")}


def test_trouble_is_seen(farm: Fabric) -> None:
    styles = {
        line.text.split()[0]: line.style
        for line in render(take_snapshot(farm, NOW + 2), 200, None)
        if line.text
    }
    assert (styles["house"], styles["attic"]) == (BAD, QUIET)
    down = [line.style for line in render(take_snapshot(farm, NOW + 2), 200, None) if " down " in line.text]
    assert down == [BAD]


@pytest.mark.parametrize("sort", top_view.SORTS)
def test_nodes_are_sorted(sort: str, farm: Fabric) -> None:
    first = {"name": "attic", "delay": "house"}.get(sort, "barn")
    assert take_snapshot(farm, NOW + 2, sort).nodes[0].node == first


def test_a_fabric_of_which_nothing_is_known() -> None:
    lines = render(take_snapshot(Fabric(), NOW), 80, None)
    assert "0 nodes, 0 links" in lines[0].text
    assert [line.text for line in lines].count("none") == 4


@pytest.mark.parametrize("view", top_view.VIEWS)
@pytest.mark.parametrize(("width", "height"), [(80, 24), (20, 5), (200, 60), (1, 1), (40, 2)])
def test_it_never_leaves_the_screen(width: int, height: int, view: str) -> None:
    fabric = Fabric()
    for number in range(60):
        tell(
            fabric,
            f"node-{number}-木" + "x" * number,
            links=[link(f"node-{number - 1}")],
            hot=[[f"topic/{number}/" + "é" * 90, number, "here"]],
            events=[{"number": 1, "at": NOW, "kind": "joined", "text": "木" * 100}],
        )
    lines = render(take_snapshot(fabric, NOW), width, height, view=view, note="a note")
    assert len(lines) <= height
    assert all(cells(line.text) <= width for line in lines)


def test_each_part_gets_a_share_of_a_small_screen() -> None:
    fabric = Fabric()
    for number in range(60):
        tell(fabric, f"node-{number:02}", hot=[[f"topic/{number}", number, "here"]], links=[link("x")])
    shown = text_of(render(take_snapshot(fabric, NOW), 80, 30))
    for heading in ("NODES", "LINKS", "HOT TOPICS", "EVENTS"):
        assert heading in shown
    more = re.search(r"… (\d+) more", shown)
    assert more is not None
    assert shown[: more.start()].count("\nnode-") + int(more[1]) == 60
    nodes = render(take_snapshot(fabric, NOW), 80, 30, view="nodes")
    assert sum(line.text.startswith("node-") for line in nodes) == 27


def test_one_part_is_scrolled_to_its_end_and_no_further() -> None:
    fabric = Fabric()
    for number in range(60):
        tell(fabric, f"node-{number:02}")
    snapshot = take_snapshot(fabric, NOW)
    assert render(snapshot, 80, 13, view="nodes", offset=5)[3].text.startswith("node-05")
    end = render(snapshot, 80, 13, view="nodes", offset=1_000)
    assert end[-1].text.startswith("node-59")
    assert len(end) == 13


def test_what_comes_from_the_network_moves_no_cursor() -> None:
    """Every text of a status, with everything that a terminal would obey."""
    evil = "\x1b[2J\x1b]0;title\x07\r\n\x9b31m\u202e\u2028x"
    fabric = Fabric()
    fabric.receive(
        f"$hedgerow/status/{quote_node_id(evil)}",
        json.dumps(
            {
                "version": 1,
                "number": 1,
                "at": NOW,
                "kind": evil,
                "problem": evil,
                "links": [link(evil, kind=evil, state=evil)],
                "hot": [[evil, 1, evil]],
                "events": [{"number": 1, "at": NOW, "kind": evil, "text": evil}],
            }
        ).encode(),
        NOW,
    )
    assert fabric.nodes
    snapshot = take_snapshot(fabric, NOW)
    assert all(line.text.isprintable() for line in render(snapshot, 300, None))
    assert text_of(render(snapshot, 300, None)).count("?[2J?]0;title") >= 8


def test_times_and_figures_that_others_made_up(farm: Fabric) -> None:
    tell(
        farm,
        "liar",
        uptime_s=1e18,
        links=[link("x", round_trip_ms=9e18, queued=1 << 62)],
        hot=[["t", 9e18, "here"]],
        events=[{"number": 1, "at": 1e17, "kind": "other", "text": "later"}],
    )
    assert "liar" in text_of(render(take_snapshot(farm, NOW), 200, None))


def test_cut_counts_cells() -> None:
    assert cut("hedgerow", 8) == "hedgerow"
    assert cut("hedgerow", 5) == "hedg…"
    assert cut("木木木", 6) == "木木木"
    assert cut("木木木", 5) == "木木…"
    assert cut("木木木", 4) == "木…"
    assert cut("x", 0) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (0.25, "0.2"),
        (1, "1"),
        (2.996, "3"),
        (9_999, "9999"),
        (12_345, "12.35k"),
        (5e9, "5G"),
    ],
)
def test_figures(value: float | None, text: str) -> None:
    assert top_view.figure(value) == text


def test_durations() -> None:
    assert [top_view.duration(each) for each in (-1, 59, 61, 3_700, 90_000)] == [
        "0s",
        "59s",
        "1m01s",
        "1h01m",
        "1d01h",
    ]


def test_keys() -> None:
    assert top.read_keys("s\x1b[A\x1bOBx q") == ["sort", "up", "down", "hold", "quit"]
    assert top.read_keys("\x1b") == []


# The program


def run(*commands: Sequence[str]) -> list[tuple[int, str, str]]:
    """The status of each `hedgerow top`, what it printed and what it said; all run at once, as each waits."""
    processes = [
        subprocess.Popen(
            [*HEDGEROW, "top", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for words in commands
    ]
    try:
        said = [process.communicate(timeout=PATIENCE_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [(process.returncode, *each) for process, each in zip(processes, said, strict=True)]


def test_one_snapshot_of_a_fabric(hedgerow_node: StartNode) -> None:
    house = hedgerow_node("--id", "house", "--neighbour", "mqtt://127.0.0.1:1")
    barn = hedgerow_node("--id", "barn", "--neighbour", house.urls["mqtt"])
    wait_until(lambda: "barn" in house.log, "the link")
    url = barn.urls["mqtt"]
    (status, output, errors), plain = run([url, "--json"], [url])  # no terminal: as --once
    assert (status, errors) == (0, "")
    told = json.loads(output)
    assert {"barn", "house"} == {node["node"] for node in told["nodes"]}
    assert all(node["received_per_s"] is not None for node in told["nodes"])
    assert ("barn", "house", "up") in {(each["node"], each["to"], each["state"]) for each in told["links"]}

    status, output, errors = plain
    assert (status, errors) == (0, "")
    assert "\x1b" not in output
    assert re.search(r"^NODES ", output, re.MULTILINE)
    assert re.search(r"^house +node ", output, re.MULTILINE)


def test_a_broker_that_is_not_ours(mosquitto: StartMosquitto, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"mqtt://127.0.0.1:{mosquitto('sys_interval 1')}"
    assert cli.main(["top", url, "--once"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f'hedgerow top: {url} is no Hedgerow node, but "mosquitto version ')
    assert f"hedgerow dash {url}" in said.err


def test_a_right_that_is_missing(
    hedgerow_node: StartNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = tmp_path / "acl"
    rules.write_text("topic read farm/#\n")
    url = hedgerow_node("--acl", str(rules)).urls["mqtt"]
    assert cli.main(["top", url, "--once"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"hedgerow top: {url} told nothing of itself in 5 s")
    assert "whoever connects without a name needs: topic read $hedgerow/status/#" in said.err


def test_only_mqtt_can_be_watched(capsys: pytest.CaptureFixture[str]) -> None:
    for url in ("udp://localhost", "mqtt://localhost/topic"):
        assert cli.main(["top", url]) == 2
        assert "a fabric is watched over MQTT, by a URL without a topic" in capsys.readouterr().err


# On a terminal


@pytest.fixture(scope="module")
def barn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a node that is only watched."""
    with run_node(tmp_path_factory.mktemp("barn"), "--id", "barn") as node:
        yield node.urls["mqtt"]


class Person:
    """Who runs a command on a terminal of their own, sees what it writes, and types."""

    def __init__(self, master: int, process: subprocess.Popen[bytes]) -> None:
        self.master, self.process = master, process
        self.seen = b""

    def sees(self, text: str) -> bool:
        while select.select([self.master], [], [], 0)[0]:
            try:
                data = os.read(self.master, 65_536)
            except OSError:  # the last program has left the terminal
                break
            if not data:
                break
            self.seen += data
        return text.encode() in self.seen

    def last_size(self) -> tuple[int, int]:
        """The widest line, and the number of lines, of what was drawn last."""
        self.sees("")
        drawn = self.seen.decode(errors="replace").rpartition("\x1b[J")[0].rpartition("\x1b[H")[2]
        lines = re.sub(r"\x1b\[[0-9;]*[A-Za-z]|\r", "", drawn).split("\n")
        return max(map(cells, lines)), len(lines)

    def types(self, text: str) -> None:
        self.seen = b""
        os.write(self.master, text.encode())


@contextmanager
def on_a_terminal(
    *words: str, lines: int = 24, columns: int = 100, term: str = "xterm"
) -> Iterator[tuple[Person, int]]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    process = subprocess.Popen(
        [*HEDGEROW, "top", *words],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": term},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one system call
    )
    try:
        yield Person(master, process), slave
    finally:
        process.kill()
        process.wait()
        os.close(master)
        os.close(slave)


@pytest.mark.parametrize("end", ["q", "\x03", "\x1c", "SIGTERM", "SIGHUP"])
def test_the_terminal_is_as_it_was(end: str, barn: str) -> None:
    with on_a_terminal(barn) as (person, slave):
        before = termios.tcgetattr(slave)
        wait_until(lambda: person.sees("space hold"), "the screen")
        assert person.seen.startswith(ENTER.encode())
        assert person.sees("barn")
        assert termios.tcgetattr(slave) != before
        if end.startswith("SIG"):
            person.process.send_signal(signal.Signals[end])
        else:
            person.types(end)
        wait_until(lambda: person.process.poll() is not None, "top to end")
        assert person.process.returncode == 0
        assert person.sees(LEAVE)
        assert person.seen.endswith(LEAVE.encode())
        assert termios.tcgetattr(slave) == before


def test_a_terminal_without_a_cursor_to_move_gets_plain_text(barn: str) -> None:
    with on_a_terminal(barn, term="dumb") as (person, _):
        wait_until(lambda: person.process.poll() is not None, "top to end")
        assert person.sees("barn")
        assert not person.sees("\x1b")


def test_keys_change_what_is_seen(barn: str) -> None:
    with on_a_terminal(barn) as (person, _):
        wait_until(lambda: person.sees("sorted by name, all"), "the screen")
        person.types("s")
        wait_until(lambda: person.sees("sorted by in, all"), "another order")
        person.types("v")
        wait_until(lambda: person.sees("sorted by in, nodes"), "another view")
        assert not person.sees("HOT TOPICS")
        person.types(" ")
        wait_until(lambda: person.sees("held"), "it to stand still")
        person.types(" ")
        wait_until(lambda: person.sees("sorted by in"), "it to go on")


def test_a_terminal_that_is_resized(barn: str) -> None:
    with on_a_terminal(barn, columns=100) as (person, slave):
        wait_until(lambda: person.sees("space hold"), "the screen")
        person.seen = b""
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 20, 0, 0))
        wait_until(lambda: person.last_size() == (20, 10), "a screen of the new size")


def test_ctrl_z_gives_the_terminal_back_for_a_while(barn: str) -> None:
    with on_a_terminal(barn) as (person, _):
        wait_until(lambda: person.sees("space hold"), "the screen")
        person.types("\x1a")
        stopped = Path(f"/proc/{person.process.pid}/stat")
        wait_until(lambda: stopped.read_text().rpartition(")")[2].split()[0] == "T", "it to stop")
        assert person.sees(LEAVE)
        person.seen = b""
        person.process.send_signal(signal.SIGCONT)
        wait_until(lambda: person.sees(ENTER) and person.sees("space hold"), "the screen again")


def test_a_node_that_goes_away_is_told_on_the_screen(hedgerow_node: StartNode) -> None:
    node = hedgerow_node("--id", "barn")
    with on_a_terminal(node.urls["mqtt"]) as (person, _):
        wait_until(lambda: person.sees("space hold"), "the screen")
        node.stop()
        wait_until(lambda: person.sees("silent for "), "the node to be silent", 20)
        began_at = time.monotonic()
        person.types("q")
        wait_until(lambda: person.process.poll() is not None, "top to end")
        assert time.monotonic() - began_at < 5
        node.start()
