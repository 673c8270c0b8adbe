"""The `[sensors]` table of a configuration and the addresses of `udp`: what holds for UDP sensors.

Readers as in `values`. The table of topics is read here for the URLs of clients, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hedgerow.errors import ConfigError, TopicError
from hedgerow.node.config import Chapter, Config, Given, check_same_ports
from hedgerow.node.values import (
    INFINITE,
    Address,
    Key,
    duration_within,
    number_within,
    read_addresses,
    read_boolean,
    show,
)
from hedgerow.sensors.packet import DEFAULT_PORT, DEFAULT_TOPICS, MAX_TOPIC_NUMBER, read_number
from hedgerow.topics import validate_name


@dataclass(slots=True, frozen=True)
class SensorSettings:
    topics: Mapping[int, str] = field(default_factory=DEFAULT_TOPICS.copy)
    subscription_expiry_s: float = 600.0
    """Infinite: subscriptions last, whether they are renewed or not."""
    last_value: bool = True
    rate: float | None = None
    """Packets a second from one address; 0: no limit. None: the default, which spares loopback."""
    anonymous: bool = False
    """Beyond this machine, too, sensors may do without a name, which they cannot have."""
    udp: tuple[Address, ...] = ()
    """Where they are served."""


FIELDS = {"subscription_expiry": "subscription_expiry_s"}


def make_sensor_settings(given: Given) -> SensorSettings:
    table = given.table("sensors")
    if "udp" not in given.values:
        first = given.where(f"sensors.{next(iter(table))}")
        raise ConfigError(f"{first}: needs udp too (--udp HOST)")
    settings = {FIELDS.get(name, name): value for name, value in table.items()}
    return SensorSettings(udp=given.values["udp"], **settings)


def check_sensors(config: Config, given: Given) -> None:
    sensors = config.of(SensorSettings)
    check_same_ports((("udp", address) for address in sensors.udp), given)
    # A password does not help here: the sensors' protocol has no place for a name.
    is_meant = given.values.get("access.anonymous", False) or sensors.anonymous
    for address in sensors.udp:
        if not (address.is_loopback or is_meant):
            raise ConfigError(
                f"{given.where('udp')}: on {address} anyone who reaches this machine could publish and "
                "subscribe to the sensors' topics: their protocol has no names. Say that this is meant: "
                "sensors.anonymous = true (--sensors-anonymous)"
            )


def read_udp_addresses(value: object, base: Path) -> tuple[Address, ...]:
    """As `read_addresses`, but the port may be left out: the sensor protocol has one of its own."""
    values = value if isinstance(value, list) else [value]
    return read_addresses([_with_sensor_port(each) for each in values], base)


def _with_sensor_port(value: object) -> object:
    if re.fullmatch(r"[0-9]{1,5}", str(value)):
        raise ConfigError(f"{show(value)} is a port; say HOST:{value}")
    if not isinstance(value, str) or value == "off" or re.search(r":[0-9]*$", value.rpartition("]")[2]):
        return value
    return f"{value}:{DEFAULT_PORT}"


def read_subscription_expiry(value: object, base: Path) -> float:
    """In seconds; 0, and never: infinite."""
    if value == "never" or duration_within(value, 0, 86_400) == 0:
        return INFINITE
    return duration_within(value, 1, 86_400)


def read_packets_per_s(value: object, base: Path) -> float:
    return float(number_within(value, {}, "a number", 0, 1_000_000))


def read_sensor_topics(value: object, base: Path) -> dict[int, str]:
    """The table of sensor topics: from TOML a table, from flags a list of NUMBER=TOPIC."""
    if isinstance(value, dict):
        return _read_topic_table(value.items())
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return read_topic_lines(value)
    raise ConfigError(f'{show(value)} is not a table such as {{01 = "farm/temperature"}}')


def read_topic_lines(lines: Iterable[str]) -> dict[int, str]:
    """The same table, from texts such as 01=farm/temperature. Raises ConfigError."""
    pairs = []
    for line in lines:
        number, equals, topic = line.partition("=")
        if not equals:
            raise ConfigError(f'"{line}" is not NUMBER=TOPIC')
        pairs.append((number.strip(), topic.strip()))
    return _read_topic_table(pairs)


def _read_topic_table(pairs: Iterable[tuple[str, object]]) -> dict[int, str]:
    """Numbers to MQTT topics, each once. Raises ConfigError."""
    table: dict[int, str] = {}
    for text, topic in pairs:
        number = read_number(text)
        if number is None:
            raise ConfigError(f'"{text}" is not a topic number from 00 to {MAX_TOPIC_NUMBER}')
        if not isinstance(topic, str):
            raise ConfigError(f"{text}: {show(topic)} is not a text in quotes")
        try:
            validate_name(topic)
        except TopicError as error:
            raise ConfigError(f"{text}: {error}") from None
        if topic.startswith("$"):
            raise ConfigError(f'{text}: "{topic}": topics that begin with $ are the broker\'s own')
        if number in table or topic in table.values():
            raise ConfigError(f"{text}: the table has {'the number' if number in table else topic} already")
        table[number] = topic
    return table


SENSOR_KEYS = (
    Key(
        "udp",
        "--udp",
        "HOST[:PORT]",
        read_udp_addresses,
        f"serve UDP sensors here, port {DEFAULT_PORT} unless given; may be repeated (default: off)",
        repeated=True,
    ),
    Key(
        "sensors.topics",
        "--sensor-topic",
        "NUMBER=TOPIC",
        read_sensor_topics,
        "a line of the sensors' topic table, such as 01=farm/temperature; may be repeated",
        repeated=True,
    ),
    Key(
        "sensors.subscription_expiry",
        "--sensor-subscription-expiry",
        "DURATION",
        read_subscription_expiry,
        "how long a sensor subscription lasts unless it is renewed; 0: for ever (10 min)",
    ),
    Key(
        "sensors.last_value",
        "--sensor-last-value",
        "",
        read_boolean,
        "send the last value of a topic to a new sensor subscriber (yes)",
    ),
    Key(
        "sensors.rate",
        "--sensor-rate",
        "N",
        read_packets_per_s,
        "sensor packets a second from one address; 0: no limit (1000)",
    ),
    Key(
        "sensors.anonymous",
        "--sensors-anonymous",
        "",
        read_boolean,
        "serve sensors beyond this machine; their protocol has no names",
    ),
)

CHAPTER = Chapter(SensorSettings, SENSOR_KEYS, make_sensor_settings, check_sensors)
