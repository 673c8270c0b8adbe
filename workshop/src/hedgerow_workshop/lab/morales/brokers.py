"""A mobile broker and the fixed one that supports it: two `hedgerow up`, and the links around them.

Clients reach the mobile broker over Wi-Fi, and it reaches the fixed one over LTE or WiMAX. Both links are the
lab's, in user space.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hedgerow.node.authority import authority
from hedgerow_workshop.lab.conditions import Conditions
from hedgerow_workshop.lab.harness.brokers import HERE, Hedgerow
from hedgerow_workshop.lab.harness.programs import LabError, Scope, wait_until
from hedgerow_workshop.lab.links import Link
from hedgerow_workshop.lab.morales.setting import DOMAIN, WIFI, Algorithm, Uplink
from hedgerow_workshop.programs import free_port

LINK_UP_S = 10.0


class FixedBroker(Hedgerow):
    def __init__(self, broker: str, directory: Path, domain: str = DOMAIN) -> None:
        super().__init__(broker, directory)
        self.options = ("--role", "fixed", "--domain", domain)


class MobileBroker(Hedgerow):
    """Unless it `moves_clients`, they stay: what is measured are the algorithms."""

    def __init__(
        self,
        broker: str,
        directory: Path,
        fixed: Sequence[str],
        algorithm: Algorithm,
        moves_clients: bool = False,
    ) -> None:
        """`fixed`: the words of `hedgerow up` that say which broker is to support it."""
        super().__init__(broker, directory)
        self.options = ("--role", "mobile", *fixed, "--domain", DOMAIN)
        self.options += (*(() if moves_clients else ("--no-move-clients",)), *algorithm.options)


class Station(Scope):
    """A mobile broker with its two links. It ends with the block."""

    def __init__(
        self,
        name: str,
        directory: Path,
        fixed: Hedgerow,
        uplink: Conditions,
        algorithm: Algorithm,
        link: type[Link] = Link,
    ) -> None:
        super().__init__()
        self._name = name
        self._directory = directory
        self._fixed = fixed
        self._algorithm = algorithm
        self.uplink = link((HERE, 0), (fixed.host, fixed.port), forward=uplink, backward=uplink)
        self.moves_clients = False
        self.options: tuple[str, ...] = ()
        """More words of `hedgerow up`."""
        self.login = ""
        """USER:PASSWORD@ of the mobile broker at the fixed one."""
        self.fixed_file: Path | None = None
        """Where the fixed broker's URL stands, if it is to be changed."""
        self.is_durable = True
        self.link_up_s = LINK_UP_S
        self.mobile: MobileBroker
        self.wifi: Link

    async def open(self) -> None:
        await self._stack.enter_async_context(self.uplink)
        url = f"mqtt://{self.login}{authority(*self.uplink.address)}"
        fixed = ("--fixed", url)
        if self.fixed_file is not None:
            self.fixed_file.write_text(f"{url}\n")
            fixed = ("--fixed-file", str(self.fixed_file))
        self.mobile = MobileBroker(self._name, self._directory, fixed, self._algorithm, self.moves_clients)
        self.mobile.options += self.options
        self.mobile.is_durable = self.is_durable
        self._stack.enter_context(self.mobile)
        await self._start()
        await self._wait_for_link()

    async def _start(self) -> None:
        await self.mobile.start()
        await self._open_wifi()

    async def _open_wifi(self) -> None:
        self.wifi = Link((HERE, 0), (self.mobile.host, self.mobile.port), forward=WIFI, backward=WIFI)
        await self._stack.enter_async_context(self.wifi)

    async def _wait_for_link(self) -> None:
        """Until the fixed broker has answered."""
        if not await wait_until(
            lambda: bool(self.uplink.backward.counters.bytes), self.link_up_s, self.check
        ):
            raise LabError(f"{self.mobile.name} does not reach its fixed broker: {self.mobile.last_words()}")

    @property
    def url(self) -> str:
        """Of its clients."""
        return f"mqtt://{authority(*self.wifi.address)}"

    def check(self) -> None:
        """Raise for a broker that has ended by itself."""
        self.mobile.check()
        self._fixed.check()


class MovingStation(Station):
    """Its clients are sent to the fixed broker as soon as they may be, which they reach without its uplink,
    and called back to its Wi-Fi."""

    async def open(self) -> None:
        self.moves_clients = True
        far = Uplink.LTE.conditions
        self.access = Link((HERE, 0), (self._fixed.host, self._fixed.port), forward=far, backward=far)
        await self._stack.enter_async_context(self.access)
        await super().open()

    async def _start(self) -> None:
        self.mobile.port = free_port(self.mobile.host)
        await self._open_wifi()
        self.mobile.options += (
            *("--clients-at", authority(*self.wifi.address)),
            *("--fixed-clients-at", authority(*self.access.address)),
            *("--move-after", "0"),
        )
        await self.mobile.start()
