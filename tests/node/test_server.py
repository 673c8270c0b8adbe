"""The shell with its real broker, on loopback: what a client sees, and what it cannot do to others."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path

import pytest

from hedgerow.broker.connection import Connection
from hedgerow.broker.limits import Limits
from hedgerow.errors import ConfigError
from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import (
    MQTT_5,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Subscription,
)
from hedgerow.mqtt.reasons import Reason
from hedgerow.node.committer import Committer
from hedgerow.node.config import Config
from hedgerow.node.link import WRITE_HIGH_WATER, Entrance, Link
from hedgerow.node.listener import Factory, bind, listen
from hedgerow.node.listeners import Listeners
from hedgerow.node.part import NodeContext
from hedgerow.node.passwords import delete_user, set_password
from hedgerow.node.server import Server
from hedgerow.node.store import Store
from hedgerow.node.values import Address
from hedgerow.parts import make_server
from tests.node.faulty_store import FAULTY_STORE, FaultyCommitter
from tests.node.peers import (
    LOOPBACK,
    NOWHERE,
    RawClient,
    connected,
    part_of,
    port_of,
    raw_client,
    running,
    with_part,
)
from tests.waiting import until

KEPT = {"session_expiry_interval": 3600}


def subscribe(topic_filter: str, qos: int = 0) -> Subscribe:
    return Subscribe(1, [Subscription(topic_filter, qos)])


async def test_a_publication_goes_from_socket_to_socket() -> None:
    async with running() as server:
        port = port_of(server)
        async with connected(port, "subscriber") as subscriber, connected(port, "publisher") as publisher:
            subscriber.send(subscribe("field/+/wind"))
            assert isinstance(await subscriber.receive(), Suback)
            publisher.send(Publish("field/1/wind", b"4 m/s"), Publish("field/2/wind", b"5 m/s"))
            assert await subscriber.receive() == Publish("field/1/wind", b"4 m/s")
            assert await subscriber.receive() == Publish("field/2/wind", b"5 m/s")


async def test_lives_within_one_second_give_different_ids() -> None:
    """Without a store nobody counts them: ids that come again would be dropped as duplicates elsewhere."""
    beginnings = []
    for _ in range(3):
        async with running() as server:
            beginnings.append((server.broker.epoch, server.broker.sequence))
    assert beginnings == sorted(set(beginnings))


async def test_small_packets_leave_at_once() -> None:
    async with running() as server, connected(port_of(server), "client"):
        (connection,) = server.broker.connections
        accepted = connection.link.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# Addresses


async def test_localhost_is_both_families_on_one_port() -> None:
    async with running(mqtt=(Address("localhost", 0),)) as server:
        port = port_of(server)
        if socket.has_ipv6 and len(server.urls) > 1:
            assert server.urls == [f"mqtt://127.0.0.1:{port}", f"mqtt://[::1]:{port}"]
            async with raw_client(port, "::1") as client:
                client.send(Connect("six"))
                assert isinstance(await client.receive(), Connack)
        async with raw_client(port, "127.0.0.1") as client:
            client.send(Connect("four"))
            assert isinstance(await client.receive(), Connack)


async def test_a_missing_ipv6_is_not_an_error() -> None:
    def without_ipv6(host: str, port: int) -> socket.socket:
        if ":" in host:
            raise OSError(99, "Cannot assign requested address")
        return listen(host, port)

    (bound,) = bind(Address("*", 0), "mqtt", without_ipv6)
    with bound:
        assert bound.getsockname()[0] == "0.0.0.0"


async def test_a_port_in_use_names_the_address_and_the_key(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listeners = NOWHERE | {"mqtt": LOOPBACK, "ws": (Address("127.0.0.1", port),)}
        server = make_server(Config(**listeners, data=tmp_path))
        with pytest.raises(ConfigError, match=rf"^ws: cannot listen on 127\.0\.0\.1:{port}: .*in use"):
            await server.start()
        assert server.urls == []
    Store.open(tmp_path).close()  # the failed start holds no lock


async def test_an_address_of_another_machine_is_refused() -> None:
    server = make_server(Config(**NOWHERE | {"mqtt": (Address("192.0.2.1", 1883),)}))
    with pytest.raises(ConfigError, match=r"^mqtt: cannot listen on 192\.0\.2\.1:1883: "):
        await server.start()


# Closing


@pytest.mark.parametrize("more", [b"", b"\0" * 4_000_000], ids=["alone", "with more behind it"])
async def test_the_last_packet_arrives_although_input_is_left_unread(more: bytes) -> None:
    # A close with unread input would be a reset, which can destroy what is on its way.
    async with running() as server, connected(port_of(server), "client") as client:
        client.send(b"\xf7\x00", more)
        answer = await client.receive()
        assert isinstance(answer, Disconnect)
        assert answer.reason_code == Reason.MALFORMED_PACKET
        client.send(b"and still talking")
        await client.writer.drain()
        assert await client.receive() is None  # the end of the stream, not a reset
        client.writer.close()
        await until(lambda: server.open_sockets == 0, "the socket to close")


async def test_a_peer_that_never_closes_is_cut_off() -> None:
    async with running() as server, connected(port_of(server), "client") as client:
        server.sockets.linger_s = 0.1
        client.transport.pause_reading()
        client.send(b"\xf7\x00")
        await until(lambda: not server.broker.connections, "the machine to close")
        await until(lambda: server.open_sockets == 0, "the socket to be cut off")
        assert not server.sockets.lingering


async def test_a_link_that_was_closed_while_it_did_not_read_sees_its_peer_close(tmp_path: Path) -> None:
    users = tmp_path / "users"
    set_password(users, "ada", b"secret", iterations=1000, create=True)
    async with running(passwords=users, anonymous=False) as server:
        server.sockets.linger_s = 600
        async with raw_client(port_of(server)) as client:  # whose login pauses the reading
            client.send(Connect("c", username="ada", password=b"wrong"))
            assert isinstance(await client.receive(), Connack)
            assert await client.receive() is None
        await until(lambda: server.open_sockets == 0, "the socket to close")


async def test_time_to_connect_is_bounded() -> None:
    limits = Limits(connect_timeout_s=0.1)
    async with running(limits=limits) as server, raw_client(port_of(server)) as silent:
        assert await silent.closed()


# Bounds


async def test_a_slow_reader_costs_bounded_memory_and_delays_nobody() -> None:
    limits = Limits(queue_bytes=200_000)
    payload, batch, batches = bytes(10_000), 20, 150
    async with running(limits=limits) as server:
        port, stats = port_of(server), server.broker.stats
        async with (
            connected(port, "slow") as slow,
            connected(port, "quick") as quick,
            connected(port, "publisher") as publisher,
        ):
            for client in (slow, quick):
                client.send(subscribe("#"))
                assert isinstance(await client.receive(), Suback)
            slow.transport.pause_reading()
            for _ in range(batches):
                publisher.send(*[Publish("field/1/wind", payload)] * batch)
                for _ in range(batch):
                    assert isinstance(await quick.receive(), Publish)
            connection = server.broker.sessions["slow"].connection
            assert connection is not None
            buffered = connection.link.transport.get_write_buffer_size()
            # What one flush hands over may go beyond the mark: a chunk, and what had collected.
            assert buffered <= WRITE_HIGH_WATER + 256 * 1024 + limits.queue_bytes_in_memory
            assert isinstance(connection, Connection)
            assert connection.unread_bytes <= limits.queue_bytes_in_memory
            assert stats.publish_dropped > 0
            slow.transport.resume_reading()
            for _ in range(batch * batches - stats.publish_dropped):
                assert isinstance(await slow.receive(), Publish)


class NotedLink(Link):
    def __init__(
        self, reads: list[tuple[str, int]], node: NodeContext, listener: Entrance, address: str
    ) -> None:
        super().__init__(node, listener, address)
        self.reads = reads

    def take(self, data: bytes, now: float) -> None:
        session = self.connection.session
        self.reads.append(("" if session is None else session.client_id, len(data)))
        super().take(data, now)


class NotedLinks(Listeners):
    def __init__(self, node: NodeContext) -> None:
        self.reads: list[tuple[str, int]] = []
        super().__init__(node)

    def factory(self, scheme: str) -> Factory:
        return partial(NotedLink, self.reads, self.node)


MOST_WAITED_FOR = 1_000_000  # 20 ms or so


async def test_a_publisher_that_is_never_done_does_not_starve_the_others() -> None:
    flood = codec.encode(Publish("a", bytes(60)), MQTT_5) * 10_000
    async with running(table=with_part("listeners", NotedLinks)) as server:
        noted = part_of(server, NotedLinks).reads
        port = port_of(server)
        async with connected(port, "patient") as patient, connected(port, "flooding") as flooding:
            flooding.transport.set_write_buffer_limits(high=len(flood))
            stop = asyncio.Event()

            async def keep_flooding() -> None:
                while not stop.is_set():
                    flooding.writer.write(flood)
                    await flooding.writer.drain()

            task = asyncio.create_task(keep_flooding())
            noted.clear()
            for _ in range(20):
                patient.send(b"\xc0\x00")
                assert isinstance(await patient.receive(), Pingresp)
            reads = noted.copy()
            stop.set()
            await task
    waits = [0]  # bytes of the flood between two reads of the patient's
    for name, size in reads:
        if name == "patient":
            waits.append(0)
        else:
            waits[-1] += size
    assert len(waits) > 20
    assert max(waits) <= MOST_WAITED_FOR


async def test_connects_beyond_the_rate_are_closed_without_a_word() -> None:
    async with running(limits=Limits(connects_per_s=0.5)) as server:
        port = port_of(server)
        for _ in range(5):  # the burst: ten seconds' worth
            async with connected(port):
                pass
        async with raw_client(port) as refused:
            refused.send(Connect("client"))
            assert await refused.closed()
        assert server.broker.stats.connections_refused == 1


async def test_connections_beyond_the_limit_leave_the_others_served() -> None:
    async with running(limits=Limits(connections=2)) as server:
        port = port_of(server)
        async with connected(port, "first") as first, connected(port, "second"):
            async with raw_client(port) as third:
                third.send(Connect("third"))
                answer = await third.receive()
                assert isinstance(answer, Connack)
                assert answer.reason_code == Reason.SERVER_BUSY
                assert await third.closed()
            first.send(subscribe("#"))
            assert isinstance(await first.receive(), Suback)


async def test_resets_in_the_middle_of_a_flood_disturb_nobody(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    async with running() as server:
        port = port_of(server)
        async with connected(port, "steady") as steady, connected(port, "publisher") as publisher:
            steady.send(subscribe("#"))
            assert isinstance(await steady.receive(), Suback)
            for round_number in range(20):
                brittle = socket.create_connection(("127.0.0.1", port))
                brittle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connect = codec.encode(Connect(f"brittle-{round_number}"), MQTT_5)
                brittle.sendall(connect + codec.encode(subscribe("#"), MQTT_5))
                session_id = f"brittle-{round_number}"
                await until(lambda name=session_id: name in server.broker.sessions, "the session")  # type: ignore[misc]
                publisher.send(*[Publish("a", bytes(1000))] * 50)
                brittle.close()  # with a reset
                publisher.send(*[Publish("a", bytes(1000))] * 50)
                for _ in range(100):
                    assert isinstance(await steady.receive(), Publish)
        await until(lambda: server.open_sockets == 0, "every socket to close")
    assert not caplog.records


class UnluckyLink(Link):
    def transmit(self) -> None:
        session = self.connection.session
        both_subscribe = len(self.node.broker.subscriptions) == 2
        if session is not None and session.client_id == "unlucky" and both_subscribe:
            raise RuntimeError("a mistake of ours")
        super().transmit()


class UnluckyLinks(Listeners):
    def factory(self, scheme: str) -> Factory:
        return partial(UnluckyLink, self.node)


async def test_a_mistake_in_one_link_does_not_silence_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async with running(table=with_part("listeners", UnluckyLinks)) as server:
        port = port_of(server)
        async with connected(port, "unlucky") as unlucky, connected(port, "lucky") as lucky:
            for client in (unlucky, lucky):
                client.send(subscribe("#"))
                assert isinstance(await client.receive(), Suback)
            lucky.send(Publish("a", b"1"))
            assert await lucky.receive() == Publish("a", b"1")
            assert await unlucky.closed()
    assert "a mistake of ours" in caplog.text


class FlushingLink(Link):
    is_under_way = False

    def transmit(self) -> None:
        assert not self.is_under_way
        self.is_under_way = True
        if self.connection.out:  # as a transport does that resumes writing from within a write
            self.node.broker.dirty.append(self.connection)
            self.node.flush()
        super().transmit()
        self.is_under_way = False


class FlushingLinks(Listeners):
    def factory(self, scheme: str) -> Factory:
        return partial(FlushingLink, self.node)


class CountedLink(Link):
    def __init__(self, written: list[str], node: NodeContext, listener: Entrance, address: str) -> None:
        super().__init__(node, listener, address)
        self.written = written

    def transmit(self) -> None:
        if self.connection.out:
            self.written.append(self.connection.connected_session().client_id)
        super().transmit()


class CountedLinks(Listeners):
    def __init__(self, node: NodeContext) -> None:
        self.written: list[str] = []
        super().__init__(node)

    def factory(self, scheme: str) -> Factory:
        return partial(CountedLink, self.written, self.node)


async def _writes_to_subscriber(size: int) -> int:
    """How often the node writes to the subscriber of twenty clients, all of which have just sent so much."""
    async with running(table=with_part("listeners", CountedLinks)) as server, AsyncExitStack() as stack:
        subscriber = await stack.enter_async_context(connected(port_of(server), "subscriber"))
        subscriber.send(subscribe("field/#"))
        assert isinstance(await subscriber.receive(), Suback)
        devices = [
            await stack.enter_async_context(connected(port_of(server), f"device-{number}"))
            for number in range(20)
        ]
        written = part_of(server, CountedLinks).written
        written.clear()
        for device in devices:
            device.send(Publish("field/1/wind", bytes(size)))
        for _ in devices:
            assert await subscriber.receive() == Publish("field/1/wind", bytes(size))
        return written.count("subscriber")


async def test_what_a_turn_reads_from_many_is_written_once() -> None:
    assert await _writes_to_subscriber(10) == 1


async def test_a_turn_that_reads_much_writes_before_its_end() -> None:
    """So that a slow reader's output does not pile up."""
    assert await _writes_to_subscriber(15_000) in range(2, 20)


async def test_a_flush_within_a_flush_waits_its_turn() -> None:
    table = with_part("listeners", FlushingLinks)
    async with running(table=table) as server, connected(port_of(server), "client") as client:
        client.send(subscribe("#"), Publish("a", b"1"))
        assert isinstance(await client.receive(), Suback)
        assert await client.receive() == Publish("a", b"1")


# Storing


async def test_an_acknowledgement_waits_for_its_commit(tmp_path: Path) -> None:
    async with running(data=tmp_path, table=FAULTY_STORE) as server:
        port = port_of(server)
        async with connected(port, "subscriber", properties=KEPT, clean_start=False) as subscriber:
            subscriber.send(subscribe("#", qos=1))
            assert isinstance(await subscriber.receive(), Suback)
            async with connected(port, "publisher") as publisher:
                may_commit = part_of(server, FaultyCommitter).store.may_commit
                may_commit.clear()
                publisher.send(Publish("a", b"kept", qos=1, packet_id=7))
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await publisher.reader.read(1)
                may_commit.set()
                assert await publisher.receive() == Puback(7)


@asynccontextmanager
async def patient_node(
    directory: Path, wait_s: float
) -> AsyncIterator[tuple[FaultyCommitter, RawClient, RawClient]]:
    """Its committer, a kept subscriber to everything, and a publisher."""
    async with running(data=directory, table=FAULTY_STORE) as server:
        port = port_of(server)
        async with (
            connected(port, "subscriber", properties=KEPT, clean_start=False) as subscriber,
            connected(port, "publisher") as publisher,
        ):
            subscriber.send(subscribe("#", qos=1))
            assert isinstance(await subscriber.receive(), Suback)
            committer = part_of(server, FaultyCommitter)
            await until(lambda: not server.broker.durability.is_behind, "the subscription to be stored")
            committer.patience.wait_s = wait_s
            yield committer, subscriber, publisher


async def test_what_is_acknowledged_at_once_is_answered_with_nothing_written(tmp_path: Path) -> None:
    async with patient_node(tmp_path, wait_s=60.0) as (committer, subscriber, publisher):
        committer.store.may_commit.clear()
        for packet_id in 7, 8:
            publisher.send(Publish("a", b"x", qos=1, packet_id=packet_id))
            delivered = await subscriber.receive()
            assert isinstance(delivered, Publish)
            subscriber.send(Puback(delivered.packet_id))
            assert await publisher.receive() == Puback(packet_id)
        assert committer.store.log.written_bytes == 0
        committer.store.may_commit.set()


async def test_what_is_not_acknowledged_in_time_is_written(tmp_path: Path) -> None:
    async with patient_node(tmp_path, wait_s=0.001) as (committer, subscriber, publisher):
        publisher.send(Publish("a", b"x", qos=1, packet_id=7))
        assert await publisher.receive() == Puback(7)
        assert committer.store.log.written_bytes > 0
        assert not committer.patience.wait_s, "it was in vain"
        assert isinstance(await subscriber.receive(), Publish)


async def test_what_else_is_to_be_stored_is_not_waited_for(tmp_path: Path) -> None:
    async with patient_node(tmp_path, wait_s=60.0) as (committer, _, publisher):
        publisher.send(Publish("a", b"x", qos=1, packet_id=7))
        await until(lambda: committer.node.broker.durability.has_unwritten, "the message")
        publisher.send(Publish("r", b"x", qos=1, retain=True, packet_id=8))
        assert await publisher.receive() == Puback(7)
        assert await publisher.receive() == Puback(8)


async def test_a_node_that_ends_stores_what_it_waits_for(tmp_path: Path) -> None:
    async with patient_node(tmp_path, wait_s=60.0) as (_, subscriber, publisher):
        publisher.send(Publish("a", b"x", qos=1, packet_id=7))
        assert isinstance(await subscriber.receive(), Publish)
    with closing(Store.open(tmp_path)) as store:
        assert [chunk.count for _, chunk in store.load().chunks] == [1]


async def test_a_batch_that_was_acknowledged_before_it_was_stored_makes_patient(tmp_path: Path) -> None:
    async with patient_node(tmp_path, wait_s=0.0) as (committer, subscriber, publisher):
        committer.store.may_commit.clear()
        publisher.send(Publish("a", b"x", qos=1, packet_id=7))
        delivered = await subscriber.receive()
        assert isinstance(delivered, Publish)
        subscriber.send(Puback(delivered.packet_id))
        outbox = committer.node.broker.sessions["subscriber"].outbox
        assert outbox is not None
        await until(lambda: not len(outbox), "the acknowledgement")
        committer.store.may_commit.set()
        assert await publisher.receive() == Puback(7)
        assert committer.patience.wait_s


async def test_a_failing_store_holds_acknowledgements_and_recovers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(data=tmp_path, table=FAULTY_STORE) as server:
        store = part_of(server, FaultyCommitter).store
        port = port_of(server)
        async with (
            connected(port, "kept", properties=KEPT, clean_start=False) as kept,
            connected(port, "publisher") as publisher,
        ):
            kept.send(subscribe("#", qos=1))
            assert isinstance(await kept.receive(), Suback)
            store.attempts, store.failures = 0, 3
            publisher.send(Publish("a", b"kept", qos=1, packet_id=7))
            await until(lambda: server.problem is not None, "the failure to be seen")
            assert server.problem == "disk full"
            publisher.send(Publish("b", b"at most once"))
            received = [await kept.receive(), await kept.receive()]
            assert Publish("b", b"at most once") in received  # meanwhile QoS 0 goes on
            assert store.attempts < 4
            assert await publisher.receive() == Puback(7)
            assert store.attempts == 4
            await until(lambda: server.problem is None, "the recovery to be seen")
    logged = [record.getMessage() for record in caplog.records if record.name == "hedgerow.node.committer"]
    assert len(logged) == 2
    assert logged[0].startswith("disk full")
    assert logged[1] == "the store works again"


class SlowToOpen(Committer):
    def __init__(self, node: NodeContext) -> None:
        super().__init__(node)
        self.may_go_on = threading.Event()

    def store_in(self, directory: Path) -> Store:
        assert self.may_go_on.wait(10)
        return super().store_in(directory)


async def test_a_store_that_is_slow_to_open_holds_up_nobody_else(tmp_path: Path) -> None:
    server = Server(Config(**NOWHERE, data=tmp_path), with_part("store", SlowToOpen))
    starting = asyncio.create_task(server.start())
    async with running() as other, connected(port_of(other), "client") as client:
        client.send(Pingreq())
        assert await client.receive() == Pingresp()
    assert not starting.done()
    starting.cancel()
    part_of(server, SlowToOpen).may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    async with running(data=tmp_path):
        pass  # Whoever did not start has left the store to others.


async def test_what_was_acknowledged_is_there_after_a_restart(tmp_path: Path) -> None:
    async with running(data=tmp_path) as server:
        port = port_of(server)
        async with connected(port, "subscriber", properties=KEPT, clean_start=False) as subscriber:
            subscriber.send(subscribe("#", qos=1))
            assert isinstance(await subscriber.receive(), Suback)
        async with connected(port, "publisher") as publisher:
            publisher.send(*(Publish("a", b"%d" % n, qos=1, packet_id=n) for n in range(1, 101)))
            for n in range(1, 101):
                assert await publisher.receive() == Puback(n)
        node_id, epoch = server.node_id, server.broker.epoch
    async with running(data=tmp_path) as server:
        assert (server.node_id, server.broker.epoch) == (node_id, epoch + 1)
        async with connected(port_of(server), "subscriber", properties=KEPT, clean_start=False) as subscriber:
            for n in range(1, 101):
                packet = await subscriber.receive()
                assert isinstance(packet, Publish)
                assert packet.payload == b"%d" % n


# Who may


async def test_passwords_are_verified(tmp_path: Path) -> None:
    users = tmp_path / "users"
    set_password(users, "ada", b"correct horse", iterations=1000, create=True)
    async with running(passwords=users, anonymous=False) as server:
        port = port_of(server)
        async with connected(port, "ada", username="ada", password=b"correct horse"):
            pass
        for wrong in (
            Connect("x", username="ada", password=b"battery staple"),
            Connect("x", username="eve", password=b"correct horse"),
            Connect("x"),
        ):
            async with raw_client(port) as client:
                client.send(wrong)
                answer = await client.receive()
                assert isinstance(answer, Connack)
                assert answer.reason_code in (Reason.BAD_USER_NAME_OR_PASSWORD, Reason.NOT_AUTHORIZED)
                assert await client.closed()


async def test_what_comes_behind_a_connect_waits_for_its_login(tmp_path: Path) -> None:
    users = tmp_path / "users"
    set_password(users, "ada", b"secret", iterations=1000, create=True)
    async with running(passwords=users, anonymous=False) as server, raw_client(port_of(server)) as client:
        client.send(Connect("c", username="ada", password=b"secret"), subscribe("#"), Publish("a", b"1"))
        assert isinstance(await client.receive(), Connack)
        assert isinstance(await client.receive(), Suback)
        assert await client.receive() == Publish("a", b"1")


async def test_reload_takes_new_files_and_keeps_the_old_when_they_are_bad(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    users, acl = tmp_path / "users", tmp_path / "acl"
    set_password(users, "ada", b"old", iterations=1000, create=True)
    acl.write_text("user ada\ntopic read a\n")

    async def accepts(port: int, password: bytes) -> bool:
        async with raw_client(port) as client:
            client.send(Connect("c", username="ada", password=password))
            answer = await client.receive()
            assert isinstance(answer, Connack)
            return answer.reason_code == 0

    async with running(passwords=users, acl=acl, anonymous=False) as server:
        port = port_of(server)
        access = server.broker.access
        set_password(users, "ada", b"new", iterations=1000)
        acl.write_text("user ada\ntopic nonsense a\n")
        server.reload()
        assert f"{acl}:2" in caplog.text
        assert server.broker.access is access
        assert await accepts(port, b"old")
        acl.write_text("user ada\ntopic write a\n")
        server.reload()
        assert server.broker.access is not access
        assert await accepts(port, b"new")
        assert not await accepts(port, b"old")


async def test_reload_disconnects_the_users_who_are_gone(tmp_path: Path) -> None:
    users = tmp_path / "users"
    set_password(users, "ada", b"a", iterations=1000, create=True)
    set_password(users, "bob", b"b", iterations=1000)
    async with running(passwords=users, anonymous=True) as server:
        port = port_of(server)
        async with (
            connected(port, "1", username="ada", password=b"a") as ada,
            connected(port, "2", username="bob", password=b"b") as bob,
            connected(port, "3") as nobody,
            connected(port, "4") as certified,
            raw_client(port) as new,
        ):
            # As a listener with client certificates makes it; the name is in no password file.
            by_id = {c.session.client_id: c for c in server.broker.connections if c.session is not None}
            by_id["4"].certificate_name = by_id["4"].connected_session().username = "cert"
            delete_user(users, "ada")
            server.reload()
            answer = await ada.receive()
            assert isinstance(answer, Disconnect)
            assert answer.reason_code == Reason.NOT_AUTHORIZED
            assert answer.properties == {"reason_string": "the user is gone"}
            assert await ada.closed()
            for other in (bob, nobody, certified):
                other.send(Pingreq())
                assert isinstance(await other.receive(), Pingresp)
            new.send(Connect("5"))
            assert isinstance(await new.receive(), Connack)


# The end


async def test_stop_says_goodbye_and_frees_the_port() -> None:
    async with running() as server:
        port = port_of(server)
        async with connected(port, "client") as client:
            stopping = asyncio.create_task(server.stop())
            answer = await client.receive()
            assert isinstance(answer, Disconnect)
            assert answer.reason_code == Reason.SERVER_SHUTTING_DOWN
            assert await client.closed()
            client.writer.close()
            await stopping
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


async def test_acknowledgements_leave_before_the_goodbye(tmp_path: Path) -> None:
    async with running(data=tmp_path, table=FAULTY_STORE) as server:
        port = port_of(server)
        async with connected(port, "subscriber", properties=KEPT, clean_start=False) as subscriber:
            subscriber.send(subscribe("#", qos=1))
            assert isinstance(await subscriber.receive(), Suback)
            async with connected(port, "publisher") as publisher:
                may_commit = part_of(server, FaultyCommitter).store.may_commit
                may_commit.clear()
                publisher.send(Publish("a", b"kept", qos=1, packet_id=7))
                await until(lambda: server.broker.stats.publish_received == 1, "the publication")
                stopping = asyncio.create_task(server.stop())
                await until(lambda: server.stopping, "the stop to begin")
                may_commit.set()
                assert await publisher.receive() == Puback(7)
                assert isinstance(await publisher.receive(), Disconnect)
                publisher.writer.close()
                subscriber.writer.close()
                await stopping


async def test_a_peer_that_never_closes_does_not_hold_up_the_stop() -> None:
    async with running(shut_down_s=0.2) as server, connected(port_of(server), "client") as client:
        client.transport.pause_reading()
        async with asyncio.timeout(2):
            await server.stop()
        assert server.open_sockets == 0


async def test_events_are_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running() as server, connected(port_of(server), "client") as client:
        client.send(b"\xf7\x00")
        assert isinstance(await client.receive(), Disconnect)
    lines = [record.getMessage() for record in caplog.records if record.name == "hedgerow.broker"]
    assert [line for line in lines if "client connected from 127.0.0.1" in line] == lines[:1]
    assert any("malformed packet" in line for line in lines)
    assert not any(record.exc_info for record in caplog.records)
