"""The `[multicast]` table, in the file and by flags."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from hedgerow.errors import ConfigError
from hedgerow.kinds import NODE
from hedgerow.multicast.config import Multicast
from hedgerow.multicast.io.options import MulticastOptions
from hedgerow.node.config import Config
from hedgerow.node.config_loading import add_arguments, from_arguments, load_config


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").touch()
    monkeypatch.chdir(tmp_path)


def load(text: str) -> Config:
    path = Path("node.toml")
    path.write_text(text)
    return load_config(path, {}, NODE)


def by_flags(*words: str) -> Config:
    parser = argparse.ArgumentParser()
    add_arguments(parser, NODE)
    return from_arguments(parser.parse_args(words), NODE)


EVERYTHING = Multicast(
    ("farm/#", "house/+/state"),
    MulticastOptions(
        interfaces=("eth0", "wlan0"),
        scope="site",
        ip=4,
        naming="mdns",
        port=5_000,
        peers=("10.0.0.7", "barn:6000"),
        key_file=Path("keys"),
        max_payload=1024 * 1024,
    ),
)


def test_everything_in_a_file() -> None:
    config = load(
        """
        [multicast]
        topics = ["farm/#", "house/+/state", "farm/#"]
        interfaces = ["eth0", "wlan0"]
        scope = "site"
        ip = 4
        naming = "mdns"
        port = 5000
        peers = ["10.0.0.7", "barn:6000"]
        key_file = "keys"
        max_payload = "1 MiB"
        """
    )
    assert config.of(Multicast) == EVERYTHING


def test_everything_by_flags() -> None:
    config = by_flags(
        *("--multicast", "farm/#", "--multicast", "house/+/state"),
        *("--multicast-interface", "eth0", "--multicast-interface", "wlan0"),
        *("--multicast-scope", "site", "--multicast-ip", "4", "--multicast-port", "5000"),
        *("--multicast-naming", "mdns"),
        *("--peer", "10.0.0.7", "--peer", "barn:6000"),
        *("--multicast-key", "keys", "--multicast-max-payload", "1 MiB"),
    )
    assert config.of(Multicast) == EVERYTHING


def test_one_topic_is_enough() -> None:
    assert load('multicast.topics = "farm/#"').of(Multicast) == Multicast(("farm/#",), MulticastOptions())


@pytest.mark.parametrize("text", ["", "[multicast]\n", "multicast.topics = []\n"])
def test_without_topics_it_is_off(text: str) -> None:
    assert load(text).of(Multicast).topics == ()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('scope = "link"', "node.toml:2: multicast.scope: needs multicast.topics too (--multicast FILTER)"),
        ('topics = "a/#/b"', "node.toml:2: multicast.topics: '#' is not alone"),
        ('topics = "$SYS/#"', "node.toml:2: multicast.topics: topics that begin with $ stay"),
        ("topics = 5", "node.toml:2: multicast.topics: 5 is not a text"),
        ('topics = ""', 'node.toml:2: multicast.topics: "" says nothing'),
        ('topics = "a"\nscope = "world"', 'node.toml:3: multicast.scope: scope "world"'),
        ('topics = "a"\nip = 5', "node.toml:3: multicast.ip: ip is 5"),
        ('topics = "a"\nnaming = "own"', 'node.toml:3: multicast.naming: naming "own": there are computed'),
        ('topics = "a"\nip = true', 'node.toml:3: multicast.ip: "True" is not a whole number'),
        ('topics = "a"\nport = 65535', "node.toml:3: multicast.port: port 65535 is not"),
        ('topics = "a"\nport = "http"', 'node.toml:3: multicast.port: "http" is not a whole number'),
        ('topics = "a"\ninterfaces = "et h0"', 'node.toml:3: multicast.interfaces: "et h0" is not'),
        ('topics = "a"\npeers = "host:0"', 'node.toml:3: multicast.peers: peer "host:0"'),
        ('topics = "a"\nkey_file = "nowhere"', "node.toml:3: multicast.key_file: nowhere: No such file"),
        (
            'topics = "a"\nmax_payload = "1 GB"',
            'node.toml:3: multicast.max_payload: "1 GB" is not from 1 to 4194304 bytes',
        ),
        ('topics = "a"\nmax_payload = 0', "node.toml:3: multicast.max_payload: 0 is not from 1"),
        ('topics = "a"\nmax_payload = 1.5', "node.toml:3: multicast.max_payload: 1.5 is not a whole number"),
        ('topics = "a"\nmax_payload = inf', "node.toml:3: multicast.max_payload: inf is not from 1"),
    ],
)
def test_errors_name_the_line_and_the_key(text: str, error: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(f"[multicast]\n{text}\n")
    assert str(raised.value).startswith(error)


def test_errors_name_the_flag() -> None:
    with pytest.raises(ConfigError, match="^--multicast-port: port 0 is not"):
        by_flags("--multicast", "a", "--multicast-port", "0")
    with pytest.raises(ConfigError, match="^--peer: needs multicast.topics too"):
        by_flags("--peer", "barn")
