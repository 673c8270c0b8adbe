"""Every option of Mosquitto 2.0 and what becomes of it: `OPTIONS`, in the order of its manual.

An option sets a key of ours (`Sets`), changes nothing because a node does that anyway (`Needless`), or is
refused with the reason (`Unsupported`). Some of those were to keep somebody out (`guards`): a node without
one would be more open than the file says, so it does not start. The options of a bridge are not here: a
connection section is a bridge's file as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from hedgerow.errors import ConfigError

MAX_PACKET_BYTES = 268_435_460  # §2.1.4
MAX_COUNT = 65_535
UNITS_H = {"h": 1, "d": 24, "w": 7 * 24, "m": 30 * 24, "y": 365 * 24}

UNSET = None
"""What a reader returns for a value that is our default."""


class Sets(NamedTuple):
    """The key that it sets, and how its value is read; of several in a list, all are kept."""

    key: str
    read: Callable[[str], object]


class Needless(NamedTuple):
    why: str


class Unsupported(NamedTuple):
    why: str
    guards: bool = False
    unless: str | None = None
    """The value with which it asks for nothing."""


Fate = Sets | Needless | Unsupported


# Readers


def text(value: str) -> str:
    return value


def flag(value: str) -> bool:
    if value not in ("true", "false"):
        raise ConfigError(f'"{value}" is neither true nor false')
    return value == "true"


def number(value: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", value):
        raise ConfigError(f'"{value}" is not a whole number')
    return int(value)


def bound(without: int | None) -> Callable[[str], int | None]:
    """A number in which 0, and -1, mean no bound: then `without`."""

    def read(value: str) -> int | None:
        given = number(value)
        return given if given > 0 else without

    return read


def expiry(value: str) -> str:
    found = re.fullmatch(r"([1-9][0-9]{0,5})([hdwmy])", value)
    if found is None:
        raise ConfigError(f'"{value}" is not a number with h, d, w, m or y, such as 14d')
    return f"{int(found[1]) * UNITS_H[found[2]]} h"


STORED_AT_ONCE = "what is acknowledged is stored before that, in files of its own"
IN_C = "it is a library in C for Mosquitto; use passwords, an ACL, JWT or the HTTP hook"
OWN_BINARY = "keys in hardware are not supported; give the key in a file"
PSK = "TLS with shared keys is not supported; use certificates, or a password over TLS"

GENERAL: Mapping[str, Fate] = {
    "acl_file": Sets("access.acl", text),
    "allow_anonymous": Sets("access.anonymous", flag),
    "allow_duplicate_messages": Needless("Mosquitto 2 ignores it too"),
    "allow_zero_length_clientid": Sets("access.empty_client_ids", flag),
    "auto_id_prefix": Unsupported("a node gives identifiers of its own form"),
    "autosave_interval": Needless(STORED_AT_ONCE),
    "autosave_on_changes": Needless(STORED_AT_ONCE),
    "check_retain_source": Unsupported(
        "retained messages stay when their publisher loses the right to write there", unless="false"
    ),
    "clientid_prefixes": Unsupported("use users and an ACL", guards=True),
    "connection_messages": Unsupported("connections are logged at the level info", unless="true"),
    "log_facility": Needless("the log goes to standard error, where the service manager takes it"),
    "log_timestamp": Unsupported("each line has its time", unless="true"),
    "log_timestamp_format": Unsupported("times are written as ISO 8601 has them"),
    "max_inflight_bytes": Unsupported(
        "give max_inflight_messages, and max_queued_bytes, which counts these too"
    ),
    "max_inflight_messages": Sets("limits.in_flight", bound(MAX_COUNT)),
    "max_keepalive": Sets("limits.keep_alive_s", bound(MAX_COUNT)),
    "max_packet_size": Sets("limits.packet_bytes", bound(MAX_PACKET_BYTES)),
    "max_queued_bytes": Sets("limits.queue_bytes", bound(UNSET)),
    "max_queued_messages": Sets("limits.queue_messages", bound(UNSET)),
    "memory_limit": Unsupported("each table has a bound of its own: the keys of [limits]", unless="0"),
    "message_size_limit": Unsupported("give max_packet_size, which clients are told of", unless="0"),
    "password_file": Sets("access.passwords", text),
    "persistence_file": Needless(STORED_AT_ONCE),
    "persistent_client_expiration": Sets("limits.session_expiry_s", expiry),
    "pid_file": Unsupported("a service manager knows the process by itself"),
    "psk_file": Unsupported(PSK, guards=True),
    "plugin": Unsupported(IN_C, guards=True),
    "auth_plugin": Unsupported(IN_C, guards=True),
    "auth_plugin_deny_special_chars": Needless("without auth_plugin it means nothing"),
    "queue_qos0_messages": Unsupported("QoS 0 does not wait for clients that are away", unless="false"),
    "retain_available": Sets("access.retain_available", flag),
    "set_tcp_nodelay": Needless("connections never wait for more to send"),
    "sys_interval": Sets("sys.interval", number),
    "upgrade_outgoing_qos": Unsupported("a message keeps the QoS of its publisher", unless="false"),
    "user": Needless("a node runs as whoever starts it: `User=` of its unit"),
    "websockets_headers_size": Needless("headers have a bound of 8 KiB"),
    "websockets_log_level": Needless("WebSocket is ours, and logs as the rest does"),
}

LISTENER: Mapping[str, Fate] = {
    "bind_interface": Unsupported("give the interface's address to listener", guards=True),
    "http_dir": Unsupported("a node serves no files; its dashboard is at --http"),
    "max_connections": Sets("limits.connections", bound(UNSET)),
    "max_qos": Sets("access.maximum_qos", number),
    "max_topic_alias": Sets("limits.topic_alias_maximum", number),
    "mount_point": Unsupported("a listener cannot have topics of its own; use an ACL", guards=True),
    "use_username_as_clientid": Unsupported("use an ACL with %c or %u", guards=True, unless="false"),
    # Of its TLS.
    "capath": Unsupported("give one file: cafile"),
    "certfile": Sets("tls.certificate", text),
    "keyfile": Sets("tls.key", text),
    "ciphers": Unsupported("TLS takes the ciphers that Python holds to be safe"),
    "ciphers_tls1.3": Unsupported("TLS takes the ciphers that Python holds to be safe"),
    "crlfile": Sets("tls.crl_file", text),
    "dhparamfile": Needless("keys are agreed on by elliptic curves"),
    "psk_hint": Unsupported(PSK, guards=True),
    "require_certificate": Sets("tls.require_client_certificate", flag),
    "tls_engine": Unsupported(OWN_BINARY),
    "tls_engine_kpass_sha1": Unsupported(OWN_BINARY),
    "tls_keyform": Unsupported(OWN_BINARY, unless="pem"),
    "tls_version": Unsupported(
        "TLS 1.2 and later are served; there is no key for 1.3 alone", guards=True, unless="tlsv1.2"
    ),
    "use_identity_as_username": Sets("tls.use_identity_as_username", flag),
    "use_subject_as_username": Sets("tls.use_subject_as_username", flag),
}

PREFIXES: Mapping[str, Fate] = {
    "plugin_opt_": Needless("without plugin it means nothing"),
    "auth_opt_": Needless("without auth_plugin it means nothing"),
}

READ_BY_HAND = {
    "listener": "one of `mqtt`, `mqtts`, `ws` and `wss`, by its protocol and certificate",
    "port": "the listener before all others",
    "bind_address": "the address of `port`",
    "protocol": "of the listener: `mqtt` or `ws`",
    "socket_domain": "IPv4 or IPv6 alone",
    "cafile": "`tls.client_ca`, where certificates of clients are required",
    "connection": "a bridge, with the lines up to the next listener or connection",
    "include_dir": "its files, where it stands",
    "log_dest": "stderr and stdout; the log goes to standard error",
    "log_type": "`log.level`",
    "per_listener_settings": "where the listeners do not differ",
    "persistence": "`data`, with persistence_location",
    "persistence_location": "`data`, with persistence",
}
"""What `conversion` reads: several of them make one key."""


def fate_of(word: str) -> Fate | None:
    """None: no option of Mosquitto 2.0."""
    found = GENERAL.get(word) or LISTENER.get(word)
    return found or next((fate for prefix, fate in PREFIXES.items() if word.startswith(prefix)), None)
