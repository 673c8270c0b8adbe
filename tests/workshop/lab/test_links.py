"""Links between real sockets on loopback. Times have a floor that is exact, and no ceiling but patience."""

from __future__ import annotations

import asyncio
import errno
import math
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

import pytest
import uvloop

from hedgerow.errors import ConfigError
from hedgerow_workshop.lab.alarm import Alarm
from hedgerow_workshop.lab.conditions import Conditions
from hedgerow_workshop.lab.links import MAX_CLIENTS, Host, Link
from hedgerow_workshop.programs import free_port
from tests.waiting import PATIENCE_S, until

ANYWHERE = ("127.0.0.1", 0)


class Server:
    """Keeps what it reads, and answers with the same when it is an echo."""

    def __init__(self, is_echo: bool) -> None:
        self.received = bytearray()
        self.writers: list[asyncio.StreamWriter] = []
        self.ended = 0
        self.resets = 0
        self._is_echo = is_echo

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while data := await reader.read(1 << 16):
                self.received += data
                if self._is_echo:
                    writer.write(data)
            self.ended += 1
        except ConnectionResetError:
            self.resets += 1
        finally:
            writer.close()


@asynccontextmanager
async def tcp(
    forward: Conditions | None = None,
    backward: Conditions | None = None,
    *,
    echo: bool = True,
    seed: int | None = None,
    make_alarm: Callable[[Callable[[], None]], Alarm] = Alarm,
) -> AsyncIterator[tuple[Link, Server]]:
    server = Server(echo)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    target: Host = listening.sockets[0].getsockname()
    link = Link(ANYWHERE, target, forward=forward, backward=backward, seed=seed, make_alarm=make_alarm)
    async with listening, link:
        yield link, server
    await until(lambda: server.ended + server.resets == len(server.writers), "every connection to end")


@asynccontextmanager
async def connected(
    link: Link, source: str = "127.0.0.1"
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*link.address, local_addr=(source, 0))
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def exactly(reader: asyncio.StreamReader, count: int) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        return await reader.readexactly(count)


def bind_udp() -> socket.socket:
    bound = socket.socket(type=socket.SOCK_DGRAM)
    bound.setblocking(False)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    bound.bind(ANYWHERE)
    return bound


@asynccontextmanager
async def udp(
    forward: Conditions | None = None,
    backward: Conditions | None = None,
    seed: int | None = None,
    max_clients: int = MAX_CLIENTS,
) -> AsyncIterator[tuple[Link, socket.socket, socket.socket]]:
    """A link, a socket connected to it, and the one at its target."""
    with bind_udp() as target, bind_udp() as client:
        target_address: Host = target.getsockname()
        async with Link(
            ANYWHERE,
            target_address,
            forward=forward,
            backward=backward,
            udp=True,
            seed=seed,
            max_clients=max_clients,
        ) as link:
            client.connect(link.address)
            yield link, client, target


def arrived(receiving: socket.socket) -> list[bytes]:
    datagrams: list[bytes] = []
    with suppress(BlockingIOError):
        while True:
            datagrams.append(receiving.recv(65_535))
    return datagrams


async def send_numbered(link: Link, client: socket.socket, target: socket.socket, count: int) -> list[int]:
    """The numbers that arrived, once none is on its way."""
    counters, before = link.forward.counters, link.forward.counters.datagrams + link.forward.counters.dropped
    received: list[bytes] = []
    for number in range(count):
        client.send(number.to_bytes(4))
        if number % 50 == 49:  # no more than sockets hold
            await until(
                lambda sent=number + 1: counters.datagrams + counters.dropped + on_way(link) - before == sent,  # type: ignore[misc]
                "the link to have read them",
            )
            received += arrived(target)
    await until(lambda: counters.datagrams + counters.dropped - before == count, "all to arrive or be lost")
    return [int.from_bytes(datagram) for datagram in received + arrived(target)]


def on_way(link: Link) -> int:
    return link.forward.held_bytes // 4


@pytest.mark.parametrize("delay_s", [0.0005, 0.02])
async def test_a_round_trip_takes_both_delays(delay_s: float) -> None:
    await make_round_trips(delay_s, Alarm)


async def make_round_trips(delay_s: float, make_alarm: Callable[[Callable[[], None]], Alarm]) -> None:
    forward, backward = Conditions(delay_s=delay_s), Conditions(delay_s=2 * delay_s)
    async with (
        tcp(forward, backward, make_alarm=make_alarm) as (link, _),
        connected(link) as (reader, writer),
    ):
        for _ in range(5):
            began_at = time.monotonic()
            writer.write(b"ping")
            assert await exactly(reader, 4) == b"ping"
            assert time.monotonic() - began_at >= 3 * delay_s


async def test_a_round_trip_where_there_is_no_timerfd() -> None:
    await make_round_trips(0.005, partial(Alarm, library=object()))


async def test_bytes_keep_their_order_whatever_the_jitter_and_loss() -> None:
    conditions = Conditions(jitter_s=0.005, loss=0.02)
    sent = b"".join(number.to_bytes(4) for number in range(50_000))
    async with tcp(conditions, conditions, seed=1) as (link, _), connected(link) as (reader, writer):
        for start in range(0, len(sent), 20_000):
            writer.write(sent[start : start + 20_000])
            await asyncio.sleep(0)
        assert await exactly(reader, len(sent)) == sent
        assert link.forward.counters.retransmitted > 0
        assert link.forward.counters.bytes == link.backward.counters.bytes == len(sent)


async def test_a_lost_segment_comes_after_a_retransmission_timeout() -> None:
    async with tcp(Conditions(loss=0.3), seed=10) as (link, _), connected(link) as (reader, writer):
        times: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(8):
            before, began_at = link.forward.counters.retransmitted, time.monotonic()
            writer.write(b"x")
            await exactly(reader, 1)
            was_lost = link.forward.counters.retransmitted > before
            times[was_lost].append(time.monotonic() - began_at)
        assert min(times[True]) >= 0.2
        assert min(times[False]) < 0.2
        assert link.forward.counters.retransmitted == len(times[True])


async def test_a_cut_stream_goes_on_where_it_was() -> None:
    """Either side's bytes and ends are held, nobody is told, and every byte arrives once."""
    async with tcp(Conditions(delay_s=0.005), echo=False) as (link, server), connected(link) as (_, writer):
        sent = b"".join(number.to_bytes(4) for number in range(100_000))
        writer.write(sent[:200_000])
        await until(lambda: len(server.received) >= 100_000, "the first bytes")
        link.cut()
        writer.write(sent[200_000:])
        writer.write_eof()
        await asyncio.sleep(0.1)  # a while in which nothing may happen
        assert len(server.received) <= 200_000
        settled = len(server.received)
        await asyncio.sleep(0.1)
        assert (len(server.received), server.ended, server.resets) == (settled, 0, 0)
        link.restore()
        await until(lambda: server.ended == 1, "the end of the stream")
        assert bytes(server.received) == sent


async def test_a_reset_is_held_by_a_cut() -> None:
    async with tcp() as (link, server):
        reader, writer = await asyncio.open_connection(*link.address)
        writer.write(b"x")
        await exactly(reader, 1)
        link.cut()
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, (1).to_bytes(4, "little") + bytes(4)
        )
        writer.transport.abort()
        await asyncio.sleep(0.1)
        assert (server.ended, server.resets) == (0, 0)
        link.restore()
        await until(lambda: server.resets == 1, "the reset")


async def test_the_end_of_a_stream_whose_reader_has_just_reset_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket refuses that, before the loop knows of the reset: nobody else's bytes may wait for it."""

    def refuse(transport: object) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    async with tcp(backward=Conditions(delay_s=0.01), echo=False) as (link, server), connected(link):
        await until(lambda: len(server.writers) == 1, "the connection")
        monkeypatch.setattr(type(server.writers[0].transport), "write_eof", refuse)
        server.writers[0].close()
        async with connected(link) as (other, _):
            await until(lambda: len(server.writers) == 2, "the other connection")
            server.writers[1].write(b"behind it")
            assert await exactly(other, 9) == b"behind it"
    assert not problems


async def test_a_new_connection_hangs_while_the_link_is_cut_and_is_made_afterwards() -> None:
    async with tcp() as (link, server):
        link.cut(backward=False)
        connecting = [asyncio.create_task(asyncio.open_connection(*link.address)) for _ in range(3)]
        done, _ = await asyncio.wait(connecting, timeout=0.3)
        assert not done
        assert not server.writers
        link.restore()
        for task in connecting:
            reader, writer = await asyncio.wait_for(task, PATIENCE_S)  # the kernel tries again within seconds
            writer.write(b"x")
            assert await exactly(reader, 1) == b"x"
            writer.close()
            await writer.wait_closed()
        assert len(server.writers) == 3


async def test_one_direction_is_cut_alone() -> None:
    async with tcp() as (link, server), connected(link) as (reader, writer):
        writer.write(b"a")
        await exactly(reader, 1)
        link.cut(forward=False)
        writer.write(b"b")
        await until(lambda: bytes(server.received) == b"ab", "what goes forward")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.1)
        link.restore()
        assert await exactly(reader, 1) == b"b"


async def test_connections_from_one_source_are_cut_and_go_on_where_they_were() -> None:
    async with AsyncExitStack() as stack:
        link, server = await stack.enter_async_context(tcp())
        reader, writer = await stack.enter_async_context(connected(link, "127.0.0.5"))
        writer.write(b"a")
        assert await exactly(reader, 1) == b"a"
        # Only now: of two at once, the server may get the second first.
        other_reader, other_writer = await stack.enter_async_context(connected(link))
        link.cut_source("127.0.0.5")
        writer.write(b"b")
        other_writer.write(b"x")
        assert await exactly(other_reader, 1) == b"x"
        server.writers[0].write(b"c")
        async with connected(link, "127.0.0.5") as (new_reader, new_writer):
            new_writer.write(b"n")
            await asyncio.sleep(0.1)
            assert bytes(server.received) == b"ax"
            assert len(server.writers) == 2
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 0.1)
            link.restore_source("127.0.0.5")
            assert await exactly(reader, 2) == b"cb"
            assert await exactly(new_reader, 1) == b"n"


async def test_a_link_closes_while_a_source_is_cut() -> None:
    async with tcp() as (link, server), connected(link, "127.0.0.5") as (reader, _):
        await until(lambda: len(server.writers) == 1, "the first connection")
        link.cut_source("127.0.0.5")
        waiting, writer = await asyncio.open_connection(*link.address, local_addr=("127.0.0.5", 0))
    for each in (reader, waiting):
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(each.read(1), PATIENCE_S) == b""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def test_bandwidth_bounds_what_passes_and_can_be_raised_at_once() -> None:
    slow = Conditions(bandwidth_bits_per_s=800_000)  # 100 kB/s
    async with tcp(slow, echo=False) as (link, server), connected(link) as (_, writer):
        began_at = time.monotonic()
        writer.write(bytes(2_000_000))
        await until(lambda: len(server.received) >= 30_000, "the first bytes")
        assert time.monotonic() - began_at >= 0.3
        assert len(server.received) <= (time.monotonic() - began_at) * 100_000
        link.set(forward=Conditions())
        raised_at = time.monotonic()
        await until(lambda: len(server.received) == 2_000_000, "the rest")
        assert time.monotonic() - raised_at < 10  # at the old rate, 19


async def test_a_slow_reader_holds_its_writer_back() -> None:
    """The link keeps a bounded amount, and the rest waits with the sender."""

    async def read_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await stop.wait()
        writer.transport.abort()

    stop = asyncio.Event()
    listening = await asyncio.start_server(read_nothing, "127.0.0.1", 0)
    async with (
        listening,
        Link(ANYWHERE, listening.sockets[0].getsockname()) as link,
        connected(link) as (_, writer),
    ):
        written = 0
        with suppress(TimeoutError):
            while written < 200 << 20:
                writer.write(bytes(1 << 20))
                written += 1 << 20
                await asyncio.wait_for(writer.drain(), 0.5)
        assert 1 << 20 < written < 64 << 20
        assert link.forward.held_bytes < 1 << 20
        stop.set()
        writer.transport.abort()


async def test_a_target_that_refuses_resets_the_client() -> None:
    async with Link(ANYWHERE, ("127.0.0.1", free_port())) as link, connected(link) as (reader, _):
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(1), PATIENCE_S)


async def test_an_address_in_use_is_said() -> None:
    async with Link(ANYWHERE, ("127.0.0.1", 9)) as link:
        with pytest.raises(
            ConfigError, match=f"cannot listen on 127.0.0.1:{link.address[1]}: Address already"
        ):
            await Link(link.address, ("127.0.0.1", 9)).__aenter__()


async def test_datagrams_are_lost_at_the_rate_asked_for_and_the_same_with_the_same_seed() -> None:
    count, loss = 1_000, 0.2
    runs = []
    for seed in (7, 7, 8):
        async with udp(Conditions(loss=loss), seed=seed) as (link, client, target):
            received = await send_numbered(link, client, target, count)
            assert link.forward.counters.datagrams == len(received)
            assert link.forward.counters.dropped == count - len(received)
            assert abs(link.forward.counters.dropped - count * loss) < 4 * math.sqrt(
                count * loss * (1 - loss)
            )
            assert received == sorted(received)
            runs.append(received)
    assert runs[0] == runs[1] != runs[2]


async def test_datagrams_are_reordered_only_when_asked() -> None:
    async with udp(Conditions(jitter_s=0.01), seed=1) as (link, client, target):
        assert await send_numbered(link, client, target, 300) == list(range(300))
        link.set(forward=Conditions(reorder=0.1, reorder_s=0.05))
        received = await send_numbered(link, client, target, 300)
        assert sorted(received) == list(range(300))
        held_back = sum(
            number < highest for number, highest in zip(received, running_max(received), strict=True)
        )
        assert 5 <= held_back <= 80


def running_max(numbers: list[int]) -> list[int]:
    highest = [-1]
    for number in numbers:
        highest.append(max(highest[-1], number))
    return highest[:-1]


async def test_a_round_trip_of_datagrams_and_two_clients_get_their_own_answers() -> None:
    conditions = Conditions(delay_s=0.02)
    async with udp(conditions, conditions) as (link, client, target):
        with bind_udp() as other:
            other.connect(link.address)
            began_at = time.monotonic()
            client.send(b"1")
            other.send(b"2")
            answered: list[bytes] = []

            def answer() -> bool:
                with suppress(BlockingIOError):
                    data, address = target.recvfrom(100)
                    answered.append(data)
                    target.sendto(b"answer to " + data, address)
                return len(answered) == 2

            await until(answer, "both datagrams")
            await until(lambda: link.backward.counters.datagrams == 2, "both answers")
            assert time.monotonic() - began_at >= 0.04
            assert (arrived(client), arrived(other)) == ([b"answer to 1"], [b"answer to 2"])


async def test_a_cut_drops_datagrams_also_those_on_their_way() -> None:
    async with udp(Conditions(delay_s=30)) as (link, client, target):
        client.send(b"on its way")
        await until(lambda: link.forward.held_bytes > 0, "the datagram to enter")
        link.cut()
        client.send(b"too late")
        await until(lambda: link.forward.counters.dropped == 2, "both to be dropped")
        link.set(forward=Conditions())
        link.restore()
        client.send(b"after")
        await until(lambda: link.forward.counters.datagrams == 1, "the one after")
        assert arrived(target) == [b"after"]


async def test_a_full_queue_drops_what_comes_last() -> None:
    conditions = Conditions(bandwidth_bits_per_s=80_000, queue_bytes=4_000)
    async with udp(conditions) as (link, client, target):
        for number in range(20):
            client.send(bytes([number]) * 1_000)
        await until(lambda: link.forward.counters.dropped >= 14, "the queue to be full")
        await until(lambda: not link.forward.held_bytes, "the queue to be empty")
        received = [datagram[0] for datagram in arrived(target)]
        assert received[:4] == [0, 1, 2, 3]
        assert link.forward.counters.dropped == 20 - len(received)


async def test_a_target_that_is_not_there_does_not_harm_a_link_of_datagrams() -> None:
    """The system's word that nobody listens is about one datagram."""
    with bind_udp() as client:
        with bind_udp() as gone:
            address: Host = gone.getsockname()
        async with Link(ANYWHERE, address, udp=True) as link:
            client.connect(link.address)
            client.send(b"nobody")
            client.send(b"nobody either")  # read in the same turn: the error is met when it is sent
            await until(lambda: link.forward.counters.datagrams == 2, "the first two")
            with socket.socket(type=socket.SOCK_DGRAM) as target:
                target.setblocking(False)
                target.bind(address)
                client.send(b"somebody")
                await until(lambda: link.forward.counters.datagrams == 3, "the third")
                assert arrived(target) == [b"somebody"]


async def test_clients_beyond_the_bound_take_the_place_of_the_quietest() -> None:
    async with udp(max_clients=1) as (link, client, target):
        with bind_udp() as other:
            other.connect(link.address)
            ports = []
            for number, sender in enumerate((client, other, client)):
                sender.send(b"x")
                await until(lambda sent=number + 1: link.forward.counters.datagrams == sent, "it to pass")  # type: ignore[misc]
                ports.append(target.recvfrom(10)[1])
            target.sendto(b"to the forgotten", ports[1])
            target.sendto(b"answer", ports[2])
            await until(lambda: link.backward.counters.datagrams == 1, "the answer")
            assert (arrived(client), arrived(other)) == ([b"answer"], [])


async def test_links_in_a_row_and_one_that_ends_while_it_connects() -> None:
    async with tcp() as (far, server):
        async with Link(ANYWHERE, far.address) as near, connected(near) as (reader, writer):
            writer.write(b"x")
            assert await exactly(reader, 1) == b"x"
            far.cut()
            _, waiting = await asyncio.open_connection(*near.address)
            await asyncio.sleep(0.05)
        waiting.close()
        with suppress(ConnectionResetError):
            await waiting.wait_closed()
        assert len(server.writers) == 1
        far.restore()


@pytest.mark.parametrize(
    "wrong",
    [{"delay_s": -1}, {"loss": 1.1}, {"reorder": -0.1}, {"bandwidth_bits_per_s": 0}, {"jitter_s": math.nan}],
)
def test_conditions_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"from 0|more than 0"):
        Conditions(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "test",
    [
        test_bytes_keep_their_order_whatever_the_jitter_and_loss,
        test_a_cut_stream_goes_on_where_it_was,
        test_a_reset_is_held_by_a_cut,
        test_connections_from_one_source_are_cut_and_go_on_where_they_were,
        test_a_new_connection_hangs_while_the_link_is_cut_and_is_made_afterwards,
        test_a_slow_reader_holds_its_writer_back,
        test_a_target_that_refuses_resets_the_client,
        test_a_round_trip_of_datagrams_and_two_clients_get_their_own_answers,
    ],
    ids=lambda test: test.__name__.removeprefix("test_"),
)
def test_the_same_on_uvloop(test: Callable[[], Coroutine[None, None, None]]) -> None:
    """Experiments may run on either loop, and they treat sockets differently."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test())
