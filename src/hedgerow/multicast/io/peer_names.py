"""Members that the user names (`peer=HOST[:PORT]`), and addresses as sockets write them."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from hedgerow.errors import ConfigError, reason_of
from hedgerow.multicast.io.interfaces import Choice
from hedgerow.multicast.io.options import parse_peer
from hedgerow.multicast.peers import PeerAddress
from hedgerow.node.authority import authority

logger = logging.getLogger(__name__)

# A name that is not found now may be when its network is back.
RETRY_S = (1.0, 60.0)

Resolve = Callable[..., Awaitable[Sequence[tuple[Any, ...]]]]
"""As a loop's `getaddrinfo`."""


class PeerNames:
    """Calls `add_peer` with the address of each, as soon as its name is resolved."""

    def __init__(
        self,
        peers: Iterable[str],
        default_port: int,
        choice: Choice,
        add_peer: Callable[[PeerAddress], None],
        *,
        resolve: Resolve | None = None,
        retry_s: tuple[float, float] = RETRY_S,
    ) -> None:
        self._add_peer = add_peer
        self._ask = resolve or asyncio.get_running_loop().getaddrinfo
        self._retry_s = retry_s
        self._tasks: set[asyncio.Task[None]] = set()
        for peer in dict.fromkeys(peers):
            host, port = parse_peer(peer, default_port)
            address = numeric_address(host, port, choice)
            if address is not None:
                add_peer(address)
            elif numeric_address(host, port, Choice(10 - choice.ip, choice.interfaces)) is not None:
                raise ConfigError(f"peer {peer} has an IPv6 address, and multicast is by IPv4 here (ip=4)")
            else:
                self._tasks.add(asyncio.get_running_loop().create_task(self._resolve(host, port, choice.ip)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _resolve(self, host: str, port: int, ip: int) -> None:
        wait_s, longest_s = self._retry_s
        has_failed = False
        while True:
            try:
                found = await self._ask(host, port, **_hints(ip))
            except (OSError, UnicodeError) as error:
                if not has_failed:
                    where = authority(host, port)
                    text = "peer %s is not found; it will be looked for again: %s"
                    logger.warning(text, where, reason_of(error))
                has_failed = True
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, longest_s)
            else:
                self._add_peer(found[0][4])
                return


def numeric_address(host: str, port: int, choice: Choice) -> PeerAddress | None:
    """The socket address of a host that is written as an address of this IP version; else None. With
    IPv6, an IPv4 address is one too (::ffff:a.b.c.d)."""
    hints = _hints(choice.ip)
    hints["flags"] |= socket.AI_NUMERICHOST
    try:
        address: tuple[Any, ...] = socket.getaddrinfo(host, port, **hints)[0][4]
    except (OSError, UnicodeError):  # UnicodeError: a label that is empty or too long
        return None
    if choice.ip == 6 and host.lower().startswith("fe80:") and not address[3] and choice.interfaces:
        return (*address[:3], choice.interfaces[0].index)  # It has to be on some link.
    return address


def _hints(ip: int) -> dict[str, int]:
    family, flags = (socket.AF_INET, 0) if ip == 4 else (socket.AF_INET6, socket.AI_V4MAPPED)
    return {"family": family, "type": socket.SOCK_DGRAM, "flags": flags}
