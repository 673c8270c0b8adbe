"""The brokers under measurement, as child processes on free loopback ports.

`BROKERS` says for each how it is started and spoken to; `running` starts one, waits until it has
answered a client, and ends it however the block is left. Should this process itself be killed, the
kernel ends its children (Linux; elsewhere an interrupt or SIGTERM does).
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hedgerow.bench import BenchError
from hedgerow.bench.wire import Dialect, Mqtt, Nats

OURS = "hedgerow"
READY_S = 20.0
_STOP_S = 5.0
_POLL_S = 0.002
_ATTEMPTS = 3
_PR_SET_PDEATHSIG = 1
_LISTENING = re.compile(rb"^listening mqtt://127\.0\.0\.1:(\d+)\s", re.MULTILINE)
_PAGE_BYTES = resource.getpagesize()

# Everything that could hold Mosquitto back is off: nothing is written to disk or to a log, nothing
# waits for Nagle, no queue is bounded, and no delivery waits for a place in flight.
_MOSQUITTO = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence false
set_tcp_nodelay true
max_queued_messages 0
max_inflight_messages 0
connection_messages false
log_dest none
"""
_AMQTT = """\
listeners:
  default:
    type: tcp
    bind: 127.0.0.1:{port}
    max_connections: 100000
plugins:
  amqtt.plugins.authentication.AnonymousAuthPlugin:
    allow_anonymous: true
"""
_AEDES = """\
const [port] = process.argv.slice(-1)
const { Aedes } = await import('aedes')
const broker = await Aedes.createBroker()
const { createServer } = await import('net')
createServer({ noDelay: true }, broker.handle).listen(Number(port), '127.0.0.1')
"""


@dataclass(frozen=True)
class Broker:
    name: str
    dialect: Dialect
    version: Callable[[], str | None]
    """None where it is not installed."""
    command: Callable[[int, Path], list[str]]
    """From the port and an empty directory of its own."""
    directory: Callable[[], Path | None] = lambda: None
    """Where it must be started, if that matters."""
    announces_port: bool = False
    """It chooses a port itself and says which, on a line of its standard output."""


# Debian puts brokers where a user's PATH does not lead.
_SBIN = ("/usr/local/sbin", "/usr/sbin")
# What the system lacks may have been fetched here (`tools/install-strangers`).
_FETCHED = (Path.cwd() / ".cache", Path(__file__).parents[3] / ".cache")


def _program(name: str) -> str | None:
    fetched = (str(cache / "strangers/bin") for cache in _FETCHED)
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), *_SBIN, *fetched)))


def _program_version(name: str, option: str) -> str | None:
    program = _program(name)
    if program is None:
        return None
    answer = subprocess.run([program, option], capture_output=True, text=True, timeout=READY_S, check=False)
    found = re.search(r"\d+\.\d+[\w.]*", answer.stdout + answer.stderr)
    return found[0] if found else "unknown"


def _package_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _aedes_directory() -> Path | None:
    return next((cache / "node" for cache in _FETCHED if (cache / "node/node_modules/aedes").is_dir()), None)


def _aedes_version() -> str | None:
    directory = _aedes_directory()
    if directory is None or _program("node") is None:
        return None
    return str(json.loads((directory / "node_modules/aedes/package.json").read_text())["version"])


def _hedgerow_command(port: int, directory: Path) -> list[str]:
    address = f"127.0.0.1:{port}"
    return [sys.executable, "-m", "hedgerow", "up", "--mqtt", address, "--ws", "off", "--http", "off"]


def _mosquitto_command(port: int, directory: Path) -> list[str]:
    (directory / "mosquitto.conf").write_text(_MOSQUITTO.format(port=port))
    return [_program("mosquitto") or "", "-c", str(directory / "mosquitto.conf")]


def _nats_command(port: int, directory: Path) -> list[str]:
    return [_program("nats-server") or "", "-a", "127.0.0.1", "-p", str(port)]


def _amqtt_command(port: int, directory: Path) -> list[str]:
    (directory / "amqtt.yaml").write_text(_AMQTT.format(port=port))
    start = "from amqtt.scripts.broker_script import main; main()"
    return [sys.executable, "-c", start, "-c", str(directory / "amqtt.yaml")]


def _aedes_command(port: int, directory: Path) -> list[str]:
    return [_program("node") or "", "--input-type=module", "-e", _AEDES, "--", str(port)]


def _ceiling_command(port: int, directory: Path) -> list[str]:
    return [sys.executable, "-m", "hedgerow.bench.forwarder", str(port)]


BROKERS = {
    broker.name: broker
    for broker in (
        Broker(
            OURS,
            Mqtt(),
            lambda: _package_version("hedgerow") or "source",
            _hedgerow_command,
            announces_port=True,
        ),
        Broker("mosquitto", Mqtt(), lambda: _program_version("mosquitto", "-h"), _mosquitto_command),
        Broker("nats-server", Nats(), lambda: _program_version("nats-server", "--version"), _nats_command),
        Broker("amqtt", Mqtt(), lambda: _package_version("amqtt"), _amqtt_command),
        Broker("aedes", Mqtt(), _aedes_version, _aedes_command, _aedes_directory),
        Broker("ceiling", Mqtt(), lambda: "", _ceiling_command),
    )
}


class Child:
    """A broker that runs. `ready_s` is the time from its start to its first answer to a client."""

    def __init__(self, broker: Broker, port: int, pid: int, ready_s: float) -> None:
        self.dialect = broker.dialect
        self.port = port
        self.pid = pid
        self.ready_s = ready_s

    def resident_bytes(self) -> int:
        """Of the process and its descendants."""
        pages = [Path(f"/proc/{pid}/statm").read_text().split()[1] for pid in _tree(self.pid)]
        return sum(map(int, pages)) * _PAGE_BYTES

    def processor_s(self) -> float:
        """Processor time used so far, user and system."""
        ticks = 0
        for pid in _tree(self.pid):
            # The second field, the program's name, may contain spaces; it ends with the last bracket.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from _tree(int(child))


def raise_open_files() -> int:
    """Allow this process and its children as many open files as the hard limit says; that many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


@contextmanager
def running(broker: Broker, directory: Path, arguments: Sequence[str] = ()) -> Iterator[Child]:
    """The broker, ready, started in an empty `directory` that this makes; `arguments` follow its own."""
    directory.mkdir(parents=True)
    for attempt in range(_ATTEMPTS):
        # Another process may take the port between our choice and the broker's bind: then once more.
        port = 0 if broker.announces_port else _free_port()
        command = [*broker.command(port, directory), *arguments]
        started_at = time.perf_counter()
        with _process(command, directory, broker.directory()) as process:
            try:
                port = _wait_until_ready(broker, port, process, directory)
            except BenchError:
                if attempt + 1 < _ATTEMPTS and process.poll() is not None:
                    continue
                raise
            yield Child(broker, port, process.pid, time.perf_counter() - started_at)
            return


@contextmanager
def _process(command: list[str], directory: Path, start_in: Path | None) -> Iterator[subprocess.Popen[bytes]]:
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def end_with_parent() -> None:  # safe after fork: this program has one thread
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    with (directory / "output").open("wb") as output, (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=start_in,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=log,
            preexec_fn=end_with_parent,  # noqa: PLW1509
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(broker: Broker, port: int, process: subprocess.Popen[bytes], directory: Path) -> int:
    """Until a client has been let in; the port."""
    give_up_at = time.perf_counter() + READY_S
    while time.perf_counter() < give_up_at:
        if process.poll() is not None:
            raise BenchError(f"ended with status {process.returncode} when started: {_last_line(directory)}")
        if port == 0 and (found := _LISTENING.search((directory / "output").read_bytes())):
            port = int(found[1])
        if port != 0:
            try:
                broker.dialect.connect(port).close()
            except ConnectionRefusedError:
                pass
            else:
                return port
        time.sleep(_POLL_S)
    raise BenchError(f"not ready within {READY_S:g} s: {_last_line(directory)}")


def _last_line(directory: Path) -> str:
    said = [(directory / name).read_text(errors="replace").strip() for name in ("output", "log")]
    lines = "\n".join(said).strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
