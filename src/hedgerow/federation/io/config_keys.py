"""The `[federation]` table of a configuration: how each key is read, and what must hold between them.

Readers as in `values`. `FEDERATION_KEYS` are for every node, `SIDECAR_KEYS` for `hedgerow federate` alone,
which stands beside a broker that is not ours.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hedgerow.broker.limits import KIB
from hedgerow.errors import ConfigError, TopicError, reason_of
from hedgerow.federation.config import DEFAULTS, FederationConfig, check_not_home
from hedgerow.federation.interests.regular import LOCAL_PREFIXES, regular_filter
from hedgerow.federation.mesh.limits import MAX_LIFETIME_S
from hedgerow.federation.overlay.limits import MAX_ACTIVE, MAX_CONTACTS
from hedgerow.federation.overlay.wire import MAX_ADDRESSES
from hedgerow.node.broker_urls import BrokerUrl, at_most, is_unspecified, read_broker_url, unique
from hedgerow.node.values import (
    TIB,
    Key,
    duration_within,
    read_boolean,
    read_count,
    read_file_path,
    read_text,
    size_within,
)

MIN_KEY_BYTES, MAX_KEY_BYTES = 16, 64
MAX_KEEP_S = 365 * 86_400  # For ever is too long: a neighbour that is never to come back fills its queue.


def make_federation(section: dict[str, Any], where: Callable[[str], str]) -> FederationConfig:
    """From the keys of the table, as they were read. `where` says where a key stood. Raises ConfigError."""
    values = {FIELDS.get(name, name): value for name, value in section.items()}
    if (found := values.pop("key_file", None)) is not None:
        values |= found._asdict()
    federation = FederationConfig(**values)
    for given, needed in (("keyfile", "certfile"), ("remote_password", "remote_username")):
        if given in section and needed not in section:
            raise ConfigError(f"{where(f'federation.{given}')}: needs federation.{needed} too")
    for name in ("neighbours_file", "neighbours", "join"):
        try:
            if name in section:
                _check_links(federation, name)
        except ConfigError as error:
            raise ConfigError(f"{where(f'federation.{name}')}: {error}") from None
    if section and not (federation.is_enabled or federation.home or federation.enabled is False):
        raise ConfigError(
            f"{where(f'federation.{next(iter(section))}')}: there is nobody to federate with: set "
            "federation.neighbours (--neighbour URL), federation.join (--join URL) or federation.discover = "
            "true (--discover), or federation.enabled = true (--federation) for a node that others link to"
        )
    return federation


FIELDS = {
    "broker": "home",
    "keep": "keep_s",
    "announce_interval": "announce_interval_s",
    "remote_username": "username",
    "remote_password": "password",
}


def _check_links(federation: FederationConfig, name: str) -> None:
    if name == "join":
        at_most(MAX_CONTACTS, "members to join", federation.join)
        if federation.home is not None:
            check_not_home(federation.join, federation.home)
    else:
        federation.read_neighbours()


# Readers


def read_neighbour_urls(value: object, base: Path) -> tuple[BrokerUrl, ...]:
    values = value if isinstance(value, list) else [value]
    return unique(read_broker_url(each, base) for each in values)


def read_advertised_urls(value: object, base: Path) -> tuple[BrokerUrl, ...]:
    urls = read_neighbour_urls(value, base)
    for url in urls:
        if url.username is not None or url.password is not None:
            raise ConfigError(f"{url}: everyone is told it: no user and no password")
        if is_unspecified(url.host):
            raise ConfigError(f"{url}: others cannot connect to {url.host}; name an address of this machine")
    return at_most(MAX_ADDRESSES, "URLs", urls)


class KeyFile(NamedTuple):
    key: bytes
    key_file: Path


def read_key_file(value: object, base: Path) -> KeyFile:
    path = read_file_path(value, base)
    try:
        content = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{path}: {reason_of(error)}") from None
    key = content
    try:
        decoded = bytes.fromhex(content.decode("ascii"))
        key = decoded if len(decoded) >= MIN_KEY_BYTES else content
    except ValueError:
        pass  # It is the key itself.
    if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise ConfigError(
            f"{path}: a key has {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes, as text or in hex, not {len(key)}; "
            f"openssl rand -hex 32 > {path} makes one"
        )
    return KeyFile(key, path)


def read_assumed_filters(value: object, base: Path) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    filters: dict[str, None] = {}
    for text in (read_text(each, base) for each in values):
        try:
            topic_filter = regular_filter(text)
        except TopicError as error:
            raise ConfigError(str(error)) from None
        if topic_filter is None:
            raise ConfigError(f'"{text}": topics that begin with {" or ".join(LOCAL_PREFIXES)} stay here')
        filters[topic_filter] = None
    return tuple(filters)


def read_keep(value: object, base: Path) -> float:
    return duration_within(value, 0, MAX_KEEP_S)


def read_announce_interval(value: object, base: Path) -> float:
    return duration_within(value, 0.1, MAX_LIFETIME_S)


def read_queue_bytes(value: object, base: Path) -> int:
    return size_within(value, KIB, TIB)


def _urls_key(name: str, flag: str, help_text: str) -> Key:
    return Key(f"federation.{name}", flag, "URL", read_neighbour_urls, help_text, repeated=True)


FEDERATION_KEYS = (
    _urls_key("neighbours", "--neighbour", "always link to the node at this broker; may be repeated"),
    Key(
        "federation.neighbours_file",
        "--neighbours",
        "FILE",
        read_file_path,
        "the same, a URL a line; read again on SIGHUP",
    ),
    _urls_key(
        "join", "--join", "become a member through this one, and let the overlay choose; may be repeated"
    ),
    Key(
        "federation.discover",
        "--discover",
        "",
        read_boolean,
        "join the nodes that multicast DNS finds on this network, and be found",
    ),
    Key(
        "federation.enabled",
        "--federation",
        "",
        read_boolean,
        "let others link to this node, also if it links to nobody itself",
    ),
    Key(
        "federation.redundancy",
        "--redundancy",
        "R",
        read_count(1, MAX_ACTIVE),
        "ways from each member of a mesh to its core (2)",
    ),
    Key(
        "federation.active_at_most",
        "--active-neighbours",
        "N",
        read_count(1, MAX_ACTIVE),
        f"neighbours that the overlay may choose ({DEFAULTS.active_at_most})",
    ),
    Key(
        "federation.advertise",
        "--advertise",
        "URL",
        read_advertised_urls,
        "where other nodes reach this one; may be repeated (where it listens)",
        repeated=True,
    ),
    Key(
        "federation.key_file",
        "--federation-key",
        "FILE",
        read_key_file,
        "the key that all members share; without one anyone may become a member",
    ),
    Key(
        "federation.remote_username",
        "--federation-username",
        "NAME",
        read_text,
        "the user at neighbours whose URL has none",
    ),
    Key(
        "federation.remote_password",
        "--federation-password",
        "TEXT",
        read_text,
        "that user's password; better in the file, since others can see flags",
    ),
    Key(
        "federation.cafile",
        "--federation-cafile",
        "FILE",
        read_file_path,
        "authorities of mqtts:// neighbours, PEM (the system's)",
    ),
    Key(
        "federation.certfile",
        "--federation-certfile",
        "FILE",
        read_file_path,
        "the certificate to show to mqtts:// neighbours, PEM",
    ),
    Key("federation.keyfile", "--federation-keyfile", "FILE", read_file_path, "its private key, PEM"),
    Key(
        "federation.keep",
        "--federation-keep",
        "DURATION",
        read_keep,
        "how long what waits for a neighbour that is gone is kept (1 d)",
    ),
    Key(
        "federation.queue_bytes",
        "--federation-queue",
        "SIZE",
        read_queue_bytes,
        "how much may wait for one neighbour (64 MiB)",
    ),
    Key(
        "federation.announce_interval",
        "--announce-interval",
        "DURATION",
        read_announce_interval,
        "between two announcements of a core (5 s)",
    ),
)

SIDECAR_KEYS = (
    Key("federation.broker", "--broker", "URL", read_broker_url, "the broker to stand beside"),
    Key(
        "federation.assume",
        "--assume",
        "FILTER",
        read_assumed_filters,
        "take it that clients of the broker have this subscription; may be repeated",
        repeated=True,
    ),
)
