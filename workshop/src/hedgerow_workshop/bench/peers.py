"""The brokers under measurement, as child processes on free loopback ports.

`BROKERS` says for each how it is started and spoken to; `running` starts one, waits until it has
answered a client, and ends it however the block is left (`pipeline/program.py`).
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hedgerow.pipeline.program import STOP_S, Program
from hedgerow_workshop.bench import BenchError
from hedgerow_workshop.bench.wire import Dialect, Mqtt, Nats
from hedgerow_workshop.programs import FETCHED, descendants, find_program, free_port, processor_s

OURS = "hedgerow"
READY_S = 20.0
_POLL_S = 0.002
_ATTEMPTS = 3
_LISTENING = re.compile(rb"^listening (?:mqtt|udp)://127\.0\.0\.1:(\d+)\s", re.MULTILINE)
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
class BrokerKind:
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


def program_version(name: str, option: str) -> str | None:
    program = find_program(name)
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


def _aedes_directory(caches: Sequence[Path] = FETCHED) -> Path | None:
    return next((cache / "node" for cache in caches if (cache / "node/node_modules/aedes").is_dir()), None)


def aedes_version(caches: Sequence[Path] = FETCHED) -> str | None:
    directory = _aedes_directory(caches)
    if directory is None or find_program("node") is None:
        return None
    return str(json.loads((directory / "node_modules/aedes/package.json").read_text())["version"])


def _hedgerow_command(port: int, directory: Path) -> list[str]:
    address = f"127.0.0.1:{port}"
    return [sys.executable, "-m", "hedgerow", "up", "--mqtt", address, "--ws", "off", "--http", "off"]


def _mosquitto_command(port: int, directory: Path) -> list[str]:
    (directory / "mosquitto.conf").write_text(_MOSQUITTO.format(port=port))
    return [find_program("mosquitto") or "", "-c", str(directory / "mosquitto.conf")]


def _nats_command(port: int, directory: Path) -> list[str]:
    return [find_program("nats-server") or "", "-a", "127.0.0.1", "-p", str(port)]


def _amqtt_command(port: int, directory: Path) -> list[str]:
    (directory / "amqtt.yaml").write_text(_AMQTT.format(port=port))
    start = "from amqtt.scripts.broker_script import main; main()"
    return [sys.executable, "-c", start, "-c", str(directory / "amqtt.yaml")]


def _aedes_command(port: int, directory: Path) -> list[str]:
    return [find_program("node") or "", "--input-type=module", "-e", _AEDES, "--", str(port)]


def _ceiling_command(port: int, directory: Path) -> list[str]:
    return [sys.executable, "-m", "hedgerow_workshop.bench.forwarder", str(port)]


BROKERS = {
    broker.name: broker
    for broker in (
        BrokerKind(
            OURS,
            Mqtt(),
            lambda: _package_version("hedgerow") or "source",
            _hedgerow_command,
            announces_port=True,
        ),
        BrokerKind("mosquitto", Mqtt(), lambda: program_version("mosquitto", "-h"), _mosquitto_command),
        BrokerKind("nats-server", Nats(), lambda: program_version("nats-server", "--version"), _nats_command),
        BrokerKind("amqtt", Mqtt(), lambda: _package_version("amqtt"), _amqtt_command),
        BrokerKind("aedes", Mqtt(), aedes_version, _aedes_command, _aedes_directory),
        BrokerKind("ceiling", Mqtt(), lambda: "", _ceiling_command),
    )
}


def configured(mosquitto: BrokerKind, lines: str) -> BrokerKind:
    """It with more lines in its configuration."""

    def command(port: int, directory: Path) -> list[str]:
        words = mosquitto.command(port, directory)
        with (directory / "mosquitto.conf").open("a") as configuration:
            configuration.write(lines)
        return words

    return replace(mosquitto, command=command)


class Process:
    """A program under measurement, with its descendants."""

    def __init__(self, program: Program) -> None:
        self.name = program.name
        self._program = program

    @property
    def pid(self) -> int:
        assert self._program.process is not None
        return self._program.process.pid

    def how_it_ended(self) -> str | None:
        """None: it runs."""
        process = self._program.process
        if process is None or process.poll() is None:
            return None
        return f"ended with status {process.returncode}: {self._program.last_words()}"

    def resident_bytes(self) -> int:
        pages = [Path(f"/proc/{pid}/statm").read_text().split()[1] for pid in self._pids()]
        return sum(map(int, pages)) * _PAGE_BYTES

    def processor_s(self) -> float:
        """Processor time used so far, user and system."""
        return sum(map(processor_s, self._pids()))

    def _pids(self) -> list[int]:
        return [self.pid, *descendants(self.pid)]


class Child(Process):
    """A broker that runs. `ready_s` is the time from its start to its first answer to a client."""

    def __init__(self, broker: BrokerKind, program: Program, port: int, ready_s: float) -> None:
        super().__init__(program)
        self.dialect = broker.dialect
        self.port = port
        self.ready_s = ready_s


def raise_open_files() -> int:
    """Allow this process and its children as many open files as the hard limit says; that many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


@contextmanager
def running(
    broker: BrokerKind,
    directory: Path,
    arguments: Sequence[str] = (),
    *,
    ready_s: float = READY_S,
    stop_s: float = STOP_S,
) -> Iterator[Child]:
    """The broker, ready, started in an empty `directory` that this makes; `arguments` follow its own."""
    with Program(broker.name, directory, stop_s) as program:
        for attempt in range(_ATTEMPTS):
            # Another process may take the port between our choice and the broker's bind: then once more.
            port = 0 if broker.announces_port else free_port()
            command = [*broker.command(port, directory), *arguments]
            started_at = time.perf_counter()
            program.launch(command, broker.directory())
            try:
                port = _wait_until_ready(broker, port, program, ready_s)
            except BenchError:
                if attempt + 1 == _ATTEMPTS or not program.has_ended:
                    raise
                program.end()
            else:
                yield Child(broker, program, port, time.perf_counter() - started_at)
                return


@contextmanager
def running_beside(name: str, command: Sequence[str], directory: Path) -> Iterator[Process]:
    """A program that listens nowhere, so that only its work shows whether it is ready."""
    with Program(name, directory) as program:
        program.launch(command)
        yield Process(program)


def _wait_until_ready(broker: BrokerKind, port: int, program: Program, ready_s: float) -> int:
    """Until a client has been let in; the port."""
    process = Process(program)
    give_up_at = time.perf_counter() + ready_s
    while time.perf_counter() < give_up_at:
        if ended := process.how_it_ended():
            raise BenchError(ended)
        if port == 0 and (found := _LISTENING.search(program.output.read_bytes())):
            port = int(found[1])
        if port != 0:
            try:
                broker.dialect.connect(port).close()
            except ConnectionRefusedError:
                pass
            else:
                return port
        time.sleep(_POLL_S)
    raise BenchError(f"not ready within {ready_s:g} s: {program.last_words()}")
