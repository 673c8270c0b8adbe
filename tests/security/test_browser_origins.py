"""No page of another site reaches a node through the browser of someone who looks at it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from hedgerow.errors import ConfigError
from hedgerow.kinds import DASHBOARD, NODE, SIDECAR
from hedgerow.node.config import Config, Tls
from hedgerow.node.config_loading import load_config
from hedgerow.node.passwords import set_password
from hedgerow.node.server import Server
from hedgerow.node.values import Address
from tests.node.certificates import Authority
from tests.node.peers import LOOPBACK, port_of, running
from tests.waiting import PATIENCE_S

EVERYWHERE = (Address("0.0.0.0", 0),)
HANDSHAKE = (
    "GET /mqtt HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: mqtt\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
)
MACHINE = socket.gethostname().lower()
EVIL = "http://evil.example"


async def answer(node: Server, scheme: str, head: str, **tls: Any) -> str:
    """Of the head of a request: the answer's own, and what follows as far as it comes with it."""
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(node, scheme), **tls)
        writer.write(f"{head}\r\n".encode())
        text = await reader.readuntil(b"\r\n\r\n")
        if not text.startswith(b"HTTP/1.1 101 "):
            text += await reader.read()
        writer.close()
        return text.decode()


async def open_websocket(node: Server, host: str, origins: Iterable[str], **tls: Any) -> int:
    """The status with which a browser is answered that shows a page of this origin."""
    fields = [f"Host: {host}", *(f"Origin: {origin}" for origin in origins)]
    head = HANDSHAKE + "".join(f"{each}\r\n" for each in fields)
    return int((await answer(node, "wss" if tls else "ws", head, **tls)).split()[1])


@pytest.mark.parametrize("where", [LOOPBACK, EVERYWHERE], ids=["loopback", "everywhere"])
@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:9001", EVIL),
        ("localhost:9001", EVIL),
        ("localhost:9001", "null"),  # a sandbox in any page, or a file
        ("127.0.0.1:9001", "http://localhost.evil.example"),
        ("127.0.0.1:9001", "http://127.0.0.1.evil.example"),
        ("127.0.0.1:9001", "http://127.0.0.1@evil.example"),
        ("192.0.2.7:9001", "http://192.0.2.8"),
        ("192.0.2.7:9001", "http://localhost:3000"),  # of whoever looks: not this machine
        # The attacker's name leads here: the page is of the same host, as far as the browser can tell.
        ("evil.example:9001", "http://evil.example:9001"),
        ("evil.example:9001", EVIL),
        ("evil.example", "http://localhost"),
        (f"{MACHINE}.evil.example", f"http://{MACHINE}.evil.example"),
        ("other.local:9001", "http://other.local"),
        ("", "http://"),
        ("[::1", "http://[::1"),
        ("[::1].evil.example", "http://[::1].evil.example"),
        ("[::1]:9001", "http://[::1].evil.example"),
        ("127.0.0.1:9001", "file://127.0.0.1"),
    ],
)
async def test_no_page_of_another_site_opens_a_websocket(
    where: tuple[Address, ...], host: str, origin: str
) -> None:
    async with running(ws=where) as node:
        assert await open_websocket(node, host, [origin]) == 403


async def test_one_good_origin_does_not_excuse_another() -> None:
    async with running(ws=EVERYWHERE) as node:
        assert await open_websocket(node, "127.0.0.1", ["http://127.0.0.1", EVIL]) == 403
        assert await open_websocket(node, "127.0.0.1\r\nHost: evil.example", [EVIL]) in (400, 403)


@pytest.mark.parametrize("where", [LOOPBACK, EVERYWHERE], ids=["loopback", "everywhere"])
@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:9001", "http://127.0.0.1:8780"),  # no page comes from the port of the WebSocket itself
        ("localhost:9001", "http://localhost:3000"),
        ("127.0.0.1:9001", "https://localhost"),
        ("[::1]:9001", "http://localhost:3000"),
        ("192.0.2.7:9001", "http://192.0.2.7"),
        (f"{MACHINE}:9001", f"http://{MACHINE.upper()}:8780"),
        ("barn-1.local:9001", "http://barn-1.local:8780"),  # as multicast DNS announces this node
    ],
)
async def test_pages_of_this_machine_do(where: tuple[Address, ...], host: str, origin: str) -> None:
    async with running(ws=where, id="barn.1") as node:
        assert await open_websocket(node, host, [origin]) == 101


async def test_programs_say_no_origin_and_use_any_name() -> None:
    async with running(ws=EVERYWHERE) as node:
        assert await open_websocket(node, "barn.farm.example", []) == 101


async def test_other_names_and_origins_are_configured() -> None:
    names, origins = frozenset({"barn.farm.example"}), frozenset({"https://app.example"})
    async with running(ws=EVERYWHERE, host_names=names, origins=origins) as node:
        assert await open_websocket(node, "Barn.farm.example.:9001", ["http://barn.farm.example"]) == 101
        assert await open_websocket(node, "barn.farm.example", [EVIL]) == 403
        assert await open_websocket(node, "192.0.2.7", ["https://app.example"]) == 101
        assert await open_websocket(node, "192.0.2.7", ["https://app.example", EVIL]) == 403
        for other in ("http://app.example", "https://app.example:444", "https://app.example.evil.example"):
            assert await open_websocket(node, "192.0.2.7", [other]) == 403
    async with running(ws=EVERYWHERE, origins=frozenset({"*"})) as node:
        assert await open_websocket(node, "192.0.2.7", ["null"]) == 101


async def test_with_tls_the_browser_has_verified_the_name_but_not_the_page(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with running(wss=EVERYWHERE, tls=Tls(*authority.issue("server"))) as node:
        tls = {"ssl": authority.client_context()}
        own, other = "https://barn.farm.example", "https://evil.example"
        assert await open_websocket(node, "barn.farm.example", [own], **tls) == 101
        assert await open_websocket(node, "barn.farm.example", [other], **tls) == 403


async def test_the_refusal_says_what_to_set() -> None:
    async with running(ws=EVERYWHERE) as node:
        head = f"{HANDSHAKE}Host: 127.0.0.1\r\nOrigin: {EVIL}\r\n"
        assert "access.origins" in await answer(node, "ws", head)
        head = f"{HANDSHAKE}Host: evil.example\r\nOrigin: {EVIL}\r\n"
        assert "access.host_names" in await answer(node, "ws", head)


# HTTP

BROWSER = "Accept-Language: en\r\n"


@pytest.mark.parametrize("has_users", [False, True], ids=["open", "users"])
async def test_http_answers_browsers_by_its_own_names_alone(tmp_path: Path, has_users: bool) -> None:
    users = tmp_path / "passwords"
    set_password(users, "anna", b"right", create=True, iterations=1)
    access = {"passwords": users, "anonymous": False} if has_users else {}
    names = frozenset({"barn.farm.example"})
    async with running(http=LOOPBACK, host_names=names, **access) as node:
        for path in ("/", "/login", "/health", "/metrics"):
            for host, is_own in (("evil.example", False), ("barn.farm.example", True), ("localhost", True)):
                told = await answer(node, "http", f"GET {path} HTTP/1.1\r\nHost: {host}:8780\r\n{BROWSER}")
                assert (int(told.split()[1]) == 421) is not is_own
                assert is_own or "access.host_names" in told


# Configuration


def config_of(kind: Any = NODE, **given: object) -> Config:
    return load_config(None, {f"access.{name}": value for name, value in given.items()}, kind)


def test_names_and_origins_are_read_as_browsers_send_them() -> None:
    config = config_of(
        host_names=["Barn.Farm.example."],
        origins=["https://App.example:443/", "http://app.example:8080", "*"],
    )
    assert config.host_names == {"barn.farm.example"}
    assert config.origins == {"https://app.example", "http://app.example:8080", "*"}
    for kind in (SIDECAR, DASHBOARD):
        assert {"access.host_names"} == {
            key.name for key in kind.keys if key.name in ("access.host_names", "access.origins")
        }


@pytest.mark.parametrize(
    "given",
    [
        {"origins": "app.example"},
        {"origins": "null"},
        {"origins": "https://app.example/page"},
        {"origins": "https://user@app.example"},
        {"origins": "https://app.example:port"},
        {"origins": "https://*.example"},
        {"host_names": "http://barn.example"},
        {"host_names": "barn.example:8780"},
        {"host_names": "*"},
        {"host_names": "*.example"},
    ],
)
def test_what_no_browser_sends_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"such as"):
        config_of(**given)
