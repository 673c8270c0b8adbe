"""Home Assistant finds a node by itself, as its documentation says that devices are found."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import hedgerow
from hedgerow.bridges.far_filters import is_reserved
from hedgerow.broker.port import Port
from hedgerow.errors import ConfigError
from hedgerow.federation.config import FederationConfig
from hedgerow.federation.interests.regular import regular_filter
from hedgerow.home_assistant.config import HomeAssistantConfig
from hedgerow.home_assistant.part import (
    EXPIRE_AFTER_S,
    SENSORS,
    TELL_S,
    HomeAssistantPart,
    object_id,
    remote_dashboard_url,
)
from hedgerow.journal.config import JournalConfig
from hedgerow.kinds import NODE
from hedgerow.message import Message
from hedgerow.node.broker_urls import BrokerUrl
from hedgerow.node.config_loading import add_arguments, from_arguments, load_config
from hedgerow.node.handlers import Handler, Response
from hedgerow.node.part import Part, PartEntry
from hedgerow.node.server import Server
from tests.node.peers import part_of, port_of, running, with_part
from tests.waiting import take, until

CONFIG = "homeassistant/device/barn/config"
HEALTH = "hedgerow-health/barn"
AVAILABILITY = "hedgerow-health/barn/availability"

# Of Home Assistant's schemas: what a device, an origin, and every part of the message may hold.
ROOT = {"device", "origin", "components", "state_topic", "availability_topic"}
DEVICE = {"identifiers", "name", "manufacturer", "model", "sw_version", "configuration_url"}
ORIGIN = {"name", "sw_version", "support_url"}
COMPONENT = {
    "platform",
    "unique_id",
    "name",
    "device_class",
    "state_class",
    "unit_of_measurement",
    "entity_category",
    "icon",
    "value_template",
    "json_attributes_topic",
    "json_attributes_template",
    "expire_after",
    "qos",
}
CLASSES: dict[str, dict[str | None, set[str | None] | None]] = {
    "sensor": {"data_size": {"B"}, "timestamp": {None}, None: None},
    "binary_sensor": {"problem": {None}},
}


class Impatient(HomeAssistantPart):
    look_s = 0.02


class Talkative(Impatient):
    tell_s = 0.05


class Beside(Part):
    """Whatever else a node may have."""

    url = ""
    trouble: str | None = None

    @property
    def urls(self) -> list[str]:
        return [self.url] if self.url else []

    @property
    def problem(self) -> str | None:
        return self.trouble


class FarMetrics(Beside):
    url = "http://192.0.2.1:8780"


class FarDashboard(FarMetrics):
    def routes(self) -> Mapping[str, Handler]:
        return {"/": lambda request: Response(b"")}


def retained(server: Server, topic: str) -> bytes | None:
    found = list(server.broker.retained.match(topic, server.clock()))
    return found[0].payload if found else None


def health(server: Server) -> dict[str, Any]:
    payload = retained(server, HEALTH)
    assert payload is not None
    figures: dict[str, Any] = json.loads(payload)
    return figures


@asynccontextmanager
async def barn(
    *rooms: object, home_assistant: type[Part] = Impatient, beside: type[Part] = Beside, **settings: Any
) -> AsyncIterator[Server]:
    made_by = f"{beside.__module__}:{beside.__qualname__}"
    table = (PartEntry("beside", made_by, lambda config: True), *with_part("Home Assistant", home_assistant))
    async with running(
        HomeAssistantConfig("homeassistant"), *rooms, id="barn", table=table, **settings
    ) as server:
        yield server


async def test_a_client_is_told_of_the_device_and_its_state(tmp_path: Path) -> None:
    async with (
        barn(FederationConfig(enabled=True), JournalConfig(("#",), tmp_path)) as server,
        hedgerow.connect(f"mqtt://127.0.0.1:{port_of(server)}") as bus,
        bus.subscribe("#") as messages,
    ):
        told = {message.topic: message for message in await take(messages, 3)}
    assert set(told) == {CONFIG, HEALTH, AVAILABILITY}
    assert all(message.retain for message in told.values())
    assert told[AVAILABILITY].payload == b"online"
    discovery, figures = json.loads(told[CONFIG].payload), json.loads(told[HEALTH].payload)
    check(discovery)
    components = discovery["components"]
    assert set(components) == {"problem", *SENSORS}
    # Every template names a figure that is told.
    named = set(
        re.findall(r"value_json\.(\w+)", " ".join(each["value_template"] for each in components.values()))
    )
    assert named == set(SENSORS) | {"problem"}
    assert named <= set(figures)
    assert figures["problem"] is None
    assert figures["clients"] >= 0


@pytest.mark.parametrize("topic", [CONFIG, HEALTH, AVAILABILITY, "homeassistant/status"])
def test_all_of_it_goes_to_and_from_a_foreign_broker_with_a_federator(topic: str) -> None:
    assert regular_filter(topic) == topic
    assert not is_reserved(topic)


def check(discovery: dict[str, Any]) -> None:
    """As far as Home Assistant itself would."""
    assert set(discovery) <= ROOT
    assert set(discovery["device"]) <= DEVICE
    assert discovery["device"]["identifiers"]
    assert {"name"} <= set(discovery["origin"]) <= ORIGIN
    assert discovery["state_topic"] == HEALTH
    assert discovery["availability_topic"] == AVAILABILITY
    components = list(discovery["components"].values())
    assert len({each["unique_id"] for each in components}) == len(components)
    assert len({each["name"] for each in components}) == len(components)
    for each in components:
        assert set(each) <= COMPONENT
        assert re.fullmatch(r"[a-zA-Z0-9_-]+", each["unique_id"])
        units = CLASSES[each["platform"]][each.get("device_class")]
        assert units is None or each.get("unit_of_measurement") in units
        assert each.get("state_class") in (None, "measurement", "total_increasing")
        assert each.get("entity_category") in (None, "diagnostic")
        # An instant has no statistics, and a number without a class has no history.
        assert each["platform"] != "sensor" or ("state_class" in each) is (
            each.get("device_class") != "timestamp"
        )
        assert each["expire_after"] == EXPIRE_AFTER_S > 3 * TELL_S
        assert each["qos"] == 1


async def test_sensors_of_parts_that_the_node_lacks_are_taken_away() -> None:
    async with barn() as server:
        payload = retained(server, CONFIG)
        assert payload is not None
        components = json.loads(payload)["components"]
        figures = health(server)
    # Home Assistant keeps a sensor that is left out, and removes one of which it has the platform alone.
    gone = {name for name, component in components.items() if component == {"platform": "sensor"}}
    assert gone == {"neighbours", "journal_messages", "journal_missed"}
    assert set(components) == {"problem", *SENSORS}
    assert not gone & set(figures)


async def test_figures_of_a_dead_node_are_not_kept_for_home_assistants_next_start() -> None:
    async with barn() as server:
        assert not server.broker.retained.match(HEALTH, server.clock() + EXPIRE_AFTER_S)
        for topic in (CONFIG, AVAILABILITY):  # Home Assistant keeps to these
            assert server.broker.retained.match(topic, server.clock() + EXPIRE_AFTER_S)


async def test_what_the_node_says_of_itself_is_not_told_as_queued() -> None:
    async with barn() as server:
        heard: list[Message] = []
        port = Port(server.broker, "test", heard.append)
        for topic in (CONFIG, HEALTH, AVAILABILITY):
            port.listen(topic, server.clock())
        port.publish(Message("homeassistant/status", b"online"), server.clock())
        await until(lambda: len(heard) == 3, "the answer")
        assert [message.topic for message in heard] == [HEALTH, CONFIG, AVAILABILITY]


@pytest.mark.parametrize(("beside", "dashboard"), [(FarDashboard, True), (FarMetrics, False)])
async def test_what_is_linked_is_a_dashboard(beside: type[Part], dashboard: bool) -> None:
    async with barn(beside=beside) as server:
        payload = retained(server, CONFIG)
        assert payload is not None
        assert ("configuration_url" in json.loads(payload)["device"]) is dashboard


async def test_a_problem_is_told_when_it_begins_and_when_it_is_over() -> None:
    async with barn() as server:
        part_of(server, Beside).trouble = "disk full"
        await until(lambda: health(server)["problem"] == "disk full", "the problem to be told")
        part_of(server, Beside).trouble = None
        await until(lambda: health(server)["problem"] is None, "its end to be told")


async def test_figures_are_told_again_and_again() -> None:
    async with barn(home_assistant=Talkative) as server:
        assert health(server)["clients"] == 0
        async with hedgerow.connect(f"mqtt://127.0.0.1:{port_of(server)}") as bus:
            await until(lambda: health(server)["clients"] == 1, "the client to be counted")
            for _ in range(20):
                await bus.publish("farm/a", b"x")
            await until(lambda: health(server)["received_per_s"] > 0, "the rate to be told")
        await until(lambda: health(server)["clients"] == 0, "the client's end to be told")


async def test_all_is_published_again_when_home_assistant_comes() -> None:
    async with (
        barn() as server,
        hedgerow.connect(f"mqtt://127.0.0.1:{port_of(server)}") as bus,
    ):
        for topic in (CONFIG, AVAILABILITY):
            await bus.publish(topic, b"", qos=1, retain=True)
        assert retained(server, CONFIG) is None
        await bus.publish("homeassistant/status", b"offline", qos=1)
        await bus.publish("homeassistant/status", b"online", qos=1)
        await until(lambda: retained(server, CONFIG) is not None, "the device to be told again")
        assert retained(server, AVAILABILITY) == b"online"


async def test_often_said_is_answered_once() -> None:
    async with barn() as server:
        heard: list[Message] = []
        port = Port(server.broker, "test", heard.append)
        port.subscribe("homeassistant/status", server.clock())
        number = server.broker.stats.publish_received
        for _ in range(100):
            port.publish(Message("homeassistant/status", b"online"), server.clock())
        await until(lambda: server.broker.stats.publish_received >= number + 103, "the answer")
        assert server.broker.stats.publish_received == number + 103


async def test_an_orderly_stop_is_told_also_to_neighbours() -> None:
    async with running(FederationConfig(enabled=True), id="house") as house:
        neighbours = (BrokerUrl("127.0.0.1", port_of(house)),)
        async with (
            hedgerow.connect(f"mqtt://127.0.0.1:{port_of(house)}") as bus,
            bus.subscribe(AVAILABILITY) as messages,
        ):
            async with barn(FederationConfig(neighbours=neighbours)):
                assert [message.payload for message in await take(messages, 1)] == [b"online"]
            assert [message.payload for message in await take(messages, 1)] == [b"offline"]


async def test_it_is_off_unless_asked_for() -> None:
    async with running(id="barn") as server:
        assert server.find(HomeAssistantPart) is None
        assert retained(server, AVAILABILITY) is None


@pytest.mark.parametrize(
    ("node_id", "expected"),
    [("barn", "barn"), ("a-b_C9", "a-b_C9"), ("farm.barn", r"farm_barn-[0-9a-f]{8}")],
)
def test_object_ids_have_only_what_home_assistant_takes(node_id: str, expected: str) -> None:
    assert re.fullmatch(expected, object_id(node_id))


def test_unlike_nodes_have_unlike_object_ids() -> None:
    assert len({object_id(each) for each in ("a.b", "a_b", "a-b", "a..b")}) == 4


@pytest.mark.parametrize(
    ("urls", "found"),
    [
        (["mqtt://192.0.2.1:1883", "http://192.0.2.1:8780"], "http://192.0.2.1:8780"),
        (["http://127.0.0.1:8780", "http://[::1]:8780", "http://0.0.0.0:8780"], None),
        (["http://[fe80::1%25eth0]:8780", "https://[2001:db8::1]:8781"], "https://[2001:db8::1]:8781"),
        (["mqtt://192.0.2.1:1883"], None),
    ],
)
def test_the_dashboard_is_linked_where_others_reach_it(urls: list[str], found: str | None) -> None:
    assert remote_dashboard_url(urls) == found


def by_flags(*words: str) -> str | None:
    parser = argparse.ArgumentParser()
    add_arguments(parser, NODE)
    return from_arguments(parser.parse_args(words), NODE).of(HomeAssistantConfig).prefix


def test_the_flag_stands_alone_or_with_a_prefix(tmp_path: Path) -> None:
    assert by_flags() is None
    assert by_flags("--home-assistant") == "homeassistant"
    assert by_flags("--home-assistant", "ha", "--http", "off") == "ha"
    path = tmp_path / "node.toml"
    path.write_text('[home_assistant]\nprefix = "my/ha"\n')
    assert load_config(path, {}, NODE).of(HomeAssistantConfig).prefix == "my/ha"


@pytest.mark.parametrize("prefix", ["", "a/#", "+", "$SYS", "ha/"])
def test_a_prefix_that_is_no_topic_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match="--home-assistant"):
        by_flags("--home-assistant", prefix)
