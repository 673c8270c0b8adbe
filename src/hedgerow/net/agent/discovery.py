"""Brokers found by multicast DNS: Hedgerow nodes, and whatever else announces MQTT.

A broker's id is what it says of itself (`id` in its TXT record, as nodes do), or its instance's name. One
that takes its announcement back stays in the list: whether it lives is for the probes to say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hedgerow.errors import ConfigError, reason_of
from hedgerow.net.agent.broker_list import BrokerEntry, make_id
from hedgerow.net.authority import authority
from hedgerow.net.client.urls import parse_url
from hedgerow.net.mdns_services import SERVICES

if TYPE_CHECKING:
    from zeroconf import ServiceInfo, Zeroconf
    from zeroconf.asyncio import AsyncServiceBrowser, AsyncZeroconf

logger = logging.getLogger(__name__)

LOOKUP_MS = 3_000
MAX_LOOKUPS = 64  # at once: anyone can announce services, and each is looked up


class Browser:
    """`discover` is told of each broker, again when it is announced again. `interfaces` by their addresses;
    all of them unless given."""

    def __init__(self, discover: Callable[[BrokerEntry], None], interfaces: list[str] | None = None) -> None:
        self._discover = discover
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
            raise ConfigError(f"--mdns: multicast DNS does not work here: {reason_of(error)}") from None
        self._browser = AsyncServiceBrowser(
            self._zeroconf.zeroconf, list(SERVICES), handlers=[self._service_changed]
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
            found = await info.async_request(zeroconf, LOOKUP_MS)
        except (Error, OSError, ValueError) as error:
            logger.info("multicast DNS: %s could not be looked up: %s", name, reason_of(error))
            return
        entry = read_service(info) if found else None
        if entry is not None:
            self._discover(entry)


def read_service(info: ServiceInfo) -> BrokerEntry | None:
    """The broker that a service announces; None when it lacks an address."""
    addresses = sorted(info.parsed_addresses(), key=lambda address: ":" in address)  # IPv4 first
    if not addresses or not info.port:
        return None
    said = (info.properties or {}).get(b"id") or b""
    instance = info.name.removesuffix(f".{info.type}")
    broker_id = make_id(said.decode(errors="replace") or instance)
    return BrokerEntry(broker_id, parse_url(f"mqtt://{authority(addresses[0], info.port)}"))
