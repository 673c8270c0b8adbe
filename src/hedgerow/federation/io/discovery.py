"""Members of a federation that find each other by multicast DNS, as `_hedgerow-fed._tcp`.

The service is not `_hedgerow._tcp`, which agents take for a broker of its own: a sidecar announces the broker
that it stands beside. Its TXT record has the node's `id` and as `urls`, with blanks between them, where the
node is reached. Whoever can answer multicast DNS can be found; a key keeps others out.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from hedgerow.errors import ConfigError
from hedgerow.federation.config import FederationConfig
from hedgerow.federation.overlay.limits import MAX_ADDRESSES
from hedgerow.node.addresses import own_addresses, reached_addresses
from hedgerow.node.authority import authority
from hedgerow.node.broker_urls import BrokerUrl, read_broker_url
from hedgerow.node.mdns_browser import MdnsBrowser
from hedgerow.node.mdns_services import MdnsServices
from hedgerow.node.values import read_node_id

if TYPE_CHECKING:
    from zeroconf import ServiceInfo

logger = logging.getLogger(__name__)

FEDERATION_SERVICE = "_hedgerow-fed._tcp.local."
MAX_URLS_BYTES = 250  # of one string of a TXT record, which holds 255 bytes with "urls="


class NodeDiscovery:
    """`found` is told of each other node, its id and where it is reached, again when it is announced again.
    `listening` are the URLs of this node's listeners."""

    def __init__(
        self,
        node_id: str,
        federation: FederationConfig,
        listening: Iterable[str],
        found: Callable[[str, list[str]], None],
    ) -> None:
        self._node_id = node_id
        self._urls = own_urls(federation, listening)
        self._found = found
        interfaces = interfaces_to_search(self._urls)
        self._browser = MdnsBrowser([FEDERATION_SERVICE], self._service_found, interfaces)
        self._services: MdnsServices | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """In the background. A node works without: what does not work is logged."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._browser.stop()
        if self._services is not None:
            await self._services.stop()

    async def _run(self) -> None:
        try:
            await self._browser.start()
        except ConfigError as error:
            logger.warning("no other nodes are looked for: %s", error)
            return
        if not self._urls:
            logger.info("multicast DNS does not announce this node: it has no MQTT listener")
            return
        if all(url.is_loopback for url in self._urls):
            logger.info(
                "multicast DNS is used on this machine alone, where this node is reached at %s; "
                "federation.advertise (--advertise URL) says where else it is",
                self._urls[0],
            )
        places = await _places(self._urls)
        properties = {"urls": _as_many_as_fit(map(str, self._urls))}
        self._services = MdnsServices(self._node_id, places, [FEDERATION_SERVICE], properties)
        self._services.start()

    def _service_found(self, info: ServiceInfo) -> None:
        node = read_node(info)
        if node is not None and node[0] != self._node_id:
            self._found(*node)


def own_urls(federation: FederationConfig, listening: Iterable[str]) -> list[BrokerUrl]:
    """Where other nodes reach this one: as it advertises, at the broker that it stands beside, or where it
    listens. Loopback only if there is nothing else."""
    if federation.advertise:
        return list(federation.advertise)
    if federation.home is not None:
        home = federation.home
        return [BrokerUrl(home.host, home.port, home.is_tls)]
    found: list[BrokerUrl] = []
    for text in listening:
        if text.startswith(("mqtt://", "mqtts://")):
            url = read_broker_url(text, Path())
            hosts = map(str, reached_addresses(url.host))
            found += [BrokerUrl(host, url.port, url.is_tls) for host in hosts]
    beyond = [url for url in found if not url.is_loopback]
    # IPv4 first: an IPv6 address may be one that others have no route to.
    return sorted(dict.fromkeys(beyond or found), key=lambda url: ":" in url.host)[:MAX_ADDRESSES]


def interfaces_to_search(urls: list[BrokerUrl]) -> list[str]:
    """By their addresses. A node that is there for its own machine alone asks nobody else."""
    if urls and all(url.is_loopback for url in urls):
        return ["127.0.0.1"]
    return [str(address) for address in own_addresses(4) if not address.is_loopback]


async def _places(urls: list[BrokerUrl]) -> list[str]:
    """Host and port for the service's record, with names looked up; the port is that of the first."""
    loop = asyncio.get_running_loop()
    places: list[str] = []
    for url in urls:
        try:
            found = await loop.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
        except OSError as error:
            logger.warning("multicast DNS does not announce %s: %s", url, error.strerror)
            continue
        hosts = [sockaddr[0] for _, _, _, _, sockaddr in found]
        places += [f"mqtt://{authority(str(host), url.port)}" for host in hosts]
    return places


def _as_many_as_fit(texts: Iterable[str]) -> str:
    together = ""
    for text in texts:
        longer = f"{together} {text}".strip()
        if len(longer.encode()) <= MAX_URLS_BYTES:
            together = longer
    return together


def read_node(info: ServiceInfo) -> tuple[str, list[str]] | None:
    """(node id, URLs) of a service; None when it is not as a node announces itself."""
    properties = info.properties or {}
    try:
        node_id = read_node_id((properties.get(b"id") or b"").decode(), Path())
        texts = (properties.get(b"urls") or b"").decode().split(" ")[:MAX_ADDRESSES]
        urls = [str(read_broker_url(text, Path())) for text in texts]
    except (ConfigError, UnicodeDecodeError) as error:
        logger.debug("multicast DNS: %s is no node: %s", info.name, error)
        return None
    return node_id, urls
