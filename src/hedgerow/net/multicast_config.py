"""The `[multicast]` table of a configuration: which topics flow, and how the node takes part.

Readers as in `values`. What a value must be like is known to `MulticastOptions`, which also reads the URLs of
clients: each reader asks it about its one value, so that the error names the key.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hedgerow.errors import ConfigError, TopicError
from hedgerow.fabric.gateway import check_filter
from hedgerow.net.multicast.options import MulticastOptions
from hedgerow.net.values import read_limit, read_text


@dataclass(slots=True, frozen=True)
class Multicast:
    topics: tuple[str, ...] = ()
    """The filters of what flows between the broker and multicast; none: the node takes no part."""
    options: MulticastOptions = field(default_factory=MulticastOptions)


def make_multicast(section: dict[str, Any]) -> Multicast:
    """From the keys of the table, as they were read."""
    options = {name: value for name, value in section.items() if name != "topics"}
    return Multicast(section.get("topics", ()), MulticastOptions(**options))


def read_topic_filters(value: object, base: Path) -> tuple[str, ...]:
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


def read_port(value: object, base: Path) -> int:
    return MulticastOptions(port=_whole_number(value)).port


def read_max_payload(value: object, base: Path) -> int:
    # Written like the size of a packet, and of its kind.
    return MulticastOptions(max_payload=read_limit("packet_bytes")(value, base)).max_payload


def _texts(value: object, base: Path) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(read_text(each, base) for each in values)


def _whole_number(value: object) -> int:
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,9}", text):
        raise ConfigError(f'"{text}" is not a whole number')
    return int(text)
