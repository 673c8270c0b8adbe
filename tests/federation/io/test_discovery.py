"""Nodes that find each other by multicast DNS, on loopback alone."""

from __future__ import annotations

import errno
import secrets
from ipaddress import ip_address

import pytest
from zeroconf import ServiceInfo

from hedgerow.federation.config import FederationConfig
from hedgerow.federation.io.discovery import (
    FEDERATION_SERVICE,
    MAX_URLS_BYTES,
    NodeDiscovery,
    interfaces_to_search,
    own_urls,
    read_node,
)
from hedgerow.node.broker_urls import BrokerUrl
from hedgerow.node.mdns_services import make_services
from tests.waiting import until

HOME = BrokerUrl("localhost", 1883, False, "me", "secret")


async def test_a_node_and_a_sidecar_find_each_other() -> None:
    # Others may run this test on the same loopback.
    node, sidecar = (f"{kind}-{secrets.token_hex(4)}" for kind in ("node", "sidecar"))
    found: dict[str, dict[str, list[str]]] = {node: {}, sidecar: {}}
    listening = ["mqtt://127.0.0.1:18831", "http://127.0.0.1:8780"]
    discoveries = [
        NodeDiscovery(node, FederationConfig(discover=True), listening, found[node].__setitem__),
        NodeDiscovery(sidecar, FederationConfig(discover=True, home=HOME), [], found[sidecar].__setitem__),
    ]
    for discovery in discoveries:
        discovery.start()
    try:
        await until(lambda: sidecar in found[node] and node in found[sidecar], "both to be found")
    finally:
        for discovery in discoveries:
            await discovery.stop()
    assert found[node][sidecar] == ["mqtt://localhost:1883"]
    assert found[sidecar][node] == ["mqtt://127.0.0.1:18831"]
    assert node not in found[node]
    assert sidecar not in found[sidecar]


async def test_it_can_be_stopped_at_any_time() -> None:
    discovery = NodeDiscovery("n", FederationConfig(discover=True, home=HOME), [], lambda *_: None)
    await discovery.stop()
    discovery.start()
    await discovery.stop()


async def test_where_multicast_dns_does_not_work_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(interfaces: object) -> None:
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr("zeroconf.asyncio.AsyncZeroconf", refuse)
    discovery = NodeDiscovery("n", FederationConfig(discover=True, home=HOME), [], lambda *_: None)
    discovery.start()
    wanted = "no other nodes are looked for: multicast DNS does not work here: No such device"
    await until(lambda: wanted in caplog.text, "the warning")
    await discovery.stop()


def test_what_others_are_told_is_what_was_advertised_or_where_the_node_is() -> None:
    listening = ["mqtt://127.0.0.1:5", "mqtts://192.0.2.7:6", "mqtt://[2001:db8::1]:5", "ws://192.0.2.7:9"]
    advertised = BrokerUrl("farm.example", 1883)

    def told(federation: FederationConfig, *urls: str) -> list[str]:
        return [str(url) for url in own_urls(federation, urls)]

    assert told(FederationConfig(), *listening) == ["mqtts://192.0.2.7:6", "mqtt://[2001:db8::1]:5"]
    assert told(FederationConfig(), *listening[:1]) == ["mqtt://127.0.0.1:5"]
    assert told(FederationConfig(), "mqtt://[fe80::1]:5", "ws://192.0.2.7:9") == []
    assert told(FederationConfig(advertise=(advertised,), home=HOME)) == ["mqtt://farm.example:1883"]
    assert own_urls(FederationConfig(home=HOME), []) == [BrokerUrl("localhost", 1883)]
    everywhere = told(FederationConfig(), "mqtt://0.0.0.0:5")
    assert everywhere
    assert all("0.0.0.0" not in url and url.endswith(":5") for url in everywhere)


def test_a_node_of_its_own_machine_alone_asks_nobody_else() -> None:
    here, elsewhere = BrokerUrl("localhost", 1883), BrokerUrl("farm.example", 1883)
    assert interfaces_to_search([here]) == ["127.0.0.1"]
    for urls in ([here, elsewhere], []):
        assert not any(address.startswith("127.") for address in interfaces_to_search(urls))


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"id": "n"},
        {"id": "n", "urls": ""},
        {"id": "a/b", "urls": "mqtt://house:1883"},
        {"id": "n", "urls": "http://house"},
        {"id": "n", "urls": "mqtt://house:1883  mqtt://barn:1883"},
        {"id": "n", "urls": b"mqtt://\xff"},
        {"id": b"\xff", "urls": "mqtt://house:1883"},
    ],
)
def test_what_is_not_announced_as_a_node_does_it_is_none(
    properties: dict[str | bytes, str | bytes | None],
) -> None:
    service = ServiceInfo(FEDERATION_SERVICE, f"n.{FEDERATION_SERVICE}", properties=properties)
    assert read_node(service) is None


def test_a_service_names_a_few_urls_at_most() -> None:
    many = " ".join(f"mqtt://n{n}:1883" for n in range(9))
    assert len(many) < MAX_URLS_BYTES
    (service,) = make_services(
        "n", 5, [ip_address("192.0.2.7")], [FEDERATION_SERVICE], {"id": "n", "urls": many}
    )
    assert read_node(service) == ("n", [f"mqtt://n{n}:1883" for n in range(4)])
