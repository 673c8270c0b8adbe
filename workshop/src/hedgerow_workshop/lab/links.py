"""Links between programs, in user space, for TCP and UDP: what `conditions` models, between real sockets.

A `Link` listens at one address and passes what arrives on to another, and the answers back.

TCP: a sender is not read while its direction is full, which is back-pressure. A cut holds bytes, ends and
resets alike; restoring sends them on. New connections hang meanwhile, because the queue of connections to
accept is kept full, and Linux drops a SYN that finds it so. A cut for one source address holds what comes
from there and goes there; new connections from there are made, and carry nothing.

UDP: each client has a socket of its own toward the target, so that answers find their way back.

Chances come from a generator for each connection or UDP client and direction, made from the link's seed: the
same traffic meets the same fate. Times are kept to a fraction of a millisecond where there is timerfd.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from types import TracebackType
from typing import Any, Self, cast

from hedgerow.errors import ConfigError, reason_of
from hedgerow.node.authority import authority
from hedgerow.node.udp import open_socket, read_turn
from hedgerow_workshop.lab.alarm import Alarm
from hedgerow_workshop.lab.conditions import Conditions, Data, Direction, Ending, Flow

MAX_CONNECTIONS = 400  # each takes two of the usual 1,024 descriptors
MAX_CLIENTS = 400  # of UDP, each with a socket: the one that has been quiet longest goes
MAX_DATAGRAM_BYTES = 65_535
BACKLOG = 128

Host = tuple[str, int]


class Link:
    """`async with Link(("127.0.0.1", 0), ("127.0.0.1", 1883), forward=Conditions(delay_s=0.005)) as link:`

    Forward is from whoever comes to `link.address` to the target. Raises ConfigError when it cannot listen
    or does not know the target.
    """

    def __init__(
        self,
        listen: Host,
        target: Host,
        *,
        forward: Conditions | None = None,
        backward: Conditions | None = None,
        udp: bool = False,
        seed: int | None = None,
        max_clients: int = MAX_CLIENTS,
        make_alarm: Callable[[Callable[[], None]], Alarm] = Alarm,
    ) -> None:
        self.seed = secrets.randbits(32) if seed is None else seed
        self.forward = Direction(forward or Conditions(), is_stream=not udp)
        self.backward = Direction(backward or Conditions(), is_stream=not udp)
        self._listen = listen
        self._target = target
        self._udp = udp
        self._max_clients = max_clients
        self._make_alarm = make_alarm
        self.cut_sources: set[str] = set()
        self._flows = 0
        self._alarms: dict[Direction, Alarm] = {}
        self._carrier: _Connections | _Clients | None = None

    async def __aenter__(self) -> Self:
        kind = socket.SOCK_DGRAM if self._udp else socket.SOCK_STREAM
        listen = await _resolve(self._listen, kind, "cannot listen on")
        target = await _resolve(self._target, kind, "cannot reach")
        try:
            self._carrier = (
                _Clients(self, listen, target, self._max_clients)
                if self._udp
                else _Connections(self, listen, target)
            )
        except OSError as error:
            raise ConfigError(f"cannot listen on {authority(*self._listen)}: {reason_of(error)}") from None
        for direction in (self.forward, self.backward):
            self._alarms[direction] = self._make_alarm(partial(self.advance, direction))
        self._update_cut()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._carrier is not None
        for alarm in self._alarms.values():
            alarm.close()
        self._alarms.clear()
        await self._carrier.close()

    @property
    def address(self) -> Host:
        """Where it listens."""
        assert self._carrier is not None, "the link is not open"
        host, port = self._carrier.listening.getsockname()[:2]
        return str(host), int(port)

    def set(self, *, forward: Conditions | None = None, backward: Conditions | None = None) -> None:
        """New conditions, for all that has not yet left the queue."""
        self.forward.conditions = forward or self.forward.conditions
        self.backward.conditions = backward or self.backward.conditions
        self._update_cut()

    def cut(self, *, forward: bool = True, backward: bool = True) -> None:
        """Let nothing pass, and tell nobody. With either direction cut, no new connection is made."""
        for direction, wanted in ((self.forward, forward), (self.backward, backward)):
            if wanted:
                direction.cut()
        self._update_cut()

    def restore(self, *, forward: bool = True, backward: bool = True) -> None:
        for direction, wanted in ((self.forward, forward), (self.backward, backward)):
            if wanted and direction.is_cut:
                direction.restore(time.monotonic())
        self._update_cut()

    def cut_source(self, host: str) -> None:
        """Let nothing pass from and to the TCP connections that come from this address, and tell nobody."""
        self._switch_source(host, is_cut=True)

    def restore_source(self, host: str) -> None:
        self._switch_source(host, is_cut=False)

    def _switch_source(self, host: str, is_cut: bool) -> None:
        if not isinstance(self._carrier, _Connections):
            raise ValueError("a source can be cut on an open TCP link alone")
        (self.cut_sources.add if is_cut else self.cut_sources.discard)(host)
        self._carrier.hold_or_not(host, is_cut)

    def _update_cut(self) -> None:
        if isinstance(self._carrier, _Connections):
            self._carrier.accept_or_not(not (self.forward.is_cut or self.backward.is_cut))
        for direction in self._alarms:
            self.advance(direction)

    def open_flows(
        self, deliver: Callable[[Data], bool], deliver_back: Callable[[Data], bool]
    ) -> tuple[Flow, Flow]:
        self._flows += 1
        name = f"{self.seed}/{self._flows}"
        # Chances are to be repeated, not to be kept secret.
        there, back = Random(f"{name}/forward"), Random(f"{name}/backward")
        return Flow(deliver, there), Flow(deliver_back, back)

    def enter(self, direction: Direction, flow: Flow, data: Data) -> None:
        if direction in self._alarms:
            round_trip_s = self.forward.conditions.delay_s + self.backward.conditions.delay_s
            direction.enter(flow, data, time.monotonic(), round_trip_s)
            self.advance(direction)

    def advance(self, direction: Direction) -> None:
        next_at = direction.advance(time.monotonic())
        self._alarms[direction].set(next_at)


async def _resolve(host: Host, kind: socket.SocketKind, verb: str) -> tuple[int, Any]:
    """The first (family, address) that a name has."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(*host, type=kind)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{verb} {authority(*host)}: {reason_of(error)}") from None
    return found[0][0], found[0][4]


class _End(asyncio.Protocol):
    """One of the two sockets of a connection; what it reads travels in `direction` to the other."""

    peer: _End
    flow: Flow

    def __init__(self, link: Link, direction: Direction, connected: socket.socket, source: str) -> None:
        self._link = link
        self._direction = direction
        self.socket = connected
        self.source = source
        self._held: list[Data] | None = [] if source in link.cut_sources else None
        self.transport: asyncio.Transport | None = None
        self.lost = asyncio.get_running_loop().create_future()
        # What is read in the moment before the other side is there; uvloop cannot be told not to.
        self._early: list[Data] | None = []
        self._peer_is_slow = False
        self._read_end = False
        self._written_end = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def join(self) -> None:
        """The other side is there."""
        early, self._early = self._early or [], None
        for data in early:
            self._enter(data)

    def data_received(self, data: bytes) -> None:
        self._enter(data)

    def eof_received(self) -> bool:
        self._read_end = True
        self._enter(Ending.FINISHED)
        self._close_when_done()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(None)
        self._direction.waiting.pop(self.flow, None)
        if error is not None:
            self._enter(Ending.RESET)

    def _enter(self, data: Data) -> None:
        if self._early is not None:
            self._early.append(data)
            return
        self._link.enter(self._direction, self.flow, data)
        self.read_or_not()

    def pause_writing(self) -> None:
        self.peer._peer_is_slow = True
        self.peer.read_or_not()

    def resume_writing(self) -> None:
        self.peer._peer_is_slow = False
        self.peer.read_or_not()

    def read_or_not(self) -> None:
        if self.transport is None or self.transport.is_closing() or self._read_end:
            return
        if self._direction.is_full:
            self._direction.waiting[self.flow] = None
        if self._peer_is_slow or self._direction.is_full or self._held is not None:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def hold_or_not(self, is_held: bool) -> None:
        if is_held:
            self._held = self._held or []
            self.read_or_not()
        elif self._held is not None:
            held, self._held = self._held, None
            for data in held:
                self.write(data)
            self.read_or_not()

    def write(self, data: Data) -> bool:
        if self.transport is None or self.transport.is_closing():
            return False
        if self._held is not None:  # no more than was on its way: the sender is not read
            self._held.append(data)
            return True
        if data is Ending.FINISHED:
            self._written_end = True
            with suppress(OSError):  # It was reset, which the loop has yet to tell: others wait behind this.
                self.transport.write_eof()
            self._close_when_done()
        elif data is Ending.RESET:
            self.reset()
        else:
            self.transport.write(cast("bytes", data))
        return True

    def reset(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            _do_not_linger(self.socket)
            self.transport.abort()

    def _close_when_done(self) -> None:
        if self._read_end and self._written_end and self.transport is not None:
            self.transport.close()


def _do_not_linger(connected: socket.socket) -> None:
    """Closed without lingering, a socket sends a reset, even when nothing is unread."""
    with suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class _Connections:
    """The TCP side of a link: accepts, and connects each to the target."""

    def __init__(self, link: Link, listen: tuple[int, Any], target: tuple[int, Any]) -> None:
        self._link = link
        self._target = target
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: set[_End] = set()
        self._not_connected: list[tuple[socket.socket, str]] = []  # from sources that are cut
        self._filler: socket.socket | None = None
        self.listening = socket.socket(
            listen[0], socket.SOCK_STREAM | socket.SOCK_NONBLOCK, socket.IPPROTO_TCP
        )
        try:
            self.listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.listening.bind(listen[1])
            self.listening.listen(BACKLOG)
        except OSError:
            self.listening.close()
            raise
        self._loop.add_reader(self.listening, self._accept)

    def accept_or_not(self, wanted: bool) -> None:
        if wanted and self._filler is not None:
            self.listening.listen(BACKLOG)
            self._loop.add_reader(self.listening, self._accept)
            self._accept()
            self._filler.close()
            self._filler = None
        elif not wanted and self._filler is None:
            self._accept()  # who is connected by now would otherwise never know
            self._loop.remove_reader(self.listening)
            self.listening.listen(0)  # room for one, who is ourselves
            self._filler = socket.socket(self.listening.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            self._filler.connect_ex(self.listening.getsockname())

    def hold_or_not(self, source: str, is_held: bool) -> None:
        for end in [end for end in self._ends if end.source == source]:
            end.hold_or_not(is_held)
        if not is_held:
            waiting, self._not_connected = self._not_connected, []
            for accepted, host in waiting:
                self._open(accepted, host)

    def _accept(self) -> None:
        filler = self._filler.getsockname() if self._filler is not None else None
        for _ in range(BACKLOG):
            try:
                accepted, address = self.listening.accept()
            except OSError:  # none is left, it went again, or there is no descriptor for it
                return
            connections = len(self._ends) // 2 + len(self._tasks) + len(self._not_connected)
            if address == filler or connections >= MAX_CONNECTIONS:
                accepted.close()
                continue
            accepted.setblocking(False)
            self._open(accepted, address[0])

    def _open(self, accepted: socket.socket, source: str) -> None:
        if source in self._link.cut_sources:
            self._not_connected.append((accepted, source))
            return
        opened = socket.socket(self._target[0], socket.SOCK_STREAM | socket.SOCK_NONBLOCK, socket.IPPROTO_TCP)
        task = self._loop.create_task(self._connect(accepted, opened, source))
        self._tasks.add(task)
        task.add_done_callback(partial(self._connected, accepted, opened))

    async def _connect(self, accepted: socket.socket, opened: socket.socket, source: str) -> None:
        await self._loop.sock_connect(opened, self._target[1])
        link = self._link
        near, far = _End(link, link.forward, accepted, source), _End(link, link.backward, opened, source)
        near.peer, far.peer = far, near
        near.flow, far.flow = link.open_flows(far.write, near.write)
        near.flow.resume, far.flow.resume = near.read_or_not, far.read_or_not
        for end in (near, far):
            self._ends.add(end)
            end.lost.add_done_callback(partial(self._forget, end))
            await self._loop.connect_accepted_socket(partial(_itself, end), end.socket)
        near.join()
        far.join()

    def _connected(self, accepted: socket.socket, opened: socket.socket, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is not None:  # the target's refusal, as a rule
            opened.close()
            _do_not_linger(accepted)
            accepted.close()

    def _forget(self, end: _End, _: object) -> None:
        self._ends.discard(end)

    async def close(self) -> None:
        self._loop.remove_reader(self.listening)
        self.listening.close()
        if self._filler is not None:
            self._filler.close()
        for accepted, _ in self._not_connected:
            accepted.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        ends = [end for end in self._ends if end.transport is not None]
        for end in ends:
            end.reset()
        if ends:
            await asyncio.wait([end.lost for end in ends])


def _itself(end: _End) -> _End:
    return end


class _Clients:
    """The UDP side of a link: a socket toward the target for each address that datagrams come from."""

    def __init__(
        self, link: Link, listen: tuple[int, Any], target: tuple[int, Any], max_clients: int
    ) -> None:
        self._link = link
        self._max_clients = max_clients
        self._target = target
        self._loop = asyncio.get_running_loop()
        self._clients: dict[Any, tuple[Flow, socket.socket]] = {}
        self.listening = open_socket(listen[0])
        try:
            self.listening.bind(listen[1])
        except OSError:
            self.listening.close()
            raise
        self._loop.add_reader(self.listening, self._read)

    def _read(self) -> None:
        for data, address in read_turn(self.listening.recvfrom, MAX_DATAGRAM_BYTES):
            client = self._clients.pop(address, None) or self._open(address)
            if client is not None:
                self._clients[address] = client  # last now, as the one heard of most lately
                self._link.enter(self._link.forward, client[0], data)

    def _open(self, address: Any) -> tuple[Flow, socket.socket] | None:
        if len(self._clients) >= self._max_clients:
            self._forget(next(iter(self._clients)))
        try:
            opened = open_socket(self._target[0])
            opened.connect(self._target[1])
        except OSError:
            self._link.forward.counters.dropped += 1
            return None
        there, back = self._link.open_flows(
            partial(_send, opened.send), partial(_send, lambda data: self.listening.sendto(data, address))
        )
        self._loop.add_reader(opened, self._read_answers, opened, back)
        return there, opened

    def _read_answers(self, opened: socket.socket, flow: Flow) -> None:
        for data in read_turn(opened.recv, MAX_DATAGRAM_BYTES):
            self._link.enter(self._link.backward, flow, data)

    def _forget(self, address: Any) -> None:
        _, opened = self._clients.pop(address)
        self._loop.remove_reader(opened)
        opened.close()

    async def close(self) -> None:
        self._loop.remove_reader(self.listening)
        self.listening.close()
        for address in list(self._clients):
            self._forget(address)


def _send(send: Callable[[bytes], int], data: Data) -> bool:
    for _ in range(2):  # the first error may be the network's word on a datagram before
        try:
            send(cast("bytes", data))
            return True
        except BlockingIOError:
            return False
        except OSError:
            continue
    return False
