"""Bytes that no client should send, and bytes that do not come.

Whoever sends them is closed, with a reason code where the specification has one, a line in the log
that says why, and a counter; everyone else is served as before.
"""

from __future__ import annotations

import asyncio
import random
import socket
from pathlib import Path

import pytest

from hedgerow.mqtt import codec
from hedgerow.mqtt.packets import (
    MQTT_3_1_1,
    MQTT_5,
    Connack,
    Connect,
    Disconnect,
    Publish,
    Subscribe,
    Subscription,
)
from hedgerow.mqtt.reasons import Reason
from tests.conftest import StartNode
from tests.faults.client import until
from tests.faults.witness import SYS_INTERVAL, witnessed
from tests.node.certificates import Authority
from tests.node.peers import RawClient, connected, raw_client
from tests.programs import Node

TIMEOUT_S = 0.5
IMPATIENT = ("--limit", f"connect_timeout_s={TIMEOUT_S}")
CLAIMS_256_MIB = b"\xff\xff\xff\x7f"


@pytest.fixture
def node(hedgerow_node: StartNode) -> Node:
    return hedgerow_node(*SYS_INTERVAL, *IMPATIENT)


def raw_connect(client_id: bytes) -> bytes:
    body = b"\0\4MQTT\5\2\0\0\0" + len(client_id).to_bytes(2, "big") + client_id
    return b"\x10" + codec.encode_remaining_length(len(body)) + body


async def test_garbage(node: Node) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    async with witnessed(node) as witness:
        for _ in range(10):
            async with asyncio.TaskGroup() as tasks:
                for _ in range(10):
                    tasks.create_task(_send_garbage(node, chance.randbytes(20_000)))
        await witness.wait_for_counter("connections/refused", 50)
        await witness.wait_for_log("refused (")


async def _send_garbage(node: Node, garbage: bytes) -> None:
    """Some of it looks like a CONNECT: of an unknown version, or one whose end never comes."""
    async with raw_client(node.port()) as client:
        client.send(garbage)
        await _read_to_the_end(client)


async def test_garbage_after_a_good_beginning(node: Node) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    async with witnessed(node) as witness:
        for number in range(50):
            async with connected(node.port(), f"broken-{number}") as client:
                # Packet type 0 is forbidden, so that each of them breaks a rule at once.
                client.send(Publish("x", b"good"), b"\x00\x00", chance.randbytes(5_000))
                answer = await client.receive()
                assert isinstance(answer, Disconnect)
                assert answer.reason_code in (
                    Reason.MALFORMED_PACKET,
                    Reason.PROTOCOL_ERROR,
                    Reason.PACKET_TOO_LARGE,
                )
                assert await client.closed()
        await witness.wait_for_counter("protocol/errors", 50)
        await witness.wait_for_log("client broken-0 from 127.0.0.1 closed (")


@pytest.mark.parametrize("first", [b"\x10", b"\x30", b"\x82"], ids=["CONNECT", "PUBLISH", "SUBSCRIBE"])
async def test_a_packet_that_claims_256_mib(node: Node, first: bytes) -> None:
    async with witnessed(node) as witness:
        async with raw_client(node.port()) as stranger:
            stranger.send(first, CLAIMS_256_MIB)
            assert await stranger.closed()
        async with connected(node.port(), "greedy") as client:
            client.send(first, CLAIMS_256_MIB)
            answer = await client.receive()
            assert isinstance(answer, Disconnect)
            assert answer.reason_code == Reason.PACKET_TOO_LARGE
            assert await client.closed()
        await witness.wait_for_log("client greedy from 127.0.0.1 closed (packet too large)")
        await witness.wait_for_counter("protocol/errors", 2)


BAD_UTF8 = {
    "lone continuation": b"\x80",
    "overlong": b"\xc0\xaf",
    "surrogate": b"\xed\xa0\x80",
    "null": b"a\0b",
}


@pytest.mark.parametrize("text", BAD_UTF8.values(), ids=list(BAD_UTF8))
async def test_text_that_is_not_utf_8(node: Node, text: bytes) -> None:
    length = len(text).to_bytes(2, "big")
    async with witnessed(node) as witness:
        async with raw_client(node.port()) as stranger:
            stranger.send(raw_connect(text))
            answer = await stranger.receive()
            assert isinstance(answer, Connack)
            assert answer.reason_code == Reason.MALFORMED_PACKET
            assert await stranger.closed()
        for number, body in enumerate(
            [
                b"\x30" + bytes((len(text) + 4,)) + length + text + b"\0!",
                b"\x82" + bytes((len(text) + 6,)) + b"\0\1\0" + length + text + b"\0",
            ]
        ):
            async with connected(node.port(), f"bad-{number}") as client:
                client.send(body)
                answer = await client.receive()
                assert isinstance(answer, Disconnect)
                assert answer.reason_code == Reason.MALFORMED_PACKET
                assert await client.closed()
        await witness.wait_for_log("MQTT-1.5.4-", 3)
        await witness.wait_for_counter("protocol/errors", 3)


async def test_client_ids_of_the_largest_size_and_ones_that_forge_log_lines(node: Node) -> None:
    async with witnessed(node) as witness:
        for number in range(20):
            async with raw_client(node.port()) as client:
                client.send(Connect(f"{number}" + "x" * 65_000))
                assert isinstance(await client.receive(), Connack)
        async with raw_client(node.port()) as client:
            client.send(Connect("evil\n2000-01-01 00:00:00.000 error    all is lost\x1b[2J"))
            assert isinstance(await client.receive(), Connack)
        await witness.wait_for_log("evil")
    assert "\n2000-01-01" not in node.log
    assert "\x1b" not in node.log
    assert max(map(len, node.log.splitlines())) < 1_000


# Bytes that do not come


async def test_half_packets_and_slow_ones_are_closed_in_time(node: Node) -> None:
    whole = raw_connect(b"slow")
    async with witnessed(node) as witness:
        async with asyncio.TaskGroup() as tasks:
            for beginning in (b"", b"\x10", whole[:5], whole[:-1]):
                for _ in range(10):
                    tasks.create_task(_stall(node.port(), beginning))
            for _ in range(10):
                tasks.create_task(_drip(node.port(), raw_connect(b"s" * 200)))
        await witness.wait_for_log("no CONNECT in time")
        await witness.wait_for_counter("connections/refused", 50)


async def _stall(port: int, beginning: bytes, close_within_s: float = TIMEOUT_S + 5) -> None:
    async with raw_client(port) as client:
        client.send(beginning)
        async with asyncio.timeout(close_within_s):
            assert await client.closed()


async def _drip(port: int, packet: bytes) -> None:
    """A byte at a time, more slowly than the time to CONNECT allows."""
    async with raw_client(port) as client:
        closed = asyncio.create_task(client.closed())
        for byte in packet:
            client.send(bytes((byte,)))
            done, _ = await asyncio.wait([closed], timeout=0.05)
            if done:
                break
        assert await closed


async def test_half_a_packet_of_a_connected_client_ends_with_its_keep_alive(node: Node) -> None:
    async with witnessed(node) as witness, connected(node.port(), "half", keep_alive=1) as client:
        client.send(b"\x30\x20\0\4half")
        answer = await client.receive()
        assert isinstance(answer, Disconnect)
        assert answer.reason_code == Reason.KEEP_ALIVE_TIMEOUT
        await witness.wait_for_log("client half disconnected")


async def test_handshakes_that_do_not_come_to_an_end(hedgerow_node: StartNode, tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue("server")
    node = hedgerow_node(
        *SYS_INTERVAL, *IMPATIENT, "--certificate", str(certificate), "--key", str(key),
        *(word for scheme in ("mqtts", "ws", "wss") for word in (f"--{scheme}", "127.0.0.1:0")),
    )  # fmt: skip
    # The first bytes of a ClientHello that claims 512, and of an HTTP request.
    beginnings = {
        "mqtts": [b"", b"\x16\x03\x01\x02\x00\x01\x00"],
        "ws": [b"", b"GET /mqtt HTTP/1.1\r\nHost: x\r\n"],
        "wss": [b"", b"\x16\x03\x01\x02\x00\x01\x00"],
    }
    async with witnessed(node) as witness:
        async with asyncio.TaskGroup() as tasks:
            for scheme, starts in beginnings.items():
                for beginning in starts:
                    for _ in range(2):  # The log has ten lines of one address.
                        tasks.create_task(_stall(node.port(scheme), beginning))
        for scheme in ("mqtts", "wss"):
            await witness.wait_for_log(f"{scheme} connection from 127.0.0.1 closed")
        await witness.wait_for_log("no CONNECT in time")
        # What is no handshake at all ends at once.
        for scheme in ("mqtts", "ws", "wss"):
            async with raw_client(node.port(scheme)) as client:
                client.send(Connect("plain"))
                await _read_to_the_end(client)


async def _read_to_the_end(client: RawClient) -> None:
    async with asyncio.timeout(5):
        try:
            while await client.reader.read(65_536):
                pass
        except ConnectionError:
            pass


async def test_peers_that_vanish_in_every_state(node: Node) -> None:
    """A reset, where a broker may be about to read or to write."""
    packets = [
        raw_connect(b"vanishing"),
        codec.encode(Subscribe(1, [Subscription("#", 2)]), MQTT_5),
        codec.encode(Publish("x", bytes(5_000), 2, True, packet_id=1), MQTT_5),
    ]
    stream = b"".join(packets)
    async with witnessed(node) as witness:
        for cut in range(0, len(stream), 97):
            with socket.create_connection(("127.0.0.1", node.port())) as peer:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                peer.sendall(stream[:cut])
            await asyncio.sleep(0)
        await until(lambda: "client vanishing disconnected" in node.log, "the log")
        await witness.wait_for_counter("clients/maximum", 3)


async def test_a_broker_that_speaks_the_extension_speaks_mqtt_5(node: Node) -> None:
    """0xFF behind the name of MQTT 5: what follows is MQTT 5, and a CONNECT of 3.1.1 is malformed."""
    async with witnessed(node), raw_client(node.port()) as client:
        connect = bytearray(codec.encode(Connect("future", MQTT_3_1_1), MQTT_3_1_1))
        connect[8] = 0xFF
        client.send(bytes(connect))
        answer = await client.reader.read()  # up to the end
        assert (answer[0], answer[3]) == (0x20, Reason.MALFORMED_PACKET)


async def test_an_unknown_protocol_version_is_told_so(node: Node) -> None:
    async with witnessed(node):
        for version in (1, 6, 0x7F, 0x85):
            async with raw_client(node.port()) as client:
                connect = bytearray(codec.encode(Connect("future", MQTT_3_1_1), MQTT_3_1_1))
                connect[8] = version
                client.send(bytes(connect))
                assert await client.reader.read(4) == b"\x20\x02\x00\x01"
                assert await client.closed()
