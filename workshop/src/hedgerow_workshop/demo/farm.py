"""The farm's brokers and the wires between them.

    house ══ north          ══  the internet link, in two lines: cut and restored as one
      ║        │            │   wires in the fields
    south ── west
    tractor ·· house, north or south: whichever it is at

Four brokers federate in a ring, so that the loss of any one leaves the others connected. West is a stock
Mosquitto with a federator beside it where Mosquitto is installed. House, north and south support mobile
brokers, and the tractor has a link to each that lets something pass only while it is there. All of it is on
loopback, on ports that the system chooses, and ends with the block.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import hedgerow
from hedgerow.federation.state import HOME_STATE_TOPIC
from hedgerow_workshop.lab.harness.brokers import (
    HERE,
    SUBSCRIPTION_LOG,
    BrokerProgram,
    Hedgerow,
    Mosquitto,
    Sidecar,
)
from hedgerow_workshop.lab.harness.programs import LabError, LabProgram, Scope, together
from hedgerow_workshop.lab.links import Link
from hedgerow_workshop.programs import find_program

HOUSE, NORTH, SOUTH, WEST, TRACTOR = "house", "north", "south", "west", "tractor"
FIELDS = (NORTH, SOUTH, WEST)
STATIONS = (HOUSE, NORTH, SOUTH)
"""Where the tractor can be."""

DOMAIN = "mobile/farm"
# So soon a tractor out of reach is on its own. The default, 3 s, is for hand-overs of real networks.
TAKEOVER_AFTER_S = 1.0
SENSOR_TOPICS = {
    1: "farm/north/weather/temperature",
    2: "farm/north/weather/wind",
    3: "farm/north/weather/humidity",
}

FEDERATED_S = 20.0

P = TypeVar("P", bound=LabProgram)

_ADDRESS = re.compile(rb"^listening (http|udp)://([\d.]+):(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class FarmMulticast:
    """How the house and its robots speak it: on loopback alone."""

    port: int
    key_file: Path

    @property
    def url(self) -> str:
        return f"multicast://lo:{self.port}?ip=4&key={self.key_file}"

    @property
    def options(self) -> tuple[str, ...]:
        words = ("--multicast", "home/#", "--multicast-interface", "lo", "--multicast-ip", "4")
        return (*words, "--multicast-port", str(self.port), "--multicast-key", str(self.key_file))


class FarmNode(Hedgerow):
    """A node of ours, with a journal for the pipeline."""

    def __init__(self, name: str, directory: Path, journals: Path) -> None:
        super().__init__(name, directory / name)
        # What passes anyway: the story is about who gets what.
        journal = ("--journal", "#", "--journal-local", "--journal-dir", str(journals / name))
        self.options = (*journal, "--log-level", "warning")

    def address(self, scheme: str) -> str:
        """Where it serves something else than MQTT, as HOST:PORT."""
        for found, host, port in _ADDRESS.findall(self.output.read_bytes()):
            if found.decode() == scheme:
                return f"{host.decode()}:{port.decode()}"
        raise LookupError(f"{self.name} does not serve {scheme}")


class DemoFarm(Scope):
    """`multicast` None: nobody speaks it here."""

    def __init__(self, directory: Path, multicast: FarmMulticast | None) -> None:
        super().__init__()
        self.directory = directory
        self.journals = directory / "journals"
        self.has_mosquitto = find_program("mosquitto") is not None
        self.brokers: dict[str, BrokerProgram] = {}
        self.tractor_is_at: str | None = HOUSE
        self._multicast = multicast
        self._programs: list[LabProgram] = []
        self._internet: list[Link] = []
        self._ways: dict[str, Link] = {}  # of the tractor, by station

    async def start(self) -> None:
        """All that takes connections does when this returns. Who is dialled comes before who dials."""
        await together([self._start_house(), self._start_west()])
        await together([self._start_field(NORTH), self._start_field(SOUTH)])
        await together([self._join_west(), self._start_tractor()])

    async def _start_house(self) -> None:
        house = self._add_node(HOUSE)
        house.http = f"{HERE}:0"
        house.options += ("--federation", *_FIXED, "--hot-topics")
        if self._multicast is not None:
            house.options += self._multicast.options
        await house.start()

    async def _start_field(self, name: str) -> None:
        field = self._add_node(name)
        line = await self._link_to(HOUSE)
        self._internet.append(line)
        field.options += (*_FIXED, *_neighbours([_url(line)]))
        if name == NORTH:
            field.options += ("--udp", f"{HERE}:0")
            for number, topic in SENSOR_TOPICS.items():
                field.options += ("--sensor-topic", f"{number:02}={topic}")
        await field.start()

    async def _start_west(self) -> None:
        if self.has_mosquitto:
            west = self.brokers[WEST] = self._add(Mosquitto(WEST, self.directory / WEST))
            west.more = SUBSCRIPTION_LOG
            await west.start()

    async def _join_west(self) -> None:
        neighbours = _neighbours(self.brokers[name].url for name in (NORTH, SOUTH))
        if self.has_mosquitto:
            sidecar = self._add(Sidecar(WEST, self.directory / "federator"))
            sidecar.start(self.brokers[WEST], neighbours)
            await wait_for_federator(self._hear_of_neighbours())
        else:
            west = self._add_node(WEST)
            west.options += tuple(neighbours)
            await west.start()

    async def _hear_of_neighbours(self) -> None:
        topic = HOME_STATE_TOPIC + WEST
        async with hedgerow.connect(self.brokers[WEST].url) as bus, bus.subscribe(topic) as states:
            async for state in states:
                if len(json.loads(state.payload)["neighbours"]) > 1:
                    return

    async def _start_tractor(self) -> None:
        tractor = self._add_node(TRACTOR)
        for station in STATIONS:
            self._ways[station] = await self._link_to(station)
            self._ways[station].cut()
        self._ways[HOUSE].restore()
        self._name_station(HOUSE)
        tractor.options += ("--role", "mobile", "--domain", DOMAIN, "--fixed-file", str(self._stations_file))
        # Its panel is screwed to it, and goes nowhere without it.
        tractor.options += ("--no-move-clients", "--takeover-after", f"{TAKEOVER_AFTER_S}s")
        await tractor.start()

    # What happens to them

    @property
    def dashboard(self) -> str:
        return f"http://{self.node(HOUSE).address('http')}/"

    @property
    def sensors(self) -> str:
        """Where UDP sensors send to."""
        return f"udp://{self.node(NORTH).address('udp')}"

    def node(self, name: str) -> FarmNode:
        node = self.brokers[name]
        assert isinstance(node, FarmNode)
        return node

    def kill(self, name: str) -> None:
        self.brokers[name].kill()

    async def revive(self, name: str) -> None:
        """Start it, if it is dead."""
        if self.brokers[name].has_ended:
            await self.brokers[name].start()

    def cut_internet(self) -> None:
        """Nothing passes, and nobody is told."""
        for line in self._internet:
            line.cut()

    def restore_internet(self) -> None:
        for line in self._internet:
            line.restore()

    def leave(self) -> None:
        """The tractor is out of everyone's reach."""
        self.tractor_is_at = None
        for way in self._ways.values():
            way.cut()

    def arrive(self, station: str) -> None:
        """The tractor is in reach of this station, and told so; where it was too, unless it left."""
        self._ways[station].restore()
        self.tractor_is_at = station
        self._name_station(station)
        self.node(TRACTOR).send(signal.SIGHUP)

    def check(self) -> None:
        """Raise for a program that has ended by itself."""
        for program in self._programs:
            program.check()

    def _name_station(self, station: str) -> None:
        self._stations_file.write_text(f"{_url(self._ways[station])}\n")

    @property
    def _stations_file(self) -> Path:
        return self.directory / TRACTOR / "stations"

    # How they are made

    def _add_node(self, name: str) -> FarmNode:
        node = self.brokers[name] = self._add(FarmNode(name, self.directory, self.journals))
        return node

    def _add(self, program: P) -> P:
        self._programs.append(program)
        self._stack.enter_context(program)
        return program

    async def _link_to(self, name: str) -> Link:
        broker = self.brokers[name]
        return await self._stack.enter_async_context(Link((HERE, 0), (broker.host, broker.port)))


_FIXED = ("--role", "fixed", "--domain", DOMAIN, "--takeover-after", f"{TAKEOVER_AFTER_S}s")


def _url(link: Link) -> str:
    host, port = link.address
    return f"mqtt://{host}:{port}"


def _neighbours(urls: Iterable[str]) -> list[str]:
    return [word for url in urls for word in ("--neighbour", url)]


async def wait_for_federator(finding: Awaitable[object], patience_s: float = FEDERATED_S) -> None:
    """What clients subscribe to before it hears of it is in no log, and it would never know."""
    try:
        async with asyncio.timeout(patience_s):
            await finding
    except TimeoutError:
        raise LabError(
            f"the federator of {WEST} did not find its neighbours within {patience_s:g} s"
        ) from None
