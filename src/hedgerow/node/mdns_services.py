"""A node's services in multicast DNS: `_hedgerow._tcp` with the node's id, and `_mqtt._tcp` for any client.

The instance is called as the node is, so that whoever finds both knows that they are one. A node that listens
on loopback alone is announced on loopback alone. What was announced is taken back by `stop`. A node works
without: when multicast DNS cannot be started, that is logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hedgerow.errors import reason_of
from hedgerow.node.addresses import IpAddress, reached_addresses
from hedgerow.node.browsers import mdns_label
from hedgerow.node.part import Part

if TYPE_CHECKING:
    from zeroconf import ServiceInfo
    from zeroconf.asyncio import AsyncZeroconf

logger = logging.getLogger(__name__)

HEDGEROW_SERVICE = "_hedgerow._tcp.local."
MQTT_SERVICE = "_mqtt._tcp.local."
SERVICES = (HEDGEROW_SERVICE, MQTT_SERVICE)


class MdnsServices:
    """Announces the node from `start` to `stop`. Of `urls`, those of MQTT count. `properties` are told beside
    the id."""

    def __init__(
        self,
        node_id: str,
        urls: Iterable[str],
        kinds: Sequence[str] = SERVICES,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._node_id = node_id
        self._urls = list(urls)
        self._kinds = kinds
        self._properties = {"id": node_id, **(properties or {})}
        self._zeroconf: AsyncZeroconf | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """In the background: the library is slow to import, and names are claimed for most of a second."""
        self._task = asyncio.get_running_loop().create_task(self._announce())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._zeroconf is not None:
            await self._zeroconf.async_unregister_all_services()
            await self._zeroconf.async_close()
            self._zeroconf = None

    async def _announce(self) -> None:
        port, addresses = reached_at(self._urls)
        if not addresses:
            logger.warning("multicast DNS has no MQTT listener to announce")
            return
        try:
            await self._register(port, addresses)
        except Exception as error:  # The library raises whatever the system gave it.
            logger.warning("multicast DNS does not announce this node: %s", reason_of(error))
            return
        logger.info("multicast DNS announces this node as %s", self._node_id)

    async def _register(self, port: int, addresses: list[IpAddress]) -> None:
        from zeroconf import InterfaceChoice
        from zeroconf.asyncio import AsyncZeroconf

        is_local = all(address.is_loopback for address in addresses)
        self._zeroconf = AsyncZeroconf(["127.0.0.1"] if is_local else InterfaceChoice.All)
        await self._zeroconf.zeroconf.async_wait_for_start()
        for service in make_services(self._node_id, port, addresses, self._kinds, self._properties):
            # Two nodes of one name are a mistake, and the second is found under another name.
            sending = await self._zeroconf.async_register_service(service, allow_name_change=True)
            await sending


class MdnsPart(Part):
    services: MdnsServices

    async def start(self) -> None:
        self.services = MdnsServices(self.node.node_id, self.node.urls)
        self.services.start()

    async def stop(self) -> None:
        await self.services.stop()


def reached_at(urls: Iterable[str]) -> tuple[int, list[IpAddress]]:
    """The port of the first MQTT listener, and the addresses at which it is reached: loopback only if there
    is nothing else."""
    places = [urlsplit(url) for url in urls if url.startswith("mqtt://")]
    port = places[0].port or 0 if places else 0
    found: dict[IpAddress, None] = {}
    for place in places:
        if place.port == port:
            found |= dict.fromkeys(reached_addresses(place.hostname or ""))
    beyond = [address for address in found if not address.is_loopback]
    return port, beyond or list(found)


def make_services(
    node_id: str,
    port: int,
    addresses: Iterable[IpAddress],
    kinds: Sequence[str] = SERVICES,
    properties: Mapping[str, str] | None = None,
) -> list[ServiceInfo]:
    from zeroconf import ServiceInfo

    packed = [address.packed for address in addresses]
    label = mdns_label(node_id)
    return [
        ServiceInfo(
            kind,
            f"{label}.{kind}",
            port,
            properties={"id": node_id} if properties is None else dict(properties),
            server=f"{label}.local.",
            addresses=packed,
        )
        for kind in kinds
    ]
