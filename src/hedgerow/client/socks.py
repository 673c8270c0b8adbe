"""SOCKS 5 (RFC 1928), as far as a client needs it that connects by TCP; RFC 1929 for user names.

The proxy is given the name of the host and not its address, so that it is the proxy that looks it up.
"""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from hedgerow.errors import ConfigError, ConnectError

VERSION = 5
NO_LOGIN = 0
LOGIN = 2
LOGIN_VERSION = 1
CONNECT = 1
DOMAIN_NAME = 3
ADDRESS_BYTES = {1: 4, 4: 16}  # by the type of an address
MAX_PART_BYTES = 255  # of a host, a user name and a password: their length is one byte
# RFC 1928 §6.
FAILURES = {
    1: "a failure of the proxy",
    2: "the proxy's rules do not allow it",
    3: "the proxy cannot reach the network",
    4: "the proxy cannot reach the host",
    5: "the host refused the proxy's connection",
    6: "the proxy had no answer in time",
}
SCHEMES = ("socks5", "socks5h")


@dataclass(slots=True, frozen=True)
class Proxy:
    host: str
    port: int
    username: str | None = None
    password: str = field(default="", repr=False)


def parse_proxy(url: str) -> Proxy:
    """`socks5h://[USER[:PASSWORD]@]HOST[:PORT]`. Raises ConfigError."""
    parts = urlsplit(url)
    try:
        port = parts.port or 1080
    except ValueError:
        raise ConfigError(f"{url}: the port is not a number from 1 to 65535") from None
    if parts.scheme not in SCHEMES or not parts.hostname or parts.path.strip("/"):
        raise ConfigError(f"{url} is not socks5h://[USER[:PASSWORD]@]HOST[:PORT]")
    proxy = Proxy(
        parts.hostname,
        port,
        None if parts.username is None else unquote(parts.username),
        unquote(parts.password or ""),
    )
    for part in (proxy.username or "", proxy.password):
        if len(part.encode()) > MAX_PART_BYTES:
            raise ConfigError(f"proxy: a user name or password of more than {MAX_PART_BYTES} bytes")
    return proxy


async def open_through(proxy: Proxy, host: str, port: int, local_address: str | None) -> socket.socket:
    """A socket that is connected to the host, through the proxy. Raises OSError or ConnectError."""
    loop = asyncio.get_running_loop()
    name = host.encode("idna") if not host.isascii() else host.encode()
    if len(name) > MAX_PART_BYTES:
        raise ConnectError(f"a proxy takes names of at most {MAX_PART_BYTES} bytes")
    found = await loop.getaddrinfo(proxy.host, proxy.port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    connection = socket.socket(family, kind, protocol)
    try:
        connection.setblocking(False)
        if local_address is not None:
            connection.bind((local_address, 0))
        await loop.sock_connect(connection, address)
        await _log_in(loop, connection, proxy)
        request = bytes((VERSION, CONNECT, 0, DOMAIN_NAME, len(name))) + name + port.to_bytes(2, "big")
        await loop.sock_sendall(connection, request)
        version, reply, _, kind_of_address = await _read(loop, connection, 4)
        if version != VERSION:
            raise ConnectError("what is there is not a SOCKS 5 proxy")
        if reply != 0:
            raise ConnectError(FAILURES.get(reply, f"the proxy answered {reply}"))
        if (size := ADDRESS_BYTES.get(kind_of_address)) is None:
            (size,) = await _read(loop, connection, 1)
        await _read(loop, connection, size + 2)  # its own address and port
    except BaseException:
        connection.close()
        raise
    return connection


async def _log_in(loop: asyncio.AbstractEventLoop, connection: socket.socket, proxy: Proxy) -> None:
    method = NO_LOGIN if proxy.username is None else LOGIN
    await loop.sock_sendall(connection, bytes((VERSION, 1, method)))
    version, chosen = await _read(loop, connection, 2)
    if version != VERSION:
        raise ConnectError("what is there is not a SOCKS 5 proxy")
    if chosen != method:
        asked = "asks for a user name" if method == NO_LOGIN else "takes no user name and password"
        raise ConnectError(f"the proxy {asked}")
    if proxy.username is not None:
        user, password = proxy.username.encode(), proxy.password.encode()
        login = bytes((LOGIN_VERSION, len(user))) + user + bytes((len(password),)) + password
        await loop.sock_sendall(connection, login)
        _, status = await _read(loop, connection, 2)
        if status != 0:
            raise ConnectError("the proxy refused the user name or password")


async def _read(loop: asyncio.AbstractEventLoop, connection: socket.socket, size: int) -> bytes:
    """Not a byte more: what comes behind it is the server's."""
    data = b""
    while len(data) < size:
        chunk = await loop.sock_recv(connection, size - len(data))
        if not chunk:
            raise ConnectError("the proxy closed the connection")
        data += chunk
    return data
