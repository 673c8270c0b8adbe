"""The hosts that other tests stand on: they hear each other, can be cut off, lose datagrams, and go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.hosts import INTERFACE, Host, network
from tests.programs import ROOT, need_program, wait_until

GROUPS = {"IPv4": "239.255.77.1", "IPv6": "ff12::77"}
DATAGRAMS = 200  # All fit into the smallest receive buffer in use, so only the network can lose them.

# Plain sockets: `listen` prints what the group hears, `speak` sends each line that it reads to the group.
PEER = """
import socket, struct, sys
what, family, group, interface, address = sys.argv[1:]
index = socket.if_nametoindex(interface)
if family == "IPv6":
    peer = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    level, join, send_by = socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, socket.IPV6_MULTICAST_IF
    own = struct.pack("@I", index)
    membership = socket.inet_pton(socket.AF_INET6, group) + own
else:
    peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    level, join, send_by = socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.IP_MULTICAST_IF
    own = socket.inet_aton(address)
    membership = socket.inet_aton(group) + own
if what == "listen":
    peer.bind((group, 5007, 0, index) if family == "IPv6" else (group, 5007))
    peer.setsockopt(level, join, membership)
    print("ready", flush=True)
    while True:
        print(peer.recv(100).decode(), flush=True)
peer.setsockopt(level, send_by, own)
for line in sys.stdin:
    peer.sendto(line.strip().encode(), (group, 5007))
"""


class Listener:
    """A program on a host that hears the group; returns when it has joined."""

    def __init__(self, host: Host, directory: Path, family: str = "IPv4") -> None:
        self._log = directory / f"{family}-{host.address4}.log"
        with self._log.open("wb") as log:
            host.run(_peer("listen", family, host), stdout=log)
        wait_until(lambda: "ready" in self.heard, "the listener to join")

    @property
    def heard(self) -> list[str]:
        return self._log.read_text().splitlines()


class Speaker:
    """A program on a host that sends to the group, one datagram for each word."""

    def __init__(self, host: Host, family: str = "IPv4") -> None:
        self.process = host.run(_peer("speak", family, host), stdin=subprocess.PIPE)

    def say(self, *words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{word}\n" for word in words).encode())
        self.process.stdin.flush()

    def say_until_heard(self, word: str, *listeners: Listener) -> None:
        """Repeat a word until each has heard it, and with it everything that was said before it."""

        def heard() -> bool:
            self.say(word)
            return all(word in listener.heard for listener in listeners)

        wait_until(heard, f"{word!r} to be heard")


def _peer(what: str, family: str, host: Host) -> list[str]:
    return [sys.executable, "-c", PEER, what, family, GROUPS[family], INTERFACE, str(host.address4)]


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def test_three_hosts_hear_each_other_by_multicast(tmp_path: Path, family: str) -> None:
    with network(count=3) as net:
        listeners = [Listener(host, tmp_path, family) for host in net.hosts]
        for number, host in enumerate(net.hosts):
            Speaker(host, family).say_until_heard(f"from-{number}", *listeners)


def test_hosts_have_addresses_and_no_way_out() -> None:
    with network(count=2) as net:
        host = net.hosts[1]
        assert (host.address4, host.address6) == ("10.77.0.2", "fe80::2")
        assert "default" not in _output(host, "ip", "route")
        assert "default" not in _output(host, "ip", "-6", "route")
        addresses = _output(host, "ip", "address", "show", "dev", INTERFACE)
        assert "10.77.0.2/24" in addresses
        assert "fe80::2/64" in addresses
        assert addresses.count("inet") == 2
        assert "tentative" not in addresses


@pytest.mark.parametrize(("ipv4", "ipv6"), [(True, False), (False, True)])
def test_a_network_may_speak_only_one_version_of_ip(ipv4: bool, ipv6: bool) -> None:
    with network(count=1, ipv4=ipv4, ipv6=ipv6, subnet="10.9.8.0/28") as net:
        host = net.hosts[0]
        addresses = _output(host, "ip", "address", "show", "dev", INTERFACE)
        assert (host.address4 == "10.9.8.1", "inet 10.9.8.1/28" in addresses) == (ipv4, ipv4)
        assert (host.address6 == "fe80::1", "inet6 fe80::1/64" in addresses) == (ipv6, ipv6)


def test_an_unplugged_host_hears_nothing_and_is_told_nothing(tmp_path: Path) -> None:
    with network(count=3) as net:
        here, away = Listener(net.hosts[1], tmp_path), Listener(net.hosts[2], tmp_path)
        speaker, lonely = Speaker(net.hosts[0]), Speaker(net.hosts[2])
        speaker.say_until_heard("before", here, away)

        net.hosts[2].unplug()
        speaker.say_until_heard("meanwhile", here)
        lonely.say_until_heard("anyone?", away)  # Its own multicast comes back to it: nothing failed.
        assert "state UP" in _output(net.hosts[2], "ip", "link", "show", INTERFACE)

        net.hosts[2].plug()
        speaker.say_until_heard("after", here, away)
        lonely.say_until_heard("back", here)
        assert "meanwhile" not in away.heard
        assert "anyone?" not in here.heard


@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def test_loss_is_of_the_share_asked_for_and_only_where_asked(tmp_path: Path, family: str) -> None:
    with network(count=3) as net:
        good, bad = Listener(net.hosts[1], tmp_path, family), Listener(net.hosts[2], tmp_path, family)
        speaker = Speaker(net.hosts[0], family)
        net.hosts[2].lose(30)
        for round_number in range(5):
            speaker.say(*["word"] * DATAGRAMS)
            speaker.say_until_heard(f"end-{round_number}", good, bad)
        assert good.heard.count("word") == 5 * DATAGRAMS
        lost = 1 - bad.heard.count("word") / (5 * DATAGRAMS)
        assert 0.23 < lost < 0.37  # Five standard deviations: one run in a million is outside.

        net.hosts[2].lose(0)
        speaker.say(*["again"] * DATAGRAMS)
        speaker.say_until_heard("end", good, bad)
        assert bad.heard.count("again") == DATAGRAMS


def test_all_can_be_lost(tmp_path: Path) -> None:
    with network(count=3) as net:
        good, bad = Listener(net.hosts[1], tmp_path), Listener(net.hosts[2], tmp_path)
        speaker = Speaker(net.hosts[0])
        net.hosts[2].lose(100)
        speaker.say(*["word"] * DATAGRAMS)
        speaker.say_until_heard("end", good)
        net.hosts[2].lose(0)
        speaker.say_until_heard("after", bad)
        assert "word" not in bad.heard


def test_nothing_is_left_when_a_test_fails() -> None:
    links = subprocess.check_output([need_program("ip"), "link"])
    namespaces: list[str] = []

    def fail() -> None:
        with network(count=2) as net:
            namespaces.extend(_namespace(host) for host in net.hosts)
            net.hosts[0].run(["sleep", "1000"])
            assert subprocess.check_output([need_program("ip"), "link"]) == links
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not _inhabited(namespaces)
    assert subprocess.check_output([need_program("ip"), "link"]) == links


def test_nothing_is_left_when_the_test_run_is_killed() -> None:
    script = """
import os
from tests.hosts import network
with network(count=2) as net:
    for host in net.hosts:
        host.run(["sh", "-c", "readlink /proc/self/ns/net; exec sleep 1000"])
    os.read(0, 1)
"""
    run = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with run:
        assert run.stdout is not None
        namespaces = [run.stdout.readline().decode().strip() for _ in range(2)]
        if not all(namespaces):
            pytest.skip("no network namespaces here")
        assert _inhabited(namespaces)
        run.kill()
    wait_until(lambda: not _inhabited(namespaces), "the hosts to be gone")


def _output(host: Host, program: str, *arguments: str) -> str:
    return subprocess.check_output([*host.wrapper, need_program(program), *arguments], text=True)


def _namespace(host: Host) -> str:
    return _output(host, "readlink", "/proc/self/ns/net").strip()


def _inhabited(namespaces: list[str]) -> bool:
    """Whether any process is left in one of these network namespaces."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.add(str((process / "ns/net").readlink()))
        except OSError:  # It has ended, or is another user's.
            continue
    return not found.isdisjoint(namespaces)
