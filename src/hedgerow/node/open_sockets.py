"""The open sockets of a node: who may have one more, and how each ends.

HTTP has places of its own: who administers a node that clients have filled can still look at it, and readers
of metrics take no client's place. They are few, so one address gets a part of them only.

A socket that is closed from this side becomes a `Lingering` one. Closing a socket that still has unread input
makes the kernel send a reset, and a reset can overtake the CONNACK or DISCONNECT that says why the connection
ends. So the sending side is shut, what still arrives is thrown away, and the socket closes when the peer
closes it or when `linger_s` is over, whichever comes first; a peer that never reads cannot hold it longer.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from hedgerow.broker.events import ConnectionRefused
from hedgerow.broker.limits import Limits
from hedgerow.broker.owners import MIN_CONNECTIONS
from hedgerow.mqtt.reasons import Reason
from hedgerow.rates import RatePerAddress, is_loopback, site_of

if TYPE_CHECKING:
    from hedgerow.node.config import Config

SPARE_SOCKETS = 1_000  # connections beyond the limit that are told so, rather than dropped
RESERVED_FILES = 64  # descriptors kept for the store and the log
HTTP_FILES = 1 / 8  # of the other descriptors, at most so many are for the HTTP port
HTTP_SHARE = 1 / 4  # of HTTP's places, so many are for one address
CONNECT_BURST_S = 10  # what an address may use up at once, in seconds of its rate
LINGER_S = 2.0

HTTP_SCHEMES = ("http", "https")


def places(config: Config, max_files: int) -> tuple[int, int]:
    """How many sockets may be open, of HTTP and of all others, in a process that may have so many files."""
    files = float("inf") if max_files == resource.RLIM_INFINITY else max(0, max_files - RESERVED_FILES)
    has_http = bool(config.http or config.https)
    http = min(config.limits.http_connections, files * HTTP_FILES) if has_http else 0
    return int(http), int(min(config.limits.connections + SPARE_SOCKETS, files - http))


class HttpSocket(Protocol):
    transport: asyncio.Transport

    @property
    def is_idle(self) -> bool:
        """Nothing was asked so far: browsers open connections that they may need."""
        ...


class OpenSockets:
    """`wake_at` sets the node's timer, which is to call `handle_timer`; `on_refused` is told who gets no
    place."""

    def __init__(
        self,
        config: Config,
        clock: Callable[[], float],
        wake_at: Callable[[float], None],
        on_refused: Callable[[ConnectionRefused], None],
    ) -> None:
        self.open: int = 0  # all of them
        self.http_links: set[HttpSocket] = set()
        self.lingering: dict[Lingering, float] = {}  # and when they are aborted, soonest first
        self.linger_s = LINGER_S
        self.http_spares_loopback = True  # this machine's own processes may have every place of HTTP
        self.connections_of: Callable[[str], int] = lambda address: 0
        """How many the broker has of an address whose users it does not know."""
        # Not `Counter`s: to set a number in one is a call in Python.
        self._opening: dict[str, int] = {}  # accepted, and a TLS handshake away from being open; by site
        self._http_opening: dict[str, int] = {}  # by site
        self._http_sites: dict[str, int] = {}  # whose those of HTTP are, with those that linger
        self.opening = 0  # the sum of `_opening`
        self.http_open = 0  # the sum of `_http_sites`
        self._clock = clock
        self._wake_at = wake_at
        self._on_refused = on_refused
        self._closed: asyncio.Event | None = None  # set when none is left, once that is waited for
        self._connects_per_s = -1.0
        self.set_limits(config)

    def set_limits(self, config: Config) -> None:
        """Nobody who is connected loses their place."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._http_maximum, self.maximum = places(config, files)
        if config.limits.connects_per_s == self._connects_per_s:
            return  # Whoever has used up their burst has.
        self._connects_per_s = rate = config.limits.connects_per_s
        # The default spares this machine's own processes, which are no strangers, and among which is
        # the proxy that speaks for many clients. A rate that was chosen holds for everyone.
        spares_loopback = rate == Limits().connects_per_s
        self._connect_rate = RatePerAddress(rate, CONNECT_BURST_S * rate, spares_loopback)

    # Who may have one

    def admit(self, address: str, scheme: str) -> bool:
        """May this address have one more connection? Refused ones are closed without a word."""
        why_full = self._why_full_for_http(address) if scheme in HTTP_SCHEMES else self._why_full(address)
        if why_full:
            refused = ConnectionRefused(address, None, Reason.SERVER_BUSY, why_full)
        elif not self._connect_rate.allows(address, self._clock()):
            limit = f"more than {self._connects_per_s:g} connections a second"
            refused = ConnectionRefused(address, None, Reason.CONNECTION_RATE_EXCEEDED, limit)
        else:
            return True
        self._on_refused(refused)
        return False

    def _why_full(self, address: str) -> str:
        """Why there is no room; nothing when there is."""
        free = self.maximum - (self.open - self.http_open + self.opening)
        if free <= 0:
            return f"{self.maximum} connections are open"
        if is_loopback(address):
            return ""
        own = self._opening.get(site_of(address), 0) + self.connections_of(address)
        is_full = own >= max(MIN_CONNECTIONS, free)
        return "this address has as many connections as are free for all others" if is_full else ""

    def _why_full_for_http(self, address: str) -> str:
        if self.http_open + self.http_opening >= self._http_maximum:
            return f"{self._http_maximum} HTTP connections are open"
        site, share = site_of(address), max(1, int(self._http_maximum * HTTP_SHARE))
        own = self._http_opening.get(site, 0) + self._http_sites.get(site, 0)
        is_full = own >= share and not (self.http_spares_loopback and is_loopback(address))
        return f"{share} HTTP connections of one address are open" if is_full else ""

    # How many there are

    @property
    def http_opening(self) -> int:
        """Those that are a handshake away from being open."""
        return sum(self._http_opening.values())

    def begin_opening(self, address: str, scheme: str) -> None:
        """It was admitted; `end_opening` when it is open, or is not going to be."""
        if scheme in HTTP_SCHEMES:
            _count(self._http_opening, site_of(address), 1)
        else:
            _count(self._opening, site_of(address), 1)
            self.opening += 1

    def end_opening(self, address: str, scheme: str) -> None:
        if scheme in HTTP_SCHEMES:
            _count(self._http_opening, site_of(address), -1)
        else:
            _count(self._opening, site_of(address), -1)
            self.opening -= 1

    def opened(self, http_site: str | None = None) -> None:
        self.open += 1
        if http_site is not None:
            _count(self._http_sites, http_site, 1)
            self.http_open += 1

    def closed(self, http_site: str | None = None) -> None:
        self.open -= 1
        if http_site is not None:
            _count(self._http_sites, http_site, -1)
            self.http_open -= 1
        if not self.open and self._closed is not None:
            self._closed.set()

    # The end

    def linger(self, transport: asyncio.Transport, http_site: str | None = None) -> None:
        """Close a transport such that its last bytes arrive. See `Lingering`."""
        lingering = Lingering(self, transport, http_site)
        abort_at = self._clock() + self.linger_s
        self.lingering[lingering] = abort_at
        lingering.start()
        self._wake_at(abort_at)

    def handle_timer(self, now: float) -> None:
        for lingering, abort_at in self.lingering.items():
            if abort_at > now:
                self._wake_at(abort_at)
                break
            lingering.transport.abort()

    async def close(self, timeout_s: float) -> None:
        """Wait for what is about to end, for so long; then end it, and wait for that."""
        self._closed = asyncio.Event()
        for link in [link for link in self.http_links if link.is_idle]:
            link.transport.abort()
        await self._wait_closed(timeout_s)
        transports = [lingering.transport for lingering in self.lingering]
        transports += [link.transport for link in self.http_links]
        for transport in transports:
            transport.abort()
        await self._wait_closed(timeout_s)

    async def _wait_closed(self, timeout_s: float) -> None:
        if self.open and self._closed is not None:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._closed.wait()
            except TimeoutError:
                pass


class Lingering(asyncio.Protocol):
    """What is left of a socket that was closed from this side: waits for the peer, discards its input."""

    __slots__ = ("http_site", "sockets", "transport")

    def __init__(self, sockets: OpenSockets, transport: asyncio.Transport, http_site: str | None) -> None:
        self.sockets = sockets
        self.transport = transport
        self.http_site = http_site

    def start(self) -> None:
        transport = self.transport
        transport.set_protocol(self)
        if transport.is_closing():
            return
        try:
            transport.resume_reading()
            if transport.can_write_eof():
                transport.write_eof()
            else:
                transport.close()  # TLS: sends close_notify and discards input until the peer's
        except (OSError, RuntimeError):  # reset by the peer in this very moment; uvloop has its own words
            transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.sockets.lingering.pop(self, None)
        self.sockets.closed(self.http_site)


def _count(counts: dict[str, int], site: str, change: int) -> None:
    count = counts.get(site, 0) + change
    if count:
        counts[site] = count
    else:
        del counts[site]
