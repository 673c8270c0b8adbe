"""Opening a link to a server: TCP, TLS or WebSocket, one address after the other, within one time limit.

Whatever goes wrong leaves as one `ConnectError` that says where to and why, in words.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from hedgerow.client.link import ClientLink
from hedgerow.client.urls import BusUrl
from hedgerow.errors import ConfigError, ConnectError, reason_of
from hedgerow.node.link_errors import explain

# One address that swallows packets must not use up the time of those after it.
ADDRESS_TIMEOUT_S = 5.0


@dataclass(slots=True, frozen=True)
class TlsOptions:
    ca_file: str | None = None
    """Trust these authorities, and not the system's."""
    cert_file: str | None = None
    key_file: str | None = None
    insecure: bool = False
    """Do not check that the certificate is that of the host; without `ca_file` check nothing at all."""

    def make_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"CA file {self.ca_file}: {_explain_file(error)}") from error
        if self.insecure:
            context.check_hostname = False
            if self.ca_file is None:
                context.verify_mode = ssl.CERT_NONE
        if self.cert_file is not None:
            try:
                context.load_cert_chain(self.cert_file, self.key_file)
            except (OSError, ssl.SSLError) as error:
                names = " and ".join(filter(None, (self.cert_file, self.key_file)))
                raise ConfigError(f"client certificate {names}: {_explain_file(error)}") from error
        elif self.key_file is not None:
            raise ConfigError(f"client key {self.key_file} is of no use without its certificate")
        return context


def _explain_file(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return "not a PEM file that fits"
    return reason_of(error)


async def dial(
    address: BusUrl,
    tls: ssl.SSLContext | None,
    timeout_s: float,
    on_data: Callable[[bytes], None],
) -> ClientLink:
    """Open a link, or raise ConnectError."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _dial_each(address, tls, on_data)
    except TimeoutError:
        raise ConnectError(f"cannot connect to {address}: no answer in {timeout_s:g} s") from None
    except (OSError, ssl.CertificateError, ConnectError) as error:
        raise ConnectError(f"cannot connect to {address}: {explain(error)}") from None


async def _dial_each(
    address: BusUrl,
    tls: ssl.SSLContext | None,
    on_data: Callable[[bytes], None],
) -> ClientLink:
    """Try each address of the host in turn; the first link that opens, or the last one's error."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except UnicodeError:  # an empty part, one of more than 63 bytes, or a character that no name has
        raise ConnectError(f"{address.host!r} cannot be the name of a host") from None
    failure: Exception = ConnectError("the host has no address")
    for number, (family, _, _, _, sockaddr) in enumerate(found, 1):
        try:
            async with asyncio.timeout(ADDRESS_TIMEOUT_S if number < len(found) else None):
                return await _dial_one(address, family, str(sockaddr[0]), tls, on_data)
        except TimeoutError:
            failure = ConnectError(f"no answer in {ADDRESS_TIMEOUT_S:g} s")
        except (OSError, ConnectError) as error:
            failure = error
    raise failure


async def _dial_one(
    address: BusUrl,
    family: int,
    host: str,
    tls: ssl.SSLContext | None,
    on_data: Callable[[bytes], None],
) -> ClientLink:
    def make_link() -> ClientLink:
        if address.scheme.websocket:
            from hedgerow.client.websocket import WebSocketClientLink

            return WebSocketClientLink(address, on_data)
        return ClientLink(on_data)

    loop = asyncio.get_running_loop()
    name = address.host if tls is not None else None
    _, link = await loop.create_connection(
        make_link, host, address.port, ssl=tls, family=family, server_hostname=name
    )
    try:
        await link.opened
    except BaseException:
        link.abort()
        raise
    return link
