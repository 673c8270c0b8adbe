"""Programs that tests run beside themselves: a Hedgerow node, Mosquitto, Node.js scripts.

Each is a process of its own on loopback, is waited for until it serves, and is ended by whoever
started it. A program that is not installed skips the test and says so.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hedgerow_workshop.programs import find_program, free_port
from tests.forks import start_hedgerow
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parent.parent
FETCHED = ROOT / ".cache"  # where tools/install-strangers puts what the system lacks
STOP_S = 15.0
ALONE = ("env",)  # a wrapper that changes nothing, for a node that is to have an interpreter of its own

# Starts a program as `nohup` and the background of a shell without job control do.
IGNORING_SIGNALS = ("sh", "-c", 'trap "" HUP INT QUIT; exec "$@"', "sh")


def processor_s(pid: int) -> float:
    """What a process has worked so far: on a busy machine it waits for longer than it works."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, after_name[11:13])) / os.sysconf("SC_CLK_TCK")  # utime and stime, proc(5)


def need_program(name: str) -> str:
    """Where a program is; skips the test when it is nowhere."""
    program = find_program(name)
    if program is None:
        pytest.skip(f"{name} is not installed; `make test` fetches it where it can")
    return program


def need_node_package(name: str) -> dict[str, str]:
    """The environment in which a Node.js script may `require(name)`; skips the test when it cannot."""
    need_program("node")
    modules = FETCHED / "node/node_modules"
    if not (modules / name).is_dir():
        pytest.skip(f"the Node package {name} is not installed; `make test` fetches it where it can")
    return {**os.environ, "NODE_PATH": str(modules)}


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Return as soon as the condition holds; fail the test, naming `what`, when it does not in time."""
    give_up_at = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > give_up_at:
            pytest.fail(f"waited {timeout_s:g} s in vain for {what}")
        time.sleep(0.01)


def end(process: subprocess.Popen[bytes]) -> int:
    """Ask the process to end, and fail the test when it has to be forced. Returns the exit status."""
    process.terminate()
    try:
        return process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        pytest.fail(f"{process.args!r} did not end within {STOP_S:g} s of SIGTERM")


@contextmanager
def run_mosquitto(directory: Path, *lines: str) -> Iterator[int]:
    """A real Mosquitto with these configuration lines; gives the port on which it listens."""
    program = need_program("mosquitto")
    for _ in range(5):  # Someone else may take the port between our look and Mosquitto's.
        port = free_port()
        process = start_mosquitto(program, directory, port, lines)
        if process is not None:
            break
    else:
        pytest.fail("Mosquitto found no free port")
    try:
        yield port
    finally:
        process.kill()  # It hears other signals only each 0.1 s, and nothing that it keeps is read again.
        process.wait()


def start_mosquitto(
    program: str, directory: Path, port: int, lines: tuple[str, ...]
) -> subprocess.Popen[bytes] | None:
    """The process once it serves, or None when the port was taken."""
    first = ["log_dest stderr", "log_type all"]
    if os.geteuid() == 0:
        first.append("user root")  # Otherwise it gives up root and cannot read the test's folder.
    if not any(line.startswith(("allow_anonymous", "password_file")) for line in lines):
        first.append("allow_anonymous true")
    config, log = directory / "mosquitto.conf", directory / "mosquitto.log"
    config.write_text("\n".join([*first, f"listener {port} 127.0.0.1", *lines, ""]))
    with log.open("wb") as output:
        process = subprocess.Popen([program, "-c", str(config)], stdout=output, stderr=output, cwd=directory)
    # Not by connecting: that would also reach whoever took the port.
    wait_until(lambda: process.poll() is not None or b" running" in log.read_bytes(), "Mosquitto to run")
    if process.poll() is None:
        return process
    if b"Address already in use" not in log.read_bytes():
        pytest.fail(f"Mosquitto ended with {process.returncode}:\n{log.read_text()}")
    return None


class Node:
    """A `hedgerow up` process.

    Without `--config` it listens on 127.0.0.1 for MQTT, on a port chosen by the system, and on
    nothing else unless told: `Node(directory, "--ws", "127.0.0.1:0")`. Started again after `stop`
    or `kill9`, it listens on the ports that it had, so that clients find it. A `wrapper` is a command
    that becomes the node, such as `("unshare", "--mount")`; without one, the node is forked (forks.py).
    """

    SCHEMES = ("mqtt", "mqtts", "ws", "wss", "http", "udp")

    def __init__(self, directory: Path, *arguments: str, wrapper: tuple[str, ...] = ()) -> None:
        self.directory = directory
        self._wrapper = wrapper
        self.process: subprocess.Popen[bytes] | None = None
        self.urls: dict[str, str] = {}
        self._starts = 0
        self._arguments = list(arguments)
        self._addresses: dict[str, str] = {}
        if not any(argument.split("=")[0] == "--config" for argument in arguments):
            self._addresses = dict.fromkeys(self.SCHEMES, "off") | {"mqtt": "127.0.0.1:0"}
        for scheme in self.SCHEMES:
            if f"--{scheme}" in self._arguments:
                at = self._arguments.index(f"--{scheme}")
                self._addresses[scheme] = self._arguments[at + 1]
                del self._arguments[at : at + 2]

    def start(self) -> None:
        """Start the process and return when it has printed every URL that was asked for."""
        assert self.process is None, "the node runs already"
        self._starts += 1
        flags = [word for scheme, address in self._addresses.items() for word in (f"--{scheme}", address)]
        words = ["up", *flags, *self._arguments]
        command = [*self._wrapper, sys.executable, "-m", "hedgerow", *words]
        with self._log_path.open("wb") as log:
            if self._wrapper:
                self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.directory)
            else:
                self.process = start_hedgerow(words, stdout=log, stderr=log, cwd=self.directory)
        wanted = {scheme for scheme, address in self._addresses.items() if address != "off"} or {"mqtt"}
        wait_until(lambda: self._ended or wanted <= self._read_urls().keys(), f"{command} to print its URLs")
        if self._ended:
            status, self.process = self.process.returncode, None
            pytest.fail(f"{command} ended with {status}:\n{self.log}")
        self.urls = self._read_urls()
        for scheme, url in self.urls.items():
            if scheme in self.SCHEMES:  # A multicast URL names an interface, no port that it had to get.
                self._addresses[scheme] = urlsplit(url).netloc

    def port(self, scheme: str = "mqtt") -> int:
        port = urlsplit(self.urls[scheme]).port
        assert port is not None
        return port

    def stop(self) -> None:
        """End the node as its user would; a status other than 0 fails the test."""
        assert self.process is not None
        process, self.process = self.process, None
        status = end(process)
        if status != 0:
            pytest.fail(f"the node ended with {status}:\n{self.log}")

    def kill9(self) -> None:
        """End the node as a power cut would: it gets to write nothing more."""
        assert self.process is not None
        process, self.process = self.process, None
        process.send_signal(signal.SIGKILL)
        process.wait()

    def restart(self) -> None:
        self.stop()
        self.start()

    @property
    def log(self) -> str:
        """What the node has printed since it was last started."""
        return self._log_path.read_text(errors="replace")

    @property
    def _log_path(self) -> Path:
        return self.directory / f"node-{self._starts}.log"

    @property
    def _ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def _read_urls(self) -> dict[str, str]:
        lines = [line for line in self.log.splitlines(keepends=True) if line.startswith("listening ")]
        urls = [line.split()[1] for line in lines if line.endswith("\n")]
        return {urlsplit(url).scheme: url for url in reversed(urls)}


@contextmanager
def run_node(directory: Path, *arguments: str, wrapper: tuple[str, ...] = ()) -> Iterator[Node]:
    """A node that serves; at the end it must have stopped cleanly and never have printed a traceback."""
    node = Node(directory, *arguments, wrapper=wrapper)
    try:
        node.start()
        yield node
    finally:
        if node.process is not None:
            if node.process.poll() is None:
                node.stop()
            else:
                pytest.fail(f"the node ended by itself with {node.process.returncode}:\n{node.log}")
        for log in sorted(directory.glob("node-*.log")):
            if "Traceback (most recent call last)" in log.read_text(errors="replace"):
                pytest.fail(f"the node printed a traceback:\n{log.read_text(errors='replace')}")
