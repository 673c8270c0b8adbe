"""The node's own keys: where each stands in the file, which flag sets it, how its value is read.

Those of the rooms are in their chapters.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from hedgerow.broker.limits import MIB, Limits
from hedgerow.node.browsers import read_host_names, read_origins
from hedgerow.node.values import (
    A_DURATION,
    AT_RELOAD,
    DURATION_UNITS,
    FOR_NEW,
    IF_RAISED,
    INFINITE,
    TIB,
    Key,
    duration_within,
    parse_number,
    read_addresses,
    read_algorithms,
    read_boolean,
    read_count,
    read_directory_path,
    read_duration,
    read_file_path,
    read_interval,
    read_key_set,
    read_limit,
    read_node_id,
    read_one_of,
    read_text,
    read_user_names,
    read_web_url,
    size_within,
)

LISTENERS = {
    "mqtt": "MQTT",
    "mqtts": "MQTT over TLS",
    "ws": "MQTT over WebSocket",
    "wss": "MQTT over WebSocket and TLS",
    "http": "the dashboard and metrics over HTTP",
    "https": "the same over TLS",
}

MAX_AGE_S = 10 * 365 * 86_400.0


def read_data_bytes(value: object, base: Path) -> int:
    return size_within(value, MIB, 1024 * TIB)


def read_data_age(value: object, base: Path) -> float:
    """In seconds; 0 and "never" both come to 0, which is no bound."""
    seconds = parse_number(value, DURATION_UNITS, A_DURATION)
    return 0.0 if seconds in (0, INFINITE) else duration_within(value, 1, MAX_AGE_S)


NODE_KEYS: tuple[Key, ...] = (
    *(
        Key(scheme, f"--{scheme}", "HOST:PORT", read_addresses, f"serve {what} here, or off", repeated=True)
        for scheme, what in LISTENERS.items()
    ),
    Key(
        "data",
        "--data",
        "DIR",
        read_directory_path,
        "keep sessions and messages here; without it, in memory only",
    ),
    Key(
        "data_bytes",
        "--data-bytes",
        "SIZE",
        read_data_bytes,
        "of what waits for subscribers in --data, at most so much (default: half of the free disk)",
    ),
    Key(
        "data_full",
        "--data-full",
        "ACTION",
        read_one_of("wait", "drop-oldest"),
        "when so much waits, or the disk is full: wait (publishers wait) or drop-oldest",
    ),
    Key(
        "data_age",
        "--data-age",
        "DURATION",
        read_data_age,
        "drop what has waited in --data for longer (default: never)",
    ),
    Key("id", "--id", "NAME", read_node_id, "the name of this node, unlike that of any other"),
    Key("mdns", "--mdns", "", read_boolean, "announce this node by multicast DNS"),
    Key(
        "tls.certificate",
        "--certificate",
        "FILE",
        read_file_path,
        "the server's certificate chain, PEM",
        takes_effect=FOR_NEW,
    ),
    Key(
        "tls.key", "--key", "FILE", read_file_path, "the certificate's private key, PEM", takes_effect=FOR_NEW
    ),
    Key(
        "tls.client_ca",
        "--client-ca",
        "FILE",
        read_file_path,
        "authorities whose client certificates are trusted, PEM",
        takes_effect=FOR_NEW,
    ),
    Key(
        "tls.require_client_certificate",
        "--require-client-certificate",
        "",
        read_boolean,
        "refuse TLS clients without a trusted certificate",
        takes_effect=FOR_NEW,
    ),
    Key(
        "tls.use_identity_as_username",
        "--use-identity-as-username",
        "",
        read_boolean,
        "a client is the user that its certificate's common name says, without a password",
        takes_effect=FOR_NEW,
    ),
    Key(
        "tls.use_subject_as_username",
        "--use-subject-as-username",
        "",
        read_boolean,
        "the same with the certificate's whole subject, as in CN=phone,O=farm",
        takes_effect=FOR_NEW,
    ),
    Key(
        "tls.crl_file",
        "--crl",
        "FILE",
        read_file_path,
        "refuse client certificates that these authorities have revoked, PEM",
        takes_effect=FOR_NEW,
    ),
    Key(
        "access.passwords",
        "--passwords",
        "FILE",
        read_file_path,
        "users and passwords, as hedgerow passwd writes them",
        takes_effect=AT_RELOAD,
    ),
    Key(
        "jwt.keys",
        "--jwt-keys",
        "WHERE",
        read_key_set,
        "let in whoever has a JSON Web Token signed by a key of this set (JWKS), a file or a URL",
        takes_effect=AT_RELOAD,
    ),
    Key(
        "jwt.algorithms",
        "--jwt-algorithm",
        "NAME",
        read_algorithms,
        "by this algorithm; may be repeated (default: RS256, ES256, EdDSA)",
        repeated=True,
        takes_effect=AT_RELOAD,
    ),
    Key("jwt.issuer", "--jwt-issuer", "NAME", read_text, "and made by it (iss)", takes_effect=AT_RELOAD),
    Key("jwt.audience", "--jwt-audience", "NAME", read_text, "and made for it (aud)", takes_effect=AT_RELOAD),
    Key(
        "jwt.user_claim",
        "--jwt-user-claim",
        "NAME",
        read_text,
        "the claim that says which user it is (default: sub)",
        takes_effect=AT_RELOAD,
    ),
    Key(
        "jwt.groups_claim",
        "--jwt-groups-claim",
        "NAME",
        read_text,
        "the claim that lists the user's groups, for the ACL (default: groups)",
        takes_effect=AT_RELOAD,
    ),
    Key(
        "jwt.leeway",
        "--jwt-leeway",
        "DURATION",
        read_duration(0, 600),
        "so much may the clock of whoever made it be off (default: 10 s)",
        takes_effect=AT_RELOAD,
    ),
    Key(
        "jwt.refresh",
        "--jwt-refresh",
        "DURATION",
        read_duration(1, 86_400),
        "how often keys are fetched from a URL (default: 5 min)",
        takes_effect=AT_RELOAD,
    ),
    Key(
        "hook.url",
        "--login-hook",
        "URL",
        read_web_url,
        "ask this service whether users may log in whom no file names",
        takes_effect=AT_RELOAD,
    ),
    Key(
        "hook.timeout",
        "--login-hook-timeout",
        "DURATION",
        read_duration(0.1, 5),
        "nobody is let in without an answer in this time (default: 2 s)",
        takes_effect=AT_RELOAD,
    ),
    Key(
        "hook.cache",
        "--login-hook-cache",
        "DURATION",
        read_duration(0, 86_400),
        "how long a yes holds for the same user and password (default: 1 min)",
        takes_effect=AT_RELOAD,
    ),
    Key(
        "hook.secret",
        "--login-hook-secret",
        "FILE",
        read_file_path,
        "whose first line it gets as a bearer token",
        takes_effect=AT_RELOAD,
    ),
    Key(
        "access.acl",
        "--acl",
        "FILE",
        read_file_path,
        "who may read and write what, in Mosquitto's syntax",
        takes_effect=AT_RELOAD,
    ),
    Key(
        "access.anonymous",
        "--anonymous",
        "",
        read_boolean,
        "let clients in without a username",
        takes_effect=FOR_NEW,
    ),
    Key(
        "access.empty_client_ids",
        "--empty-client-ids",
        "",
        read_boolean,
        "let clients in without a client identifier, and make one (default: true)",
        takes_effect=FOR_NEW,
    ),
    Key(
        "access.maximum_qos",
        "--maximum-qos",
        "QOS",
        read_count(0, 2),
        "the highest QoS that clients may publish and subscribe with (2)",
    ),
    Key(
        "access.retain_available",
        "--retain-available",
        "",
        read_boolean,
        "let clients publish retained messages (default: true)",
    ),
    Key(
        "access.administrators",
        "--administrator",
        "USER",
        read_user_names,
        "this user may command the node's bridges; may be repeated",
        repeated=True,
        takes_effect=AT_RELOAD,
    ),
    Key(
        "access.key_file",
        "--fabric-key",
        "FILE",
        read_file_path,
        "the key by which nodes of one fabric know each other (default: this user's own)",
    ),
    Key(
        "access.host_names",
        "--allow-host",
        "NAME",
        read_host_names,
        "browsers may reach this node by this name too; may be repeated",
        repeated=True,
        takes_effect=AT_RELOAD,
    ),
    Key(
        "access.origins",
        "--allow-origin",
        "ORIGIN",
        read_origins,
        "pages of this origin may connect by WebSocket; may be repeated",
        repeated=True,
        takes_effect=AT_RELOAD,
    ),
    Key(
        "log.format",
        "--log-format",
        "FORMAT",
        read_one_of("text", "json"),
        "text or json",
        takes_effect=AT_RELOAD,
    ),
    Key(
        "log.level",
        "--log-level",
        "LEVEL",
        read_one_of("debug", "info", "warning", "error"),
        "debug, info, warning or error",
        takes_effect=AT_RELOAD,
    ),
    Key(
        "sys.interval", "--sys-interval", "SECONDS", read_interval, "how often $SYS is published; 0 for never"
    ),
)

# Of the limits, which hold for all that goes on as soon as they are read; others for new connections, and
# three were told to clients.
_LIMITS_AT_RELOAD = {
    "connections",
    "http_connections",
    "connects_per_s",
    "session_bytes",
    "queue_bytes",
    "queue_messages",
    "subscriptions",
    "subscription_bytes",
    "retained_bytes",
    "sessions",
}
_LIMITS_IF_RAISED = {"packet_bytes", "receive_maximum", "topic_alias_maximum"}


def _limit_takes_effect(name: str) -> str:
    if name in _LIMITS_IF_RAISED:
        return IF_RAISED
    return AT_RELOAD if name in _LIMITS_AT_RELOAD else FOR_NEW


LIMIT_KEYS = tuple(
    Key(
        f"limits.{limit.name}",
        "--limit",
        "",
        read_limit(limit.name),
        "",
        takes_effect=_limit_takes_effect(limit.name),
    )
    for limit in fields(Limits)
)

# Key → field of `Config` that has its value as it was read.
FIELDS = {
    **{scheme: scheme for scheme in LISTENERS},
    "data": "data",
    "data_bytes": "data_bytes",
    "data_full": "data_full",
    "data_age": "data_age_s",
    "id": "id",
    "mdns": "mdns",
    "access.passwords": "passwords",
    "access.acl": "acl",
    "access.administrators": "administrators",
    "access.empty_client_ids": "empty_client_ids",
    "access.maximum_qos": "maximum_qos",
    "access.retain_available": "retain_available",
    "access.key_file": "key_file",
    "access.host_names": "host_names",
    "access.origins": "origins",
    "log.format": "log_format",
    "log.level": "log_level",
    "sys.interval": "sys_interval_s",
}
