"""The `[mobility]` table of a configuration: its keys, and how each is read. Readers as in `values`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hedgerow.errors import ConfigError, TopicError
from hedgerow.mobility.domains import MAX_DOMAIN_BYTES, is_domain
from hedgerow.mobility.settings import MobileSettings
from hedgerow.mqtt.extension import parse_address
from hedgerow.node.authority import authority
from hedgerow.node.broker_urls import BrokerUrl, is_unspecified, read_broker_url, unique
from hedgerow.node.values import (
    AT_RELOAD,
    AT_RESTART,
    Address,
    Key,
    duration_within,
    number_within,
    read_addresses,
    read_boolean,
    read_count,
    read_file_path,
    read_node_id,
    read_one_of,
    read_text,
)
from hedgerow.topics import validate_name

DEFAULTS = MobileSettings(())

MAX_CAPACITY = 1_000_000
MAX_HOT_S = 86_400


def read_fixed_url(value: object, base: Path) -> BrokerUrl:
    url = read_broker_url(value, base)
    try:
        parse_address(place_of(url))  # Clients are told it.
    except ValueError:
        raise ConfigError(f"{url}: clients cannot be sent to {url.host}") from None
    if is_unspecified(url.host):
        raise ConfigError(f"{url}: nobody can connect to {url.host}")
    return url


def place_of(url: BrokerUrl) -> str:
    """HOST:PORT."""
    return authority(url.host, url.port)


def read_fixed_urls(value: object, base: Path) -> tuple[BrokerUrl, ...]:
    values = value if isinstance(value, list) else [value]
    if not values:
        raise ConfigError("there is none in the list")
    return unique(read_fixed_url(each, base) for each in values)


def read_domain(value: object, base: Path) -> str:
    domain = read_text(value, base)
    try:
        validate_name(domain)
    except TopicError as error:
        raise ConfigError(str(error)) from None
    if not is_domain(domain):
        raise ConfigError(
            f'"{domain[:80]}" is no domain: a topic such as "farm/sector1" of at most {MAX_DOMAIN_BYTES:,}'
            ' bytes, without "/" at its ends or "$" before it'
        )
    return domain


def read_client_address(value: object, base: Path) -> str:
    """HOST:PORT, as clients are told it."""
    text = read_text(value, base)
    try:
        host, _ = parse_address(text)
    except ValueError:
        raise ConfigError(f'"{text}" is not "HOST:PORT", an IPv6 address in []') from None
    if is_unspecified(host):
        raise ConfigError(f'"{text}": clients cannot connect to {host}; name an address of the machine')
    return text


def read_client_addresses(value: object, base: Path) -> frozenset[str]:
    values = value if isinstance(value, list) else [value]
    return frozenset(read_client_address(each, base) for each in values)


def read_relay(value: object, base: Path) -> Address | None:
    addresses = read_addresses(value, base)
    if len(addresses) > 1:
        raise ConfigError("clients are sent to one address: there can be only one")
    return addresses[0] if addresses else None


def read_broker_ids(value: object, base: Path) -> frozenset[str]:
    values = value if isinstance(value, list) else [value]
    return frozenset(read_node_id(each, base) for each in values)


def read_share(value: object, base: Path) -> float:
    return float(number_within(value, {}, "a number", 0, 1))


def read_duration(low: float, high: float) -> Callable[[object, Path], float]:
    def read(value: object, base: Path) -> float:
        return duration_within(value, low, high)

    return read


def _key(name: str, flag: str, metavar: str, read: Callable[[object, Path], Any], help_text: str) -> Key:
    repeated = read in (read_fixed_urls, read_broker_ids, read_client_addresses)
    takes_effect = AT_RELOAD if name in ("fixed", "fixed_file") else AT_RESTART
    return Key(f"mobility.{name}", flag, metavar, read, help_text, repeated, takes_effect=takes_effect)


MOBILITY_KEYS = (
    _key(
        "role",
        "--role",
        "ROLE",
        read_one_of("mobile", "fixed"),
        "mobile: this broker moves, and has a fixed one support it; fixed: it supports mobile ones",
    ),
    _key(
        "fixed",
        "--fixed",
        "URL",
        read_fixed_urls,
        "the fixed broker that supports this one; may be repeated, the best first",
    ),
    _key(
        "fixed_file", "--fixed-file", "FILE", read_file_path, "the same, a URL a line; read again on SIGHUP"
    ),
    _key(
        "domain",
        "--domain",
        "TOPIC",
        read_domain,
        "mobile and fixed brokers write to each other under this topic, such as farm/sector1",
    ),
    _key(
        "allow",
        "--allow-mobile",
        "ID",
        read_broker_ids,
        "support the mobile broker of this name; may be repeated (all that may connect)",
    ),
    _key(
        "address",
        "--clients-at",
        "HOST:PORT",
        read_client_address,
        "where clients reach this mobile broker (where it listens)",
    ),
    _key(
        "fixed_address",
        "--fixed-clients-at",
        "HOST:PORT",
        read_client_address,
        "where clients reach the fixed broker (as its URL says)",
    ),
    _key(
        "homes",
        "--mobile-clients-at",
        "HOST:PORT",
        read_client_addresses,
        "send clients home there too; may be repeated (the host that a mobile broker's link comes from)",
    ),
    _key(
        "relay",
        "--relay",
        "HOST:PORT",
        read_relay,
        "be a transparent gateway: clients are sent here, and their bytes passed to the fixed broker",
    ),
    _key(
        "cafile",
        "--fixed-cafile",
        "FILE",
        read_file_path,
        "authorities of mqtts:// fixed brokers, PEM (the system's)",
    ),
    _key(
        "certfile",
        "--fixed-certfile",
        "FILE",
        read_file_path,
        "the certificate to show to fixed brokers, PEM",
    ),
    _key("keyfile", "--fixed-keyfile", "FILE", read_file_path, "its private key, PEM"),
    _key("monitors", "--hot-topics", "", read_boolean, "count hot topics and show them in $SYS/broker/hot/"),
    _key(
        "x_s",
        "--hot-every",
        "DURATION",
        read_duration(0.01, MAX_HOT_S),
        f"between two calculations of the hot topics ({DEFAULTS.x_s:g} s)",
    ),
    _key(
        "y_s",
        "--hot-window",
        "DURATION",
        read_duration(0.01, MAX_HOT_S),
        f"how far back a calculation looks ({DEFAULTS.y_s:g} s)",
    ),
    _key(
        "share",
        "--hot-share",
        "NUMBER",
        read_share,
        f"the part of the topics that a mobile broker keeps, 0 to 1 ({DEFAULTS.share:g})",
    ),
    _key(
        "capacity",
        "--hot-capacity",
        "N",
        read_count(0, MAX_CAPACITY),
        "topics that a mobile broker keeps at most (no bound)",
    ),
    _key(
        "score",
        "--hot-score",
        "NAME",
        read_one_of("window", "published"),
        "rank topics by their events in the window, or as published: by all that they ever had too (window)",
    ),
    _key(
        "algorithm",
        "--hot-algorithm",
        "NAME",
        read_one_of("hot", "naive"),
        "hot, or naive: half of the topics, whatever their traffic (hot)",
    ),
    _key(
        "rotation",
        "--naive-half",
        "N",
        read_count(0, 1),
        "which half the naive algorithm delegates, 0 or 1 (0)",
    ),
    _key("delegates", "--delegation", "", read_boolean, "delegate topics that are not hot (yes)"),
    _key(
        "moves_clients",
        "--move-clients",
        "",
        read_boolean,
        "send clients after their topics, if they can (yes)",
    ),
    _key(
        "move_after_s",
        "--move-after",
        "DURATION",
        read_duration(0, MAX_HOT_S),
        f"how long a client's topics are delegated before it is sent there ({DEFAULTS.move_after_s:g} s)",
    ),
    _key(
        "takeover_after_s",
        "--takeover-after",
        "DURATION",
        read_duration(0.1, MAX_HOT_S),
        f"how long the other broker may be away before it is taken over ({DEFAULTS.takeover_after_s:g} s)",
    ),
)
