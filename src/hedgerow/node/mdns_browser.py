"""Services of this network, found by multicast DNS.

Anyone can announce services and each is looked up, so that lookups have a bound. A service that is taken back
is not told of: whether somebody lives is for others to find out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hedgerow.errors import ConfigError, reason_of

if TYPE_CHECKING:
    from zeroconf import ServiceInfo, Zeroconf
    from zeroconf.asyncio import AsyncServiceBrowser, AsyncZeroconf

logger = logging.getLogger(__name__)

LOOKUP_MS = 3_000
MAX_LOOKUPS = 64  # at once


class MdnsBrowser:
    """`found` is told of each service of these kinds, again when it is announced again. `interfaces` by their
    addresses; all of them unless given."""

    def __init__(
        self,
        kinds: Sequence[str],
        found: Callable[[ServiceInfo], None],
        interfaces: list[str] | None = None,
    ) -> None:
        self._kinds = list(kinds)
        self._found = found
        self._interfaces = interfaces
        self._zeroconf: AsyncZeroconf | None = None
        self._browser: AsyncServiceBrowser | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Raises ConfigError where multicast DNS does not work."""
        from zeroconf import InterfaceChoice
        from zeroconf.asyncio import AsyncServiceBrowser, AsyncZeroconf

        try:
            self._zeroconf = AsyncZeroconf(self._interfaces or InterfaceChoice.All)
            await self._zeroconf.zeroconf.async_wait_for_start()
        except Exception as error:  # The library raises whatever the system gave it.
            raise ConfigError(f"multicast DNS does not work here: {reason_of(error)}") from None
        self._browser = AsyncServiceBrowser(
            self._zeroconf.zeroconf, self._kinds, handlers=[self._service_changed]
        )

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._browser is not None:
            await self._browser.async_cancel()
        if self._zeroconf is not None:
            await self._zeroconf.async_close()

    def _service_changed(self, zeroconf: Zeroconf, service_type: str, name: str, state_change: Any) -> None:
        from zeroconf import ServiceStateChange

        if state_change is not ServiceStateChange.Removed and len(self._tasks) < MAX_LOOKUPS:
            task = asyncio.get_running_loop().create_task(self._look_up(zeroconf, service_type, name))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _look_up(self, zeroconf: Zeroconf, service_type: str, name: str) -> None:
        from zeroconf import Error
        from zeroconf.asyncio import AsyncServiceInfo

        try:
            info = AsyncServiceInfo(service_type, name)
            is_found = await info.async_request(zeroconf, LOOKUP_MS)
        except (Error, OSError, ValueError) as error:
            logger.info("multicast DNS: %s could not be looked up: %s", name, reason_of(error))
            return
        if is_found:
            self._found(info)


def addresses_of(info: ServiceInfo) -> list[str]:
    """Those of a service, IPv4 first."""
    return sorted(info.parsed_addresses(), key=lambda address: ":" in address)
