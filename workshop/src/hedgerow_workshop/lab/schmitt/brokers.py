"""The brokers of a run: real processes. Where one is to be cut off, the others reach it through a link.

A broker goes by SIGKILL, by SIGSTOP or by a silent cut of all that it listens to and dials: its bridges
connect from an address of its own (`bind`), which the links of the others can cut. It returns on the same
port with the data that it left. Its own clients are beside it: they reach it without a link. Runs that cut
nothing have no links: each would make two hops, through one busy process, of every one that is timed.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from pathlib import Path

from hedgerow_workshop.lab.harness.brokers import HERE, KINDS, BrokerProgram, Mosquitto
from hedgerow_workshop.lab.harness.programs import Scope, together
from hedgerow_workshop.lab.links import Host, Link
from hedgerow_workshop.lab.schmitt.record import Departure


class Fleet(Scope):
    """The brokers and the links to them. Everything ends with the block."""

    def __init__(
        self, kind: str, names: list[str], directory: Path, departure: Departure = Departure.KILL
    ) -> None:
        super().__init__()
        self._departure = departure
        self.brokers: Mapping[str, BrokerProgram] = {
            name: KINDS[kind](name, directory / f"broker-{name}") for name in names
        }
        self.binds = {name: f"127.0.0.{number}" for number, name in enumerate(names, 2)}
        """What each broker's bridges connect from; .1 is everybody else's."""
        self.links: dict[str, Link] = {}
        self.start_s: dict[str, float] = {}
        """How long each took to take connections when it was last started."""

    async def start(self, is_static: bool) -> None:
        """`is_static`: brokers that know no commands are given their bridges to the hub from the start."""
        *others, hub = self.brokers.values()
        await self._start(hub)
        for broker in others:
            if is_static and isinstance(broker, Mosquitto):
                broker.more = static_section(broker.broker, hub.broker, self.far_address(hub.broker))
        await together(self._start(broker) for broker in others)

    async def _start(self, broker: BrokerProgram) -> None:
        self._stack.enter_context(broker)
        await self._launch(broker)
        if self._departure is Departure.CUT:
            link = Link((HERE, 0), (HERE, broker.port))
            self.links[broker.broker] = await self._stack.enter_async_context(link)

    async def _launch(self, broker: BrokerProgram) -> None:
        began_at = time.monotonic()
        await broker.start()
        self.start_s[broker.broker] = time.monotonic() - began_at

    def far_address(self, name: str) -> Host:
        """Where others reach a broker."""
        link = self.links.get(name)
        return (HERE, self.brokers[name].port) if link is None else link.address

    def take_away(self, name: str) -> None:
        broker = self.brokers[name]
        match self._departure:
            case Departure.KILL:
                broker.kill()
            case Departure.STOP:
                broker.send(signal.SIGSTOP)
            case Departure.CUT:
                self.links[name].cut()
                for other, link in self.links.items():
                    if other != name:
                        link.cut_source(self.binds[name])

    async def bring_back(self, name: str) -> None:
        """Returns when it takes connections again."""
        broker = self.brokers[name]
        match self._departure:
            case Departure.KILL:
                await self._launch(broker)
            case Departure.STOP:
                broker.send(signal.SIGCONT)
            case Departure.CUT:
                self.links[name].restore()
                for other, link in self.links.items():
                    if other != name:
                        link.restore_source(self.binds[name])

    def check(self) -> None:
        """Raise for a broker that has ended by itself."""
        for broker in self.brokers.values():
            broker.check()


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
