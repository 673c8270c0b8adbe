"""The node's own health in Home Assistant: a device that appears by itself, by MQTT discovery.

The node publishes retained messages at its own broker, so Home Assistant needs nothing but to be a client of
it, or of any broker that it is federated with:

    PREFIX/device/OBJECT/config          what there is to see (discovery by device: Home Assistant 2024.11)
    hedgerow-health/NODE                 the figures as JSON, every `tell_s`, and when health has changed
    hedgerow-health/NODE/availability    online; offline when the node stops in order

A node that dies says nothing. So each entity has `expire_after`: its value is unavailable when it was not
told for so long. The figures expire as messages too: those of a dead node would live for as long once more
whenever Home Assistant starts. When Home Assistant says `online` at PREFIX/status, all is published again, at
most once a `look_s` however often it is said.
"""

from __future__ import annotations

import ipaddress
import json
import re
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from hedgerow.broker.port import Port
from hedgerow.home_assistant.config import HomeAssistantConfig
from hedgerow.message import Message, Properties
from hedgerow.node.part import NEVER, NodeContext, Part
from hedgerow.node.version import VERSION

# Not below `hedgerow/`, which each broker keeps for itself: Home Assistant's is most often a Mosquitto that a
# federator stands beside.
HEALTH_TOPIC = "hedgerow-health/"
DASHBOARD = "/"  # its path, where there is one
TELL_S = 10.0
LOOK_S = 1.0
EXPIRE_AFTER_S = 35  # three times told in vain, and a little
AT_LEAST_ONCE = 1  # said of each entity: of the whole device, Home Assistant took no note before 2026

MEASUREMENT = {"state_class": "measurement"}
TOTAL = {"state_class": "total_increasing"}
DIAGNOSTIC = {"entity_category": "diagnostic"}

NO_SENSOR = {"platform": "sensor"}  # removes the one that there was under its name, if any

# Figure of the health's JSON → what its sensor is called, and what Home Assistant is to know of it.
SENSORS: dict[str, tuple[str, dict[str, Any]]] = {
    "clients": ("Clients", MEASUREMENT | {"icon": "mdi:lan-connect"}),
    "received_per_s": ("Messages in", MEASUREMENT | {"unit_of_measurement": "msg/s"}),
    "sent_per_s": ("Messages out", MEASUREMENT | {"unit_of_measurement": "msg/s"}),
    "dropped": ("Messages dropped", TOTAL | DIAGNOSTIC | {"icon": "mdi:message-alert"}),
    "queued": ("Messages queued", MEASUREMENT | DIAGNOSTIC | {"icon": "mdi:tray-full"}),
    "queued_bytes": (
        "Queued data",
        MEASUREMENT | DIAGNOSTIC | {"device_class": "data_size", "unit_of_measurement": "B"},
    ),
    "bridges": ("Bridges", MEASUREMENT | DIAGNOSTIC | {"icon": "mdi:bridge"}),
    "bridges_up": ("Bridges up", MEASUREMENT | {"icon": "mdi:bridge"}),
    "neighbours": ("Neighbours", MEASUREMENT | {"icon": "mdi:graph"}),
    "journal_messages": ("Messages recorded", TOTAL | DIAGNOSTIC | {"icon": "mdi:database"}),
    "journal_missed": ("Messages not recorded", TOTAL | DIAGNOSTIC | {"icon": "mdi:database-alert"}),
    "started_at": ("Started", DIAGNOSTIC | {"device_class": "timestamp"}),
}


def object_id(node_id: str) -> str:
    """What Home Assistant may call the node: letters, digits, _ and - alone. Unlike nodes stay unlike."""
    clean = re.sub(r"[^a-zA-Z0-9_-]", "_", node_id)
    return clean if clean == node_id else f"{clean}-{zlib.crc32(node_id.encode()):08x}"


class HomeAssistantPart(Part):
    look_s = LOOK_S
    tell_s = TELL_S

    def __init__(self, node: NodeContext) -> None:
        super().__init__(node)
        prefix = node.config.of(HomeAssistantConfig).prefix
        assert prefix is not None
        self._prefix: str = prefix
        self._look_at = NEVER
        self._counts = (0, 0)
        self._rates = (0.0, 0.0)
        self._told: object = None  # the health that was told last
        self._is_asked = False

    async def start(self) -> None:
        node, now = self.node, self.node.clock()
        self._health_topic = HEALTH_TOPIC + node.node_id
        self._availability_topic = f"{self._health_topic}/availability"
        self._told_at = self._counted_at = now
        self._port = Port(node.broker, "Home Assistant", self._deliver)
        self._port.subscribe(f"{self._prefix}/status", now)
        self._introduce()
        self._is_asked = False
        self._look_at = now + self.look_s

    async def stop(self) -> None:
        """Before the links to others, so that neighbours hear it."""
        self._publish(self._availability_topic, b"offline", AT_LEAST_ONCE)
        self._port.close()
        self.node.flush()

    @property
    def deadline(self) -> float:
        return self._look_at

    def handle_timer(self, now: float) -> None:
        self._look_at = now + self.look_s  # first: a mistake below must not be the last look
        if self._is_asked:
            self._is_asked = False
            self._introduce()
        elif now >= self._told_at + self.tell_s or self._health() != self._told:
            self._tell()

    def _deliver(self, message: Message) -> None:
        """Home Assistant has come, or will go."""
        self._is_asked = self._is_asked or message.payload == b"online"

    def _introduce(self) -> None:
        self._tell()  # before the rest, which would be told as messages that are queued
        payload = json.dumps(self.discovery(), separators=(",", ":")).encode()
        self._publish(f"{self._prefix}/device/{object_id(self.node.node_id)}/config", payload, AT_LEAST_ONCE)
        self._publish(self._availability_topic, b"online", AT_LEAST_ONCE)

    def _tell(self) -> None:
        self._told_at, self._told = self.node.clock(), self._health()
        payload = json.dumps(self.figures(), separators=(",", ":")).encode()
        self._publish(self._health_topic, payload, 0, {"message_expiry_interval": EXPIRE_AFTER_S})

    def _publish(self, topic: str, payload: bytes, qos: int, properties: Properties | None = None) -> None:
        self._port.publish(Message(topic, payload, qos, True, properties or {}), self.node.clock())

    def _health(self) -> dict[str, object]:
        """What is told at once when it has changed."""
        health: dict[str, object] = {"problem": self.node.problem}
        for part in self.node.parts:
            health |= part.health()
        return health

    def figures(self) -> dict[str, object]:
        """The node's health in numbers. Rates are those since it was last asked, a second ago or more."""
        node, broker = self.node, self.node.broker
        received, sent = self._count_rates()
        outboxes = [each.outbox for each in broker.sessions.values() if each.outbox is not None]
        figures: dict[str, object] = {
            "node": node.node_id,
            **self._health(),
            "clients": broker.client_count,
            "received_per_s": received,
            "sent_per_s": sent,
            "dropped": broker.stats.publish_dropped,
            "queued": sum(map(len, outboxes)),
            "queued_bytes": sum(outbox.bytes for outbox in outboxes),
            "started_at": datetime.fromtimestamp(node.started_at, UTC).isoformat(timespec="seconds"),
        }
        for part in node.parts:
            figures |= part.counts()
        return figures

    def _count_rates(self) -> tuple[float, float]:
        now, stats = self.node.clock(), self.node.broker.stats
        elapsed_s = now - self._counted_at
        if elapsed_s >= self.look_s:
            before, self._counts = self._counts, (stats.publish_received, stats.publish_sent)
            self._counted_at = now
            received, sent = (
                round((after - count) / elapsed_s, 2)
                for count, after in zip(before, self._counts, strict=True)
            )
            self._rates = received, sent
        return self._rates

    def discovery(self) -> dict[str, object]:
        """One message for the whole device. It says of which figures there is no sensor: one that is left out
        would stay, with its last value, if the node had it before."""
        node, version = self.node, VERSION
        unique = f"hedgerow_{object_id(node.node_id)}"
        device = {
            "identifiers": [unique],
            "name": f"Hedgerow {node.node_id}",
            "manufacturer": "Hedgerow",
            "model": "Hedgerow node",
            "sw_version": version,
        }
        if DASHBOARD in node.routes and (url := remote_dashboard_url(node.urls)) is not None:
            device["configuration_url"] = url
        known = self.figures()
        return {
            "device": device,
            "origin": {"name": "hedgerow", "sw_version": version},
            "state_topic": self._health_topic,
            "availability_topic": self._availability_topic,
            "components": {
                "problem": self._problem(unique),
                **{
                    figure: sensor(figure, name, unique, options) if figure in known else NO_SENSOR
                    for figure, (name, options) in SENSORS.items()
                },
            },
        }

    def _problem(self, unique: str) -> dict[str, object]:
        return {
            "platform": "binary_sensor",
            "unique_id": f"{unique}_problem",
            "name": "Problem",
            "device_class": "problem",
            "value_template": "{{ 'ON' if value_json.problem else 'OFF' }}",
            "json_attributes_topic": self._health_topic,
            "json_attributes_template": "{{ {'problem': value_json.problem} | tojson }}",
            "expire_after": EXPIRE_AFTER_S,
            "qos": AT_LEAST_ONCE,
        }


def sensor(figure: str, name: str, unique: str, options: Mapping[str, object]) -> dict[str, object]:
    return {
        "platform": "sensor",
        "unique_id": f"{unique}_{figure}",
        "name": name,
        "value_template": f"{{{{ value_json.{figure} }}}}",
        "expire_after": EXPIRE_AFTER_S,
        "qos": AT_LEAST_ONCE,
        **options,
    }


def remote_dashboard_url(urls: list[str]) -> str | None:
    """Where a browser on another machine finds the node's dashboard, if anywhere."""
    for url in urls:
        place = urlsplit(url)
        if place.scheme in ("http", "https"):
            address = ipaddress.ip_address((place.hostname or "").partition("%")[0])
            if not address.is_loopback and not address.is_unspecified and not address.is_link_local:
                return url
    return None
