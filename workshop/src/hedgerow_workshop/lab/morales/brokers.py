"""A mobile broker and the fixed one that supports it: two `hedgerow up`, and the links around them.

Clients reach the mobile broker over Wi-Fi, and it reaches the fixed one over LTE or WiMAX. Both links are the
lab's, in user space.
"""

from __future__ import annotations

from pathlib import Path

from hedgerow_workshop.lab.conditions import Conditions
from hedgerow_workshop.lab.harness.brokers import HERE, Hedgerow
from hedgerow_workshop.lab.harness.programs import LabError, Scope, wait_until
from hedgerow_workshop.lab.links import Host, Link
from hedgerow_workshop.lab.morales.setting import DOMAIN, WIFI, Algorithm

LINK_UP_S = 10.0


class FixedBroker(Hedgerow):
    options = ("--role", "fixed", "--domain", DOMAIN)


class MobileBroker(Hedgerow):
    """It stays with its clients: they speak MQTT 3.1.1, and what is measured are the two algorithms."""

    def __init__(self, broker: str, directory: Path, fixed: Host, algorithm: Algorithm) -> None:
        super().__init__(broker, directory)
        host, port = fixed
        self.options = ("--role", "mobile", "--fixed", f"mqtt://{host}:{port}", "--domain", DOMAIN)
        self.options += ("--no-move-clients", *algorithm.options)


class Station(Scope):
    """A mobile broker with its two links. It ends with the block."""

    def __init__(
        self, name: str, directory: Path, fixed: Hedgerow, uplink: Conditions, algorithm: Algorithm
    ) -> None:
        super().__init__()
        self._name = name
        self._directory = directory
        self._fixed = fixed
        self._algorithm = algorithm
        self.uplink = Link((HERE, 0), (fixed.host, fixed.port), forward=uplink, backward=uplink)
        self.options: tuple[str, ...] = ()
        """More words of `hedgerow up`."""
        self.link_up_s = LINK_UP_S
        self.mobile: MobileBroker
        self.wifi: Link

    async def open(self) -> None:
        await self._stack.enter_async_context(self.uplink)
        self.mobile = MobileBroker(self._name, self._directory, self.uplink.address, self._algorithm)
        self.mobile.options += self.options
        self._stack.enter_context(self.mobile)
        await self.mobile.start()
        self.wifi = Link((HERE, 0), (self.mobile.host, self.mobile.port), forward=WIFI, backward=WIFI)
        await self._stack.enter_async_context(self.wifi)
        await self._wait_for_link()

    async def _wait_for_link(self) -> None:
        """Until the fixed broker has answered."""
        if not await wait_until(
            lambda: bool(self.uplink.backward.counters.bytes), self.link_up_s, self.check
        ):
            raise LabError(f"{self.mobile.name} does not reach its fixed broker: {self.mobile.last_words()}")

    @property
    def url(self) -> str:
        """Of its clients."""
        return "mqtt://{}:{}".format(*self.wifi.address)

    def check(self) -> None:
        """Raise for a broker that has ended by itself."""
        self.mobile.check()
        self._fixed.check()
