"""Networks that lose datagrams, or let no multicast through."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import pytest

from tests.hosts import INTERFACE
from tests.hosts_multicast.lab import HERE, NO_SERVER, Lab, lab, numbered
from tests.programs import wait_until

MESSAGES = 100

MULTICAST_FILTER = """
    48 0 0 0,     ldb [0]     the first byte of the Ethernet destination
    69 0 5 1,     jset 1      a group's; else keep
    40 0 0 12,    ldh [12]    the frame's EtherType
    21 2 0 2048,  jeq IPv4, drop
    48 0 0 20,    ldb [20]    the IPv6 next header; 0 at this place in ARP
    21 0 1 17,    jeq UDP, drop; else keep: neighbours must be found
    6  0 0 2,     ret TC_ACT_SHOT
    6  0 0 0      ret TC_ACT_OK
"""


@pytest.mark.parametrize("receivers", [25, pytest.param(50, marks=pytest.mark.soak)])
def test_many_receivers_repair_a_loss_of_five_percent_without_a_storm(tmp_path: Path, receivers: int) -> None:
    begin, payloads = ["begin"] * 7, [str(number) for number in range(MESSAGES)]
    with lab(tmp_path, 1 + receivers, ip=6) as home:
        [publisher] = home.devices(0)
        pids = [host.wrapper[1].removeprefix("--target=") for host in home.hosts[1:]]
        crowd = home.run(0, sys.executable, HERE / "crowd.py", NO_SERVER, *pids)
        crowd.wait_for_lines(receivers)
        # In its first half second a topic's messages go two ways: what one loses, the other may not.
        for topic in ("must", "may"):
            publisher.ask("publish", topic=topic, payloads=begin, qos=1, every_s=0.1)
        for host in home.hosts:
            host.lose(5)
        publisher.ask("publish", topic="must", payloads=payloads, qos=1, every_s=0.005)
        publisher.ask("publish", topic="may", payloads=payloads, qos=0, every_s=0.001)
        publisher.ask("publish", topic="must", payloads=["end"], qos=1)
        reports = [json.loads(line) for line in crowd.wait_for_lines(2 * receivers)[receivers:]]

    for report in reports:
        assert report["must"] == [*begin, *payloads, "end"]
    arrived = sum(len(report["may"]) - len(begin) for report in reports) / (receivers * MESSAGES)
    six_deviations = 6 * math.sqrt(0.05 * 0.95 / (receivers * MESSAGES))
    assert 0.95 - six_deviations < arrived < 0.95 + six_deviations
    lost = {sequence for report in reports for sequence in report["lost"]}
    assert len(lost) > MESSAGES / 2  # Of 25, somebody misses seven in ten.
    requests = sum(report["requests"] for report in reports)
    assert requests <= 3 * len(lost)


@pytest.mark.parametrize("ip", [6, 4])
def test_a_peer_is_reached_where_multicast_is_filtered(tmp_path: Path, ip: int) -> None:
    with lab(tmp_path, 3, ip=ip) as home:
        for host in range(3):
            filter_multicast(home, host)
        address = str(home.hosts[0].address6 if ip == 6 else home.hosts[0].address4)
        [publisher] = home.devices(0)
        publisher.ask("publish", topic="home/state", payloads=["kept"], qos=1, retain=True)
        [knowing], [unknowing] = home.devices(1, url=f"{NO_SERVER}?peer={address}"), home.devices(2)
        for device in (knowing, unknowing):
            device.ask("subscribe", filters=["home/#"], qos=1)
        command = home.subscribe(1, NO_SERVER, "home/#", "-q", "1", "--peer", address)
        knowing.wait_for_payloads(["kept"], "home/state")
        command.wait_for_lines(1)
        filtered_before = filtered(home, 2)
        publisher.ask("publish", topic="home/news", payloads=numbered("news", 20), qos=1)
        knowing.wait_for_payloads(numbered("news", 20), "home/news")
        assert command.wait_for_lines(21) == ["kept", *numbered("news", 20)]
        # What the peer publishes comes back the same way: it is as deaf.
        publisher.ask("subscribe", filters=["garden/#"], qos=1)
        knowing.ask("publish", topic="garden/news", payloads=numbered("news", 20), qos=1)
        publisher.wait_for_payloads(numbered("news", 20), "garden/news")
        wait_until(lambda: filtered(home, 2) > filtered_before, "what the third host does not get")
        assert unknowing.messages == []
        assert publisher.stats["copies_sent"] > 0


def filter_multicast(home: Lab, host: int) -> None:
    """No datagram to a group arrives. Neighbours are still found: that is ARP and ICMP."""
    instructions = [" ".join(line.split()[:4]).rstrip(",") for line in MULTICAST_FILTER.strip().splitlines()]
    program = ",".join([str(len(instructions)), *instructions])
    home.call(host, "tc", "qdisc", "add", "dev", INTERFACE, "clsact")
    attach = f"tc filter add dev {INTERFACE} ingress protocol all pref 1 bpf da bytecode"
    home.call(host, *attach.split(), program)


def filtered(home: Lab, host: int) -> int:
    """How many datagrams did not arrive."""
    found = re.search(
        r"dropped (\d+)", home.call(host, "tc", "-s", "qdisc", "show", "dev", INTERFACE, "clsact")
    )
    assert found is not None
    return int(found[1])
