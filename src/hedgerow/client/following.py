"""Where a client may be sent, and where it looks for a server that it lost.

A server may say that another one is to be used: by a renewal of the extension, or in MQTT 5 by a Server
Reference. What it says is host and port alone. The rest stays as the application gave it: transport, TLS and
what it checks the certificate against (with the new host's name), path, user and password. So nobody can be
led from TLS to a connection in clear. A server elsewhere cannot send a client to the client's own machine.
"""

from __future__ import annotations

import ipaddress
import logging
from dataclasses import replace

from hedgerow.client.urls import BusUrl
from hedgerow.mqtt.extension import parse_address
from hedgerow.mqtt.reasons import Reason

logger = logging.getLogger(__name__)

# Servers that send each other's clients away at CONNECT: so many in a row, then it is a failure as any.
MAX_REDIRECTS = 5

# A client that is sent to and fro stays this long with each: a loop costs ten connections a second at most.
MIN_STAY_S = 0.1

MAX_REFERENCES = 8  # A Server Reference is a list of up to 64 KiB.

REDIRECTIONS = frozenset({Reason.USE_ANOTHER_SERVER, Reason.SERVER_MOVED})


class Whereabouts:
    """`home` is where the application connected, `address` where the client is, or was last."""

    def __init__(self, home: BusUrl) -> None:
        self.home = home
        self.address = home
        self._supporter: BusUrl | None = None

    def read(self, reference: str | None) -> BusUrl | None:
        """The first address of a Server Reference, or of a renewal, that may be followed."""
        for text in (reference or "").split()[:MAX_REFERENCES]:
            try:
                host, port = parse_address(text if ":" in text else f"{text}:{self.home.scheme.port}")
            except ValueError as error:
                logger.warning("%s sends us elsewhere: %s", self.address, error)
                continue
            if _may_be_followed(host, self.address.host):
                return replace(self.home, host=host, port=port)
            logger.warning("%s sends us to %s, where we do not go", self.address, text)
        return None

    def set_supporter(self, reference: str) -> None:
        self._supporter = self.read(reference)

    def redirect(self, reason_code: int | None, reference: str | None) -> BusUrl | None:
        """Where a server that has refused or ended a connection says to go."""
        if reason_code not in REDIRECTIONS:
            return None
        address = self.read(reference)
        if address is not None and reason_code == Reason.SERVER_MOVED:
            self.home = address
        return address

    def candidate(self, attempt: int) -> BusUrl:
        """Whom to try when the server is gone: itself, who supports it, and where it all began, in turn."""
        known = dict.fromkeys(each for each in (self.address, self._supporter, self.home) if each is not None)
        return list(known)[attempt % len(known)]


def _may_be_followed(host: str, current: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return not _is_local(host) or _is_local(current)
    if address.is_multicast or address.is_unspecified or str(address) == "255.255.255.255":
        return False
    return not address.is_loopback or _is_local(current)


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost" or host.lower().endswith(".localhost")
