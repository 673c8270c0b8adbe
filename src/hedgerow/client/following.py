"""Where a client may be sent, and where it looks for a server that it lost.

A server may say that another one is to be used: by a renewal of the extension, or in MQTT 5 by a Server
Reference. What it says is host and port alone. The rest stays as the application gave it: transport, TLS and
what it checks the certificate against (with the new host's name), path, user and password. So nobody can be
led from TLS to a connection in clear. A server elsewhere cannot send a client to the client's own machine.

A password goes to another host only if somebody answers for that host: the application, which has listed it,
or a certificate that is checked. Any server, and without TLS anyone on the way, can name a host.
"""

from __future__ import annotations

import ipaddress
import logging
import ssl
from dataclasses import dataclass, replace

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


@dataclass(slots=True, frozen=True)
class Guard:
    """Where a password may be shown beside the host that the application connected to."""

    listed: tuple[tuple[str, int | None], ...] = ()
    """Hosts in lower case; with a port, only there."""
    tls: ssl.SSLContext | None = None

    def allows(self, host: str, port: int) -> bool:
        name = _canonical(host)
        if any(_canonical(known) == name and only in (None, port) for known, only in self.listed):
            return True
        return self.tls is not None and self.tls.verify_mode == ssl.CERT_REQUIRED and self.tls.check_hostname


class Whereabouts:
    """`home` is where the application connected, `address` where the client is, or was last."""

    def __init__(self, home: BusUrl, guard: Guard | None = None) -> None:
        """With a `guard` there is a password to show."""
        self.home = home
        self.address = home
        self.is_barred = False
        """Did the last redirection lead only where no password goes? Then the server that said it may take us
        again."""
        self._first_host = home.host
        self._guard = guard
        self._supporter: BusUrl | None = None

    def read(self, reference: str | None) -> BusUrl | None:
        """The first address of a Server Reference, or of a renewal, that may be followed."""
        for text in (reference or "").split()[:MAX_REFERENCES]:
            try:
                host, port = parse_address(text if ":" in text else f"{text}:{self.home.scheme.port}")
            except ValueError as error:
                logger.warning("%s sends us elsewhere: %s", self.address, error)
                continue
            if not _may_be_followed(host, self.address.host):
                logger.warning("%s sends us to %s, where we do not go", self.address, text)
            elif not self._may_show_password(host, port):
                self.is_barred = True
                unsafe = "without a check of its certificate" if self.home.scheme.tls else "in clear"
                allow = "follow_to, or --follow-to, lists hosts where it may"
                logger.warning(
                    "%s sends us to %s; our password does not go there %s (%s)",
                    self.address,
                    text,
                    unsafe,
                    allow,
                )
            else:
                self.is_barred = False
                return replace(self.home, host=host, port=port)
        return None

    def _may_show_password(self, host: str, port: int) -> bool:
        if self._guard is None or _canonical(host) == _canonical(self._first_host):
            return True
        return (_is_local(host) and _is_local(self._first_host)) or self._guard.allows(host, port)

    def set_supporter(self, reference: str) -> None:
        self._supporter = self.read(reference)

    def redirect(self, reason_code: int | None, reference: str | None) -> BusUrl | None:
        """Where a server that has refused or ended a connection says to go."""
        self.is_barred = False
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


def _canonical(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.rstrip(".").lower()


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost" or host.lower().endswith(".localhost")
