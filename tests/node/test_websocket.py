"""MQTT over WebSocket, seen from a WebSocket client that we did not write."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from hedgerow.broker.limits import Limits
from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import MQTT_5, Connack, Connect, Packet, Publish, Suback, Subscribe, Subscription
from hedgerow.node.config import Tls
from hedgerow.node.listener import Factory
from hedgerow.node.listeners import Listeners
from hedgerow.node.part import NodeContext
from hedgerow.node.passwords import set_password
from hedgerow.node.server import Server
from hedgerow.node.websocket import MAX_BYTES_BEFORE_CONNECT, TURN_BYTES, WebSocketLink
from tests.node.certificates import Authority
from tests.node.peers import LOOPBACK, part_of, port_of, raw_client, running, with_part
from tests.packets import read_packets
from tests.waiting import PATIENCE_S, until

CONNECT = codec.encode(Connect("client"), MQTT_5)
SUBSCRIBE = codec.encode(Subscribe(1, [Subscription("#")]), MQTT_5)
HANDSHAKE = (
    b"GET /mqtt HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def publish(payload: bytes) -> bytes:
    return codec.encode(Publish("a", payload), MQTT_5)


@asynccontextmanager
async def websocket(server: Server, path: str = "/mqtt", **options: Any) -> AsyncIterator[ClientConnection]:
    url = f"ws://127.0.0.1:{port_of(server, 'ws')}{path}"
    options = {"subprotocols": ["mqtt"], "compression": None, "max_size": None, "proxy": None} | options
    async with connect(url, **options) as client:
        yield client


async def frame(client: ClientConnection) -> list[Packet]:
    """The packets of the next frame."""
    async with asyncio.timeout(PATIENCE_S):
        data = await client.recv()
    assert isinstance(data, bytes)
    return read_packets(data)


async def close_code(client: ClientConnection) -> int | None:
    async with asyncio.timeout(PATIENCE_S):
        await client.wait_closed()
    return client.close_code


@pytest.mark.parametrize("path", ["/mqtt", "/", "/any/other?query=1"])
async def test_every_path_is_served(path: str) -> None:
    async with running(ws=LOOPBACK) as server, websocket(server, path) as client:
        assert client.subprotocol == "mqtt"
        await client.send(CONNECT)
        (answer,) = await frame(client)
        assert isinstance(answer, Connack)


async def test_the_subprotocol_of_3_1_is_answered_too() -> None:
    async with running(ws=LOOPBACK) as server:
        async with websocket(server, subprotocols=["mqttv3.1"]) as client:
            assert client.subprotocol == "mqttv3.1"
        async with websocket(server, subprotocols=["mqttv3.1", "mqtt"]) as client:
            assert client.subprotocol == "mqtt"


@pytest.mark.parametrize("offered", [None, ["chat"]])
async def test_other_subprotocols_are_refused(offered: list[str] | None) -> None:
    async with running(ws=LOOPBACK) as server:
        with pytest.raises(InvalidStatus) as caught:
            async with websocket(server, subprotocols=offered):
                pass
        assert caught.value.response.status_code == 400
        assert b"subprotocol" in (caught.value.response.body or b"")
        await until(lambda: server.open_sockets == 0, "the socket to close")


async def test_frames_may_split_packets_anywhere() -> None:
    async with running(ws=LOOPBACK) as server, websocket(server) as client:
        for byte in CONNECT + SUBSCRIBE:
            await client.send(bytes([byte]))
        packets = await frame(client)
        if len(packets) == 1:
            packets += await frame(client)
        assert [type(packet) for packet in packets] == [Connack, Suback]
        whole = publish(b"in three fragments")
        await client.send([whole[:3], whole[3:5], whole[5:]])
        assert await frame(client) == [Publish("a", b"in three fragments")]


async def test_a_frame_may_hold_several_packets_and_each_flush_is_one_frame() -> None:
    async with running(ws=LOOPBACK) as server, websocket(server) as client:
        await client.send(CONNECT + SUBSCRIBE + publish(b"1") + publish(b"2"))
        connack, suback, *publications = await frame(client)
        assert isinstance(connack, Connack)
        assert isinstance(suback, Suback)
        assert publications == [Publish("a", b"1"), Publish("a", b"2")]


@pytest.mark.parametrize("first", [b"", CONNECT], ids=["new", "connected"])
async def test_a_text_frame_ends_the_connection(first: bytes, caplog: pytest.LogCaptureFixture) -> None:
    # MQTT-6.0.0-1
    async with running(ws=LOOPBACK) as server, websocket(server) as client:
        await client.send(first)
        await client.send("text")
        assert await close_code(client) == 1003
        await until(lambda: not server.broker.connections, "the machine to close")
    assert "[MQTT-6.0.0-1]" in caplog.text


async def test_ping_is_answered() -> None:
    async with running(ws=LOOPBACK) as server, websocket(server) as client:
        async with asyncio.timeout(PATIENCE_S):
            await (await client.ping(b"still there?"))


async def test_a_frame_beyond_the_largest_packet_is_refused() -> None:
    limits = Limits(packet_bytes=1_000)
    async with running(ws=LOOPBACK, limits=limits) as server, websocket(server) as client:
        await client.send(CONNECT)
        await frame(client)
        await client.send(bytes(100_000))
        assert await close_code(client) == 1009
        await until(lambda: not server.broker.connections, "the machine to close")


async def test_the_last_packet_and_a_close_frame_arrive() -> None:
    async with running(ws=LOOPBACK) as server, websocket(server) as client:
        await client.send(CONNECT + b"\xf7\x00")
        packets = await frame(client)
        assert [type(packet).__name__ for packet in packets] == ["Connack", "Disconnect"]
        assert await close_code(client) == 1000
    await until(lambda: server.open_sockets == 0, "the socket to close")


async def test_stop_is_going_away() -> None:
    async with running(ws=LOOPBACK) as server, websocket(server) as client:
        await client.send(CONNECT)
        await frame(client)
        stopping = asyncio.create_task(server.stop())
        assert await close_code(client) == 1001
        await stopping


async def test_a_client_that_closes_is_gone() -> None:
    async with running(ws=LOOPBACK) as server, websocket(server) as client:
        await client.send(CONNECT)
        await frame(client)
        await client.close()
        await until(lambda: not server.broker.connections, "the machine to close")
        assert client.close_code == 1000


async def test_pings_of_a_peer_that_reads_nothing_cost_bounded_memory() -> None:
    async with running(ws=LOOPBACK) as server, websocket(server) as client:
        await client.send(CONNECT)
        await frame(client)
        (connection,) = server.broker.connections
        link = connection.link
        client.transport.pause_reading()
        pings = Frame(Opcode.PING, bytes(125)).serialize(mask=True) * 1_000
        while not link.congested:
            client.transport.write(pings)
            await asyncio.sleep(0)
        for _ in range(40):  # 5 MB of PINGs, whose PONGs nobody takes
            client.transport.write(pings)
            await asyncio.sleep(0)
        assert link.transport.get_write_buffer_size() < 1_000_000
        client.transport.abort()


# What strangers can do before CONNECT


@pytest.mark.parametrize("fragmented", [False, True])
async def test_little_is_kept_for_a_stranger(fragmented: bool, caplog: pytest.LogCaptureFixture) -> None:
    begun = Frame(Opcode.BINARY, bytes(8_000_000)).serialize(mask=True)[:-1]
    many = Frame(Opcode.BINARY, b"", fin=False).serialize(mask=True)
    many += Frame(Opcode.CONT, b"", fin=False).serialize(mask=True) * 120_000
    handshake = HANDSHAKE.replace(b"\r\n\r\n", b"\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n")
    async with running(ws=LOOPBACK) as server, raw_client(port_of(server, "ws")) as client:
        client.send(handshake)
        async with asyncio.timeout(PATIENCE_S):
            await client.reader.readuntil(b"\r\n\r\n")
            (connection,) = server.broker.connections
            link = connection.link
            client.send(many if fragmented else begun)
            assert await client.reader.read() == b"\x88\x02" + (1009).to_bytes(2, "big")
        await until(lambda: not server.broker.connections, "the machine to close")
        assert link.bytes_before_connect <= MAX_BYTES_BEFORE_CONNECT + TURN_BYTES
        assert not link.unhandled
    assert f"more than {MAX_BYTES_BEFORE_CONNECT} bytes before CONNECT" in caplog.text


async def test_a_large_packet_may_follow_connect_at_once() -> None:
    payload = bytes(2 * MAX_BYTES_BEFORE_CONNECT)
    async with running(ws=LOOPBACK) as server, websocket(server) as client:
        for packet in (CONNECT, SUBSCRIBE, publish(payload)):
            await client.send(packet)
        packets = await frame(client)
        while not isinstance(packets[-1], Publish):
            packets += await frame(client)
        assert packets[-1] == Publish("a", payload)


async def test_what_waits_for_a_login_is_handled_after_it(tmp_path: Path) -> None:
    users = tmp_path / "users"
    set_password(users, "ada", b"right", iterations=1000, create=True)
    connect = codec.encode(Connect("client", username="ada", password=b"right"), MQTT_5)
    payloads = [bytes([n]) * 1_000 for n in range(100)]
    sent = [connect, SUBSCRIBE, *map(publish, payloads)]
    async with running(ws=LOOPBACK, passwords=users) as server, websocket(server) as client:
        client.transport.write(b"".join(Frame(Opcode.BINARY, data).serialize(mask=True) for data in sent))
        packets: list[Packet] = []
        while len(packets) < len(sent):
            packets += await frame(client)
        assert packets[2:] == [Publish("a", payload) for payload in payloads]


class CountedProtocol(ServerProtocol):
    """Tells how much it is given at once."""

    turns: list[int]

    def receive_data(self, data: bytes) -> None:
        self.turns.append(len(data))
        super().receive_data(data)


class CountedLinks(Listeners):
    def __init__(self, node: NodeContext) -> None:
        self.turns: list[int] = []
        super().__init__(node)

    def protocol(self, **options: Any) -> ServerProtocol:
        made = CountedProtocol(**options)
        made.turns = self.turns
        return made

    def factory(self, scheme: str) -> Factory:
        return partial(WebSocketLink, self.node, make_protocol=self.protocol)


@pytest.mark.parametrize("first", [b"", CONNECT], ids=["new", "connected"])
@pytest.mark.parametrize("opcode", [Opcode.PING, Opcode.PONG, Opcode.BINARY])
async def test_a_flood_of_empty_frames_is_handled_in_turns(first: bytes, opcode: Opcode) -> None:
    table = with_part("listeners", CountedLinks)
    async with running(ws=LOOPBACK, table=table) as server, websocket(server) as client:
        await client.send(first)
        client.transport.write(Frame(opcode, b"").serialize(mask=True) * 40_000)
        async with asyncio.timeout(PATIENCE_S):
            await (await client.ping(b"the last"))
        assert max(part_of(server, CountedLinks).turns) == TURN_BYTES


@pytest.mark.parametrize("name", ["Sec-WebSocket-Protocol", "Sec-WebSocket-Key", "Origin", "X-Other"])
async def test_a_header_that_is_not_ascii_is_refused(name: str, caplog: pytest.LogCaptureFixture) -> None:
    request = HANDSHAKE.replace(b"\r\n\r\n", f"\r\n{name}: ".encode() + b"\xff" * 8_000 + b"\r\n\r\n")
    async with running(ws=LOOPBACK) as server:
        for _ in range(50):
            async with raw_client(port_of(server, "ws")) as client:
                client.writer.write(request)
                async with asyncio.timeout(PATIENCE_S):
                    answer = await client.reader.read()
                assert answer.startswith(b"HTTP/1.1 400 ")
                assert answer.endswith(b"Headers must be ASCII.\n")
        await until(lambda: server.open_sockets == 0, "the sockets to close")
    assert not any(record.exc_info for record in caplog.records)
    assert len(caplog.text) < 10_000


@pytest.mark.parametrize("name", ["Sec-WebSocket-Version", "Origin"])
async def test_the_log_does_not_quote_a_long_header(name: str, caplog: pytest.LogCaptureFixture) -> None:
    header = f"{name}: {'x' * 8_000}\r\n".encode()
    request = HANDSHAKE.replace(b"Sec-WebSocket-Version: 13\r\n", header)
    async with running(ws=LOOPBACK) as server, raw_client(port_of(server, "ws")) as client:
        client.writer.write(request)
        async with asyncio.timeout(PATIENCE_S):
            assert (await client.reader.read()).startswith(b"HTTP/1.1 40")
    assert "xxx" in caplog.text
    assert len(caplog.text) < 1_000


class FailsToAccept(ServerProtocol):
    def accept(self, request: Request) -> Response:
        raise LookupError("unforeseen")


class FailsToReceive(ServerProtocol):
    def receive_data(self, data: bytes) -> None:
        raise LookupError("unforeseen")


class AcceptingFails(Listeners):
    def factory(self, scheme: str) -> Factory:
        return partial(WebSocketLink, self.node, make_protocol=FailsToAccept)


class ReceivingFails(Listeners):
    def factory(self, scheme: str) -> Factory:
        return partial(WebSocketLink, self.node, make_protocol=FailsToReceive)


@pytest.mark.parametrize("listeners", [AcceptingFails, ReceivingFails])
async def test_a_failure_of_the_library_is_a_close_and_a_line(
    listeners: type[Listeners], caplog: pytest.LogCaptureFixture
) -> None:
    async with running(ws=LOOPBACK, table=with_part("listeners", listeners)) as server:
        async with raw_client(port_of(server, "ws")) as client:
            client.writer.write(HANDSHAKE)
            assert await client.closed()
        await until(lambda: server.open_sockets == 0, "the socket to close")
    assert not any(record.exc_info for record in caplog.records)
    (line,) = [record.getMessage() for record in caplog.records if "unforeseen" in record.getMessage()]
    assert line.endswith("closed: the WebSocket layer failed: LookupError('unforeseen')")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 426 "),
        (b"SSH-2.0-client\r\n", b"HTTP/1.1 400 "),
        (b"\0" * 100_000, b"HTTP/1.1 400 "),
        # Less than a line: it may yet become a request, until the time to CONNECT is over.
        (CONNECT, b""),
        (CONNECT[:9], b""),
    ],
)
async def test_what_is_no_handshake_gets_an_http_error(
    sent: bytes, status: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(ws=LOOPBACK, limits=Limits(connect_timeout_s=0.5)) as server:
        async with raw_client(port_of(server, "ws")) as client:
            client.writer.write(sent)
            async with asyncio.timeout(PATIENCE_S):
                answer = await client.reader.read()
            assert answer[: len(b"HTTP/1.1 400 ")] == status
        await until(lambda: server.open_sockets == 0, "the socket to close")
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize(
    ("origin", "is_ours"),
    [
        ("http://localhost:3000", True),
        ("https://127.0.0.1", True),
        ("http://[::1]:80", True),
        ("https://example.com", False),
        ("http://localhost.example.com", False),
        ("http://127.0.0.1.example.com", False),
        ("null", False),
        ("http://[::1", False),
    ],
)
async def test_pages_of_strangers_cannot_reach_a_loopback_listener(origin: str, is_ours: bool) -> None:
    async with running(ws=LOOPBACK) as server:
        if is_ours:
            async with websocket(server, origin=origin):
                return
        with pytest.raises(InvalidStatus) as caught:
            async with websocket(server, origin=origin):
                pass
        assert caught.value.response.status_code == 403


async def test_mqtt_over_secure_websocket(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with running(wss=LOOPBACK, tls=Tls(*authority.issue("server"))) as server:
        url = f"wss://127.0.0.1:{port_of(server, 'wss')}/mqtt"
        context = authority.client_context()
        async with connect(url, subprotocols=["mqtt"], ssl=context, proxy=None) as client:  # type: ignore[list-item]
            await client.send(CONNECT + b"\xf7\x00")
            packets = await frame(client)
            assert [type(packet).__name__ for packet in packets] == ["Connack", "Disconnect"]
            assert await close_code(client) == 1000


async def test_the_library_itself_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with (
        running(ws=LOOPBACK) as server,
        websocket(server, logger=logging.getLogger("client")) as client,
    ):
        await client.send(CONNECT)
        await frame(client)
    names = {record.name for record in caplog.records if record.name != "client"}
    assert names == {"hedgerow.broker"}
