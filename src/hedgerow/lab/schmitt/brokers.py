"""The brokers of a run: real processes, each reached by the others only through a link of the lab.

A broker goes by SIGKILL, by SIGSTOP or by a silent cut of all that it listens to and dials: its bridges
connect from an address of its own (`bind`), which the links of the others can cut. It returns on the same
port with the data that it left. Its own clients are beside it: they reach it without a link.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

from hedgerow.lab.experiments import LabError
from hedgerow.lab.links import Host, Link
from hedgerow.lab.schmitt.processes import Program, find_program
from hedgerow.lab.schmitt.record import Departure

HERE = "127.0.0.1"
ATTEMPTS = 3

_LISTENING = re.compile(rb"^listening mqtt://127\.0\.0\.1:(\d+)", re.MULTILINE)

# What is durable must outlive SIGKILL as far as it can; no queue is bounded, since none may lose anything.
_MOSQUITTO = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence true
persistence_location {directory}/
autosave_interval 1
max_queued_messages 0
set_tcp_nodelay true
log_dest stderr
{user}{sections}"""


class Broker(Program):
    """`number` counts from 1; the last byte of the address that its bridges connect from."""

    def __init__(self, name: str, number: int, directory: Path) -> None:
        super().__init__(f"broker {name}", directory)
        self.broker = name
        self.bind = f"127.0.0.{number + 1}"  # .1 is everybody else's
        self.port = 0

    @property
    def url(self) -> str:
        return f"mqtt://{HERE}:{self.port}"

    @abstractmethod
    async def start(self) -> None:
        """Start it, again on the port that it had; returns when it takes connections."""

    def end(self) -> None:
        """Nobody needs what it would write down."""
        self.kill()


class Hedgerow(Broker):
    async def start(self) -> None:
        words = ["up", "--mqtt", f"{HERE}:{self.port}", "--ws", "off", "--http", "off", "--id", self.broker]
        self.launch([sys.executable, "-m", "hedgerow", *words, "--data", str(self.directory / "data")])
        await self.wait_until(self._is_listening, "listening")

    def _is_listening(self) -> bool:
        found = _LISTENING.search(self.output.read_bytes())
        if found is not None:
            self.port = int(found[1])
        return found is not None


class Mosquitto(Broker):
    sections: str = ""
    """Its bridges, which it knows from its configuration file alone."""

    async def start(self) -> None:
        program = find_program("mosquitto")
        if program is None:
            raise LabError("mosquitto is not on PATH")
        attempts = ATTEMPTS if self.port == 0 else 1
        for attempt in range(1, attempts + 1):
            # Another process may take the port between our choice and its bind: then once more.
            port = self.port or _free_port()
            (self.directory / "mosquitto.conf").write_text(
                _MOSQUITTO.format(
                    port=port,
                    directory=self.directory,
                    user="user root\n"
                    if os.geteuid() == 0
                    else "",  # else it gives up the right to write there
                    sections=self.sections,
                )
            )
            self.log.unlink(missing_ok=True)
            self.launch([program, "-c", str(self.directory / "mosquitto.conf")])
            try:
                await self.wait_until(lambda: b" running" in self.log.read_bytes(), "running")
            except LabError:
                if attempt == attempts or not self.has_ended:
                    raise
                self.kill()
            else:
                self.port = port
                return


KINDS: dict[str, type[Broker]] = {"hedgerow": Hedgerow, "mosquitto": Mosquitto}


class Fleet:
    """The brokers and the links to them. Everything ends with the block."""

    def __init__(self, kind: str, names: list[str], directory: Path) -> None:
        self.brokers: Mapping[str, Broker] = {
            name: KINDS[kind](name, number, directory / f"broker-{name}")
            for number, name in enumerate(names, 1)
        }
        self.links: dict[str, Link] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Fleet:
        return self

    async def __aexit__(self, *reason: object) -> None:
        await self._stack.aclose()

    async def start(self, is_static: bool) -> None:
        """`is_static`: brokers that know no commands are given their bridges to the hub from the start."""
        *others, hub = self.brokers.values()
        await self._start(hub)
        for broker in others:
            if is_static and isinstance(broker, Mosquitto):
                broker.sections = static_section(broker.broker, hub.broker, self.far_address(hub.broker))
        starting = [asyncio.create_task(self._start(broker)) for broker in others]
        try:
            await asyncio.gather(*starting)
        finally:
            for task in starting:
                task.cancel()
            await asyncio.wait(starting)

    async def _start(self, broker: Broker) -> None:
        self._stack.enter_context(broker)
        await broker.start()
        link = Link((HERE, 0), (HERE, broker.port))
        self.links[broker.broker] = await self._stack.enter_async_context(link)

    def far_address(self, name: str) -> Host:
        """Where others reach a broker."""
        return self.links[name].address

    def take_away(self, name: str, departure: Departure) -> None:
        broker = self.brokers[name]
        match departure:
            case Departure.KILL:
                broker.kill()
            case Departure.STOP:
                broker.send(signal.SIGSTOP)
            case Departure.CUT:
                self.links[name].cut()
                for other, link in self.links.items():
                    if other != name:
                        link.cut_source(broker.bind)

    async def bring_back(self, name: str, departure: Departure) -> None:
        """Returns when it takes connections again."""
        broker = self.brokers[name]
        match departure:
            case Departure.KILL:
                await broker.start()
            case Departure.STOP:
                broker.send(signal.SIGCONT)
            case Departure.CUT:
                self.links[name].restore()
                for other, link in self.links.items():
                    if other != name:
                        link.restore_source(broker.bind)

    def check(self) -> None:
        """Raise for a broker that has ended by itself."""
        for broker in self.brokers.values():
            if broker.process is not None and broker.has_ended:
                raise LabError(f"{broker.name} ended by itself: {broker.last_words()}")


def static_section(near: str, hub: str, address: Host) -> str:
    """A bridge that is made once, in words that Mosquitto knows too."""
    host, port = address
    return f"""\
connection static.{hub}
address {host}:{port}
topic # both 1
remote_clientid static.{near}.{hub}
restart_timeout 1
notifications_local_only true
"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        return int(probe.getsockname()[1])
