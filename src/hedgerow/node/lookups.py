"""Names of hosts to their addresses, each looked up in a thread of its own.

The threads that asyncio lends are few: six names on two cores, about which the name server is silent, keep
all others waiting, also those that the system knows by itself. And it waits for them when the program ends.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread
from typing import Any

from hedgerow.errors import ConnectError

MAX_LOOKUPS = 512  # under way; more than there are bridges, since a lookup may last longer than its dial


# As `socket.getaddrinfo` without a port.
LookUp = Callable[[str, None], Sequence[tuple[int, int, int, str, tuple[Any, ...]]]]


class Lookups:
    def __init__(self, look_up: LookUp = socket.getaddrinfo, max_lookups: int = MAX_LOOKUPS) -> None:
        self._look_up = look_up
        self._max_lookups = max_lookups
        self._under_way: dict[str, asyncio.Future[list[str]]] = {}

    async def find(self, host: str) -> list[str]:
        """The addresses of a host, as the system orders them. Raises OSError, UnicodeError, ConnectError."""
        with suppress(ValueError):
            ipaddress.ip_address(host)
            return [host]
        found = self._under_way.get(host)
        if found is None:
            if len(self._under_way) >= self._max_lookups:
                raise ConnectError("too many names are being looked up")
            found = self._under_way[host] = asyncio.get_running_loop().create_future()
            found.add_done_callback(lambda done: self._finished(host, done))
            arguments = (self._look_up, host, found)
            Thread(target=_find, args=arguments, name=f"lookup {host}", daemon=True).start()
        return await asyncio.shield(found)  # Who dials the same name later waits for the same answer.

    def _finished(self, host: str, found: asyncio.Future[list[str]]) -> None:
        del self._under_way[host]
        if not found.cancelled():
            found.exception()  # Nobody may be left to hear of it, which asyncio would report.


def _find(look_up: LookUp, host: str, found: asyncio.Future[list[str]]) -> None:
    answer: list[str] | Exception
    try:
        answer = list(dict.fromkeys(str(each[4][0]) for each in look_up(host, None)))
    except (OSError, UnicodeError) as error:
        answer = error
    with suppress(RuntimeError):  # The loop is closed: the program has ended.
        found.get_loop().call_soon_threadsafe(_tell, found, answer)


def _tell(found: asyncio.Future[list[str]], answer: list[str] | Exception) -> None:
    if found.done():
        return
    if isinstance(answer, Exception):
        found.set_exception(answer)
    else:
        found.set_result(answer)
