"""Lines of the log that a stock Mosquitto publishes (2.0.11): what each can mean.

Before each line is a time, in a format of the administrator's. Client ids and filters are free text, so lines
about them have several readings, in the order of the length of the client's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

SUBSCRIBE_TOPIC = "$SYS/broker/log/M/subscribe"
UNSUBSCRIBE_TOPIC = "$SYS/broker/log/M/unsubscribe"
NOTICE_TOPIC = "$SYS/broker/log/N"
TOPICS = (SUBSCRIBE_TOPIC, UNSUBSCRIBE_TOPIC, NOTICE_TOPIC)
"""In the order in which to subscribe to them: our own line comes on the first."""

CUT_LINE_BYTES = 999
MAX_TIMESTAMP = 64  # characters

# A refused CONNECT may leave ", not authorised." with the id of a client that is still there.
DEPARTURES = (
    " disconnected.",
    " closed its connection.",
    " has exceeded timeout, disconnecting.",
    " disconnected due to malformed packet.",
    " disconnected due to protocol error.",
    " disconnected due to oversize packet.",
    " disconnected due to oversize payload.",
    " disconnected due to out of memory.",
    " disconnected due to QoS too high or retain not supported.",
    " disconnected due to using not allowed feature"
    " (QoS too high, retain not supported, or bad AUTH method).",
    " been disconnected by administrative action.",
)

# The last "(p…)" is the broker's own: greedy, so that one inside of the id stays there.
_CONNECTED = re.compile(
    r"New (?:client|bridge) connected from \S*:\d+ as (?P<client_id>.*)"
    r" \(p(?P<protocol>\d+), c(?P<clean>[01]), k\d+(?:, u'.*')?\)\.",
    re.DOTALL,
)
_QOS = re.compile(r"(?= [012] )")  # of no width: in "a 0 1 b" there are two places
_MQTT_5 = "5"
_SAME_KIND = re.compile(r"\s+|\d+|[^\W\d_]+|.", re.DOTALL)


class ConnectionNotice(NamedTuple):
    client_id: str
    is_mqtt_5: bool
    is_clean: bool


class Departed(NamedTuple):
    client_id: str


class Expired(NamedTuple):
    client_id: str


def read_notice(body: str) -> ConnectionNotice | Departed | Expired | None:
    connected = _CONNECTED.fullmatch(body)
    if connected is not None:
        return ConnectionNotice(
            connected["client_id"], connected["protocol"] == _MQTT_5, connected["clean"] == "1"
        )
    if body.startswith("Client "):
        return _read_departure(body.removeprefix("Client "))
    if body.startswith("Bad socket read/write on client "):
        client_id, _, _ = body.removeprefix("Bad socket read/write on client ").rpartition(": ")
        return Departed(client_id)
    if body.startswith("Expiring client ") and body.endswith(" due to timeout."):
        return Expired(body.removeprefix("Expiring client ").removesuffix(" due to timeout."))
    return None


def _read_departure(body: str) -> Departed | None:
    for ending in DEPARTURES:
        if body.endswith(ending):
            return Departed(body.removesuffix(ending))
    # The rest is the system's name for an error, which no client chooses.
    client_id, separator, _ = body.rpartition(" disconnected: ")
    return Departed(client_id) if separator else None


def read_subscription(body: str) -> list[tuple[str, str]]:
    """(client, filter) for each reading."""
    places = [place.start() for place in _QOS.finditer(body)]
    readings = [(body[:at], body[at + len(" 0 ") :]) for at in places]
    return [reading for reading in readings if reading[0] and reading[1]]


def read_unsubscription(body: str) -> Iterator[tuple[str, str]]:
    """As `read_subscription`."""
    at = body.find(" ")
    while at >= 0:
        yield body[:at], body[at + 1 :]
        at = body.find(" ", at + 1)


def timestamp_like(example: str) -> re.Pattern[str]:
    """What stands before lines at another time: digits for digits, letters for letters, blanks for blanks."""
    # The separator is as it is: a blank after it begins a client id.
    time, separator, _ = example.rpartition(": ")
    return re.compile(_SAME_KIND.sub(lambda run: _any_like(run[0]), time) + separator)


def _any_like(run: str) -> str:
    if run.isspace():
        return r"\s+"
    if run.isdecimal():
        return r"\d+"
    return r"[^\W\d_]+" if run.isalpha() else re.escape(run)
