"""Members on several hosts, joined by a bridge and nothing else: no server, no default route, no DNS."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.hosts import Host, Network, network
from tests.programs import wait_until

HEDGEROW = [sys.executable, "-m", "hedgerow"]


class Listener:
    """`hedgerow sub` on a host, in a file of its own."""

    def __init__(self, host: Host, output: Path, *words: str) -> None:
        self._output, self._log = output, output.with_suffix(".log")
        command = [*HEDGEROW, "sub", "-v", "-d", *words]
        with output.open("wb") as out, self._log.open("wb") as log:
            self.process = host.run(command, stdout=out, stderr=log)
        wait_until(lambda: "subscribed to" in self.log, f"{words} to be subscribed")

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def lines(self) -> list[str]:
        return self._output.read_text().splitlines()

    def wait_for(self, *lines: str) -> None:
        wait_until(lambda: set(lines) <= set(self.lines), f"{lines}; there are {self.lines} and {self.log}")


def publish(host: Host, topic: str, payload: str, *words: str, url: str = "multicast://") -> None:
    process = host.run([*HEDGEROW, "pub", url, topic, payload, "--quiet", *words], stderr=subprocess.PIPE)
    assert process.stderr is not None
    error = process.stderr.read()
    assert (process.wait(), error) == (0, b"")


def run_on(host: Host, *command: str) -> None:
    subprocess.run([*host.wrapper, *command], check=True)


@pytest.fixture(params=["IPv6", "IPv4 and mDNS"])
def net(request: pytest.FixtureRequest) -> Iterator[Network]:
    with network(count=4, ipv4=request.param != "IPv6", ipv6=request.param == "IPv6") as net:
        yield net


def test_one_publisher_and_three_subscribers_on_their_own_hosts(net: Network, tmp_path: Path) -> None:
    publisher, *others = net.hosts
    words = [("home/#",), ("home/+/status",), ("home/mop/status", "home/vacuum/status")]
    listeners = [
        Listener(host, tmp_path / f"{number}", "multicast://", *filters, "-q", "1")
        for number, (host, filters) in enumerate(zip(others, words, strict=True))
    ]
    publish(publisher, "home/vacuum/status", "started")
    publish(publisher, "home/vacuum/status", "done", "-q", "1")
    for listener in listeners:
        listener.wait_for("home/vacuum/status started", "home/vacuum/status done")
        assert len(listener.lines) == 2


def test_a_host_that_leaves_and_comes_back(net: Network, tmp_path: Path) -> None:
    publisher, away, stays, _ = net.hosts
    listeners = [
        Listener(host, tmp_path / name, "multicast://", "a/#", "-q", "1")
        for host, name in ((away, "away"), (stays, "stays"))
    ]
    publish(publisher, "a/1", "before", "-q", "1")
    for listener in listeners:
        listener.wait_for("a/1 before")
    away.unplug()
    publish(publisher, "a/2", "during", "-q", "1")
    listeners[1].wait_for("a/2 during")
    away.plug()
    publish(publisher, "a/3", "after", "-q", "1")
    for listener in listeners:
        listener.wait_for("a/3 after")
    assert "a/2 during" not in listeners[0].lines


@contextmanager
def endless(host: Host, topic: str, url: str = "multicast://") -> Iterator[None]:
    """Someone who publishes until the block ends."""
    command = [*HEDGEROW, "pub", url, topic, "x", "--repeat", "100000", "--repeat-delay", "0.05", "--quiet"]
    process = host.run(command)
    yield
    process.terminate()
    assert process.wait() == 0


def test_an_interface_that_goes_down_and_up_again_is_used_again(net: Network, tmp_path: Path) -> None:
    publisher, host, *_ = net.hosts
    listener = Listener(host, tmp_path / "out", "multicast://", "a", "b")
    with endless(publisher, "a"):
        listener.wait_for("a x")
        run_on(host, "ip", "link", "set", "eth0", "down")
        wait_until(lambda: "no interface is left" in listener.log, "a word about it")
        run_on(host, "ip", "link", "set", "eth0", "up")
        if host.address6 is not None:  # It is not made from the MAC on these hosts, and went with the link.
            run_on(host, "ip", "address", "add", f"{host.address6}/64", "dev", "eth0", "nodad")
        before = len(listener.lines)
        wait_until(lambda: len(listener.lines) > before, "messages to come again")
    publish(publisher, "b", "a new topic")
    listener.wait_for("b a new topic")


def test_ipv6_that_comes_up_later_is_used_since_others_are_there(tmp_path: Path) -> None:
    with network(count=2) as net:
        early, other = net.hosts
        run_on(early, "ip", "address", "flush", "dev", "eth0", "scope", "link")
        listener = Listener(early, tmp_path / "out", "multicast://", "a/#")
        publish(other, "a/4", "by IPv4", "--ip", "4")
        listener.wait_for("a/4 by IPv4")
        run_on(early, "ip", "address", "add", "fe80::99/64", "dev", "eth0", "nodad")
        wait_until(lambda: "with IPv6 now" in listener.log, "the change")
        publish(other, "a/6", "by IPv6")
        listener.wait_for("a/6 by IPv6")


def lay_cable(one: Host, other: Host) -> None:
    """A cable of their own, with an interface `eth1` at each end."""
    target = next(word for word in other.wrapper if word.startswith("--target="))
    peer = ["peer", "name", "eth1", "netns", target.removeprefix("--target=")]
    run_on(one, "ip", "link", "add", "eth1", "type", "veth", *peer)
    for host, address in ((one, "fe80::a/64"), (other, "fe80::b/64")):
        run_on(host, "ip", "link", "set", "eth1", "up")
        run_on(host, "ip", "address", "add", address, "dev", "eth1", "nodad")


def test_an_interface_that_is_taken_out_and_another_put_in_its_place(tmp_path: Path) -> None:
    with network(count=2) as net:
        host, publisher = net.hosts
        lay_cable(host, publisher)
        listener = Listener(host, tmp_path / "out", "multicast://eth1", "a/#")
        publish(publisher, "a/1", "before", url="multicast://eth1")
        listener.wait_for("a/1 before")
        run_on(host, "ip", "link", "delete", "eth1")
        wait_until(lambda: "no interface is left" in listener.log, "a word about it")
        lay_cable(host, publisher)
        with endless(publisher, "a/2", "multicast://eth1"):
            listener.wait_for("a/2 x")


@pytest.mark.parametrize("scope", ["link", "site"])
def test_several_interfaces_at_once(scope: str, tmp_path: Path) -> None:
    """The host in the middle has a second cable, to a host of another network."""
    with network(count=2) as net, network(count=1) as elsewhere:
        middle, left = net.hosts
        (right,) = elsewhere.hosts
        lay_cable(middle, right)
        middle_url, left_url, right_url = (
            f"multicast://{names}?scope={scope}" for names in ("eth0,eth1", "eth0", "eth1")
        )
        hub = Listener(middle, tmp_path / "hub", middle_url, "a/#")
        others = [
            Listener(left, tmp_path / "left", left_url, "a/#"),
            Listener(right, tmp_path / "right", right_url, "a/#"),
        ]
        publish(left, "a/left", "1", "-q", "1", url=left_url)
        publish(right, "a/right", "2", "-q", "1", url=right_url)
        publish(middle, "a/middle", "3", "-q", "1", url=middle_url)
        hub.wait_for("a/left 1", "a/right 2", "a/middle 3")
        for other in others:
            other.wait_for("a/middle 3")
        assert len(hub.lines) == 3
        assert "a/right 2" not in others[0].lines


def test_members_on_different_interfaces_of_one_host_do_not_meet(tmp_path: Path) -> None:
    with network(count=1) as net:
        (host,) = net.hosts
        urls = {name: f"multicast://{name}?ip=4" for name in ("eth0", "lo")}
        listeners = {name: Listener(host, tmp_path / name, url, "a") for name, url in urls.items()}
        for _ in range(2):  # by the control group, and perhaps by the topic's own
            for name, url in urls.items():
                publish(host, "a", f"by {name}", "-q", "1", url=url)
        for name, listener in listeners.items():
            wait_until(lambda each=listener: len(each.lines) >= 2, "its messages")  # type: ignore[misc]
            assert set(listener.lines) == {f"a by {name}"}


def test_ipv6_on_the_loopback_interface_works_with_the_route_that_the_error_names(tmp_path: Path) -> None:
    with network(count=1) as net:
        (host,) = net.hosts
        command = [*HEDGEROW, "pub", "multicast://lo?ip=6", "a", "x"]
        process = host.run(command, stderr=subprocess.PIPE)
        assert process.stderr is not None
        error = process.stderr.read().decode().strip()
        assert process.wait() == 2
        run_on(host, *error.rsplit(": ", 1)[1].split())
        listener = Listener(host, tmp_path / "out", "multicast://lo?ip=6", "a")
        publish(host, "a", "x", url="multicast://lo?ip=6")
        listener.wait_for("a x")


def test_a_peer_that_multicast_does_not_reach_gets_copies(tmp_path: Path) -> None:
    with network(count=2) as net:
        publisher, filtered = net.hosts
        # Multicast to and from it is lost, as some wireless networks do; single datagrams pass.
        _filter_multicast(filtered)
        assert publisher.address4 is not None
        listener = Listener(
            filtered, tmp_path / "out", "multicast://?ip=4", "a/#", "--peer", f"{publisher.address4}:18515"
        )
        with endless(publisher, "a/b", "multicast://?ip=4"):
            listener.wait_for("a/b x")


def _filter_multicast(host: Host) -> None:
    """Drop what arrives for a group's MAC address (RFC 1112 §6.4: 01:00:5e:…)."""
    program = "4,40 0 0 0,21 0 1 256,6 0 0 2,6 0 0 0"  # ldh [0]; jeq 0x0100: drop; keep
    run_on(host, "tc", "qdisc", "add", "dev", "eth0", "clsact")
    attach = "tc filter add dev eth0 ingress protocol all pref 1 bpf da bytecode"
    run_on(host, *attach.split(), program)
