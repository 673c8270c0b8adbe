"""Cables and interfaces that come and go, and several at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.hosts import network
from tests.hosts_multicast.lab import NO_SERVER, Lab, Program, lab

both_ip_versions = pytest.mark.parametrize("ip", [6, 4])


def listen(home: Lab, host: int, url: str, *topic_filters: str) -> Program:
    listener = home.subscribe(host, url, *topic_filters, "-v", "-q", "1")
    home.subscribed(listener)
    return listener


def wait_for(listener: Program, *lines: str) -> None:
    listener.wait_for(lambda: set(lines) <= set(listener.lines), f"{lines}")


@contextmanager
def endless(home: Lab, host: int, topic: str, url: str = NO_SERVER) -> Iterator[None]:
    """Someone who publishes until the block ends."""
    words = ["--repeat", "100000", "--repeat-delay", "0.05", "--quiet"]
    publisher = home.hedgerow(host, "pub", url, topic, "x", *words)
    yield
    publisher.process.terminate()
    assert publisher.wait() == 0, publisher.errors


@both_ip_versions
def test_a_host_that_leaves_and_comes_back(tmp_path: Path, ip: int) -> None:
    with lab(tmp_path, 3, ip=ip) as home:
        away, stays = (listen(home, host, NO_SERVER, "a/#") for host in (1, 2))
        home.publish(0, NO_SERVER, "a/1", "before", "-q", "1")
        for listener in (away, stays):
            wait_for(listener, "a/1 before")
        home.hosts[1].unplug()
        home.publish(0, NO_SERVER, "a/2", "during", "-q", "1")
        wait_for(stays, "a/2 during")
        home.hosts[1].plug()
        home.publish(0, NO_SERVER, "a/3", "after", "-q", "1")
        for listener in (away, stays):
            wait_for(listener, "a/3 after")
        assert "a/2 during" not in away.lines


@both_ip_versions
def test_an_interface_that_goes_down_and_up_again_is_used_again(tmp_path: Path, ip: int) -> None:
    with lab(tmp_path, 2, ip=ip) as home:
        listener = listen(home, 1, NO_SERVER, "a", "b")
        with endless(home, 0, "a"):
            wait_for(listener, "a x")
            home.call(1, "ip", "link", "set", "eth0", "down")
            listener.wait_for(lambda: "no interface is left" in listener.errors, "a word about it")
            home.call(1, "ip", "link", "set", "eth0", "up")
            address6 = home.hosts[1].address6
            if address6 is not None:  # It is not made from the MAC on these hosts, and went with the link.
                home.call(1, "ip", "address", "add", f"{address6}/64", "dev", "eth0", "nodad")
            listener.wait_for_lines(len(listener.lines) + 1)
        home.publish(0, NO_SERVER, "b", "a new topic")
        wait_for(listener, "b a new topic")


@pytest.mark.parametrize(
    ("url", "how"), [(NO_SERVER, "computed groups"), (f"{NO_SERVER}?naming=mdns", "groups by multicast DNS")]
)
def test_ipv6_that_comes_up_later_is_used_since_others_are_there(tmp_path: Path, url: str, how: str) -> None:
    with lab(tmp_path, 2) as home:
        home.call(0, "ip", "address", "flush", "dev", "eth0", "scope", "link")
        listener = listen(home, 0, url, "a/#")
        home.publish(1, NO_SERVER, "a/4", "by IPv4", "--ip", "4")
        wait_for(listener, "a/4 by IPv4")
        home.call(0, "ip", "address", "add", "fe80::99/64", "dev", "eth0", "nodad")
        listener.wait_for(lambda: f"with IPv6 and {how} now" in listener.errors, "the change")
        home.publish(1, url, "a/6", "by IPv6")
        wait_for(listener, "a/6 by IPv6")


def lay_cable(home: Lab, one: int, other: int) -> None:
    """A cable of their own, with an interface `eth1` at each end."""
    target = next(word for word in home.hosts[other].wrapper if word.startswith("--target="))
    peer = ["peer", "name", "eth1", "netns", target.removeprefix("--target=")]
    home.call(one, "ip", "link", "add", "eth1", "type", "veth", *peer)
    for host, address in ((one, "fe80::a/64"), (other, "fe80::b/64")):
        home.call(host, "ip", "link", "set", "eth1", "up")
        home.call(host, "ip", "address", "add", address, "dev", "eth1", "nodad")


def test_an_interface_that_is_taken_out_and_another_put_in_its_place(tmp_path: Path) -> None:
    url = "multicast://eth1"
    with lab(tmp_path, 2) as home:
        lay_cable(home, 0, 1)
        listener = listen(home, 0, url, "a/#")
        home.publish(1, url, "a/1", "before")
        wait_for(listener, "a/1 before")
        home.call(0, "ip", "link", "delete", "eth1")
        listener.wait_for(lambda: "no interface is left" in listener.errors, "a word about it")
        lay_cable(home, 0, 1)
        with endless(home, 1, "a/2", url):
            wait_for(listener, "a/2 x")


@pytest.mark.parametrize("scope", [pytest.param("link", marks=pytest.mark.soak), "site"])
def test_several_interfaces_at_once(scope: str, tmp_path: Path) -> None:
    """The host in the middle has a second cable, to a host of another network."""
    with network(count=1) as elsewhere, lab(tmp_path, 2) as home:
        home.hosts += elsewhere.hosts
        middle, left, right = 0, 1, 2
        lay_cable(home, middle, right)
        urls = [f"multicast://{names}?scope={scope}" for names in ("eth0,eth1", "eth0", "eth1")]
        hub, *others = (listen(home, host, urls[host], "a/#") for host in (middle, left, right))
        for host in (left, right, middle):
            home.publish(host, urls[host], f"a/{host}", "x", "-q", "1")
        wait_for(hub, *(f"a/{host} x" for host in (middle, left, right)))
        for other in others:
            wait_for(other, f"a/{middle} x")
        assert len(hub.lines) == 3
        assert f"a/{right} x" not in others[0].lines


def test_members_on_different_interfaces_of_one_host_do_not_meet(tmp_path: Path) -> None:
    with lab(tmp_path, 1) as home:
        urls = {name: f"multicast://{name}?ip=4" for name in ("eth0", "lo")}
        listeners = {name: listen(home, 0, url, "a") for name, url in urls.items()}
        for _ in range(2):  # by the control group, and perhaps by the topic's own
            for name, url in urls.items():
                home.publish(0, url, "a", f"by {name}", "-q", "1")
        for name, listener in listeners.items():
            assert set(listener.wait_for_lines(2)) == {f"a by {name}"}
