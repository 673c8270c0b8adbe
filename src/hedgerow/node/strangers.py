"""What other machines reach, and who may connect and prove nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hedgerow.rates import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hedgerow.node.config import Config
    from hedgerow.node.values import Address

ELSEWHERE = ""  # an address that is not of this machine
MQTT = ("mqtt", "mqtts", "ws", "wss")
HTTP = ("http", "https")


def reached(config: Config) -> Iterator[tuple[str, Address]]:
    """Schemes and addresses at which other machines reach the node."""
    for scheme in (*MQTT, *HTTP):
        yield from ((scheme, address) for address in getattr(config, scheme) if not address.is_loopback)


def takes_strangers(config: Config, address: str) -> bool:
    """Could a client at this address connect over MQTT, and prove nothing?"""
    if not config.anonymous:
        return False
    if config.tls is None or not config.tls.require_client_certificate:
        return True
    is_near = is_loopback(address)
    return any(is_near or not each.is_loopback for each in (*config.mqtt, *config.ws))
