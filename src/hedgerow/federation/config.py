"""The `[federation]` table of a configuration: whom a node federates with, and how.

A `FederationConfig` that `make_federation` made can be used as it is: its URLs are of MQTT, its files can be
read, its numbers are those that the federator and the overlay take. Readers as in `values`. `SIDECAR_KEYS`
are for `hedgerow federate` alone, which stands beside a broker that is not ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from hedgerow.broker.limits import KIB
from hedgerow.duplicates import DEFAULT_BYTES
from hedgerow.errors import ConfigError, TopicError, reason_of
from hedgerow.federation.document.limits import MAX_NEIGHBOURS as MAX_DOCUMENT_NEIGHBOURS
from hedgerow.federation.document.limits import MAX_NUMBER
from hedgerow.federation.interests.regular import LOCAL_PREFIXES, regular_filter
from hedgerow.federation.mesh.limits import ANNOUNCE_INTERVAL_S, MAX_LIFETIME_S
from hedgerow.federation.overlay.limits import (
    MAX_ACTIVE,
    MAX_ADDRESSES,
    MAX_CONTACTS,
    MAX_STATIC,
    OverlaySettings,
)
from hedgerow.node.broker_urls import (
    BrokerUrl,
    at_most,
    is_unspecified,
    read_broker_url,
    read_urls_file,
    unique,
)
from hedgerow.node.config import Chapter, Config, Given, check_not_itself
from hedgerow.node.files import read_regular
from hedgerow.node.values import (
    AT_RELOAD,
    AT_RESTART,
    GIB,
    TIB,
    Key,
    duration_within,
    read_boolean,
    read_count,
    read_file_path,
    read_one_of,
    read_text,
    size_within,
)

MIN_KEY_BYTES, MAX_KEY_BYTES = 16, 64
MAX_KEY_FILE_BYTES = 4_096  # in hex, and with white space around it
MAX_KEEP_S = 365 * 86_400  # For ever is too long: a neighbour that is never to come back fills its queue.

DEFAULTS = OverlaySettings()
OUR_WIRE, DOCUMENT_WIRE = "hedgerow", "document"
LEAST_DATA_LOG, MOST_DATA_LOG = 64 * KIB, 4 * GIB
MAX_DATA_LOG_AGE_S = 86_400.0
_NUMBER_AND_USER = re.compile(r"(?!=)(\d{0,20})(?:@([^=@]+))?=", re.ASCII)  # before the URL


class DocumentUrl(NamedTuple):
    """A neighbour that speaks the document's wire."""

    url: BrokerUrl
    number: int | None = None
    """Of the federator beside that broker; None: it is asked."""
    user: str | None = None
    """As whom alone that federator may log in at this node; None: whoever answers is believed."""

    def __str__(self) -> str:
        number = "" if self.number is None else str(self.number)
        who = number if self.user is None else f"{number}@{quote(self.user)}"
        return f"{who}={self.url}" if who else str(self.url)


@dataclass(slots=True, frozen=True)
class FederationConfig:
    neighbours: tuple[BrokerUrl, ...] = ()
    """Always linked to, beside those of `neighbours_file`: `read_neighbours` has both."""
    neighbours_file: Path | None = None
    join: tuple[BrokerUrl, ...] = ()
    """Members through which this node becomes one."""
    discover: bool = False
    enabled: bool | None = None
    """True: also without anyone to link to, for a node that others link to. False: not at all."""
    redundancy: int = 2
    active_at_most: int = DEFAULTS.active_at_most
    """Neighbours that the overlay chooses, beside the static ones."""
    advertise: tuple[BrokerUrl, ...] = ()
    """Where others reach this node, if that is not where it listens."""
    key: bytes | None = field(default=None, repr=False)
    key_file: Path | None = None
    """Where the key stood."""
    username: str | None = None
    """At neighbours whose URL has no user, those that the federation itself found among them."""
    password: str | None = field(default=None, repr=False)
    cafile: Path | None = None
    certfile: Path | None = None
    keyfile: Path | None = None
    keep_s: float = 86_400.0
    """How long a neighbour that is gone is waited for with what is for it."""
    queue_bytes: int | None = None
    announce_interval_s: float = ANNOUNCE_INTERVAL_S
    wire: str = OUR_WIRE
    """What is spoken to `neighbours`."""
    document_neighbours: tuple[DocumentUrl, ...] = ()
    """Those beside them to whom the document's wire is spoken."""
    data_log_bytes: int = DEFAULT_BYTES
    data_log_age_s: float = 0.0
    home: BrokerUrl | None = None
    """Of a sidecar: the broker that it stands beside."""
    assume: tuple[str, ...] | None = None
    """None: everything, until it is known what clients subscribe to."""
    """Filters that clients of that broker are taken to have."""

    @property
    def is_enabled(self) -> bool:
        if self.enabled is not None:
            return self.enabled
        listed = self.neighbours or self.document_neighbours or self.neighbours_file is not None
        return bool(listed or self.join or self.discover)

    @property
    def takes_part(self) -> bool:
        """With neighbours of its own, or for the broker that it stands beside."""
        return self.is_enabled or self.home is not None

    @property
    def overlay_settings(self) -> OverlaySettings:
        target = min(DEFAULTS.active_target, self.active_at_most)
        return OverlaySettings(active_target=target, active_at_most=self.active_at_most)

    def read_neighbours(self) -> tuple[BrokerUrl, ...]:
        """The static neighbours, those of the file as it is now. Raises ConfigError."""
        listed = () if self.neighbours_file is None else read_urls_file(self.neighbours_file)
        neighbours = unique((*self.neighbours, *listed))
        if self.home is not None:
            check_not_home(neighbours, self.home)
        return at_most(MAX_STATIC, "static neighbours", neighbours)

    def read_linked(self) -> tuple[BrokerUrl, ...]:
        """Those of the static neighbours that are nodes of ours, or have a federator of ours beside them."""
        return () if self.wire == DOCUMENT_WIRE else self.read_neighbours()

    def read_document_neighbours(self) -> tuple[DocumentUrl, ...]:
        """Those that speak the document's wire. Raises ConfigError."""
        plain = self.read_neighbours() if self.wire == DOCUMENT_WIRE else ()
        known = {str(each.url) for each in self.document_neighbours}
        found = (*self.document_neighbours, *(DocumentUrl(url) for url in plain if str(url) not in known))
        urls = tuple(each.url for each in found)
        if self.home is not None:
            check_not_home(urls, self.home)
            if any(each.user is not None for each in found):
                raise ConfigError(f"no NUMBER@USER: {self.home} does not say which user published what")
        at_most(MAX_DOCUMENT_NEIGHBOURS, "neighbours that speak the document's wire", urls)
        return found

    def document_url_to_dial(self, url: BrokerUrl) -> BrokerUrl:
        return (
            url if url.username is not None else replace(url, username=self.username, password=self.password)
        )

    def url_to_dial(self, address: str, listed: Iterable[BrokerUrl]) -> BrokerUrl | None:
        """From an address of the overlay to how it is dialled: with the user that `listed` has for it, or the
        one for all if it may be told to this address. None if it is no address: other nodes tell them."""
        try:
            url = read_broker_url(address, Path())
        except ConfigError:
            return None
        known = next((each for each in listed if str(each) == str(url)), None)
        if known is not None and known.username is not None:
            return known
        if known is None and not self._is_vouched_for(url):
            return replace(url, username=None, password=None)
        return replace(url, username=self.username, password=self.password)

    def _is_vouched_for(self, url: BrokerUrl) -> bool:
        """May a place that someone else named be told the password? If it has a certificate of our own
        authorities, or if only members can have named it: anyone can answer multicast DNS, and without a key
        anyone is a member."""
        return self._is_certified(url) or (self.key is not None and not self.discover)

    def _is_certified(self, url: BrokerUrl) -> bool:
        return url.is_tls and self.cafile is not None

    def is_certified(self, address: str) -> bool:
        """Does our own authority answer for whoever is at this address of the overlay?"""
        url = self.url_to_dial(address, ())
        return url is not None and self._is_certified(url)


def secret_files(config: Config) -> dict[str, Path | None]:
    federation = config.of(FederationConfig)
    listed = federation.neighbours_file
    has_password = listed is not None and any(each.password is not None for each in read_urls_file(listed))
    return {
        "federation key": federation.key_file,
        "federation's TLS key": federation.keyfile,
        "neighbours' passwords": listed if has_password else None,
    }


def check_not_home(urls: Iterable[BrokerUrl], home: BrokerUrl) -> None:
    for url in urls:
        if url.is_same_place(home):
            raise ConfigError(f"{url} is the broker that this federator stands beside, and no neighbour")


# From what was given to the settings

FIELDS = {
    "broker": "home",
    "keep": "keep_s",
    "announce_interval": "announce_interval_s",
    "data_log": "data_log_bytes",
    "data_log_age": "data_log_age_s",
    "remote_username": "username",
    "remote_password": "password",
}


def make_federation(given: Given) -> FederationConfig:
    table = given.table("federation")
    values = {FIELDS.get(name, name): value for name, value in table.items()}
    if (found := values.pop("key_file", None)) is not None:
        values |= found._asdict()
    federation = FederationConfig(**values)
    for name, needed in (("keyfile", "certfile"), ("remote_password", "remote_username")):
        if name in table and needed not in table:
            raise ConfigError(f"{given.where(f'federation.{name}')}: needs federation.{needed} too")
    for name in ("neighbours_file", "neighbours", "document_neighbours", "join"):
        try:
            if name in table:
                _check_links(federation, name)
        except ConfigError as error:
            raise ConfigError(f"{given.where(f'federation.{name}')}: {error}") from None
    if not (federation.is_enabled or federation.home or federation.enabled is False):
        raise ConfigError(
            f"{given.where(f'federation.{next(iter(table))}')}: there is nobody to federate with: set "
            "federation.neighbours (--neighbour URL), federation.join (--join URL) or federation.discover = "
            "true (--discover), or federation.enabled = true (--federation) for a node that others link to"
        )
    return federation


def _check_links(federation: FederationConfig, name: str) -> None:
    if name == "join":
        at_most(MAX_CONTACTS, "members to join", federation.join)
        if federation.home is not None:
            check_not_home(federation.join, federation.home)
    else:
        federation.read_neighbours()
        federation.read_document_neighbours()


def check_federation(config: Config, given: Given) -> None:
    federation = config.of(FederationConfig)
    check_not_itself(federation.neighbours, "federation.neighbours", config, given)
    check_not_itself(federation.join, "federation.join", config, given)
    documents = tuple(each.url for each in federation.document_neighbours)
    check_not_itself(documents, "federation.document_neighbours", config, given)


def check_beside(config: Config, given: Given) -> None:
    """Of what is to stand beside a broker."""
    if config.of(FederationConfig).home is None:
        raise ConfigError("federation.broker: which broker is it to stand beside? (--broker URL)")


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
        content = read_regular(path, MAX_KEY_FILE_BYTES).strip()
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


ASSUME_NOTHING = "off"


def read_assumed_filters(value: object, base: Path) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    if values == [ASSUME_NOTHING]:
        return ()
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


def read_document_neighbours(value: object, base: Path) -> tuple[DocumentUrl, ...]:
    values = value if isinstance(value, list) else [value]
    found: dict[str, DocumentUrl] = {}
    for text in (read_text(each, base) for each in values):
        given = _NUMBER_AND_USER.match(text)
        number, user = given.groups() if given is not None else ("", None)
        if number and int(number) > MAX_NUMBER:
            raise ConfigError(f'"{number}": federators have numbers from 0 to {MAX_NUMBER}')
        url = read_broker_url(text if given is None else text[given.end() :], base)
        found[str(url)] = DocumentUrl(
            url, int(number) if number else None, None if user is None else unquote(user)
        )
    numbers = [each.number for each in found.values() if each.number is not None]
    twice = next((number for number in numbers if numbers.count(number) > 1), None)
    if twice is not None:
        raise ConfigError(f"{twice} is the number of two neighbours")
    return tuple(found.values())


def read_data_log(value: object, base: Path) -> int:
    return size_within(value, LEAST_DATA_LOG, MOST_DATA_LOG)


def read_data_log_age(value: object, base: Path) -> float:
    return duration_within(value, 0, MAX_DATA_LOG_AGE_S)


def read_keep(value: object, base: Path) -> float:
    return duration_within(value, 0, MAX_KEEP_S)


def read_announce_interval(value: object, base: Path) -> float:
    return duration_within(value, 0.1, MAX_LIFETIME_S)


def read_queue_bytes(value: object, base: Path) -> int:
    return size_within(value, KIB, TIB)


def _urls_key(name: str, flag: str, help_text: str, takes_effect: str = AT_RESTART) -> Key:
    return Key(
        f"federation.{name}",
        flag,
        "URL",
        read_neighbour_urls,
        help_text,
        repeated=True,
        takes_effect=takes_effect,
    )


FEDERATION_KEYS = (
    _urls_key(
        "neighbours", "--neighbour", "always link to the node at this broker; may be repeated", AT_RELOAD
    ),
    Key(
        "federation.neighbours_file",
        "--neighbours",
        "FILE",
        read_file_path,
        "the same, a URL a line; read again on SIGHUP",
        takes_effect=AT_RELOAD,
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
        "how much may wait for one neighbour (64 MiB in memory; with --data, what the disk has for the log)",
    ),
    Key(
        "federation.wire",
        "--wire",
        "WIRE",
        read_one_of(OUR_WIRE, DOCUMENT_WIRE),
        "hedgerow, or document where --neighbour are those of federators that are not ours (hedgerow)",
    ),
    Key(
        "federation.document_neighbours",
        "--document-neighbour",
        "URL",
        read_document_neighbours,
        "a neighbour that speaks the document's wire, NUMBER=URL if its number is known, NUMBER@USER=URL if "
        "its user at this node is too; may be repeated",
        repeated=True,
    ),
    Key(
        "federation.data_log",
        "--data-log",
        "SIZE",
        read_data_log,
        "the log by which messages are known that were here already (16 MiB)",
    ),
    Key(
        "federation.data_log_age",
        "--data-log-age",
        "DURATION",
        read_data_log_age,
        "no entry of that log is forgotten before, unless it takes four times its size (0)",
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
        "what clients want whose subscriptions are unknown, in place of everything, or off; may be repeated",
        repeated=True,
    ),
)

CHAPTER = Chapter(
    FederationConfig, (*FEDERATION_KEYS, *SIDECAR_KEYS), make_federation, check_federation, secret_files
)
