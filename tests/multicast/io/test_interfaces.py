"""Which interfaces are used, and what is said of one that cannot be: each command given must help."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest

from hedgerow.errors import ConfigError
from hedgerow.multicast.io.interfaces import choose
from hedgerow.multicast.io.options import MulticastOptions
from tests.hosts import Host, network
from tests.programs import need_program

# What `choose` says on a host: [IP version, names of interfaces], or the error.
CHOOSE = """
import json, sys
from hedgerow.errors import ConfigError
from hedgerow.multicast.io.interfaces import choose
from hedgerow.multicast.io.options import MulticastOptions
names, ip = json.loads(sys.argv[1])
try:
    choice = choose(MulticastOptions(interfaces=tuple(names), ip=ip))
    print(json.dumps([choice.ip, [each.name for each in choice.interfaces]]))
except ConfigError as error:
    print(json.dumps(str(error)))
"""


@pytest.fixture
def host() -> Iterator[Host]:
    with network(count=1) as net:
        yield net.hosts[0]


def choose_on(host: Host, *names: str, ip: int | None = None) -> object:
    process = host.run([sys.executable, "-c", CHOOSE, json.dumps([names, ip])], stdout=subprocess.PIPE)
    assert process.stdout is not None
    answer: object = json.loads(process.stdout.read())
    assert process.wait() == 0
    return answer


def run_on(host: Host, command: str) -> None:
    subprocess.run([*host.wrapper, *shlex.split(command)], check=True)


def command_in(answer: object) -> str:
    assert isinstance(answer, str)
    return answer.rsplit(": ", 1)[1]


def test_ipv6_comes_first_and_loopback_last(host: Host) -> None:
    assert choose_on(host) == [6, ["eth0"]]
    assert choose_on(host, ip=4) == [4, ["eth0"]]
    assert choose_on(host, "lo") == [4, ["lo"]]
    assert choose_on(host, "eth0", "lo") == [4, ["eth0", "lo"]]
    run_on(host, "ip address flush dev eth0")
    assert choose_on(host) == [4, ["lo"]]


def test_no_default_route_is_needed(host: Host) -> None:
    shown = subprocess.run([*host.wrapper, "ip", "route"], stdout=subprocess.PIPE, check=True)
    assert b"default" not in shown.stdout
    assert choose_on(host, "eth0", ip=4) == [4, ["eth0"]]


def test_a_missing_interface_is_named_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match='no network interface "nope0"; there are .*lo'):
        choose(MulticastOptions(("lo", "nope0")))


def test_an_interface_that_is_down(host: Host) -> None:
    run_on(host, "ip link set eth0 down")
    answer = choose_on(host, "eth0", ip=4)
    assert answer == "interface eth0 is down; this brings it up: ip link set eth0 up"
    run_on(host, command_in(answer))
    assert choose_on(host, "eth0", ip=4) == [4, ["eth0"]]


@pytest.mark.parametrize("ip", [4, 6])
def test_an_interface_without_an_address(host: Host, ip: int) -> None:
    run_on(host, "ip address flush dev eth0")
    answer = choose_on(host, "eth0", ip=ip)
    assert f"interface eth0 has no IPv{ip} address" in str(answer)
    run_on(host, command_in(answer))
    assert choose_on(host, "eth0", ip=ip) == [ip, ["eth0"]]


@pytest.mark.parametrize(
    ("interface", "before"),
    [("eth0", "ip -6 route del multicast ff00::/8 dev eth0 table local"), ("lo", "true")],
)
def test_a_missing_ipv6_route(host: Host, interface: str, before: str) -> None:
    run_on(host, before)
    answer = choose_on(host, interface, ip=6)
    assert f"interface {interface} has no route for IPv6 multicast" in str(answer)
    run_on(host, command_in(answer))
    assert choose_on(host, interface, ip=6) == [6, [interface]]


def test_multicast_switched_off(host: Host) -> None:
    run_on(host, "ip link set eth0 multicast off")
    answer = choose_on(host, "eth0", ip=4)
    assert "interface eth0 has multicast switched off" in str(answer)
    run_on(host, command_in(answer))
    assert choose_on(host, "eth0", ip=4) == [4, ["eth0"]]


def test_ipv6_disabled(host: Host) -> None:
    run_on(host, "sh -c 'echo 1 >/proc/sys/net/ipv6/conf/eth0/disable_ipv6'")
    answer = choose_on(host, "eth0", ip=6)
    assert str(answer).startswith("IPv6 is disabled on interface eth0; this enables it: sysctl ")
    assert choose_on(host, "eth0") == [4, ["eth0"]]
    need_program("sysctl")
    run_on(host, command_in(answer))
    assert "has no IPv6 address" in str(choose_on(host, "eth0", ip=6))  # These hosts do not make one.


def test_nothing_at_all(host: Host) -> None:
    run_on(host, "ip link set eth0 down")
    run_on(host, "ip link set lo down")
    answer = str(choose_on(host))
    assert answer.startswith("no network interface can do multicast: ")
    assert "ip link set lo up" in answer
    assert "ip link set eth0 up" in answer
