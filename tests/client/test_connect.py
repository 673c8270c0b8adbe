"""`hedgerow.connect`: opening a bus over each transport and version, and why it may not open."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hedgerow
from hedgerow.client.transport import State, StateChange
from hedgerow.message import Message
from hedgerow.mqtt.packets import MQTT_3_1_1, Connack, Connect, Disconnect, Packet
from hedgerow.mqtt.reasons import Reason
from hedgerow_workshop.programs import free_port
from tests.client.scripted import cable_to, polite, scripted
from tests.conftest import StartMosquitto
from tests.node.certificates import Authority
from tests.waiting import until


async def round_trip(url: str, **options: Any) -> None:
    async with (
        hedgerow.connect(url, **options) as bus,
        bus.subscribe("farm/+/temperature", qos=2) as messages,
    ):
        for qos in range(3):
            await bus.publish("farm/barn/temperature", f"2{qos}", qos=qos)
        got = [await anext(stream) for stream in [aiter(messages)] for _ in range(3)]
    assert [(message.payload, message.qos) for message in got] == [(b"20", 0), (b"21", 1), (b"22", 2)]


@pytest.mark.parametrize("version", [3, 4, 5, None])
async def test_every_version(mosquitto: StartMosquitto, version: int | None) -> None:
    await round_trip(f"mqtt://127.0.0.1:{mosquitto()}", version=version)


async def test_websocket(mosquitto: StartMosquitto) -> None:
    port = free_port()
    mosquitto(f"listener {port} 127.0.0.1", "protocol websockets")
    await round_trip(f"ws://127.0.0.1:{port}")
    large = bytes(range(256)) * 40
    async with hedgerow.connect(f"ws://127.0.0.1:{port}/mqtt") as bus, bus.subscribe("large") as messages:
        await bus.publish("large", large, qos=1)
        assert (await anext(aiter(messages))).payload == large


@pytest.mark.parametrize("scheme", ["mqtts", "wss"])
async def test_tls(mosquitto: StartMosquitto, tmp_path: Path, scheme: str) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    port = free_port()
    lines = [f"listener {port} 127.0.0.1", f"cafile {authority.certificate}"]
    lines += [f"certfile {certificate}", f"keyfile {key}", "require_certificate true"]
    mosquitto(*lines, *(["protocol websockets"] if scheme == "wss" else []))
    mine, my_key = authority.issue("sensor")
    files: dict[str, Any] = {"ca_file": authority.certificate, "cert_file": str(mine), "key_file": my_key}
    await round_trip(f"{scheme}://localhost:{port}", **files)
    with pytest.raises(hedgerow.ConnectError, match="certificate is not trusted"):
        await hedgerow.connect(f"{scheme}://localhost:{port}")
    await round_trip(f"{scheme}://localhost:{port}", **{**files, "ca_file": None, "insecure": True})
    context = ssl.create_default_context(cafile=authority.certificate)
    context.load_cert_chain(mine, my_key)
    await round_trip(f"{scheme}://localhost:{port}", tls=context)


# Why a bus does not open: at once, with one line that says what to mend.


async def test_nobody_listens() -> None:
    port = free_port()
    with pytest.raises(hedgerow.ConnectError) as caught:
        await hedgerow.connect(f"mqtt://127.0.0.1:{port}")
    assert str(caught.value) == f"cannot connect to mqtt://127.0.0.1:{port}: connection refused"


async def test_no_such_host() -> None:
    with pytest.raises(hedgerow.ConnectError, match=r"no-such-host\.invalid:1883: no such host"):
        await hedgerow.connect("mqtt://no-such-host.invalid")


@pytest.mark.parametrize("host", ["a..b", ".a", "a" * 64, "%ED%B2%80"])
@pytest.mark.parametrize("scheme", ["mqtt", "wss"])
async def test_what_cannot_be_a_host(scheme: str, host: str) -> None:
    with pytest.raises(hedgerow.ConnectError, match=r"cannot connect to .* cannot be the name of a host"):
        await hedgerow.connect(f"{scheme}://{host}")


async def test_a_server_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(hedgerow.ConnectError, match="no CONNACK in 0.2 s"):
            await hedgerow.connect(f"mqtt://127.0.0.1:{port}", timeout=0.2)
        with pytest.raises(hedgerow.ConnectError, match="no answer in 0.2 s"):
            await hedgerow.connect(f"ws://127.0.0.1:{port}", timeout=0.2)
        with pytest.raises(hedgerow.ConnectError, match="no answer in 0.2 s"):
            await hedgerow.connect(f"mqtts://127.0.0.1:{port}", timeout=0.2)


async def test_a_server_that_hangs_up() -> None:
    async with scripted(lambda packet: None) as server:
        with pytest.raises(hedgerow.ConnectError, match="the server closed the link"):
            await hedgerow.connect(server.url)


async def test_a_password_that_is_wrong(mosquitto: StartMosquitto, tmp_path: Path) -> None:
    passwords = tmp_path / "passwords"
    passwords.touch(0o600)
    port = mosquitto(f"password_file {passwords}")
    with pytest.raises(hedgerow.ConnectError, match="refused the connection: not authorized") as caught:
        await hedgerow.connect(f"mqtt://user:wrong@127.0.0.1:{port}", keep_trying=True)
    assert caught.value.reason_code == Reason.NOT_AUTHORIZED


async def test_user_and_password_come_from_the_url_or_the_arguments() -> None:
    async with scripted() as server:
        async with hedgerow.connect(server.url.replace("://", "://u:p%20q@")):
            pass
        async with hedgerow.connect(server.url.replace("://", "://u:p@"), username="other", password=b"\xff"):
            pass
    seen = [(each.username, each.password) for each in server.of(Connect) if isinstance(each, Connect)]
    assert seen == [("u", b"p q"), ("other", b"\xff")]


async def test_websocket_to_something_else(mosquitto: StartMosquitto) -> None:
    async def web_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(web_server, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(hedgerow.ConnectError, match="answered HTTP 404, not WebSocket"):
            await hedgerow.connect(f"ws://127.0.0.1:{port}")
    with pytest.raises(hedgerow.ConnectError, match="cannot connect to ws://"):
        await hedgerow.connect(f"ws://127.0.0.1:{mosquitto()}")


@pytest.mark.parametrize(
    ("url", "options", "reason"),
    [
        ("amqp://h", {}, "there are mqtt://"),
        ("mqtt://h", {"version": 6}, "version 6"),
        ("mqtts://h", {"ca_file": "/no/such/file"}, "CA file /no/such/file: No such file"),
        ("mqtts://h", {"cert_file": "/no/such/file"}, "client certificate /no/such/file"),
        ("mqtts://h", {"key_file": "/no/such/file"}, "of no use without its certificate"),
        ("mqtts://h", {"tls": ssl.create_default_context(), "insecure": True}, "tls is used as it is"),
        ("mqtt://h", {"tls": ssl.create_default_context()}, "mqtt://h:1883 is without TLS; write mqtts://"),
        ("ws://h", {"ca_file": "ca.pem"}, "ws://h:80/mqtt is without TLS; write wss://"),
        ("mqtt://h/topic", {}, "takes no path"),
    ],
)
async def test_what_cannot_be_meant(url: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(hedgerow.ConfigError, match=reason):
        await hedgerow.connect(url, **options)


# Versions, sessions, wills.


async def test_a_server_without_mqtt_5_is_spoken_to_in_3_1_1() -> None:
    def answer(packet: Packet) -> list[Packet] | None:
        if isinstance(packet, Connect) and packet.protocol_version == 5:
            return [Connack(False, Reason.UNSUPPORTED_PROTOCOL_VERSION)]
        return polite(packet)

    async with scripted(answer) as server:
        server.version = MQTT_3_1_1
        async with hedgerow.connect(server.url) as bus:
            assert bus.version == MQTT_3_1_1
            await bus.publish("a", qos=1)
        with pytest.raises(hedgerow.ConnectError, match="unsupported protocol version"):
            await hedgerow.connect(server.url, version=5)


async def test_a_server_that_hangs_up_on_mqtt_5_is_spoken_to_in_3_1_1() -> None:
    def answer(packet: Packet) -> list[Packet] | None:
        return None if isinstance(packet, Connect) and packet.protocol_version == 5 else polite(packet)

    async with scripted(answer) as server:
        server.version = MQTT_3_1_1
        async with hedgerow.connect(server.url) as bus:
            assert bus.version == MQTT_3_1_1


async def test_the_version_does_not_fall_once_a_session_was_made_with_it() -> None:
    versions = iter([5, 3])

    def answer(packet: Packet) -> list[Packet] | None:
        if isinstance(packet, Connect) and next(versions, 5) != packet.protocol_version:
            return [Connack(False, Reason.UNSUPPORTED_PROTOCOL_VERSION)]
        return polite(packet)

    quickly = (0.01, 0.01)
    async with scripted(answer) as server, hedgerow.connect(server.url, reconnect_delay=quickly) as bus:
        assert server.writer is not None
        server.writer.transport.abort()
        with pytest.raises(hedgerow.ConnectError, match="unsupported protocol version"):
            await bus.wait_closed()


@pytest.mark.parametrize(
    ("options", "clean_start", "expiry", "at_the_end"),
    [
        ({}, True, 300, 0),
        ({"session_expiry": 0}, True, None, None),
        ({"session_expiry": 9}, True, 9, None),
        ({"clean_start": False}, False, 0xFFFF_FFFF, None),
        ({"clean_start": False, "session_expiry": 9}, False, 9, None),
    ],
)
async def test_how_long_the_session_lasts(
    options: dict[str, Any], clean_start: bool, expiry: int | None, at_the_end: int | None
) -> None:
    async with scripted() as server:
        async with hedgerow.connect(server.url, **options):
            pass
        await server.until_received(Disconnect)
    connect, disconnect = server.received
    assert isinstance(connect, Connect)
    assert isinstance(disconnect, Disconnect)
    assert connect.clean_start is clean_start
    assert connect.properties.get("session_expiry_interval") == expiry
    assert disconnect.properties.get("session_expiry_interval") == at_the_end


async def test_the_will_is_published_when_the_link_breaks_and_not_when_the_bus_is_closed(
    mosquitto: StartMosquitto,
) -> None:
    port = mosquitto()
    url = f"mqtt://127.0.0.1:{port}"
    async with (
        hedgerow.connect(url) as watcher,
        watcher.subscribe("will/#", qos=1) as wills,
        cable_to(port) as cable,
    ):
        stream = aiter(wills)
        async with hedgerow.connect(url, will=Message("will/closed", b"")) as bus, bus.subscribe("flood"):
            for _ in range(2_000):  # What has not been read when the bus closes must not break the link.
                await bus.publish("flood", b"x" * 1_000)
        will = Message("will/broken", b"gone", 1, True)
        bus = await hedgerow.connect(cable.url, will=will, reconnect=False)
        cable.cut()
        message = await anext(stream)
        assert (message.topic, message.payload, message.qos) == ("will/broken", b"gone", 1)
        await bus.close()


async def test_keep_trying_waits_for_the_server_and_tells_so() -> None:
    seen: list[StateChange] = []
    answers: Iterator[list[Packet] | None] = iter([None, [Connack(False, Reason.SERVER_BUSY)]])

    def answer(packet: Packet) -> list[Packet] | None:
        return next(answers, polite(packet)) if isinstance(packet, Connect) else polite(packet)

    async with scripted(answer) as server:
        options: dict[str, Any] = {
            "version": 5,
            "keep_trying": True,
            "reconnect_delay": (0.01, 0.02),
            "on_state": seen.append,
        }
        async with hedgerow.connect(server.url, **options) as bus:
            assert bus.state is State.CONNECTED
        assert bus.closed
        await until(lambda: seen[-1].state is State.CLOSED, "the last state")
    connecting, waiting = State.CONNECTING, State.WAITING
    expected = [connecting, waiting, connecting, waiting, connecting, State.CONNECTED, State.CLOSED]
    assert [change.state for change in seen] == expected
    assert "server busy" in seen[3].reason
