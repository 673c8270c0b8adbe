"""A node's sockets, from listening to the last byte: who may have one, what serves it, and how it ends.

A `Listener` accepts a connection and asks `admit`; the protocol that `_factory` names serves it, and for MQTT
that is a `Link`, which opens a `Connection` of the broker. Whoever closes from this side lets it `linger`.

HTTP has places of its own: who administers a node that clients have filled can still look at it, and readers
of metrics take no client's place. They are few, so one address gets a part of them only.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from hedgerow.broker.events import ConnectionRefused
from hedgerow.broker.limits import Limits
from hedgerow.mqtt.reasons import Reason
from hedgerow.node.config_keys import LISTENERS
from hedgerow.node.link import LINGER_S, Lingering, Link
from hedgerow.node.listener import Factory, Listener, bind
from hedgerow.rates import RatePerAddress, is_loopback, site_of

if TYPE_CHECKING:
    import ssl

    from hedgerow.node.config import Config, Tls
    from hedgerow.node.http import HttpLink
    from hedgerow.node.server import Server

SPARE_SOCKETS = 1_000  # connections beyond the limit that are told so, rather than dropped
RESERVED_FILES = 64  # descriptors kept for the store and the log
HTTP_FILES = 1 / 8  # of the other descriptors, at most so many are for the HTTP port
HTTP_SHARE = 1 / 4  # of HTTP's places, so many are for one address
CONNECT_BURST_S = 10  # what an address may use up at once, in seconds of its rate

MQTT_SCHEMES = ("mqtt", "mqtts")
HTTP_SCHEMES = ("http", "https")
APPLICATION_PROTOCOLS = {"mqtts": "mqtt", "wss": "http/1.1", "https": "http/1.1"}


def places(config: Config, max_files: int) -> tuple[int, int]:
    """How many sockets may be open, of HTTP and of all others, in a process that may have so many files."""
    files = float("inf") if max_files == resource.RLIM_INFINITY else max(0, max_files - RESERVED_FILES)
    has_http = bool(config.http or config.https)
    http = min(config.limits.http_connections, files * HTTP_FILES) if has_http else 0
    return int(http), int(min(config.limits.connections + SPARE_SOCKETS, files - http))


class Sockets:
    """`bind` raises ConfigError; `listen` begins to accept."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._listeners: list[Listener] = []
        self.open: int = 0  # all of them
        self._http_sites: Counter[str] = Counter()  # whose those of HTTP are, with those that linger
        self.lingering: dict[Lingering, float] = {}  # and when they are aborted, soonest first
        self.http_links: set[HttpLink] = set()
        self._closed = asyncio.Event()
        limits = server.limits
        default_rate = limits.connects_per_s == Limits().connects_per_s
        # The default spares this machine's own processes, which are no strangers, and among which is
        # the proxy that speaks for many clients. A rate that was chosen holds for everyone.
        self._connect_rate = RatePerAddress(
            limits.connects_per_s, CONNECT_BURST_S * limits.connects_per_s, default_rate
        )

    @property
    def urls(self) -> list[str]:
        return [url for listener in self._listeners for url in listener.urls]

    @property
    def listening(self) -> list[tuple[str, int]]:
        """Hosts and ports at which clients of MQTT may connect."""
        sockets = [
            each
            for listener in self._listeners
            if listener.scheme in MQTT_SCHEMES
            for each in listener.sockets
        ]
        return [each.getsockname()[:2] for each in sockets]

    # Listening

    def bind(self) -> None:
        config = self._server.config
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._http_maximum, self._maximum = places(config, files)
        for scheme in LISTENERS:
            addresses = getattr(config, scheme)
            if not addresses:
                continue
            factory = self._factory(scheme)
            tls = config.tls if scheme in APPLICATION_PROTOCOLS else None
            context = _tls_context(tls, APPLICATION_PROTOCOLS[scheme]) if tls is not None else None
            for address in addresses:
                self._listeners.append(
                    Listener(
                        self._server,
                        scheme,
                        bind(address, scheme),
                        factory,
                        anonymous=config.anonymous,
                        ssl_context=context,
                        use_identity_as_username=tls is not None and tls.use_identity_as_username,
                    )
                )

    def _factory(self, scheme: str) -> Factory:
        """What makes the protocol of an accepted connection. Imports only what the listeners need."""
        server = self._server
        if scheme in ("ws", "wss"):
            from hedgerow.node.websocket import WebSocketLink

            return partial(WebSocketLink, server)
        if scheme in HTTP_SCHEMES:
            from hedgerow.node.http import HttpLink, for_programs, health
            from hedgerow.node.metrics import metrics

            told = {"/health": health(server), "/metrics": metrics(server)}
            server.routes |= {path: for_programs(handler) for path, handler in told.items()}
            return partial(HttpLink, server)
        return partial(Link, server)

    def listen(self) -> None:
        for listener in self._listeners:
            listener.start()

    async def stop_listening(self) -> None:
        for listener in self._listeners:
            await listener.stop()

    # What is open

    def admit(self, address: str, scheme: str) -> bool:
        """May this address have one more connection? Refused ones are closed without a word."""
        server, now = self._server, self._server.clock()
        why_full = self._why_full_for_http(address) if scheme in HTTP_SCHEMES else self._why_full()
        if why_full:
            refused = ConnectionRefused(address, None, Reason.SERVER_BUSY, why_full)
        elif not self._connect_rate.allows(address, now):
            limit = f"more than {server.limits.connects_per_s:g} connections a second"
            refused = ConnectionRefused(address, None, Reason.CONNECTION_RATE_EXCEEDED, limit)
        else:
            return True
        server.broker.stats.connections_refused += 1
        server.event_log.write(refused, now)
        return False

    def _why_full(self) -> str:
        """Why there is no room; nothing when there is."""
        opening = sum(len(each.opening) for each in self._listeners if each.scheme not in HTTP_SCHEMES)
        is_full = self.open - self.http_open + opening >= self._maximum
        return f"{self._maximum} connections are open" if is_full else ""

    def _why_full_for_http(self, address: str) -> str:
        opening = [
            site for each in self._listeners if each.scheme in HTTP_SCHEMES for site in each.opening.values()
        ]
        if self.http_open + len(opening) >= self._http_maximum:
            return f"{self._http_maximum} HTTP connections are open"
        site, share = site_of(address), max(1, int(self._http_maximum * HTTP_SHARE))
        own = opening.count(site) + self._http_sites[site]
        is_full = own >= share and not is_loopback(address)
        return f"{share} HTTP connections of one address are open" if is_full else ""

    @property
    def http_open(self) -> int:
        return self._http_sites.total()

    def opened(self, http_site: str | None = None) -> None:
        self.open += 1
        if http_site is not None:
            self._http_sites[http_site] += 1

    def closed(self, http_site: str | None = None) -> None:
        self.open -= 1
        if http_site is not None:
            self._http_sites[http_site] -= 1
            if not self._http_sites[http_site]:
                del self._http_sites[http_site]
        if self._server.stopping and not self.open:
            self._closed.set()

    # The end

    def linger(self, transport: asyncio.Transport, http_site: str | None = None) -> None:
        """Close a transport such that its last bytes arrive. See `Lingering`."""
        lingering = Lingering(self._server, transport, http_site)
        abort_at = self._server.clock() + LINGER_S
        self.lingering[lingering] = abort_at
        lingering.start()
        self._server.wake_at(abort_at)

    def handle_timer(self, now: float) -> None:
        for lingering, abort_at in self.lingering.items():
            if abort_at > now:
                self._server.wake_at(abort_at)
                break
            lingering.transport.abort()

    async def close(self, timeout_s: float) -> None:
        """Wait for what is about to end, for so long; then end it, and wait for that."""
        for link in [link for link in self.http_links if link.is_idle]:
            link.transport.abort()
        await self._wait_closed(timeout_s)
        transports = [lingering.transport for lingering in self.lingering]
        transports += [link.transport for link in self.http_links]
        for transport in transports:
            transport.abort()
        await self._wait_closed(timeout_s)

    async def _wait_closed(self, timeout_s: float) -> None:
        if self.open:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._closed.wait()
            except TimeoutError:
                pass


def _tls_context(tls: Tls, application_protocol: str) -> ssl.SSLContext:
    from hedgerow.node.tls import server_context

    return server_context(tls, application_protocol)
