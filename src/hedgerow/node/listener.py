"""Listening sockets: which addresses a host means, and accepting within bounds.

Connections are accepted here rather than by the event loop's own server, because three things must
happen before anything is spent on a connection, a TLS handshake above all: the count of sockets and
the rate of its address are checked, and a process that runs out of file descriptors goes on serving
whom it has (uvloop's server would close its listening socket for good).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from hedgerow.errors import ConfigError, reason_of
from hedgerow.node.accepted import Accepted
from hedgerow.node.authority import authority
from hedgerow.node.events import TransportFailed
from hedgerow.node.values import Address
from hedgerow.rates import is_loopback

if TYPE_CHECKING:
    import ssl

    from hedgerow.node.link import Link
    from hedgerow.node.part import NodeContext
    from hedgerow.node.poller import Poller
    from hedgerow.node.tls import TlsRefusal

logger = logging.getLogger(__name__)

BACKLOG = 4_096  # the kernel takes min(this, net.core.somaxconn)
ACCEPTS_PER_TURN = 16  # a flood of connections must not starve the connected
EXHAUSTED_RETRY_S = 0.5
EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
MAX_REFUSING = 64  # sockets that are kept for an alert to arrive
MAX_DISCARDED, DISCARDED_BYTES = 64, 16 * 1024
TCP_KEEP_ALIVE = {"TCP_KEEPIDLE": 120, "TCP_KEEPINTVL": 30, "TCP_KEEPCNT": 4}
SAME_PORT_ATTEMPTS = 16  # port 0 on two address families: until both have the same one

# Where a host means several addresses, those beyond the first may be missing: IPv6, as a rule.
NO_SUCH_ADDRESS = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT}

Factory = Callable[["Listener", str], asyncio.Protocol]


def bind(
    address: Address, key: str, open_socket: Callable[[str, int], socket.socket] | None = None
) -> list[socket.socket]:
    """Listening sockets on every host that `address` means, all with one port.

    TCP, unless `open_socket` makes others. Raises ConfigError, naming the address and the
    configuration's `key`.
    """
    open_socket = open_socket or listen
    hosts = address.bind_hosts if len(address.bind_hosts) > 1 else _resolve(address, key)
    host = address.host
    for _ in range(SAME_PORT_ATTEMPTS):
        sockets: list[socket.socket] = []
        try:
            for host in hosts:
                port = sockets[0].getsockname()[1] if sockets else address.port
                try:
                    sockets.append(open_socket(host, port))
                except OSError as error:
                    if error.errno not in NO_SUCH_ADDRESS or not sockets:
                        raise
            return sockets
        except OSError as error:
            for bound in sockets:
                bound.close()
            in_use = error.errno == errno.EADDRINUSE
            if in_use and address.port == 0 and sockets:
                continue  # the system's choice for one family is taken in the other
            where = authority(host, address.port)
            why = reason_of(error)
            if in_use:
                why = f"the port is in use; --{key} HOST:PORT takes another, --{key} off none"
            raise ConfigError(f"{key}: cannot listen on {where}: {why}") from None
    raise ConfigError(f"{key}: no port is free on all of {', '.join(hosts)}")


def _resolve(address: Address, key: str) -> tuple[str, ...]:
    try:
        found = socket.getaddrinfo(encoded_host(address.host), address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{key}: cannot listen on {address}: {reason_of(error)}") from None
    return tuple(dict.fromkeys(str(resolved[0]) for _, _, _, _, resolved in found))


def encoded_host(host: str) -> str | bytes:
    """For `getaddrinfo`: Python loads its tables of international names for every text, ASCII included."""
    return host.encode() if host.isascii() else host


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named: asyncio sets TCP_NODELAY only on sockets that say they are TCP.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keep_alive(listening)  # Accepted sockets inherit it, and the next.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        # By name, since a link-local address carries its interface: fe80::1%eth0.
        found = socket.getaddrinfo(encoded_host(host), port, family, socket.SOCK_STREAM)
        _, _, _, _, resolved = found[0]
        listening.bind(resolved)
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def keep_alive(connected: socket.socket) -> None:
    """End the connection of a peer that has vanished, and had asked for no MQTT keep-alive."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in TCP_KEEP_ALIVE.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Listener:
    """The sockets of one configured address, and what holds for the connections that they accept."""

    def __init__(
        self,
        node: NodeContext,
        scheme: str,
        sockets: list[socket.socket],
        factory: Factory,
        *,
        anonymous: bool = False,
        ssl_context: ssl.SSLContext | None = None,
        use_identity_as_username: bool = False,
        poller: Poller | None = None,
        use_subject_as_username: bool = False,
    ) -> None:
        self._node = node
        self.scheme = scheme
        self.sockets = sockets
        self.anonymous = anonymous
        self.use_identity_as_username = use_identity_as_username
        self.use_subject_as_username = use_subject_as_username
        self.loopback = all(is_loopback(each.getsockname()[0]) for each in sockets)
        self._factory = factory
        self._poller = poller  # of its connections; None: the event loop has them
        self._tls: dict[str, Any] = {}
        if ssl_context is not None:
            self.set_tls(ssl_context, node.config.limits.connect_timeout_s)
        self._opening: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._exhausted = False
        self._refusing = 0  # whose handshake has failed, and who are told why

    def set_tls(self, context: ssl.SSLContext, timeout_s: float) -> None:
        """For connections that are accepted from now on."""
        self._tls = {
            "ssl": context,
            "ssl_handshake_timeout": timeout_s,
            "ssl_shutdown_timeout": self._node.sockets.linger_s,
        }

    @property
    def urls(self) -> list[str]:
        return [f"{self.scheme}://{authority(*each.getsockname()[:2])}" for each in self.sockets]

    def start(self) -> None:
        for listening in self.sockets:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    async def stop(self) -> None:
        """Accept no more, and give up the handshakes that are under way."""
        self.close()
        await asyncio.sleep(0)  # What was accepted just now is open, or its handshake has begun.
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)

    def close(self) -> None:
        sockets, self.sockets = self.sockets, []
        for listening in sockets:
            self._loop.remove_reader(listening.fileno())
            listening.close()

    def _accept(self, listening: socket.socket) -> None:
        sockets, family = self._node.sockets, int(listening.family)
        for _ in range(ACCEPTS_PER_TURN):
            try:
                descriptor, peer = listening._accept()  # type: ignore[attr-defined]
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._accept_failed(listening, error)
                return
            self._exhausted = False
            address: str = peer[0]
            poller = self._poller
            if poller is not None:
                # Without what `socket.socket` adds, the calls in Python above all.
                bare = socket.SocketType(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, descriptor)
                if sockets.admit(address, self.scheme):
                    self._poll(poller, bare, address)
                else:
                    bare.close()
                continue
            accepted = Accepted(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, descriptor)
            if not sockets.admit(address, self.scheme):
                accepted.close()
                continue
            accepted.setblocking(False)
            sockets.begin_opening(address, self.scheme)
            factory = partial(self._factory, self, address)
            if self._tls:
                task = self._loop.create_task(self._shake_hands(factory, accepted, address))
                self._opening.add(task)
                task.add_done_callback(self._opening.discard)
            else:
                self._open(factory, accepted, address)

    def _poll(self, poller: Poller, accepted: socket.SocketType, address: str) -> None:
        """It is open at once."""
        try:
            accepted.setblocking(False)
            poller.add(accepted, cast("Link", self._factory(self, address)))
        except Exception as failed:
            accepted.close()
            self._failed(address, failed)

    def _open(self, factory: Callable[[], asyncio.Protocol], accepted: Any, address: str) -> None:
        """Hand the socket to the event loop, which has taken it in its next turn. A task that waits for that
        would be a twentieth of what a connection costs."""
        opening = self._loop.connect_accepted_socket(factory, accepted)
        try:
            taken = opening.send(None)
        except Exception as error:
            accepted.close()
            self._opened(address, error)
        else:
            taken.add_done_callback(partial(self._taken, opening, address))

    def _taken(self, opening: Coroutine[Any, None, Any], address: str, taken: asyncio.Future[Any]) -> None:
        error: Exception | None = None
        try:
            opening.send(None)
        except StopIteration:
            pass
        except Exception as failed:  # It was lost before it was open.
            error = failed
        self._opened(address, error)

    async def _shake_hands(
        self, factory: Callable[[], asyncio.Protocol], accepted: Any, address: str
    ) -> None:
        from hedgerow.node.tls import ACCEPTED, refusal_of

        error: Exception | None = None
        ACCEPTED.set(accepted)
        try:
            await self._loop.connect_accepted_socket(factory, accepted, **self._tls)
        except Exception as failed:
            error = failed
        finally:
            self._opened(address, error)
        refusal = refusal_of(error) if error is not None else None
        if refusal is not None:
            await self._say_why(refusal)

    async def _say_why(self, refusal: TlsRefusal) -> None:
        """Send the alert, and close such that it arrives: what a client of TLS 1.3 has sent behind its
        handshake would have the system reset the connection."""
        alert, refused = refusal
        with refused, suppress(OSError, TimeoutError):
            refused.setblocking(False)
            refused.send(alert)
            refused.shutdown(socket.SHUT_WR)
            if self._refusing >= MAX_REFUSING:
                return
            self._refusing += 1
            try:
                async with asyncio.timeout(self._node.sockets.linger_s):
                    for _ in range(MAX_DISCARDED):
                        if not await self._loop.sock_recv(refused, DISCARDED_BYTES):
                            break
            finally:
                self._refusing -= 1

    def _opened(self, address: str, error: Exception | None) -> None:
        """The connection is open, or with an error it is not going to be."""
        self._node.sockets.end_opening(address, self.scheme)
        if error is not None:
            self._failed(address, error)

    def _failed(self, address: str, error: Exception) -> None:
        if isinstance(error, OSError):  # ssl.SSLError and TimeoutError are OSErrors too
            failed = TransportFailed(address, self.scheme, _describe(error))
            self._node.event_log.write(failed, self._node.clock())
        else:
            logger.error("a connection from %s failed to open", address, exc_info=error)

    def _accept_failed(self, listening: socket.socket, error: OSError) -> None:
        if error.errno not in EXHAUSTED:
            logger.warning("accept failed on %s: %s", self.scheme, error)  # an error of that one connection
            return
        # The listening socket stays readable: without a pause the loop would spin on it.
        if not self._exhausted:
            logger.error("no new connections for now: %s; those that are open are served", error.strerror)
        self._exhausted = True
        self._loop.remove_reader(listening.fileno())
        self._loop.call_later(EXHAUSTED_RETRY_S, self._listen_again, listening)

    def _listen_again(self, listening: socket.socket) -> None:
        if listening in self.sockets:
            self._loop.add_reader(listening.fileno(), self._accept, listening)


def _describe(error: OSError) -> str:
    """ssl.SSLError says more than a log line needs; OpenSSL's own words are `reason`."""
    reason = getattr(error, "reason", None)
    if not reason:
        return error.strerror or str(error) or "the peer hung up"
    verification = getattr(error, "verify_message", None)
    text = reason.replace("_", " ").lower()
    return f"{text}: {verification}" if verification else text
