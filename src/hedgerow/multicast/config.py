"""The `[multicast]` table of a configuration: which topics flow, and how the node takes part.

Readers as in `values`. What a value must be like is known to `MulticastOptions`, which also reads the URLs of
clients: each reader asks it about its one value, so that the error names the key.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from hedgerow.errors import ConfigError, TopicError
from hedgerow.multicast.io.options import LARGEST_PAYLOAD, LONGEST_PATIENCE_S, MulticastOptions
from hedgerow.node.config import Chapter, Given
from hedgerow.node.values import AT_RELOAD, Key, duration_within, read_file_path, read_text, size_within


@dataclass(slots=True, frozen=True)
class Multicast:
    topics: tuple[str, ...] = ()
    """The filters of what flows between the broker and multicast; none: the node takes no part."""
    options: MulticastOptions = field(default_factory=MulticastOptions)


FIELDS = {"patience": "patience_s"}


def make_multicast(given: Given) -> Multicast:
    table = given.table("multicast")
    if "topics" not in table:
        first = given.where(f"multicast.{next(iter(table))}")
        raise ConfigError(f"{first}: needs multicast.topics too (--multicast FILTER)")
    options = {FIELDS.get(name, name): value for name, value in table.items() if name != "topics"}
    return Multicast(table["topics"], MulticastOptions(**options))


def read_topic_filters(value: object, base: Path) -> tuple[str, ...]:
    from hedgerow.multicast.gateway import check_filter  # of a node that takes part

    try:
        return tuple(dict.fromkeys(map(check_filter, _texts(value, base))))
    except TopicError as error:
        raise ConfigError(str(error)) from None


def read_interfaces(value: object, base: Path) -> tuple[str, ...]:
    return MulticastOptions(interfaces=_texts(value, base)).interfaces


def read_peers(value: object, base: Path) -> tuple[str, ...]:
    return MulticastOptions(peers=_texts(value, base)).peers


def read_scope(value: object, base: Path) -> str:
    return MulticastOptions(scope=read_text(value, base)).scope


def read_ip(value: object, base: Path) -> int | None:
    return MulticastOptions(ip=_whole_number(value)).ip


def read_naming(value: object, base: Path) -> str | None:
    return MulticastOptions(naming=read_text(value, base)).naming


def read_port(value: object, base: Path) -> int:
    return MulticastOptions(port=_whole_number(value)).port


def read_max_payload(value: object, base: Path) -> int:
    return size_within(value, 1, LARGEST_PAYLOAD)


def read_patience(value: object, base: Path) -> float:
    return duration_within(value, 0, LONGEST_PATIENCE_S)


def _texts(value: object, base: Path) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(read_text(each, base) for each in values)


def _whole_number(value: object) -> int:
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,9}", text):
        raise ConfigError(f'"{text}" is not a whole number')
    return int(text)


MULTICAST_KEYS = (
    Key(
        "multicast.topics",
        "--multicast",
        "FILTER",
        read_topic_filters,
        "pass these topics between the broker and multicast; may be repeated",
        repeated=True,
    ),
    Key(
        "multicast.interfaces",
        "--multicast-interface",
        "NAME",
        read_interfaces,
        "a network interface for multicast, such as eth0; may be repeated (every one that can)",
        repeated=True,
    ),
    Key("multicast.scope", "--multicast-scope", "SCOPE", read_scope, "interface, link or site (link)"),
    Key("multicast.ip", "--multicast-ip", "VERSION", read_ip, "4 or 6 (6 where the interfaces can, else 4)"),
    Key(
        "multicast.naming",
        "--multicast-naming",
        "HOW",
        read_naming,
        "how the group of a topic is found: computed, or by multicast DNS: mdns (IPv6: computed, IPv4: mdns)",
    ),
    Key("multicast.port", "--multicast-port", "PORT", read_port, "the UDP port of every group (18514)"),
    Key(
        "multicast.peers",
        "--peer",
        "HOST[:PORT]",
        read_peers,
        "a node or device that multicast does not reach; may be repeated",
        repeated=True,
    ),
    Key(
        "multicast.key_file",
        "--multicast-key",
        "FILE",
        read_file_path,
        "the shared keys that seal what goes by multicast; without it, all goes in clear",
        takes_effect=AT_RELOAD,
    ),
    Key(
        "multicast.max_payload",
        "--multicast-max-payload",
        "SIZE",
        read_max_payload,
        "the largest payload that goes by multicast (256 KiB)",
    ),
    Key(
        "multicast.patience",
        "--multicast-patience",
        "DURATION",
        read_patience,
        "how long a message at QoS 1 or 2 may wait for a receiver to acknowledge it; 0: not at all (30s)",
    ),
)

CHAPTER = Chapter(
    Multicast,
    MULTICAST_KEYS,
    make_multicast,
    secrets=lambda config: {"multicast key": config.of(Multicast).options.key_file},
)
