"""How single values are written."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import pytest

from hedgerow.broker.limits import Limits
from hedgerow.errors import ConfigError
from hedgerow.node.values import (
    LIMIT_RANGES,
    Address,
    read_addresses,
    read_directory_path,
    read_file_path,
    read_interval,
    read_limit,
    read_node_id,
)

HERE = Path()


@pytest.mark.parametrize(
    ("text", "address", "bind_hosts", "is_loopback"),
    [
        ("localhost:1883", Address("localhost", 1883), ("127.0.0.1", "::1"), True),
        ("LocalHost:0", Address("localhost", 0), ("127.0.0.1", "::1"), True),
        ("127.0.0.1:1", Address("127.0.0.1", 1), ("127.0.0.1",), True),
        ("127.9.9.9:1", Address("127.9.9.9", 1), ("127.9.9.9",), True),
        ("[::1]:65535", Address("::1", 65_535), ("::1",), True),
        ("*:1883", Address("*", 1883), ("0.0.0.0", "::"), False),
        ("0.0.0.0:1883", Address("0.0.0.0", 1883), ("0.0.0.0",), False),
        ("[::]:1883", Address("::", 1883), ("::",), False),
        ("192.168.1.2:1883", Address("192.168.1.2", 1883), ("192.168.1.2",), False),
        ("[fe80::1%eth0]:1883", Address("fe80::1%eth0", 1883), ("fe80::1%eth0",), False),
        ("[::ffff:127.0.0.1]:1", Address("::ffff:127.0.0.1", 1), ("::ffff:127.0.0.1",), False),
        ("broker.example:1883", Address("broker.example", 1883), ("broker.example",), False),
        ("localhost.example:1883", Address("localhost.example", 1883), ("localhost.example",), False),
    ],
)
def test_addresses(text: str, address: Address, bind_hosts: tuple[str, ...], is_loopback: bool) -> None:
    assert read_addresses(text, HERE) == (address,)
    assert address.bind_hosts == bind_hosts
    assert address.is_loopback is is_loopback
    assert read_addresses(str(address), HERE) == (address,)


def test_several_addresses_and_none() -> None:
    assert read_addresses(["*:1", "[::1]:2"], HERE) == (Address("*", 1), Address("::1", 2))
    assert read_addresses("off", HERE) == ()
    assert read_addresses(["off"], HERE) == ()


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (1883, '1883 is not "HOST:PORT" or "off"'),
        (True, 'true is not "HOST:PORT" or "off"'),
        ([], 'either "off" alone, or addresses'),
        (["off", "*:1"], 'either "off" alone, or addresses'),
        ("1883", '"1883" is not "HOST:PORT" or "off"; HOST may be'),
        (":1883", '":1883" is not "HOST:PORT" or "off"; HOST may be'),
        ("::1:1883", '"::1:1883" is not "HOST:PORT" or "off"; HOST may be a name, an IPv4 address, an IPv6'),
        ("localhost:mqtt", '"localhost:mqtt" is not "HOST:PORT"'),
        ("localhost:65536", '"localhost:65536": there is no port above 65535'),
        ("[1.2.3.4]:1", '"[1.2.3.4]:1": [1.2.3.4] is not an IPv6 address'),
        ("[::g]:1", '"[::g]:1": [::g] is not an IPv6 address'),
        ("256.1.1.1:1", '"256.1.1.1:1": "256.1.1.1" is neither an IPv4 address nor a name'),
        ("1.2.3:1", '"1.2.3" is neither an IPv4 address nor a name'),
        ("-a.b:1", '"-a.b" is neither an IPv4 address nor a name'),
        ("a b:1", '"a b" is neither an IPv4 address nor a name'),
        ("a..b:1", '"a..b" is neither an IPv4 address nor a name'),
    ],
)
def test_what_is_no_address(value: object, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_addresses(value, HERE)
    assert error in str(raised.value)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("connections", 5, 5),
        ("connections", "5", 5),
        ("connections", "5_000", 5_000),
        ("connections", 5.0, 5),
        ("connects_per_s", 0.5, 0.5),
        ("connects_per_s", 3, 3.0),
        ("packet_bytes", 65_536, 65_536),
        ("packet_bytes", "16 MiB", 16 * 1024 * 1024),
        ("packet_bytes", "16mib", 16 * 1024 * 1024),
        ("packet_bytes", "1.5 kB", 1_500),
        ("packet_bytes", "300 B", 300),
        ("connect_timeout_s", 2, 2.0),
        ("connect_timeout_s", "500 ms", 0.5),
        ("keep_alive_s", "5 min", 300),
        ("keep_alive_s", "1 h", 3_600),
        ("session_expiry_s", "7 d", 604_800.0),
        ("session_expiry_s", "never", float("inf")),
        ("session_expiry_s", float("inf"), float("inf")),
        ("retained_bytes", 0, 0),
    ],
)
def test_limits(name: str, value: object, expected: float) -> None:
    limit = read_limit(name)(value, HERE)
    assert limit == expected
    assert type(limit) is type(expected)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("connections", 0, "0 is not from 1 to 10000000"),
        ("connections", "many", '"many" is not a whole number'),
        ("connections", 1.5, "1.5 is not a whole number"),
        ("connections", True, "true is not a whole number"),
        ("connections", "5 s", '"5 s" is not a whole number'),
        ("connections", [1], "[1] is not a whole number"),
        ("connects_per_s", "5 s", '"5 s" is not a number'),
        ("connects_per_s", float("nan"), "nan is not from 0 to 1000000"),
        ("connects_per_s", "never", '"never" is not a number'),
        ("packet_bytes", "16 min", '"16 min" is not a size such as 65536 or "16 MiB"'),
        ("packet_bytes", "-1", '"-1" is not a size'),
        ("packet_bytes", 268_435_461, "268435461 is not from 256 to 268435460"),
        ("packet_bytes", "1 GiB", '"1 GiB" is not from 256 to 268435460 bytes'),
        ("packet_bytes", "300.5", '"300.5" is not a whole number'),
        ("connect_timeout_s", "5 MiB", '"5 MiB" is not a duration such as 10, "5 min" or "never"'),
        ("connect_timeout_s", "never", '"never" is not from 0.1 to 3600 s'),
        ("keep_alive_s", "never", '"never" is not from 1 to 65535 s'),
        ("session_expiry_s", -1, "-1 is not from 0 s on"),
    ],
)
def test_what_is_no_limit(name: str, value: object, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_limit(name)(value, HERE)
    assert error in str(raised.value)


def test_every_limit_has_a_range_that_holds_its_default() -> None:
    assert LIMIT_RANGES.keys() == {limit.name for limit in fields(Limits)}
    for limit in fields(Limits):
        if limit.default is not None:
            assert read_limit(limit.name)(limit.default, HERE) == limit.default


@pytest.mark.parametrize(("value", "expected"), [(10, 10.0), ("1 min", 60.0), (0, 0.0), ("never", 0.0)])
def test_intervals(value: object, expected: float) -> None:
    assert read_interval(value, HERE) == expected


@pytest.mark.parametrize("value", [-1, 0.01, 86_401, "often", False])
def test_what_is_no_interval(value: object) -> None:
    with pytest.raises(ConfigError):
        read_interval(value, HERE)


@pytest.mark.parametrize("value", ["field-7", "a.b_c", "x" * 64])
def test_node_ids(value: str) -> None:
    assert read_node_id(value, HERE) == value


@pytest.mark.parametrize("value", ["", "a/b", "a b", "ü", "x" * 65, 7, "a\n"])
def test_what_is_no_node_id(value: object) -> None:
    with pytest.raises(ConfigError):
        read_node_id(value, HERE)


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_file_path("file", tmp_path) == tmp_path / "file"
    assert read_file_path("~/file", HERE) == tmp_path / "file"
    assert read_file_path(str(tmp_path / "file"), Path("/elsewhere")) == tmp_path / "file"
    assert read_directory_path("folder", tmp_path) == tmp_path / "folder"
    assert read_directory_path("folder/new", tmp_path) == tmp_path / "folder/new"
    for value, error in [
        ("nothing", "nothing: No such file or directory"),
        ("folder", "folder is a directory, not a file"),
        ("file/below", "file/below: Not a directory"),
        ("~nobody-of-that-name/x", '"~nobody-of-that-name/x": there is no such home directory'),
        ("a\0b", "is not a text in quotes"),
        (7, "7 is not a text in quotes"),
    ]:
        with pytest.raises(ConfigError) as raised:
            read_file_path(value, tmp_path)
        assert str(raised.value).endswith(error)
    with pytest.raises(ConfigError, match="file is not a directory$"):
        read_directory_path("file", tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_a_file_that_others_keep_to_themselves(tmp_path: Path) -> None:
    (tmp_path / "file").touch(0o000)
    with pytest.raises(ConfigError, match="file cannot be read by this user$"):
        read_file_path("file", tmp_path)
