"""`multicast://` URLs: what each part means, and what a wrong one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from hedgerow.client.urls import parse_url
from hedgerow.errors import ConfigError
from hedgerow.multicast.io.options import MulticastOptions, parse_peer, read_options


def read(url: str) -> MulticastOptions:
    address = parse_url(url)
    return read_options(address.host, address.port, address.rest)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("multicast://", MulticastOptions()),
        ("multicast:///", MulticastOptions()),
        ("multicast://:5000", MulticastOptions(port=5000)),
        ("multicast://eth0", MulticastOptions(("eth0",))),
        ("multicast://eth0,wlan0.5:5000?ip=4", MulticastOptions(("eth0", "wlan0.5"), ip=4, port=5000)),
        ("multicast://?scope=site&ip=6", MulticastOptions(scope="site", ip=6)),
        ("multicast://?ip=6&naming=mdns", MulticastOptions(ip=6, naming="mdns")),
        ("multicast://?naming=computed", MulticastOptions(naming="computed")),
        (
            "multicast://?peer=10.0.0.1&peer=[fe80::1%25eth0]:99&peer=fe80::2",
            MulticastOptions(peers=("10.0.0.1", "[fe80::1%eth0]:99", "fe80::2")),
        ),
        ("multicast://?key=/etc/a%20key", MulticastOptions(key_file=Path("/etc/a key"))),
        ("multicast://?max_payload=1000", MulticastOptions(max_payload=1000)),
    ],
)
def test_a_url_is_read_and_written(url: str, options: MulticastOptions) -> None:
    assert read(url) == options
    assert read(options.url) == options


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("multicast://eth0/topic", "takes no path"),
        ("multicast://?scope=planet", "there are interface, link, site"),
        ("multicast://?ip=5", "there are 4 and 6"),
        ("multicast://?naming=guessed", "there are computed, mdns"),
        ("multicast://?naming=", "there are computed, mdns"),
        ("multicast://?naming=computed&ip=4", "naming computed needs IPv6"),
        ("multicast://?ip=six", '"six" is not a number'),
        (
            "multicast://?ttl=3",
            '"ttl" in a multicast URL: there are ip, scope, naming, peer, key, max_pay',
        ),
        ("multicast://?patience=3601", "from 0 to 3600 seconds"),
        ("multicast://?patience=-1", "not a number of seconds"),
        ("multicast://?ip=4&ip=6", '"ip" is twice'),
        ("multicast://eth0,,eth1", '"" is not the name of an interface'),
        ("multicast://:65535", "from 1 to 65534"),
        ("multicast://?peer=a:b:", "peer"),
        ("multicast://?peer=host:99999", "is not HOST[:PORT]"),
        ("multicast://?peer=", "is not HOST[:PORT]"),
        ("multicast://?max_payload=0", "max_payload 0"),
        ("multicast://?max_payload=99999999", "max_payload 99999999"),
    ],
)
def test_a_wrong_url_is_told_why(url: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(url)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("peer", "parsed"),
    [
        ("host", ("host", 7)),
        ("host:8", ("host", 8)),
        ("10.0.0.1:8", ("10.0.0.1", 8)),
        ("fe80::1%eth0", ("fe80::1%eth0", 7)),
        ("[fe80::1]", ("fe80::1", 7)),
        ("[fe80::1]:8", ("fe80::1", 8)),
    ],
)
def test_peers(peer: str, parsed: tuple[str, int]) -> None:
    assert parse_peer(peer, 7) == parsed
