"""The words of a bridge section: Mosquitto's, under its names, and ours for what its bridges do not do.

`OPTIONS` is the one list of them: the readers, the writers, the check of a section and the help follow it.
"""

from __future__ import annotations

import difflib
from typing import NamedTuple

from hedgerow.bridges.topic_line import read_topic_line
from hedgerow.bridges.values import (
    ADDRESSES,
    BACKOFF,
    FLAG,
    IP_ADDRESS,
    NAME,
    START_TYPE,
    TEXT,
    TOPIC_NAME,
    ValueKind,
    check_characters,
    one_of,
    quote,
    seconds,
    whole_number,
)
from hedgerow.errors import ConfigError

MAX_INTEGER = 2**31 - 1  # Mosquitto's numbers are C's int.

Version = tuple[int, int]
HEDGEROW = None  # In the place of a version: the word is ours.


class BridgeOption(NamedTuple):
    """One word of a section."""

    word: str
    kind: ValueKind
    help: str
    field: str
    aliases: tuple[str, ...]
    since: Version | None
    """The version of Mosquitto that has it; `HEDGEROW`: none has."""


def _option(
    word: str,
    kind: ValueKind,
    meaning: str,
    field: str | None = None,
    aliases: tuple[str, ...] = (),
    since: Version | None = (2, 0),
) -> BridgeOption:
    return BridgeOption(word, kind, meaning, field or word, aliases, since)


TOPIC = ValueKind(read_topic_line, str)
PROTOCOL = one_of("mqttv31", "mqttv311", "mqttv50")
OVERFLOW = one_of("drop-oldest", "drop-newest")
TLS_VERSION = one_of("tlsv1.2", "tlsv1.3")
POSITIVE = whole_number(1, MAX_INTEGER)
PACKET_SIZE = whole_number(0, 268_435_460)  # §2.1.4: a remaining length of four bytes, and the header.

# `connection` stays first: Mosquitto takes no option of a bridge before it.
OPTIONS = {
    option.word: option
    for option in (
        _option("connection", NAME, "the bridge's name", "name"),
        _option(
            "address", ADDRESSES, "HOST[:PORT] of the far broker, or several", "addresses", ("addresses",)
        ),
        _option(
            "topic", TOPIC, "PATTERN [DIRECTION [QOS [LOCAL_PREFIX [REMOTE_PREFIX]]]]; repeated", "topics"
        ),
        _option("round_robin", FLAG, "every address is as good; otherwise the first is preferred"),
        _option("remote_clientid", TEXT, "client identifier at the far broker", aliases=("clientid",)),
        _option("local_clientid", TEXT, "client identifier at this broker"),
        _option("cleansession", FLAG, "nothing is kept at the far broker while disconnected"),
        _option("local_cleansession", FLAG, "the same at this broker; as cleansession unless given"),
        _option("start_type", START_TYPE, "automatic, lazy or once"),
        _option(
            "idle_timeout", POSITIVE, "seconds without traffic that end a lazy connection", "idle_timeout_s"
        ),
        _option("threshold", POSITIVE, "waiting messages that start a lazy connection"),
        _option("restart_timeout", BACKOFF, "seconds before connecting again: one number, or BASE CAP"),
        _option(
            "keepalive_interval", whole_number(5, 65_535), "seconds between pings", "keepalive_interval_s"
        ),
        _option("notifications", FLAG, "publish, retained, whether the bridge is connected"),
        _option("notifications_local_only", FLAG, "do so at this broker alone"),
        _option("notification_topic", TOPIC_NAME, "the topic of these notifications"),
        _option("try_private", FLAG, "tell the far broker that this is a bridge"),
        _option("remote_username", TEXT, "user name at the far broker", aliases=("username",)),
        _option("remote_password", TEXT, "password at the far broker", aliases=("password",)),
        _option("local_username", TEXT, "user name at this broker"),
        _option("local_password", TEXT, "password at this broker"),
        _option("bridge_protocol_version", PROTOCOL, "mqttv31, mqttv311 or mqttv50"),
        _option("bridge_cafile", TEXT, "file of certificate authorities: the connection uses TLS"),
        _option("bridge_capath", TEXT, "folder of certificate authorities: the connection uses TLS"),
        _option("bridge_certfile", TEXT, "file of this side's certificate"),
        _option("bridge_keyfile", TEXT, "file of its key"),
        _option("bridge_insecure", FLAG, "do not compare the certificate with the host's name"),
        _option("bridge_tls_version", TLS_VERSION, "tlsv1.2 or tlsv1.3"),
        _option("bridge_alpn", TEXT, "protocol name that TLS asks for"),
        _option("bridge_outgoing_retain", FLAG, "what is retained here is retained there"),
        _option("bridge_attempt_unsubscribe", FLAG, "unsubscribe there from what is only sent"),
        _option("bridge_max_packet_size", PACKET_SIZE, "bytes of a packet to the far broker; 0: any"),
        _option("bridge_bind_address", IP_ADDRESS, "this machine's address to connect from"),
        _option("bridge_max_topic_alias", whole_number(0, 65_535), "topic aliases of MQTT 5", since=(2, 1)),
        _option(
            "queue_bytes",
            whole_number(1024, 2**40),
            "bytes kept for an absent far side; without it 64 MiB, in the log any number",
            since=HEDGEROW,
        ),
        _option(
            "queue_age", seconds(0, 1e9), "seconds they are kept; 0: forever", "queue_age_s", since=HEDGEROW
        ),
        _option("queue_overflow", OVERFLOW, "what a full queue drops", since=HEDGEROW),
        _option(
            "probe_interval",
            seconds(0.01, 3_600),
            "seconds between probes",
            "probe_interval_s",
            since=HEDGEROW,
        ),
        _option("probe_misses", whole_number(1, 1_000), "lost probes that end a link", since=HEDGEROW),
        _option("replace", FLAG, "take the place of a bridge of the same name", since=HEDGEROW),
    )
}
WORDS = {word: option for option in OPTIONS.values() for word in (option.word, *option.aliases)}

_NO_PSK = "pre-shared keys are not supported; bridge_certfile and bridge_keyfile are"
_NO_CIPHERS = "the ciphers are those of the system's TLS library"
_NO_TCP = "the bridge's own probes find a dead link: probe_interval and probe_misses"
UNSUPPORTED = {
    "bridge_identity": _NO_PSK,
    "bridge_psk": _NO_PSK,
    "bridge_ciphers": _NO_CIPHERS,
    "bridge_ciphers_tls1.3": _NO_CIPHERS,
    "bridge_require_ocsp": "OCSP is not supported",
    "bridge_tls_use_os_certs": "name the system's certificates with bridge_cafile or bridge_capath",
    "bridge_tcp_keepalive": _NO_TCP,
    "bridge_tcp_user_timeout": _NO_TCP,
    "bridge_receive_maximum": "the receive maximum is this broker's own",
    "bridge_session_expiry_interval": "use cleansession",
    "bridge_reload_type": "a bridge that is replaced is connected anew",
}

# Without an authority Mosquitto would speak plainly to the far broker, whatever else is said of TLS.
_AUTHORITY = ("bridge_cafile", "bridge_capath")
NEEDS = (
    ("remote_password", ("remote_username",)),
    ("local_password", ("local_username",)),
    ("bridge_keyfile", ("bridge_certfile",)),
    ("bridge_certfile", ("bridge_keyfile",)),
    ("bridge_certfile", _AUTHORITY),
    ("bridge_insecure", _AUTHORITY),
    ("bridge_tls_version", _AUTHORITY),
    ("bridge_alpn", _AUTHORITY),
)
"""(word, words of which one must be given with it)"""


class OptionError(ConfigError):
    """What is wrong with one option, whose line the reader of a text knows."""

    def __init__(self, word: str, reason: object) -> None:
        super().__init__(f"{word}: {reason}")
        self.word = word


def find_option(word: str) -> BridgeOption:
    """The option of this word or alias."""
    check_characters(word)
    if word in UNSUPPORTED:
        raise OptionError(word, f"Mosquitto's option is not supported here: {UNSUPPORTED[word]}")
    if word not in WORDS:
        nearest = difflib.get_close_matches(word, WORDS, 1)
        hint = f"; the nearest is {nearest[0]}" if nearest else ""
        raise ConfigError(f"{quote(word)} is no option of a bridge{hint}")
    return WORDS[word]
