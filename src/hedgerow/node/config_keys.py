"""Everything that can be configured: where it stands in the file, which flag sets it, how its value is read.

`KEYS` are for a node; a sidecar has some of them, and `SIDECAR_KEYS` of its own.
"""

from __future__ import annotations

from dataclasses import fields

from hedgerow.broker.limits import Limits
from hedgerow.federation.io.config_keys import FEDERATION_KEYS, SIDECAR_KEYS
from hedgerow.home_assistant.config import HOME_ASSISTANT_KEYS
from hedgerow.journal.config import JOURNAL_KEYS
from hedgerow.mobility.io.config_keys import MOBILITY_KEYS
from hedgerow.multicast.config import MULTICAST_KEYS
from hedgerow.node.values import (
    Key,
    read_addresses,
    read_boolean,
    read_directory_path,
    read_file_path,
    read_file_paths,
    read_interval,
    read_limit,
    read_node_id,
    read_one_of,
    read_user_names,
)
from hedgerow.sensors.config import SENSOR_KEYS, read_udp_addresses

LISTENERS = {
    "mqtt": "MQTT",
    "mqtts": "MQTT over TLS",
    "ws": "MQTT over WebSocket",
    "wss": "MQTT over WebSocket and TLS",
    "http": "the dashboard and metrics over HTTP",
    "https": "the same over TLS",
}

KEYS: tuple[Key, ...] = (
    *(
        Key(scheme, f"--{scheme}", "HOST:PORT", read_addresses, f"serve {what} here, or off", repeated=True)
        for scheme, what in LISTENERS.items()
    ),
    Key(
        "udp",
        "--udp",
        "HOST[:PORT]",
        read_udp_addresses,
        "serve UDP sensors here, port 12345 unless given",
        repeated=True,
    ),
    Key(
        "data",
        "--data",
        "DIR",
        read_directory_path,
        "keep sessions and messages here; without it, in memory only",
    ),
    Key("id", "--id", "NAME", read_node_id, "the name of this node, unlike that of any other"),
    Key(
        "bridges",
        "--bridge",
        "FILE",
        read_file_paths,
        "create the bridges whose sections this file has; may be repeated",
        repeated=True,
    ),
    Key(
        "dashboard",
        "--dashboard",
        "",
        read_boolean,
        "serve the dashboard where HTTP is served (default: yes)",
    ),
    Key("mdns", "--mdns", "", read_boolean, "announce this node by multicast DNS"),
    Key("tls.certificate", "--certificate", "FILE", read_file_path, "the server's certificate chain, PEM"),
    Key("tls.key", "--key", "FILE", read_file_path, "the certificate's private key, PEM"),
    Key(
        "tls.client_ca",
        "--client-ca",
        "FILE",
        read_file_path,
        "authorities whose client certificates are trusted, PEM",
    ),
    Key(
        "tls.require_client_certificate",
        "--require-client-certificate",
        "",
        read_boolean,
        "refuse TLS clients without a trusted certificate",
    ),
    Key(
        "tls.use_identity_as_username",
        "--use-identity-as-username",
        "",
        read_boolean,
        "a client is the user that its certificate's common name says, without a password",
    ),
    Key(
        "access.passwords",
        "--passwords",
        "FILE",
        read_file_path,
        "users and passwords, as hedgerow passwd writes them",
    ),
    Key("access.acl", "--acl", "FILE", read_file_path, "who may read and write what, in Mosquitto's syntax"),
    Key("access.anonymous", "--anonymous", "", read_boolean, "let clients in without a username"),
    Key(
        "access.administrators",
        "--administrator",
        "USER",
        read_user_names,
        "this user may command the node's bridges; may be repeated",
        repeated=True,
    ),
    Key("log.format", "--log-format", "FORMAT", read_one_of("text", "json"), "text or json"),
    Key(
        "log.level",
        "--log-level",
        "LEVEL",
        read_one_of("debug", "info", "warning", "error"),
        "debug, info, warning or error",
    ),
    Key(
        "sys.interval", "--sys-interval", "SECONDS", read_interval, "how often $SYS is published; 0 for never"
    ),
    *SENSOR_KEYS,
    *MULTICAST_KEYS,
    *FEDERATION_KEYS,
    *MOBILITY_KEYS,
    *JOURNAL_KEYS,
    *HOME_ASSISTANT_KEYS,
    *(Key(f"limits.{limit.name}", "--limit", "", read_limit(limit.name), "") for limit in fields(Limits)),
)

ALL_KEYS = (*KEYS, *SIDECAR_KEYS)
SECTIONS = {key.name.split(".")[0] for key in KEYS if "." in key.name}
