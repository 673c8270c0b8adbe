"""Shared keys: who has none, or another one, reads nothing and changes nothing; keys change without a gap."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.hosts_multicast.lab import NO_SERVER, Device, Lab, lab, numbered
from tests.programs import wait_until

OLD, NEW = f"1 {'11' * 32}\n", f"2 {'22' * 32}\n"
SAME_ID = f"1 {'33' * 32}\n"


def with_keys(home: Lab, *hosts: int, keys: str) -> list[Device]:
    """A device on each host, which reads its own file of keys."""
    devices = []
    for host in hosts:
        path = home.directory / f"host{host}.keys"
        path.write_text(keys)
        path.chmod(0o600)
        devices.append(home.device(host, f"{NO_SERVER}?key={path}"))
    return home.opened(*devices)


@pytest.mark.parametrize(
    ("ip", "keys"),
    [(6, ""), (4, ""), (6, NEW), (6, SAME_ID)],
    ids=["no key", "no key, IPv4", "another key", "another key of the same id"],
)
def test_an_outsider_hears_nothing_and_is_not_heard(tmp_path: Path, ip: int, keys: str) -> None:
    with lab(tmp_path, 3, ip=ip) as home:
        publisher, subscriber = with_keys(home, 0, 1, keys=OLD)
        [outsider] = with_keys(home, 2, keys=keys) if keys else home.devices(2)
        outsider.ask("subscribe", filters=["home/#"], qos=1)
        subscriber.ask("subscribe", filters=["home/#"], qos=1)
        refused_here = "forged" if keys else "clear"
        refused_there = "forged" if keys else "sealed"
        for qos in (0, 1):
            outsider.ask("publish", topic="home/door", payloads=["open"], qos=qos, retain=True)
            publisher.ask("publish", topic="home/door", payloads=numbered(f"QoS {qos}", 10), qos=qos)
        subscriber.wait_for_payloads(numbered("QoS 0", 10) + numbered("QoS 1", 10))
        wait_until(lambda: subscriber.stats[refused_here] >= 2, "what the outsider published")
        wait_until(lambda: outsider.stats[refused_there] >= 2, "what the others published")
        # Nor is what it retains told to those who come later.
        [late] = with_keys(home, 0, keys=OLD)
        late.ask("subscribe", filters=["home/#"], qos=1)
        publisher.ask("publish", topic="home/door", payloads=["last"], qos=1)
        for device in (subscriber, late):
            wait_until(partial(has_last, device), "the last message")
            assert "open" not in device.payloads()
        assert set(outsider.payloads()) == {"open"}  # its own


def has_last(device: Device) -> bool:
    return device.payloads()[-1:] == ["last"]


def test_keys_change_without_losing_a_message(tmp_path: Path) -> None:
    """The new key is added everywhere, then moved to the first line everywhere, then alone everywhere."""
    with lab(tmp_path, 3, ip=6) as home:
        publisher, *subscribers = with_keys(home, 0, 1, 2, keys=OLD)
        for device in subscribers:
            device.ask("subscribe", filters=["home/#"], qos=1)
        published = 0
        for keys in (OLD + NEW, NEW + OLD, NEW):
            for host, device in enumerate((publisher, *subscribers)):
                (home.directory / f"host{host}.keys").write_text(keys)
                device.ask("reload")
                # Some have the new file and some the old one.
                payloads = [str(number) for number in range(published, published + 20)]
                publisher.ask("publish", topic="home/door", payloads=payloads, qos=1)
                published += 20
        # The old key opens nothing now.
        [outdated] = with_keys(home, 1, keys=OLD)
        outdated.ask("subscribe", filters=["home/#"], qos=1)
        publisher.ask("publish", topic="home/door", payloads=["end"], qos=1)
        for device in subscribers:
            device.wait_for_payloads([*map(str, range(published)), "end"])
            stats = device.stats
            assert stats["lost"] == stats["replayed"] == 0
        wait_until(lambda: outdated.stats["forged"] > 0, "frames under the new key")
        assert outdated.messages == []
