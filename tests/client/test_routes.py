"""Other ways to a server: a SOCKS proxy, a path, an address of this machine; and TLS as it is asked for."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

import hedgerow
from hedgerow.client.socks import Proxy, parse_proxy
from tests.client.socks_proxy import answering, socks_proxy
from tests.client.test_connect import round_trip
from tests.conftest import StartMosquitto
from tests.node.certificates import Authority
from tests.programs import need_program


@pytest.mark.parametrize("login", [None, ("ada", "söcks")])
async def test_a_proxy_looks_up_the_host(mosquitto: StartMosquitto, login: tuple[str, str] | None) -> None:
    """With a name that only the proxy knows."""
    port = mosquitto()
    user = "" if login is None else "ada:s%C3%B6cks@"
    async with socks_proxy(login) as proxy:
        await round_trip(f"mqtt://broker.invalid:{port}", proxy=f"socks5h://{user}127.0.0.1:{proxy.port}")
        assert proxy.asked == [("broker.invalid", port)]


@pytest.mark.parametrize(
    ("login", "reply", "reason"),
    [
        (("ada", "other"), 0, "the proxy refused the user name or password"),
        (None, 5, "the host refused the proxy's connection"),
        (None, 2, "the proxy's rules do not allow it"),
        (None, 99, "the proxy answered 99"),
    ],
)
async def test_what_a_proxy_refuses(login: tuple[str, str] | None, reply: int, reason: str) -> None:
    user = "" if login is None else "ada:guess@"
    async with socks_proxy(login, reply) as proxy:
        with pytest.raises(hedgerow.ConnectError, match=reason):
            await hedgerow.connect("mqtt://b.invalid", proxy=f"socks5h://{user}127.0.0.1:{proxy.port}")


async def test_a_proxy_that_asks_for_a_user() -> None:
    async with socks_proxy(("ada", "pass")) as proxy:
        with pytest.raises(hedgerow.ConnectError, match="the proxy asks for a user name"):
            await hedgerow.connect("mqtt://b.invalid", proxy=f"socks5h://127.0.0.1:{proxy.port}")


@pytest.mark.parametrize(
    "answer", [b"", b"\x05", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x05\x00\x04\x00\x00\x01"]
)
async def test_what_is_no_proxy(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        writer.write_eof()
        await reader.read()

    async with answering(serve) as port:
        with pytest.raises(hedgerow.ConnectError, match="proxy"):
            await hedgerow.connect("mqtt://b.invalid", proxy=f"socks5h://127.0.0.1:{port}", timeout=5)


def test_urls_of_proxies() -> None:
    assert parse_proxy("socks5h://proxy.example") == Proxy("proxy.example", 1080)
    assert parse_proxy("socks5://a:b@[::1]:9") == Proxy("::1", 9, "a", "b")
    for wrong in ("http://proxy.example", "socks5h://", "socks5h://h:0x", "socks5h://h/path", "proxy:1080"):
        with pytest.raises(hedgerow.ConfigError):
            parse_proxy(wrong)
    with pytest.raises(hedgerow.ConfigError, match="255 bytes"):
        parse_proxy(f"socks5h://{'a' * 256}@h")


async def test_a_path(mosquitto: StartMosquitto, tmp_path: Path) -> None:
    path = tmp_path / "mosquitto.sock"
    mosquitto(f"listener 0 {path}")
    await round_trip("mqtt://localhost", unix_path=path)
    with pytest.raises(hedgerow.ConnectError, match="no such file"):
        await hedgerow.connect("mqtt://localhost", unix_path=tmp_path / "gone")
    with pytest.raises(hedgerow.ConfigError, match="without local_address and proxy"):
        hedgerow.connect("mqtt://localhost", unix_path=path, local_address="127.0.0.1")


async def test_an_address_of_this_machine() -> None:
    seen: list[Any] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(writer.get_extra_info("peername")[0])

    async with answering(serve) as port:
        with pytest.raises(hedgerow.ConnectError):
            await hedgerow.connect(f"mqtt://127.0.0.1:{port}", local_address="127.0.0.7")
    assert set(seen) == {"127.0.0.7"}


async def test_tls_with_a_folder_of_authorities_ciphers_and_alpn(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    folder = tmp_path / "authorities"
    folder.mkdir()
    (folder / "ours.pem").write_bytes(authority.certificate.read_bytes())
    subprocess.run([need_program("openssl"), "rehash", str(folder)], check=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue("server"))
    context.set_alpn_protocols(["other", "mqtt"])
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    seen: list[Any] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        secured = writer.get_extra_info("ssl_object")
        seen.append((secured.selected_alpn_protocol(), secured.cipher()[0]))

    cipher = "ECDHE-ECDSA-AES256-GCM-SHA384"
    async with answering(serve, context) as port:
        trusted: tuple[dict[str, Any], ...] = ({"ca_path": folder}, {"ca_file": authority.certificate})
        for options in trusted:
            with pytest.raises(hedgerow.ConnectError):
                await hedgerow.connect(f"mqtts://localhost:{port}", alpn="mqtt", ciphers=cipher, **options)
    assert set(seen) == {("mqtt", cipher)}
    with pytest.raises(hedgerow.ConfigError, match="OpenSSL knows none of them"):
        await hedgerow.connect("mqtts://localhost", ciphers="NONSENSE")


async def test_what_other_transports_lack() -> None:
    for url in ("multicast://", "udp://localhost"):
        with pytest.raises(hedgerow.ConfigError, match="no bind address|no way to it|bind address"):
            await hedgerow.connect(url, local_address="127.0.0.1")
