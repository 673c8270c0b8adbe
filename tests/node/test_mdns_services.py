"""A node's announcement by multicast DNS, and an agent's browser that finds it, on loopback alone."""

from __future__ import annotations

import logging
from ipaddress import ip_address

import pytest

from hedgerow.agent.io.broker_list import BrokerEntry
from hedgerow.agent.io.discovery import Browser, read_service
from hedgerow.node.mdns_services import (
    HEDGEROW_SERVICE,
    MQTT_SERVICE,
    MdnsServices,
    make_services,
    reached_at,
)
from tests.waiting import until


async def test_what_is_announced_is_found() -> None:
    found: list[BrokerEntry] = []
    services = MdnsServices("node.7", ["mqtt://127.0.0.1:18847", "http://127.0.0.1:1"])
    browser = Browser(found.append, ["127.0.0.1"])
    services.start()
    await browser.start()

    def ours() -> list[str]:
        """Nodes of other tests announce themselves on loopback too."""
        return [str(entry.address) for entry in found if entry.id == "node.7"]

    try:
        await until(lambda: len(ours()) >= 2, "both services to be found")
    finally:
        await browser.stop()
        await services.stop()
    assert set(ours()) == {"mqtt://127.0.0.1:18847"}


def test_loopback_is_told_only_by_a_node_that_has_nothing_else() -> None:
    assert reached_at(["ws://127.0.0.1:9", "mqtt://127.0.0.1:5", "mqtt://[::1]:5", "mqtt://127.0.0.1:6"]) == (
        5,
        [ip_address("127.0.0.1"), ip_address("::1")],
    )
    assert reached_at(["mqtt://127.0.0.1:5", "mqtt://192.0.2.7:5"]) == (5, [ip_address("192.0.2.7")])
    assert reached_at(["ws://127.0.0.1:9"]) == (0, [])


def test_a_node_that_listens_everywhere_tells_every_address() -> None:
    port, addresses = reached_at(["mqtt://0.0.0.0:5"])
    assert port == 5
    assert addresses
    assert not any(address.is_unspecified for address in addresses)


def test_a_service_without_an_id_is_called_as_its_instance() -> None:
    (mqtt,) = make_services("n", 5, [ip_address("192.0.2.7")], [MQTT_SERVICE], properties={})
    mqtt.name = f"Mosquitto in the (old) barn.{MQTT_SERVICE}"
    entry = read_service(mqtt)
    assert entry is not None
    assert entry.id == "Mosquitto-in-the-old-barn"
    assert str(entry.address) == "mqtt://192.0.2.7:5"


def test_a_service_without_an_address_is_no_broker() -> None:
    (hedgerow, _) = make_services("n", 5, [])
    assert hedgerow.type == HEDGEROW_SERVICE
    assert read_service(hedgerow) is None


async def test_without_a_listener_nothing_is_announced(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    services = MdnsServices("n", ["http://127.0.0.1:1"])
    services.start()
    await until(lambda: "no MQTT listener to announce" in caplog.text, "the warning")
    await services.stop()
    assert "announces this node" not in caplog.text
