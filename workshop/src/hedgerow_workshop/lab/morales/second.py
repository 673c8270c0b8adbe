"""Section 3.1: a subscriber leaves the coverage of its mobile broker, and another mobile broker comes by.

The fixed broker keeps what it missed; it attaches to the second mobile broker, and gets it there, once and
in order. It wants one topic that is hot and one that is cold, both from outside, and one from the field that
it has left. Brokers and clients log in: a mobile broker gets what is for a client only where it may bring its
user.

Three moves: both mobile brokers live; the one that it has left is killed; the one where it arrives is killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from hedgerow.node.authority import authority
from hedgerow.node.passwords import set_password
from hedgerow_workshop.lab.harness.brokers import HERE
from hedgerow_workshop.lab.harness.clients import Clients
from hedgerow_workshop.lab.links import Link
from hedgerow_workshop.lab.morales.brokers import FixedBroker, Station
from hedgerow_workshop.lab.morales.record import SceneRecord
from hedgerow_workshop.lab.morales.scene import Scene
from hedgerow_workshop.lab.morales.setting import CLIENT_OPTIONS, DOMAIN, WIFI, Algorithm, Uplink

MOBILES = ("mobile-1", "mobile-2")
PUBLISHERS = {"wind": 0.05, "weather": 0.25, "soil": 0.1}
"""And the seconds between two events: the second is cold."""
SPRAYER, FILTER = "sprayer", "crop/+"
WINDOW_S = 0.8
STAY_S, AWAY_S = 1.5, 1.5
PASSWORD = "secret"  # noqa: S105 - of brokers on loopback
ITERATIONS = 1_000

_MOBILE_RIGHTS = """\
user {mobile}
topic write $hedgerow/bridge
topic write {domain}/{mobile}/#
topic readwrite crop/+
topic write $hedgerow/guest/{client}
"""
_RIGHTS = """\
user {user}
topic readwrite crop/#
"""


class SecondBrokerRun(Scene[SceneRecord]):
    caught_up_s = 10.0

    def __init__(self, directory: Path, say: Callable[[str], None]) -> None:
        super().__init__(SceneRecord("second"), directory, say)
        self._fixed = FixedBroker("fixed", directory / "fixed")
        self._stations: list[Station] = []
        self._visit = AsyncExitStack()
        self._air: Link

    async def play(self) -> None:
        await self._open_brokers()
        first, second = self._stations
        for name, interval_s in PUBLISHERS.items():
            url = first.url if name == "soil" else self._fixed.url
            bus = await self.roaming(name, url, username=name, password=PASSWORD)
            self.speak(name, bus, f"crop/{name}", interval_s)
        await self._arrive(first)
        await self.wait_until_heard()
        await self._stay_and_leave("the sprayer leaves")
        await self._arrive(second)
        await self._stay_and_leave("it leaves, and the broker that it has left is killed")
        second.mobile.kill()
        await self._arrive(first)
        await second.mobile.start()
        await self._stay_and_leave("it leaves, and the broker where it arrives is killed")
        await self._arrive(second)
        second.mobile.kill()
        await second.mobile.start()
        await asyncio.sleep(STAY_S)

    async def _open_brokers(self) -> None:
        passwords, acl = self.directory / "passwords", self.directory / "acl"
        self.directory.mkdir(parents=True, exist_ok=True)
        for number, user in enumerate((*MOBILES, *PUBLISHERS, SPRAYER)):
            set_password(passwords, user, PASSWORD.encode(), create=not number, iterations=ITERATIONS)
        rules = [_MOBILE_RIGHTS.format(mobile=each, domain=DOMAIN, client=SPRAYER) for each in MOBILES]
        rules += [_RIGHTS.format(user=each) for each in (*PUBLISHERS, SPRAYER)]
        acl.write_text("\n".join(rules))
        self._fixed.options += ("--passwords", str(passwords), "--acl", str(acl))
        await self.begin(self._fixed)
        for name in MOBILES:
            conditions, algorithm = Uplink.LTE.conditions, Algorithm(WINDOW_S)
            station = Station(name, self.directory / name, self._fixed, conditions, algorithm)
            station.login = f"{name}:{PASSWORD}@"
            station.options = ("--passwords", str(passwords))
            await self.stack.enter_async_context(station)
            self.brokers.append(station.mobile)
            self._stations.append(station)

    async def _arrive(self, station: Station) -> None:
        mobile = station.mobile
        self._visit = AsyncExitStack()
        self.stack.push_async_callback(self._visit.aclose)
        self._air = await self._visit.enter_async_context(
            Link((HERE, 0), (mobile.host, mobile.port), forward=WIFI, backward=WIFI)
        )
        clients = await self._visit.enter_async_context(Clients(**CLIENT_OPTIONS))
        url = f"mqtt://{authority(*self._air.address)}"
        login = {"username": SPRAYER, "password": PASSWORD}
        bus = await self.roaming(SPRAYER, url, clients=clients, **login)
        await self.listen(SPRAYER, bus, FILTER, clients=clients)

    async def _stay_and_leave(self, what: str) -> None:
        """Without a word: out of coverage."""
        await asyncio.sleep(STAY_S)
        self.happened(what)
        self._air.cut()
        await self._visit.aclose()
        await asyncio.sleep(AWAY_S)
