"""What publishers and servers write does not command the terminal of whoever reads it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from contextlib import suppress

import pytest

import hedgerow
from hedgerow.mqtt.packets import Packet, Suback, Subscribe
from tests.client.scripted import polite, scripted
from tests.node.peers import port_of, running
from tests.waiting import PATIENCE_S

TOPIC = "farm/\x1b]0;owned\x07/\x9b31m\u202e"
PAYLOAD = b"one\n\ttwo \x1b[31mred\x07\xff\x9b" + "\x9b1m\u2066".encode()
SHOWN_TOPIC = rb"farm/\x1b]0;owned\x07/\x9b31m\u202e"
SHOWN_PAYLOAD = rb"\x1b[31mred\x07\xff\x9b\x9b1m\u2066"


async def sub(port: int, *words: str, is_terminal: bool = True) -> bytes:
    """What `hedgerow sub` prints, at a terminal or through a pipe."""
    reader, writer = os.openpty() if is_terminal else os.pipe()
    command = (sys.executable, "-m", "hedgerow", "sub", "-p", str(port), "-t", "#", "-C", "1", *words)
    process = await asyncio.create_subprocess_exec(*command, stdout=writer, stdin=subprocess.DEVNULL)
    os.close(writer)
    try:
        async with asyncio.timeout(PATIENCE_S):
            await process.wait()
        printed = b""
        with suppress(OSError):  # a terminal whose other end has gone
            while data := os.read(reader, 65_536):
                printed += data
        return printed
    finally:
        os.close(reader)
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), b"one\r\n\ttwo " + SHOWN_PAYLOAD + b"\r\n"),
        (("-v",), SHOWN_TOPIC + b" one\r\n\ttwo " + SHOWN_PAYLOAD + b"\r\n"),
        (
            ("-F", "\\e[1m%t %-5l|%P|%C"),
            b"\x1b[1m" + SHOWN_TOPIC + b" %-5d" % len(PAYLOAD) + rb"|\x1bk:\n|\x9b" + b"\r\n",
        ),
        (("--raw",), PAYLOAD.replace(b"\n", b"\r\n") + b"\r\n"),
    ],
    ids=["payload", "-v", "-F", "--raw"],
)
async def test_sub_at_a_terminal_writes_control_characters_out(
    words: tuple[str, ...], expected: bytes
) -> None:
    async with running() as server:
        port = port_of(server, "mqtt")
        properties = {"user_property": (("\x1bk", "\n"),), "content_type": "\x9b"}
        async with hedgerow.connect(f"mqtt://localhost:{port}") as bus:
            await bus.publish(TOPIC, PAYLOAD, qos=1, retain=True, properties=properties)  # type: ignore[arg-type]
        assert await sub(port, *words) == expected


async def test_json_has_no_control_character_anywhere() -> None:
    async with running() as server:
        port = port_of(server, "mqtt")
        async with hedgerow.connect(f"mqtt://localhost:{port}") as bus:
            await bus.publish(TOPIC, "\x9b1m\x7f", qos=1, retain=True)
        for is_terminal in True, False:
            printed = await sub(port, "--json", is_terminal=is_terminal)
            assert printed.strip().decode().isprintable()
            assert rb'"payload":"\u009b1m\u007f"' in printed


async def test_through_a_pipe_everything_goes_as_it_came() -> None:
    async with running() as server:
        port = port_of(server, "mqtt")
        async with hedgerow.connect(f"mqtt://localhost:{port}") as bus:
            await bus.publish(TOPIC, PAYLOAD, qos=1, retain=True)
        assert await sub(port, is_terminal=False) == PAYLOAD + b"\n"
        assert await sub(port, "-v", is_terminal=False) == TOPIC.encode() + b" " + PAYLOAD + b"\n"


async def test_warnings_and_errors_have_no_control_characters() -> None:
    """The server's words: where it sends clients, and why it refuses."""

    def answer(packet: Packet) -> list[Packet] | None:
        if isinstance(packet, Subscribe):
            return [Suback(packet.packet_id, [0x87], {"reason_string": "\x1b]0;owned\x07\x9b"})]
        return polite(packet)

    async with scripted(answer) as server:
        command = (sys.executable, "-m", "hedgerow", "sub", server.url, "a\x9b", "-d")
        process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
        async with asyncio.timeout(PATIENCE_S):
            _, said = await process.communicate()
    lines = said.decode().splitlines()
    assert any("owned" in line for line in lines)
    assert all(line.isprintable() for line in lines), said
