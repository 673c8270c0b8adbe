"""What is of this machine, and where others reach it."""

from __future__ import annotations

import socket
from ipaddress import ip_address

import ifaddr
import pytest

from hedgerow.node.addresses import dialled_address, is_of_this_machine, own_addresses, reached_addresses


@pytest.mark.parametrize(("host", "is_ours"), [("127.0.0.53", True), ("::1", True), ("192.0.2.1", False)])
def test_which_addresses_are_of_this_machine(host: str, is_ours: bool) -> None:
    assert is_of_this_machine(host) is is_ours


def test_those_of_interfaces_are() -> None:
    for address in own_addresses(4):
        assert is_of_this_machine(str(address))


@pytest.mark.parametrize(
    ("host", "reached"),
    [
        ("0.0.0.0", "127.0.0.1"),
        ("::", "::1"),
        ("::ffff:0.0.0.0", "127.0.0.1"),
        ("0x7f000001", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("0300.0.2.1", "192.0.2.1"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("localhost", "localhost"),
        ("barn.example", "barn.example"),
        ("x" * 64, "x" * 64),
    ],
)
def test_where_an_address_leads(host: str, reached: str) -> None:
    assert dialled_address(host) == reached


@pytest.mark.parametrize("name", ["localhost", "barn.example", "x" * 64, ""])
def test_no_name_server_is_asked(name: str) -> None:
    """Everybody would wait for its answer."""
    asked: list[int] = []

    def look_up(host: str, port: int, **options: int) -> object:
        asked.append(options["flags"])
        return socket.getaddrinfo(host, port, **options)

    assert not is_of_this_machine(name, look_up)
    assert all(flags & socket.AI_NUMERICHOST for flags in asked)


def test_where_a_listener_is_reached() -> None:
    addresses = [ifaddr.IP(text, 8, "eth0") for text in ("127.0.0.1", "192.0.2.7", "169.254.1.1")]
    addresses += [ifaddr.IP((text, 0, 2), 64, "eth0") for text in ("::1", "2001:db8::7", "fe80::7")]
    adapters = [ifaddr.Adapter("eth0", "eth0", addresses)]
    assert reached_addresses("192.0.2.9", adapters) == [ip_address("192.0.2.9")]
    assert list(map(str, reached_addresses("0.0.0.0", adapters))) == ["127.0.0.1", "192.0.2.7", "169.254.1.1"]
    assert list(map(str, reached_addresses("::", adapters))) == ["::1", "2001:db8::7"]
    assert reached_addresses("fe80::7", adapters) == []
