"""Opening a link to a server: TCP, TLS or WebSocket, one address after the other, within one time limit.

Whatever goes wrong leaves as one `ConnectError` that says where to and why, in words.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial

from hedgerow.client.link import ClientLink
from hedgerow.client.options import ServerRoute
from hedgerow.client.socks import open_through
from hedgerow.client.urls import BusUrl
from hedgerow.errors import ConnectError
from hedgerow.node.link_errors import explain

# One address that swallows packets must not use up the time of those after it.
ADDRESS_TIMEOUT_S = 5.0


async def dial(
    address: BusUrl,
    tls: ssl.SSLContext | None,
    timeout_s: float,
    on_data: Callable[[bytes], None],
    route: ServerRoute,
) -> ClientLink:
    """Open a link, or raise ConnectError."""
    try:
        async with asyncio.timeout(timeout_s):
            if route.unix_path is not None or route.proxy is not None:
                return await _dial_past_names(address, tls, on_data, route)
            return await _dial_each(address, tls, on_data, route)
    except TimeoutError:
        raise ConnectError(f"cannot connect to {address}: no answer in {timeout_s:g} s") from None
    except (OSError, ssl.CertificateError, ConnectError) as error:
        raise ConnectError(f"cannot connect to {address}: {explain(error)}") from None


async def _dial_past_names(
    address: BusUrl, tls: ssl.SSLContext | None, on_data: Callable[[bytes], None], route: ServerRoute
) -> ClientLink:
    """Where nobody here looks up the host: through a proxy, or at a path."""
    loop = asyncio.get_running_loop()
    name = address.host if tls is not None else None
    make_link = partial(_make_link, address, on_data)
    if route.unix_path is not None:
        _, link = await loop.create_unix_connection(make_link, route.unix_path, ssl=tls, server_hostname=name)
        return await _opened(link)
    assert route.proxy is not None
    connection = await open_through(route.proxy, address.host, address.port, route.local_address)
    _, link = await loop.create_connection(make_link, sock=connection, ssl=tls, server_hostname=name)
    return await _opened(link)


async def _dial_each(
    address: BusUrl,
    tls: ssl.SSLContext | None,
    on_data: Callable[[bytes], None],
    route: ServerRoute,
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
                return await _dial_one(address, family, str(sockaddr[0]), tls, on_data, route)
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
    route: ServerRoute,
) -> ClientLink:
    loop = asyncio.get_running_loop()
    _, link = await loop.create_connection(
        partial(_make_link, address, on_data),
        host,
        address.port,
        ssl=tls,
        family=family,
        server_hostname=address.host if tls is not None else None,
        local_addr=None if route.local_address is None else (route.local_address, 0),
    )
    return await _opened(link)


def _make_link(address: BusUrl, on_data: Callable[[bytes], None]) -> ClientLink:
    if address.scheme.websocket:
        from hedgerow.client.websocket import WebSocketClientLink

        return WebSocketClientLink(address, on_data)
    return ClientLink(on_data)


async def _opened(link: ClientLink) -> ClientLink:
    try:
        await link.opened
    except BaseException:
        link.abort()
        raise
    return link
