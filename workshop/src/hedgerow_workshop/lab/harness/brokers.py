"""Brokers that an experiment starts, ours and stock ones: real processes that keep their port and data."""

from __future__ import annotations

import os
import re
import sys
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

from hedgerow.errors import ConfigError
from hedgerow.federation.config import ASSUME_NOTHING
from hedgerow.federation.interests.events import MOSQUITTO_LINES
from hedgerow_workshop.lab.harness.programs import LabError, LabProgram
from hedgerow_workshop.programs import find_program, free_port

HERE = "127.0.0.1"
ATTEMPTS = 3

METRICS_S = 20.0

_LISTENING = re.compile(rb"^listening mqtt://[\d.]+:(\d+)", re.MULTILINE)
_ADDRESS = re.compile(rb"^listening (\w+)://([\d.]+):(\d+)", re.MULTILINE)
_METRIC = re.compile(r"^(\w+?)(?:\{([^}]*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')

# What is durable must outlive SIGKILL as far as it can; no queue is bounded, since none may lose anything.
_MOSQUITTO = """\
listener {port} {host}
allow_anonymous true
persistence true
persistence_location {directory}/
autosave_interval 1
max_queued_messages 0
set_tcp_nodelay true
log_dest stderr
{user}{more}"""


# Naming types leaves out all others, and that it runs now is told as one of them.
_TOLD_TOO = ("log_type error", "log_type warning", "log_type information")
SUBSCRIPTION_LOG = "\n".join((*MOSQUITTO_LINES, *_TOLD_TOO, ""))
"""What a sidecar needs to learn of subscriptions."""


class BrokerProgram(LabProgram):
    """It listens for MQTT at one address alone. Port 0: the system chooses one, which it keeps."""

    wrapper: tuple[str, ...] = ()
    """The command that runs it, such as one that gives it a file system or a network of its own."""

    def __init__(self, broker: str, directory: Path, host: str = HERE, port: int = 0) -> None:
        super().__init__(f"broker {broker}", directory)
        self.broker = broker
        self.host = host
        self.port = port

    @property
    def url(self) -> str:
        return f"mqtt://{self.host}:{self.port}"

    @abstractmethod
    async def start(self) -> None:
        """Start it, again on the port that it had; returns when it takes connections."""

    def end(self) -> None:
        """Nobody needs what it would write down."""
        self.kill()


class Hedgerow(BrokerProgram):
    options: tuple[str, ...] = ()
    """More words of `hedgerow up`."""
    http: str = "off"
    is_durable = True

    async def start(self) -> None:
        words = ["up", "--mqtt", f"{self.host}:{self.port}", "--ws", "off", "--http", self.http]
        words += ["--id", self.broker, *self.options]
        if self.is_durable:
            words += ["--data", str(self.directory / "data")]
        self.launch([*self.wrapper, sys.executable, "-m", "hedgerow", *words])
        await self.wait_until(self._is_listening, "listening")

    def _is_listening(self) -> bool:
        found = _LISTENING.search(self.output.read_bytes())
        if found is not None:
            self.port = int(found[1])
        return found is not None

    def listens_at(self, scheme: str) -> tuple[str, int]:
        return listens_at(self, scheme)

    def metrics(self) -> dict[str, float]:
        """The sums over their labels."""
        found: dict[str, float] = {}
        for name, _, value in read_metrics(self):
            found[name] = found.get(name, 0.0) + value
        return found


def listens_at(program: LabProgram, scheme: str) -> tuple[str, int]:
    """As it has told on its standard output."""
    for found, host, port in _ADDRESS.findall(program.output.read_bytes()):
        if found.decode() == scheme:
            return host.decode(), int(port)
    raise LookupError(f"{program.name} does not serve {scheme}")


def read_metrics(program: LabProgram) -> list[tuple[str, dict[str, str], float]]:
    """Names, labels and values."""
    host, port = listens_at(program, "http")
    with urlopen(f"http://{host}:{port}/metrics", timeout=METRICS_S) as answer:
        text = answer.read().decode()
    return [
        (name, dict(_LABEL.findall(labels)), float(value)) for name, labels, value in _METRIC.findall(text)
    ]


class Mosquitto(BrokerProgram):
    more: str = ""
    """More lines of its configuration file, such as its bridges, which it knows from there alone."""
    find_program: Callable[[str], str | None] = staticmethod(find_program)

    async def start(self) -> None:
        program = self.find_program("mosquitto")
        if program is None:
            raise LabError("mosquitto is not on PATH")
        attempts = ATTEMPTS if self.port == 0 else 1
        for attempt in range(1, attempts + 1):
            # Another process may take the port between our choice and its bind: then once more.
            port = self.port or free_port(self.host)
            (self.directory / "mosquitto.conf").write_text(
                _MOSQUITTO.format(
                    host=self.host,
                    port=port,
                    directory=self.directory,
                    # Else it gives up the right to write there.
                    user="user root\n" if os.geteuid() == 0 else "",
                    more=self.more,
                )
            )
            self.log.unlink(missing_ok=True)
            self.launch([*self.wrapper, program, "-c", str(self.directory / "mosquitto.conf")])
            try:
                await self.wait_until(lambda: b" running" in self.log.read_bytes(), "running")
            except LabError:
                if attempt == attempts or not self.has_ended:
                    raise
                self.kill()
            else:
                self.port = port
                return


class Sidecar(LabProgram):
    def __init__(self, node: str, directory: Path) -> None:
        super().__init__(f"the federator of node {node}", directory)
        self._node = node

    def start(self, broker: BrokerProgram, neighbours: list[str]) -> None:
        words = ["federate", "--id", self._node, "--broker", broker.url, *neighbours]
        words += ["--data", str(self.directory / "data")]
        # It is there before all clients: everything would come for some seconds, and be measured.
        words += ["--assume", ASSUME_NOTHING]
        self.launch([sys.executable, "-m", "hedgerow", *words])

    def end(self) -> None:
        self.kill()


OURS, STOCK = "hedgerow", "mosquitto"
KINDS: dict[str, type[BrokerProgram]] = {OURS: Hedgerow, STOCK: Mosquitto}


def check_kind(asked: str, find_program: Callable[[str], str | None] = find_program) -> list[str]:
    """Notes, for an experiment that is asked for one kind and also has runs with stock brokers. ConfigError:
    there is no such kind, or it is not installed."""
    if asked not in KINDS:
        raise ConfigError(f"no broker {asked}; there are {', '.join(KINDS)}")
    if find_program(STOCK) is not None:
        return []
    if asked == STOCK:
        raise ConfigError("mosquitto is not on PATH")
    return ["mosquitto is not on PATH: there is no run with it."]
