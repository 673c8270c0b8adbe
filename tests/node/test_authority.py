"""`HOST:PORT`, and what only looks like it."""

from __future__ import annotations

import pytest

from hedgerow.node.authority import host_and_port


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("Barn.example", ("barn.example", None)),
        ("barn.example:8780", ("barn.example", 8780)),
        ("barn.example:", ("barn.example", None)),
        ("127.0.0.1:1", ("127.0.0.1", 1)),
        ("[FD00::1]", ("fd00::1", None)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_hosts_and_their_ports(header: str, expected: tuple[str, int | None]) -> None:
    assert host_and_port(header) == expected


@pytest.mark.parametrize(
    "header",
    [
        *("", ":80", "[]", "[::1", "::1", "[barn.example]", "[127.0.0.1]", "[v1.a]"),
        *("[::1].evil.example", "[::1].evil.example:80", "evil.example[::1]", "[::1][::1]", "[::1]80"),
        *("127.0.0.1:80:80", "127.0.0.1:65536", "127.0.0.1:+1", "127.0.0.1:\u0663", "127.0.0.1:a"),
        *("user@127.0.0.1", "127.0.0.1/evil", "127.0.0.1?evil", "127.0.0.1#evil", "127.0.0.1\\evil", "a b"),
    ],
)
def test_what_makes_no_sense_names_no_host(header: str) -> None:
    assert host_and_port(header) == ("", None)
