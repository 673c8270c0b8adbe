"""The units are such that systemd takes them, and that the programs in them take their options."""

from __future__ import annotations

import argparse
import ctypes.util
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from hedgerow.cli import EXIT_USAGE, federate, up
from hedgerow.federation.config import FederationConfig
from hedgerow.home_assistant.config import HomeAssistantConfig
from hedgerow.journal.config import JournalConfig
from hedgerow.kinds import NODE, SIDECAR
from hedgerow.node.config_loading import NodeKind, load_config
from hedgerow.node.passwords import set_password
from hedgerow_workshop.programs import free_udp_port
from tests.programs import run_node, wait_until
from tests.waiting import PATIENCE_S

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
UNITS = {"hedgerow.service": (up, NODE), "hedgerow-federate.service": (federate, SIDECAR)}
EXPOSURE = 20  # of 100, as systemd-analyze counts; 92 without any hardening


def settings(unit: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "systemd" / unit).read_text().splitlines():
        if match := re.fullmatch(r"([A-Za-z]+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


@pytest.fixture(params=UNITS)
def unit(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def runnable(unit: str, tmp_path: Path) -> Path:
    """The same with a program that this machine has: systemd asks whether it is there."""
    path = tmp_path / unit
    path.write_text(
        (DEPLOY / "systemd" / unit).read_text().replace("/opt/hedgerow/bin/hedgerow", "/bin/true")
    )
    return path


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd is not here")
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_systemd_takes_the_unit(runnable: Path) -> None:
    done = analyze("verify", str(runnable))
    # What it says of units that are not ours is not ours to mend.
    said = [line for line in done.stderr.splitlines() if runnable.name in line]
    assert not said
    assert done.returncode == 0


def test_systemd_finds_what_is_wrong(runnable: Path) -> None:
    runnable.write_text(runnable.read_text().replace("ProtectSystem=strict", "ProtectSystem=sometimes"))
    assert runnable.name in analyze("verify", str(runnable)).stderr


def test_little_of_the_system_is_exposed(runnable: Path) -> None:
    done = analyze("security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager", str(runnable))
    assert done.returncode == 0, done.stdout


def test_the_command_takes_its_options(unit: str) -> None:
    module, _ = UNITS[unit]
    program, command, *words = shlex.split(settings(unit)["ExecStart"][0])
    assert Path(program).name == "hedgerow"
    assert command == module.__name__.rpartition(".")[2]
    parser = argparse.ArgumentParser(exit_on_error=False)
    module.add_arguments(parser)
    given = parser.parse_args(words)
    state = settings(unit)["StateDirectory"][0]
    assert vars(given)["data"] == f"/var/lib/{state}"
    assert given.config.parent == Path("/etc") / settings(unit)["ConfigurationDirectory"][0]
    assert not given.words


def test_a_wrong_configuration_is_not_tried_again(unit: str) -> None:
    assert settings(unit)["RestartPreventExitStatus"] == [str(EXIT_USAGE)]


def test_reload_is_the_signal_that_the_node_knows(unit: str) -> None:
    assert settings(unit)["ExecReload"] == ["/bin/kill -HUP $MAINPID"]


def test_the_user_of_the_units_is_declared(unit: str) -> None:
    declared = (DEPLOY / "systemd/hedgerow.sysusers").read_text()
    assert f"\nu {settings(unit)['User'][0]} " in declared


@pytest.mark.parametrize(("name", "kind"), [("hedgerow.toml", NODE), ("federate.toml", SIDECAR)])
def test_the_example_configurations_load(name: str, kind: NodeKind) -> None:
    assert load_config(DEPLOY / name, {}, kind).id is not None


def test_what_is_commented_out_in_the_example_loads_too(tmp_path: Path) -> None:
    text = (DEPLOY / "hedgerow.toml").read_text()
    text = re.sub(r"^# (?=\[|[a-z_]+ = )", "", text, flags=re.MULTILINE)
    for name in ("passwords", "acl"):
        (tmp_path / name).touch()
    (tmp_path / "hedgerow.toml").write_text(text)
    config = load_config(tmp_path / "hedgerow.toml", {"data": str(tmp_path)}, NODE)
    assert config.of(HomeAssistantConfig).prefix == "homeassistant"
    assert config.of(JournalConfig).topics == ("farm/#",)
    assert config.administrators == {"alice"}
    assert config.of(FederationConfig).is_enabled


def confined(unit: str) -> tuple[str, ...]:
    if shutil.which("systemd-analyze") is None or ctypes.util.find_library("seccomp") is None:
        pytest.skip("systemd or libseccomp is not here")
    return sys.executable, str(Path(__file__).with_name("confined.py")), str(DEPLOY / "systemd" / unit)


def test_a_node_needs_no_more_system_calls_than_the_unit_leaves_it(tmp_path: Path) -> None:
    """With every part that it can have on one machine; a call beyond the filter would end it."""
    set_password(tmp_path / "passwords", "alice", b"secret", create=True, iterations=1_000)
    parts = ["--data", "data", "--journal", "#", "--federation", "--mdns", "--home-assistant"]
    parts += ["--multicast", "field/#", "--multicast-interface", "lo", "--multicast-ip", "4"]
    parts += ["--multicast-port", str(free_udp_port()), "--passwords", "passwords", "--sys-interval", "1"]
    for scheme in ("ws", "http", "udp"):
        parts += [f"--{scheme}", "127.0.0.1:0"]
    with run_node(tmp_path, *parts, wrapper=confined("hedgerow.service")) as node:
        url = f"mqtt://alice:secret@127.0.0.1:{node.port()}"
        pub = [sys.executable, "-m", "hedgerow", "pub", url, "field/a", "1", "-q", "2", "-r"]
        subprocess.run(pub, check=True, timeout=PATIENCE_S)
        with urllib.request.urlopen(
            f"http://127.0.0.1:{node.port('http')}/metrics", timeout=PATIENCE_S
        ) as page:
            assert b"process_max_fds" in page.read()
        assert node.process is not None
        node.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "reloaded" in node.log, "the files to be read again")
        wait_until(lambda: "multicast DNS announces" in node.log, "multicast DNS")


def test_a_call_beyond_the_filter_would_be_noticed(unit: str) -> None:
    command = [*confined(unit), sys.executable, "-c", "import socket; socket.socket(socket.AF_PACKET)"]
    assert subprocess.run(command, check=False, timeout=PATIENCE_S).returncode == -signal.SIGSYS
    command[-1] = "import os; os.nice(1)"
    assert subprocess.run(command, check=False, timeout=PATIENCE_S).returncode == -signal.SIGSYS
