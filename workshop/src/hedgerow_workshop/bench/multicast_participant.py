"""One participant of `hedgerow bench multicast`: a publisher or a subscriber, in a process of its own.

    python -m hedgerow_workshop.bench.multicast_participant KIND ROLE PORT

Commands come to standard input and answers go to standard output, each a line of JSON; the end of the
input ends the process. A round goes so: every subscriber is told to `collect` and says when it is ready;
the publisher is told to `publish`, and after the last message it publishes a mark. A subscriber answers
when it has the mark and, where nothing may be lost, as many messages as the mark says. Marks can be lost
too, so the publisher is told to `mark` again until all have answered.

The first byte of a message tells its round, so that one which comes late is not counted in the next, and
is another in a mark. Where latency is measured, the time of sending follows it; all processes of a
machine read the same clock.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import hedgerow
from hedgerow.multicast.io.sockets import IP_MULTICAST_ALL, SEND_BUFFER_BYTES
from hedgerow.node.udp import RECEIVE_BUFFER_BYTES, SO_RCVBUFFORCE

if TYPE_CHECKING:
    import zenoh

TOPIC = "bench/multicast"
MARK = struct.Struct(">BIQ")  # `_IS_MARK`, the number of the round, how many messages it had
LOOPBACK = "127.0.0.1"
ROUND_S = 20.0
"""No round takes longer. A participant whose bench was killed ends by this."""

_IS_MARK = 0xFF
_SENT_AT = slice(1, 9)

_RAW_GROUP = "239.255.82.65"
_RECEIVE_BYTES = 2_048
# How many messages between two looks at the clock, and for ours between two turns of the loop.
_STRIDE = 64

_clock = time.perf_counter_ns


@dataclass
class Collected:
    count: int
    ended_at: int
    latencies: list[int]
    """Nanoseconds; none unless they were asked for."""


@dataclass(frozen=True)
class Collect:
    """What a subscriber is told of a round."""

    number: int
    timed: bool
    complete: bool
    """Wait until every message is there, since none may be lost."""

    @property
    def tag(self) -> int:
        return tag_of(self.number)


def tag_of(number: int) -> int:
    """The first byte of every message of a round."""
    return number % _IS_MARK


def make_mark(number: int, sent: int) -> bytes:
    return MARK.pack(_IS_MARK, number, sent)


class TeamPublisher(Protocol):
    def publish(self, payload: bytes, qos: int) -> None: ...

    async def burst(self, payload: bytes, qos: int, stop_at: int) -> int:
        """Publish as fast as it goes; how many."""


class TeamSubscriber(Protocol):
    async def collect(self, round_: Collect, ready: Callable[[], None]) -> Collected: ...


class RoundTally:
    """What one round's messages come to, for those who are handed them one by one or in lists."""

    def __init__(self, round_: Collect) -> None:
        self._round = round_
        self._tag = round_.tag
        self._expected: int | None = None
        self.count = 0
        self.latencies: list[int] = []

    def add(self, payload: bytes) -> bool:
        """Whether the round is over."""
        if payload[0] == self._tag:
            self.count += 1
            if self._round.timed:
                self.latencies.append(_clock() - int.from_bytes(payload[_SENT_AT], "big"))
        else:
            self.add_other(payload)
        return self.over

    def add_other(self, payload: bytes) -> None:
        """What is no message of this round: its mark, or something late."""
        if payload[0] == _IS_MARK:
            _, number, sent = MARK.unpack(payload)
            if number == self._round.number:
                self._expected = sent if self._round.complete else 0

    @property
    def over(self) -> bool:
        return self._expected is not None and self.count >= self._expected

    def unfinished(self) -> TimeoutError:
        due = "and no mark" if self._expected is None else f"of {self._expected}"
        return TimeoutError(f"{self.count} messages {due} came within {ROUND_S:g} s")

    def collected(self) -> Collected:
        return Collected(self.count, _clock(), self.latencies)


# The limit: nothing between Python and the kernel, on sockets with the options of ours.


class RawPublisher:
    def __init__(self, port: int) -> None:
        self._group = _RAW_GROUP, port
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))

    def publish(self, payload: bytes, qos: int) -> None:
        self._socket.sendto(payload, self._group)

    async def burst(self, payload: bytes, qos: int, stop_at: int) -> int:
        sendto, group, sent = self._socket.sendto, self._group, 0
        while _clock() < stop_at:
            for _ in range(_STRIDE):
                sendto(payload, group)
            sent += _STRIDE
        return sent


class RawSubscriber:
    def __init__(self, port: int) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for option in (socket.SO_RCVBUF, SO_RCVBUFFORCE):
            with suppress(OSError):  # The second needs a right that a plain user has not.
                self._socket.setsockopt(socket.SOL_SOCKET, option, RECEIVE_BUFFER_BYTES)
        self._socket.setsockopt(socket.IPPROTO_IP, IP_MULTICAST_ALL, 0)
        # The kernel's own time limit: Python's would add a poll() to every receive.
        limit = struct.pack("ll", int(ROUND_S), 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._socket.bind((_RAW_GROUP, port))
        membership = socket.inet_aton(_RAW_GROUP) + socket.inet_aton(LOOPBACK)
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)

    async def collect(self, round_: Collect, ready: Callable[[], None]) -> Collected:
        ready()
        tally = RoundTally(round_)
        recv, tag = self._socket.recv, round_.tag
        try:
            if round_.timed:
                while not tally.add(recv(_RECEIVE_BYTES)):
                    pass
                return tally.collected()
            count = 0
            while not tally.over:
                while (data := recv(_RECEIVE_BYTES))[0] == tag:
                    count += 1
                tally.add_other(data)
        except BlockingIOError:
            raise tally.unfinished() from None
        tally.count = count
        return tally.collected()


@asynccontextmanager
async def raw(role: str, port: int) -> AsyncIterator[TeamPublisher | TeamSubscriber]:
    yield RawPublisher(port) if role == "publisher" else RawSubscriber(port)


# Ours, through the API that applications use.


class OurPublisher:
    def __init__(self, bus: hedgerow.Bus) -> None:
        self._bus = bus

    def publish(self, payload: bytes, qos: int) -> None:
        self._bus.publish_nowait(TOPIC, payload, qos=qos)

    async def burst(self, payload: bytes, qos: int, stop_at: int) -> int:
        publish, sent = self._bus.publish, 0
        while _clock() < stop_at:
            for _ in range(_STRIDE):
                await publish(TOPIC, payload, qos=qos)
            sent += _STRIDE
        return sent


class OurSubscriber:
    def __init__(self, subscription: hedgerow.Subscription) -> None:
        self._batches = subscription.batches()

    async def collect(self, round_: Collect, ready: Callable[[], None]) -> Collected:
        ready()
        tally = RoundTally(round_)
        tag = round_.tag
        try:
            async with asyncio.timeout(ROUND_S):
                while not tally.over:
                    batch = await anext(self._batches)
                    if round_.timed:
                        for message in batch:
                            tally.add(message.payload)
                        continue
                    for message in batch:
                        if message.payload[0] == tag:
                            tally.count += 1
                        else:
                            tally.add_other(message.payload)
        except TimeoutError:
            raise tally.unfinished() from None
        return tally.collected()


@asynccontextmanager
async def ours(role: str, port: int) -> AsyncIterator[TeamPublisher | TeamSubscriber]:
    async with hedgerow.connect(f"multicast://lo:{port}?ip=4") as bus:
        if role == "publisher":
            yield OurPublisher(bus)
            return
        async with bus.subscribe(TOPIC, qos=1) as subscription:
            yield OurSubscriber(subscription)


# Zenoh peers over TCP, which is what they speak to each other unless told otherwise.


class ZenohPublisher:
    def __init__(self, publisher: zenoh.Publisher) -> None:
        self._put = publisher.put

    def publish(self, payload: bytes, qos: int) -> None:
        self._put(payload)

    async def burst(self, payload: bytes, qos: int, stop_at: int) -> int:
        put, sent = self._put, 0
        while _clock() < stop_at:
            for _ in range(_STRIDE):
                put(payload)
            sent += _STRIDE
        return sent


class ZenohSubscriber:
    """Counts in the callback, as Zenoh's own throughput example does: its queue would cost more."""

    def __init__(self) -> None:
        self._round = Collect(number=0, timed=False, complete=True)
        self._tally = RoundTally(self._round)
        self._over = threading.Event()
        self._collected = self._tally.collected()

    def receive(self, sample: zenoh.Sample) -> None:
        payload, tally = sample.payload, self._tally
        if self._round.timed or len(payload) == MARK.size:
            tally.add(payload.to_bytes())
        else:
            tally.count += 1  # Nothing comes late or out of order here, so the bytes need not be looked at.
        if tally.over and not self._over.is_set():
            self._collected = tally.collected()
            self._over.set()

    async def collect(self, round_: Collect, ready: Callable[[], None]) -> Collected:
        self._over.clear()
        self._tally, self._round = RoundTally(round_), round_
        ready()
        if not self._over.wait(ROUND_S):
            raise self._tally.unfinished()
        return self._collected


@asynccontextmanager
async def zenoh_peer(role: str, port: int) -> AsyncIterator[TeamPublisher | TeamSubscriber]:
    import zenoh

    config = zenoh.Config()
    own_port, others = (port, []) if role == "publisher" else (0, [f"tcp/{LOOPBACK}:{port}"])
    for key, value in {
        "mode": "peer",
        "listen/endpoints": [f"tcp/{LOOPBACK}:{own_port}"],
        "connect/endpoints": others,
        "scouting/multicast/enabled": False,  # Everything stays on loopback.
    }.items():
        config.insert_json5(key, json.dumps(value))
    with zenoh.open(config) as session:
        if role == "publisher":
            # Reliable, and waiting for those who are slow, as in Zenoh's own throughput example.
            block, reliable = zenoh.CongestionControl.BLOCK, zenoh.Reliability.RELIABLE
            yield ZenohPublisher(
                session.declare_publisher(TOPIC, congestion_control=block, reliability=reliable)
            )
            return
        subscriber = ZenohSubscriber()
        session.declare_subscriber(TOPIC, subscriber.receive)
        yield subscriber


Open = Callable[[str, int], AbstractAsyncContextManager[TeamPublisher | TeamSubscriber]]
KINDS: dict[str, Open] = {"hedgerow": ours, "raw": raw, "zenoh": zenoh_peer}


# The conversation with the bench.


async def _publish(
    publisher: TeamPublisher, number: int, size: int, qos: int, seconds: float, rate: int | None
) -> dict[str, int]:
    tag = bytes((tag_of(number),))
    padding = bytes(size - _SENT_AT.stop)
    started_at = _clock()
    if rate is None:
        sent = await publisher.burst(tag + bytes(size - len(tag)), qos, started_at + int(seconds * 1e9))
    else:
        sent = int(seconds * rate)
        for index in range(sent):
            wait_s = (started_at - _clock()) / 1e9 + index / rate
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            publisher.publish(tag + _clock().to_bytes(8, "big") + padding, qos)
    publisher.publish(make_mark(number, sent), qos)
    return {"sent": sent, "started_at": started_at}


async def _answer(participant: Any, command: str, arguments: list[Any]) -> dict[str, Any]:
    if command == "collect":
        return asdict(await participant.collect(Collect(*arguments), lambda: _say({})))
    if command == "publish":
        return await _publish(participant, *arguments)
    number, sent, qos = arguments
    participant.publish(make_mark(number, sent), qos)
    return {}


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


async def converse(kind: str, role: str, port: int, next_line: Callable[[], Awaitable[bytes]]) -> None:
    """Do as the lines say until there are no more."""
    async with KINDS[kind](role, port) as participant:
        _say({})
        while line := await next_line():
            command, *arguments = json.loads(line)
            try:
                _say(await _answer(participant, command, arguments))
            except (hedgerow.HedgerowError, OSError) as error:
                _say({"error": str(error)})


async def main(kind: str, role: str, port: int) -> None:
    reader = asyncio.StreamReader()
    # A loop of its own runs beside the conversation, since a member has to answer others at all times.
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    await converse(kind, role, port, reader.readline)


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.Loop) as runner:
        runner.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
