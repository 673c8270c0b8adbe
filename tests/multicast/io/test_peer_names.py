"""Peers by address and by name, without a name server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hedgerow.errors import ConfigError
from hedgerow.multicast.io.interfaces import Choice, Interface
from hedgerow.multicast.io.peer_names import PeerNames, numeric_address
from tests.multicast.io.members import loopback
from tests.waiting import until

IPV6 = Choice(6, (Interface("eth7", 7, "fe80::7"), Interface("eth8", 8, "fe80::8")))
PORT = 18_515


class NameServer:
    """Stands for the system's: knows no name for the first `failures` questions."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.asked: list[str] = []

    async def getaddrinfo(self, host: str, port: int, **hints: int) -> list[tuple[Any, ...]]:
        self.asked.append(host)
        if len(self.asked) <= self.failures:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(hints["family"], hints["type"], 17, "", ("192.0.2.7", port))]


class SystemNames(NameServer):
    """The system's own."""

    async def getaddrinfo(self, host: str, port: int, **hints: int) -> list[tuple[Any, ...]]:
        self.asked.append(host)
        return [*await asyncio.get_running_loop().getaddrinfo(host, port, **hints)]


@asynccontextmanager
async def named(peers: Iterable[str], server: NameServer) -> AsyncIterator[list[object]]:
    """The addresses that are found."""
    found: list[object] = []
    names = PeerNames(
        peers, PORT, loopback(), found.append, resolve=server.getaddrinfo, retry_s=(0.001, 0.004)
    )
    try:
        yield found
    finally:
        await names.stop()


async def test_an_address_is_a_peer_at_once() -> None:
    server = NameServer()
    peers = ("192.0.2.1", "192.0.2.2:77", "192.0.2.1")
    async with named(peers, server) as found:
        assert found == [("192.0.2.1", PORT), ("192.0.2.2", 77)]
    assert server.asked == []


async def test_a_name_is_a_peer_when_it_is_found() -> None:
    async with named(("barn:77", "192.0.2.1"), NameServer()) as found:
        await until(lambda: len(found) == 2, "the name to be found")
        assert found == [("192.0.2.1", PORT), ("192.0.2.7", 77)]


async def test_a_name_that_is_not_found_is_looked_for_again_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = NameServer(failures=5)
    async with named(("barn",), server) as found:
        await until(lambda: bool(found), "the name to be found in the end")
    assert server.asked == ["barn"] * 6
    assert caplog.text.count(f"peer barn:{PORT} is not found; it will be looked for again") == 1


async def test_a_name_that_cannot_be_one_does_not_end_the_search(caplog: pytest.LogCaptureFixture) -> None:
    """UnicodeError, of a label that is longer than allowed: no name server is asked."""
    server = SystemNames()
    async with named(("a" * 64,), server) as found:
        await until(lambda: len(server.asked) > 2, "to be looked for again")
    assert caplog.text.count("is not found") == 1
    assert found == []


async def test_the_search_ends_with_its_member() -> None:
    server = NameServer(failures=1_000_000)
    async with named(("barn",), server) as found:
        await until(lambda: len(server.asked) > 2, "some questions")
    asked = len(server.asked)
    await asyncio.sleep(0.02)
    assert len(server.asked) == asked
    assert found == []


async def test_an_address_of_the_other_ip_version_is_refused() -> None:
    with pytest.raises(ConfigError, match="peer fe80::1 has an IPv6 address"):
        PeerNames(("fe80::1",), PORT, loopback(), lambda address: None)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("2001:db8::1", ("2001:db8::1", 9, 0, 0)),
        ("192.0.2.1", ("::ffff:192.0.2.1", 9, 0, 0)),
        ("fe80::1", ("fe80::1", 9, 0, 7)),
        ("fe80::1%1", ("fe80::1", 9, 0, 1)),
        ("barn", None),
        ("a" * 64, None),
    ],
)
def test_addresses_with_ipv6(host: str, address: tuple[object, ...] | None) -> None:
    """One of a link is on the first interface, if it does not say on which."""
    assert numeric_address(host, 9, IPV6) == address


@pytest.mark.parametrize(("host", "address"), [("192.0.2.1", ("192.0.2.1", 9)), ("::1", None), ("", None)])
def test_addresses_with_ipv4(host: str, address: tuple[object, ...] | None) -> None:
    assert numeric_address(host, 9, loopback()) == address
