"""How `hedgerow sub` prints a message: payload alone, `-v`, and the formats of mosquitto_sub's `-F`.

A format is compiled once into a list of pieces, each a function of a message and the time; printing a
message runs them. What a format cannot say is told when it is compiled.

On a terminal (`is_shown`) control characters of publishers are written out, since they could command it; of
a payload, ends of lines and tabs stay. What the user's own format says is printed as it is.
"""

from __future__ import annotations

import base64
import json
import re
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from hedgerow.errors import ConfigError, escape_controls
from hedgerow.mqtt.client.events import MessageReceived

Piece = Callable[[MessageReceived, int], bytes]
"""The bytes for a message that arrived at a time, in nanoseconds since 1970."""

_SEQUENCE = re.compile(
    r"%(?P<flags>[0-]*)(?P<width>\d*)(?:\.(?P<most>\d+))?(?P<name>.)|@(?P<time>.)|\\(?P<escape>.)"
    r"|(?P<alone>[%@\\])",
    re.DOTALL,
)
_BEYOND_JSON = re.compile("[\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_ESCAPES = {"\\": "\\", "0": "\0", "a": "\a", "e": "\x1b", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_LINES = "\n\t"
_NANOSECONDS = 1_000_000_000


class _Field(NamedTuple):
    value: Callable[[MessageReceived, int], str | bytes]
    aligned: bool = True
    """It may have a width and be aligned in it."""
    zeros: bool = False
    """The width may be filled with zeros."""
    cut: bool = False
    """It may have a largest width."""


def _optional(name: str) -> Callable[[MessageReceived, int], str | bytes]:
    def value(message: MessageReceived, now: int) -> str | bytes:
        found: Any = message.properties.get(name, "")
        return found if isinstance(found, bytes) else str(found)

    return value


def _user_properties(message: MessageReceived, now: int) -> str:
    return " ".join(f"{name}:{value}" for name, value in message.properties.get("user_property", ()))


def _iso(now: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(now / _NANOSECONDS))


def _unix(message: MessageReceived, now: int) -> str:
    return f"{now // _NANOSECONDS}.{now % _NANOSECONDS:09d}"


def _identifiers(message: MessageReceived, now: int) -> str:
    return " ".join(map(str, message.subscription_identifiers))


def _json(message: MessageReceived, now: int, indent: int | None = None) -> str:
    found = describe(message, now)
    try:
        found["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        found["payload_base64"] = base64.b64encode(message.payload).decode()
    return _dump(found, indent)


def _json_inside(message: MessageReceived, now: int, indent: int | None = None) -> str:
    try:
        payload = json.loads(message.payload) if message.payload else None
    except ValueError:
        topic = escape_controls(message.topic)
        print(f"hedgerow sub: the payload on {topic} is not JSON", file=sys.stderr)
        return ""
    return _dump({**describe(message, now), "payload": payload}, indent)


def _dump(value: dict[str, Any], indent: int | None) -> str:
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators)
    # What JSON leaves as it is stands in strings, and means the same when it is escaped.
    return _BEYOND_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def describe(message: MessageReceived, now: int) -> dict[str, Any]:
    """Everything about a message but its payload, under the names that mosquitto_sub uses."""
    moment = time.localtime(now / _NANOSECONDS)
    fraction = f"{now % _NANOSECONDS // 1000:06d}"
    found: dict[str, Any] = {
        "tst": time.strftime(f"%Y-%m-%dT%H:%M:%S.{fraction}%z", moment),
        "topic": message.topic,
        "qos": message.qos,
        "retain": int(message.retain),
        "payloadlen": len(message.payload),
    }
    if message.qos:
        found["mid"] = message.packet_id
    if message.id is not None:
        found["id"] = str(message.id)
    properties: dict[str, Any] = {}
    for name, value in message.properties.items():
        properties[name.replace("_", "-")] = (
            value.decode(errors="replace") if isinstance(value, bytes) else value
        )
    if "user-property" in properties:
        # As pairs: a name may be given more than once, and an object would lose all but one.
        properties["user-properties"] = properties.pop("user-property")
    if message.subscription_identifiers:
        properties["subscription-identifiers"] = message.subscription_identifiers
    if properties:
        found["properties"] = properties
    return found


_FIELDS: dict[str, _Field] = {
    "%": _Field(lambda message, now: "%", aligned=False),
    "A": _Field(lambda message, now: "", zeros=True),  # aliases are resolved before a message gets here
    "C": _Field(_optional("content_type"), cut=True),
    "D": _Field(_optional("correlation_data"), aligned=False),
    "E": _Field(_optional("message_expiry_interval"), zeros=True),
    "F": _Field(_optional("payload_format_indicator"), zeros=True),
    "I": _Field(lambda message, now: _iso(now), cut=True),
    "J": _Field(_json_inside, aligned=False),
    "P": _Field(_user_properties, aligned=False),
    "R": _Field(_optional("response_topic"), cut=True),
    "S": _Field(_identifiers, zeros=True),
    "U": _Field(_unix, aligned=False),
    "X": _Field(lambda message, now: message.payload.hex().upper(), zeros=True),
    "i": _Field(lambda message, now: str(message.id or ""), cut=True),
    "j": _Field(_json, aligned=False),
    "l": _Field(lambda message, now: str(len(message.payload)), zeros=True),
    "m": _Field(lambda message, now: str(message.packet_id), zeros=True),
    "p": _Field(lambda message, now: message.payload),
    "q": _Field(lambda message, now: str(message.qos), aligned=False),
    "r": _Field(lambda message, now: str(int(message.retain)), aligned=False),
    "t": _Field(lambda message, now: message.topic, cut=True),
    "x": _Field(lambda message, now: message.payload.hex(), zeros=True),
}


def compile_format(text: str, end: bytes = b"\n", pretty: bool = False, is_shown: bool = False) -> Piece:
    """The format as one function. ConfigError names the sequence that there is not."""
    pieces: list[Piece] = []
    position = 0
    for found in _SEQUENCE.finditer(text):
        pieces.append(_constant(text[position : found.start()].encode()))
        pieces.append(_sequence(found, pretty, is_shown))
        position = found.end()
    pieces.append(_constant(text[position:].encode() + end))

    def run(message: MessageReceived, now: int) -> bytes:
        return b"".join([piece(message, now) for piece in pieces])

    return run


def _sequence(found: re.Match[str], pretty: bool, is_shown: bool) -> Piece:
    if found["alone"]:
        raise ConfigError(f'-F: "{found["alone"]}" at the end begins a sequence that is not there')
    if found["escape"]:
        if found["escape"] not in _ESCAPES:
            known = " ".join(f"\\{each}" for each in _ESCAPES)
            raise ConfigError(f"-F: no escape \\{found['escape']}; there are {known}")
        return _constant(_ESCAPES[found["escape"]].encode())
    if found["time"]:
        return _time(found["time"])
    name = found["name"]
    if name not in _FIELDS:
        raise ConfigError(f"-F: no sequence %{name}; there are %{' %'.join(_FIELDS)}")
    field = _FIELDS[name]
    if pretty and name in "jJ":
        field = field._replace(value=lambda m, now: (_json if name == "j" else _json_inside)(m, now, 2))
    if (found["flags"] or found["width"] or found["most"]) and not field.aligned:
        raise ConfigError(f"-F: %{name} takes no width")
    return _aligned(field, found, is_shown)


def _constant(data: bytes) -> Piece:
    return lambda message, now: data


def _time(directive: str) -> Piece:
    """`@X` is strftime's %X, `@N` the nanoseconds of the second, `@@` an @."""
    if directive == "@":
        return _constant(b"@")
    if directive == "N":
        return lambda message, now: b"%09d" % (now % _NANOSECONDS)
    return lambda message, now: time.strftime(f"%{directive}", time.localtime(now / _NANOSECONDS)).encode()


def _aligned(field: _Field, found: re.Match[str], is_shown: bool) -> Piece:
    width = int(found["width"] or 0)
    most = int(found["most"]) if found["most"] and field.cut else None
    left = "-" in found["flags"]
    fill = "0" if "0" in found["flags"] and field.zeros and not left else " "
    # JSON has escapes of its own, and ends of lines where it is pretty.
    keep = _LINES if found["name"] in "pjJ" else ""

    def piece(message: MessageReceived, now: int) -> bytes:
        value = field.value(message, now)
        if isinstance(value, bytes) and not is_shown:
            return value.ljust(width) if left else value.rjust(width)
        if isinstance(value, bytes):
            value = value.decode(errors="backslashreplace")
        value = value[:most]
        if is_shown:
            value = escape_controls(value, keep)
        return (value.ljust(width) if left else value.rjust(width, fill)).encode()

    return piece


def _payload(message: MessageReceived, is_shown: bool) -> bytes:
    if not is_shown:
        return message.payload
    return escape_controls(message.payload.decode(errors="backslashreplace"), _LINES).encode()


def print_payload(end: bytes, is_shown: bool = False) -> Piece:
    """Nothing for an empty payload, as mosquitto_sub."""
    return lambda message, now: _payload(message, is_shown) + end if message.payload else b""


def print_verbosely(end: bytes, is_shown: bool = False) -> Piece:
    def piece(message: MessageReceived, now: int) -> bytes:
        topic = escape_controls(message.topic) if is_shown else message.topic
        return topic.encode() + b" " + (_payload(message, is_shown) or b"(null)") + end

    return piece
