"""Devices on several hosts, with no server, no default route and no DNS."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from tests.hosts_multicast.lab import NO_SERVER, Device, lab, numbered
from tests.programs import ROOT, wait_until

# By computed groups, and by those that multicast DNS tells.
NAMED = f"{NO_SERVER}?naming=mdns"
both_namings = pytest.mark.parametrize(("ip", "url"), [(6, NO_SERVER), (4, NO_SERVER), (6, NAMED)])
by_names = pytest.mark.parametrize(("ip", "url"), [(4, NO_SERVER), (6, NAMED)])
# What is the same over both: with the other one, `make soak`.
over_ipv6 = pytest.mark.parametrize("ip", [6, pytest.param(4, marks=pytest.mark.soak)])
over_ipv4 = pytest.mark.parametrize("ip", [pytest.param(6, marks=pytest.mark.soak), 4])


@both_namings
def test_one_publisher_and_three_subscribers_on_three_hosts(tmp_path: Path, ip: int, url: str) -> None:
    with lab(tmp_path, 4, ip=ip) as home:
        for host in range(4):
            for version in ("-4", "-6"):
                assert home.call(host, "ip", version, "route", "show", "default") == ""
        subscribers = [
            home.subscribe(1, url, "home/kitchen/light", "-q", "1", "-F", "%t %q %p"),
            home.subscribe(2, url, "home/#", "-q", "1", "-F", "%t %q %p"),
            home.subscribe(3, url, "+/kitchen/+", "-q", "0", "-F", "%t %q %p"),
        ]
        home.subscribed(*subscribers)
        for qos in (1, 0):
            publisher = home.hedgerow(0, "pub", url, "home/kitchen/light", "-l", "-q", str(qos))
            publisher.say(*(f"{qos}-{number}" for number in range(50)))
            publisher.end_input()
            assert publisher.wait() == 0, publisher.errors
        for subscriber, qos in zip(subscribers, (1, 1, 0), strict=True):
            lines = subscriber.wait_for_lines(100)
            expected = [f"home/kitchen/light {qos} 1-{number}" for number in range(50)]
            assert lines == expected + [f"home/kitchen/light 0 0-{number}" for number in range(50)]


@over_ipv6
def test_the_last_value_outlives_its_publisher(tmp_path: Path, ip: int) -> None:
    with lab(tmp_path, 4, ip=ip) as home:
        witness = home.subscribe(1, NO_SERVER, "home/+/state", "-q", "1", "-F", "%r %p")
        home.subscribed(witness)
        for value in ("old", "new"):
            home.publish(0, NO_SERVER, "home/door/state", value, "-r", "-q", "1")
        assert witness.wait_for_lines(2) == ["0 old", "0 new"]
        late = [
            home.subscribe(2, NO_SERVER, "home/door/state", "-C", "1", "-F", "%r %p"),
            home.subscribe(3, NO_SERVER, "home/#", "-C", "1", "-F", "%r %p"),
        ]
        for each in late:
            assert each.wait() == 0
            assert each.lines == ["1 new"]


@over_ipv4
def test_256_kib_arrive_whole_on_three_hosts(tmp_path: Path, ip: int) -> None:
    payload = bytes(range(256)) * 1024
    (tmp_path / "payload").write_bytes(payload)
    with lab(tmp_path, 4, ip=ip) as home:
        filters = ("home/camera", "home/#", "+/camera")
        subscribers = [
            home.subscribe(host, NO_SERVER, each, "-C", "2", "-N", "-q", "1")
            for host, each in enumerate(filters, 1)
        ]
        home.subscribed(*subscribers)
        for qos in ("0", "1"):
            home.publish(0, NO_SERVER, "home/camera", "-f", "payload", "-q", qos)
        for subscriber in subscribers:
            assert subscriber.wait() == 0
            assert subscriber.output == payload * 2


@over_ipv6
def test_a_host_that_is_cut_off_gets_what_it_missed(tmp_path: Path, ip: int) -> None:
    """QoS 1 is repaired; QoS 0 is gone, and goes on."""
    with lab(tmp_path, 3, ip=ip) as home:
        publisher, near, far = home.devices(0, 1, 2)
        for device in (near, far):
            device.ask("subscribe", filters=["home/#"], qos=1)

        def publish(word: str) -> None:
            publisher.ask("publish", topic="home/must", payloads=numbered(word, 20), qos=1)
            publisher.ask("publish", topic="home/may", payloads=numbered(word, 20), qos=0)

        publish("before")
        for device in (near, far):
            device.wait_for_payloads(numbered("before", 20), "home/must")
            device.wait_for_payloads(numbered("before", 20), "home/may")
        home.hosts[2].unplug()
        publish("meanwhile")
        near.wait_for_payloads(numbered("before", 20) + numbered("meanwhile", 20), "home/may")
        home.hosts[2].plug()
        far.wait_for_payloads(numbered("before", 20) + numbered("meanwhile", 20), "home/must")
        publish("after")
        must = numbered("before", 20) + numbered("meanwhile", 20) + numbered("after", 20)
        may = numbered("before", 20) + numbered("after", 20)
        near.wait_for_payloads(must, "home/must")
        far.wait_for_payloads(must, "home/must")
        far.wait_for_payloads(may, "home/may")


@by_names
@pytest.mark.parametrize("apart", [False, True], ids=["at the same time", "without hearing each other"])
def test_publishers_that_choose_a_group_at_once_agree(tmp_path: Path, apart: bool, ip: int, url: str) -> None:
    """Whether one hears the other before it has chosen is chance; behind a cut cable it cannot."""
    topics = [f"home/{number}/light" for number in range(4)]
    with lab(tmp_path, 3, ip=ip) as home:
        left, right, listener = home.devices(0, 1, 2, url=url)
        listener.ask("subscribe", filters=["home/+/light"], qos=1)
        if apart:
            home.hosts[1].unplug()
        for topic in topics:
            for publisher, word in ((left, "left"), (right, "right")):
                publisher.begin("publish on", topic=topic, payloads=numbered(word, 40), qos=1, every_s=0.02)
        for publisher in (left, right):
            for _ in topics:
                publisher.finish()
            wait_until(partial(has_groups, publisher, topics), "a group for each topic")
        if apart:
            assert not set(last_groups(left).values()) & set(last_groups(right).values())
            home.hosts[1].plug()
        listener.wait_for(lambda: len(listener.messages) >= len(topics) * 80, "every message")
        for topic in topics:
            heard = listener.payloads(topic)
            assert len(heard) == 80
            for word in ("left", "right"):
                assert [each for each in heard if each.startswith(word)] == numbered(word, 40)
        wait_until(lambda: last_groups(left) == last_groups(right), "the same groups")
        begins = {4: "239.255.", 6: "ff12::"}[ip]
        assert all(group.startswith(begins) for group in last_groups(left).values())


def test_a_later_publisher_uses_the_ipv6_group_that_is_chosen_already(tmp_path: Path) -> None:
    with lab(tmp_path, 3, ip=6) as home:
        first, second, listener = home.devices(0, 1, 2, url=NAMED)
        listener.ask("subscribe", filters=["home/light"], qos=1)
        first.ask("publish", topic="home/light", payloads=["first"], qos=1)
        wait_until(partial(has_groups, first, ["home/light"]), "a group")
        second.ask("publish", topic="home/light", payloads=["second"], qos=1)
        wait_until(partial(has_groups, second, ["home/light"]), "the group")
        assert second.ask("groups")["groups"] == first.ask("groups")["groups"]
        listener.wait_for_payloads(["first", "second"])


def has_groups(device: Device, topics: list[str]) -> bool:
    return last_groups(device).keys() == set(topics)


def last_groups(device: Device) -> dict[str, str]:
    groups: dict[str, list[str]] = device.ask("groups")["groups"]
    return {topic: each[-1] for topic, each in sorted(groups.items())}


def test_two_topics_at_one_address_stay_apart(tmp_path: Path) -> None:
    with lab(tmp_path, 3, ip=6) as home:
        publisher, one, other = home.devices(0, 1, 2, group="ff12::1234")
        one.ask("subscribe", filters=["home/one"], qos=1)
        other.ask("subscribe", filters=["home/other"], qos=1)
        for number in range(20):
            for topic in ("home/one", "home/other"):
                publisher.ask("publish", topic=topic, payloads=[f"{topic} {number}"], qos=number % 2)
        one.wait_for_payloads(numbered("home/one", 20))
        other.wait_for_payloads(numbered("home/other", 20))
        for device in (one, other):
            assert device.stats["other_topic"] >= 20
            assert device.stats["malformed"] == device.stats["lost"] == 0


def test_the_vacuum_and_the_mop_on_two_hosts(tmp_path: Path) -> None:
    with lab(tmp_path, 2) as home:
        example = ROOT / "examples/vacuum_and_mop.py"
        mop = home.run(0, sys.executable, example, "mop", "--work", "0.1")
        vacuum = home.run(1, sys.executable, example, "vacuum", "--work", "0.1")
        assert (vacuum.wait(), mop.wait()) == (0, 0), vacuum.errors + mop.errors
        assert vacuum.lines[-1] == "vacuum: the floor is clean"
        assert mop.lines[-1] == "mop: the floor is clean"
