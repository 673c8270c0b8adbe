"""How other brokers are dialled, whichever part asks for it: bridges, the federation, mobile brokers.

A `Dialler` tries the places at which somebody may be reached one after the other, and of each the addresses
of its host, until a link is open. It gives each its time, says in words why none answered, and gives up what
is under way when its part stops.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from hedgerow.errors import ConfigError, ConnectError
from hedgerow.node.far_link import FarLink
from hedgerow.node.link_errors import explain
from hedgerow.node.lookups import Lookups
from hedgerow.node.tls_files import client_context, load_certificate

if TYPE_CHECKING:
    from pathlib import Path

    from hedgerow.broker.dialled import DialledConnection
    from hedgerow.node.part import NodeContext

DIAL_TIMEOUT_S = 5.0

DIAL_ERRORS = (OSError, ssl.CertificateError, UnicodeError, ConfigError, ConnectError)
"""What `dial` raises; a TimeoutError is an OSError too."""

MakeTls = Callable[[], ssl.SSLContext]


@dataclass(frozen=True, slots=True)
class Place:
    """Where somebody may be reached, and the machine that speaks there."""

    text: str
    """As the log calls it."""
    host: str
    port: int
    open_connection: Callable[[FarLink, float], DialledConnection]
    make_tls: MakeTls | None = None
    """None: without TLS. May raise ConfigError."""
    local_host: str | None = None
    """The address of this machine to dial from."""


class Dialler:
    """The dials of one part, each under a key of its own."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._lookups = Lookups()
        self._under_way: dict[asyncio.Task[None], Hashable] = {}

    def dial(
        self,
        key: Hashable,
        places: Sequence[Place],
        on_failed: Callable[[str], None],
        timeout_s: float = DIAL_TIMEOUT_S,
        reason: str = "no address",
    ) -> None:
        """Open a link to the first place that answers in its time. `on_failed` is told why the last did not,
        or the `reason` why there is none."""
        dialling = self._dial(places, on_failed, timeout_s, reason)
        task = asyncio.get_running_loop().create_task(dialling)
        self._under_way[task] = key
        task.add_done_callback(self._under_way.pop)

    def cancel(self, key: Hashable) -> bool:
        """Was there something to cancel? Its `on_failed` is not told."""
        tasks = [task for task, each in self._under_way.items() if each == key]
        return bool([task for task in tasks if task.cancel()])

    @property
    def keys(self) -> list[Hashable]:
        """Of what is under way."""
        return list(self._under_way.values())

    async def stop(self) -> None:
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _dial(
        self, places: Sequence[Place], on_failed: Callable[[str], None], timeout_s: float, reason: str
    ) -> None:
        for place in places:
            try:
                make_tls = place.make_tls
                context = make_tls() if make_tls is not None else None
                await dial(self._lookups, place.host, partial(self._open, place, context), timeout_s)
                return
            except DIAL_ERRORS as error:
                reason = explain_dial(error, timeout_s)
        on_failed(reason)
        self._node.flush()

    async def _open(self, place: Place, context: ssl.SSLContext | None, host: str) -> None:
        await FarLink(self._node, place.text, place.open_connection).open(
            host,
            place.port,
            ssl=context,
            server_hostname=place.host if context is not None else None,
            local_addr=(place.local_host, 0) if place.local_host is not None else None,
        )


async def dial(
    lookups: Lookups,
    host: str,
    open_to: Callable[[str], Awaitable[object]],
    timeout_s: float = DIAL_TIMEOUT_S,
) -> None:
    """Open a link to the first address of the host that answers. Raises the last error, if none does."""
    failure: OSError = ConnectionError("no address")
    async with asyncio.timeout(timeout_s):
        addresses = await lookups.find(host)
    for address in addresses:
        try:
            # A name may have an address to which nothing gets through beside one that works.
            async with asyncio.timeout(timeout_s / len(addresses)):
                await open_to(address)
            return
        except OSError as error:
            failure = error
    raise failure


def explain_dial(error: BaseException, timeout_s: float = DIAL_TIMEOUT_S) -> str:
    """One of `DIAL_ERRORS`, for people."""
    if isinstance(error, TimeoutError):
        return f"no answer in {timeout_s:g} s"
    if isinstance(error, ConfigError | ConnectError):
        return str(error)
    return explain(error)


def tls_context(
    cafile: Path | None, certfile: Path | None, keyfile: Path | None, whose: str
) -> ssl.SSLContext:
    """For links to others, with the system's authorities unless given. Raises ConfigError."""
    try:
        context = client_context(cafile)
        if certfile is not None:
            load_certificate(context, certfile, keyfile)
    except ConfigError as error:
        raise ConfigError(f"the TLS files of {whose} cannot be used: {error}") from None
    return context


def make_tls_context(cafile: Path | None, certfile: Path | None, keyfile: Path | None, whose: str) -> MakeTls:
    """What makes it once. Files that are given are read now, and ConfigError is raised if they are wrong; the
    system's authorities, which take 50 ms, when the first link needs them."""
    make = cache(partial(tls_context, cafile, certfile, keyfile, whose))
    if cafile is not None or certfile is not None:
        make()
    return make
