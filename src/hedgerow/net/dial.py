"""Opening a link to a server: TCP, TLS or WebSocket, one address after the other, within one time limit.

A `ClientLink` carries bytes and knows nothing of what they mean. Whatever goes wrong while it is
opened leaves as one `ConnectError` that says where to and why, in words.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from hedgerow.errors import ConfigError, ConnectError
from hedgerow.net.urls import Address

WRITE_HIGH_WATER = 256 * 1024
WRITE_LOW_WATER = 64 * 1024

# A link that was closed with bytes still to write gets this long; a dead peer would hold it for ever.
CLOSE_TIMEOUT_S = 2.0

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
    return error.strerror or str(error)


class ClientLink(asyncio.Protocol):
    """An open link. `on_data` gets every chunk, `on_lost` once the reason why there are no more."""

    transport: asyncio.Transport

    def __init__(self, on_data: Callable[[bytes], None], on_lost: Callable[[str], None]) -> None:
        self._on_data = on_data
        self._on_lost = on_lost
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.writable = asyncio.Event()
        self.writable.set()
        self._giving_up: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are not registered as such
        self.transport.set_write_buffer_limits(WRITE_HIGH_WATER, WRITE_LOW_WATER)
        self.begin()

    def begin(self) -> None:
        """The transport is there; what else has to happen until bytes may flow?"""
        self.opened.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._on_data(data)

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
        reason = explain(error) if error is not None else "the server closed the link"
        self.writable.set()
        if not self.opened.done():
            self.opened.set_exception(ConnectError(reason))
            self.opened.exception()  # seen: the one who waits for it may have given up
        if not self.closed.done():
            self.closed.set_result(None)
            self._on_lost(reason)

    def close(self) -> None:
        """Write what is left, and end."""
        if self._giving_up is None and not self.closed.done():
            loop = asyncio.get_running_loop()
            self._giving_up = loop.call_later(CLOSE_TIMEOUT_S, self.transport.abort)
            self.transport.close()

    def abort(self) -> None:
        self.transport.abort()


async def dial(
    address: Address,
    tls: ssl.SSLContext | None,
    timeout_s: float,
    on_data: Callable[[bytes], None],
    on_lost: Callable[[str], None],
) -> ClientLink:
    """Open a link, or raise ConnectError."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _dial_each(address, tls, on_data, on_lost)
    except TimeoutError:
        raise ConnectError(f"cannot connect to {address}: no answer in {timeout_s:g} s") from None
    except (OSError, ssl.CertificateError, ConnectError) as error:
        raise ConnectError(f"cannot connect to {address}: {explain(error)}") from error


async def _dial_each(
    address: Address,
    tls: ssl.SSLContext | None,
    on_data: Callable[[bytes], None],
    on_lost: Callable[[str], None],
) -> ClientLink:
    """Try each address of the host in turn; the first link that opens, or the last one's error."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    failure: Exception = ConnectError("the host has no address")
    for number, (family, _, _, _, sockaddr) in enumerate(found, 1):
        try:
            async with asyncio.timeout(ADDRESS_TIMEOUT_S if number < len(found) else None):
                return await _dial_one(address, family, str(sockaddr[0]), tls, on_data, on_lost)
        except TimeoutError:
            failure = ConnectError(f"no answer in {ADDRESS_TIMEOUT_S:g} s")
        except (OSError, ConnectError) as error:
            failure = error
    raise failure


async def _dial_one(
    address: Address,
    family: int,
    host: str,
    tls: ssl.SSLContext | None,
    on_data: Callable[[bytes], None],
    on_lost: Callable[[str], None],
) -> ClientLink:
    def make_link() -> ClientLink:
        if address.scheme.websocket:
            from hedgerow.net.websocket_client import WebSocketClientLink

            return WebSocketClientLink(address, on_data, on_lost)
        return ClientLink(on_data, on_lost)

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


def explain(error: BaseException) -> str:
    """Why a link could not be made or kept, for people."""
    match error:
        case socket.gaierror():
            return f"no such host ({error.strerror})"
        case ssl.SSLCertVerificationError():
            return f"the server's certificate is not trusted: {error.verify_message}"
        case ssl.SSLError():
            return f"TLS failed: {error.reason or error}".replace("_", " ").lower().replace("tls", "TLS")
        case ConnectionRefusedError():
            return "connection refused"
        case ConnectionResetError():
            return "the server reset the link"
        case OSError() if error.strerror:
            return error.strerror.lower()
    return str(error) or type(error).__name__
