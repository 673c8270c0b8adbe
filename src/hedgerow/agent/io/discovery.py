"""Brokers found by multicast DNS: Hedgerow nodes, and whatever else announces MQTT.

A broker's id is what it says of itself (`id` in its TXT record, as nodes do), or its instance's name. One
that takes its announcement back stays in the list: whether it lives is for the probes to say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hedgerow.agent.io.broker_list import BrokerEntry, make_id
from hedgerow.client.urls import parse_url
from hedgerow.errors import ConfigError
from hedgerow.node.authority import authority
from hedgerow.node.mdns_browser import MdnsBrowser, addresses_of
from hedgerow.node.mdns_services import SERVICES

if TYPE_CHECKING:
    from zeroconf import ServiceInfo


class Browser:
    """`discover` is told of each broker, again when it is announced again. `interfaces` by their addresses;
    all of them unless given."""

    def __init__(self, discover: Callable[[BrokerEntry], None], interfaces: list[str] | None = None) -> None:
        self._discover = discover
        self._browser = MdnsBrowser(SERVICES, self._found, interfaces)

    async def start(self) -> None:
        """Raises ConfigError where multicast DNS does not work."""
        try:
            await self._browser.start()
        except ConfigError as error:
            raise ConfigError(f"--mdns: {error}") from None

    async def stop(self) -> None:
        await self._browser.stop()

    def _found(self, info: ServiceInfo) -> None:
        entry = read_service(info)
        if entry is not None:
            self._discover(entry)


def read_service(info: ServiceInfo) -> BrokerEntry | None:
    """The broker that a service announces; None when it lacks an address."""
    addresses = addresses_of(info)
    if not addresses or not info.port:
        return None
    said = (info.properties or {}).get(b"id") or b""
    instance = info.name.removesuffix(f".{info.type}")
    broker_id = make_id(said.decode(errors="replace") or instance)
    return BrokerEntry(broker_id, parse_url(f"mqtt://{authority(addresses[0], info.port)}"))
