"""What a host lacks is named, with the command that helps; and the command does help."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.hosts_multicast.lab import Lab, lab


def refusal(home: Lab, url: str) -> str:
    program = home.hedgerow(0, "pub", url, "home/door", "open")
    assert program.wait() == 2
    assert program.output == b""
    return program.errors


def command_in(message: str) -> list[str]:
    found = re.search(r": ((?:ip|sysctl) [^;\n]+)", message)
    assert found is not None, message
    return found[1].split()


def exchange(home: Lab, url: str) -> None:
    """A message from one program on the host to another."""
    subscriber = home.subscribe(0, url, "home/door", "-C", "1")
    home.subscribed(subscriber)
    home.publish(0, url, "home/door", "open", "-q", "1")
    assert subscriber.wait() == 0
    assert subscriber.lines == ["open"]


def test_an_interface_that_does_not_exist(tmp_path: Path) -> None:
    with lab(tmp_path, 1) as home:
        message = refusal(home, "multicast://wlan9")
        assert '"wlan9"' in message
        assert "there are lo, eth0" in message
        exchange(home, "multicast://eth0")


@pytest.mark.parametrize(
    ("taken_away", "url", "words"),
    [
        ("ip link set eth0 down", "multicast://eth0", "eth0 is down"),
        ("ip link set eth0 multicast off", "multicast://eth0", "eth0 has multicast switched off"),
        ("ip address flush dev eth0", "multicast://eth0?ip=4", "eth0 has no IPv4 address"),
        ("ip address flush dev eth0", "multicast://eth0?ip=6", "eth0 has no IPv6 address"),
        ("sysctl net.ipv6.conf.eth0.disable_ipv6=1", "multicast://eth0?ip=6", "IPv6 is disabled on"),
        ("ip -6 route flush table local ff00::/8", "multicast://eth0?ip=6", "no route for IPv6 multicast"),
        ("ip link set lo up", "multicast://lo?ip=6", "lo has no route for IPv6 multicast"),
    ],
)
def test_the_command_in_the_message_helps(tmp_path: Path, taken_away: str, url: str, words: str) -> None:
    with lab(tmp_path, 1) as home:
        home.call(0, *taken_away.split())
        message = refusal(home, url)
        assert words in message
        home.call(0, *command_in(message))
        if "disable_ipv6" in taken_away:
            # Elsewhere IPv6 comes with an address; the lab's interfaces make none.
            home.call(0, *command_in(refusal(home, url)))
        exchange(home, url)
