"""The text of a bridge: a connection section of a Mosquitto configuration file, or the same as JSON.

`read_section` turns what a command carries into a `Section`, or raises ConfigError, whose text names the line
and the word that are wrong. A Section has Mosquitto's defaults, and checks itself when it is made, from a
text or by a program: whatever exists can be written, and reads back as the same (`to_text`, `to_json`), but
for a bridge of the node's own that `follows`.

In JSON an option is a member of one object. Its value is a string that says what the line would, or a number
or a boolean that such a string would spell; `address` and `topic` may be lists, and a topic an object with
the fields of `TopicLine`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from hedgerow.bridges.options import (
    HEDGEROW,
    NEEDS,
    OPTIONS,
    TOPIC,
    BridgeOption,
    OptionError,
    Version,
    find_option,
)
from hedgerow.bridges.topic_line import TopicLine
from hedgerow.bridges.values import (
    ADDRESSES,
    MAX_ADDRESSES,
    Backoff,
    FarAddress,
    check_characters,
    quote,
)
from hedgerow.errors import ConfigError
from hedgerow.topics import is_wildcard

__all__ = ["MAX_ADDRESSES", "OPTIONS", "Backoff", "FarAddress", "Section", "TopicLine", "read_section"]

MAX_TEXT_BYTES = 65_536  # A command is kept for as long as its bridge is, and is read while others wait.
MAX_JSON_BYTES = 4 * MAX_TEXT_BYTES  # The JSON of the longest text: every " and \ doubled, fields named.
MAX_TOPICS = 256  # Each message that the bridge carries is compared with every line.

TOPIC_FIELDS = {each.name: each.default for each in fields(TopicLine) if each.init}
DEFAULT_RESTART = Backoff(5.0, 30.0)


@dataclass(slots=True, frozen=True, kw_only=True)
class Section:
    """One bridge. The fields are the options of `OPTIONS`, which says what each means."""

    name: str
    addresses: tuple[FarAddress, ...]
    topics: tuple[TopicLine, ...]
    round_robin: bool = False
    remote_clientid: str | None = None
    local_clientid: str | None = None
    cleansession: bool = False
    local_cleansession: bool | None = None
    start_type: str = "automatic"
    idle_timeout_s: int = 60
    threshold: int = 10
    restart_timeout: Backoff = DEFAULT_RESTART
    keepalive_interval_s: int = 60
    notifications: bool = True
    notifications_local_only: bool = False
    notification_topic: str | None = None
    try_private: bool = True
    remote_username: str | None = None
    remote_password: str | None = field(default=None, repr=False)
    local_username: str | None = None
    local_password: str | None = field(default=None, repr=False)
    bridge_protocol_version: str | None = None
    """None: MQTT 5, or 3.1.1 with a broker that refuses it."""
    bridge_cafile: str | None = None
    bridge_capath: str | None = None
    bridge_certfile: str | None = None
    bridge_keyfile: str | None = None
    bridge_insecure: bool = False
    bridge_tls_version: str | None = None
    bridge_alpn: str | None = None
    bridge_outgoing_retain: bool = True
    bridge_attempt_unsubscribe: bool = True
    bridge_max_packet_size: int = 0
    bridge_bind_address: str | None = None
    bridge_max_topic_alias: int = 10
    queue_bytes: int | None = None
    queue_age_s: float = 86_400.0
    queue_overflow: str = "drop-oldest"
    probe_interval_s: float = 0.5
    probe_misses: int = 3
    replace: bool = False
    follows: bool = False
    """Its filters are set while it runs (`following.py`), by the node itself: no text says it."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def is_tls(self) -> bool:
        return self.bridge_cafile is not None or self.bridge_capath is not None

    @property
    def is_local_session_clean(self) -> bool:
        return self.cleansession if self.local_cleansession is None else self.local_cleansession

    def remote_clientid_on(self, host_name: str) -> str:
        """The client identifier at the far broker, for a bridge that runs on this host."""
        return self.remote_clientid or f"{host_name}.{self.name}"

    def local_clientid_on(self, host_name: str) -> str:
        return self.local_clientid or f"local.{self.remote_clientid_on(host_name)}"

    def notification_topic_on(self, host_name: str) -> str:
        remote_clientid = self.remote_clientid_on(host_name)
        return self.notification_topic or f"$SYS/broker/connection/{remote_clientid}/state"

    def to_text(self, mosquitto: Version | None = None) -> str:
        """The section, without what is the default. It holds the passwords.

        For a version of Mosquitto, with only the words that it knows, and in whole seconds.
        """
        lines = []
        for option, value in _settings(self):
            if mosquitto is not None:
                if option.since is HEDGEROW or option.since > mosquitto:
                    continue
                if isinstance(value, Backoff):
                    value = Backoff(*map(math.ceil, value))
            values = value if option.kind is TOPIC else (value,)
            lines += [f"{option.word} {option.kind.write(each)}\n" for each in values]
        return "".join(lines)

    def to_json(self) -> str:
        """The section as one JSON object, without what is the default. It holds the passwords."""
        return json.dumps({o.word: _to_json(o, value) for o, value in _settings(self)}, ensure_ascii=False)


def read_section(payload: bytes | str) -> Section:
    """The section that a command carries: JSON when it begins with {, Mosquitto's text otherwise."""
    if len(payload) > MAX_JSON_BYTES:
        raise ConfigError(f"the section is longer than {MAX_JSON_BYTES} bytes")
    try:
        text = payload.decode() if isinstance(payload, bytes) else payload
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"line {line}: not UTF-8") from None
    is_json = text.lstrip().startswith("{")
    limit = MAX_JSON_BYTES if is_json else MAX_TEXT_BYTES
    if len(text.encode(errors="surrogatepass")) > limit:
        raise ConfigError(f"the section is longer than {limit} bytes")
    return _read_json(text) if is_json else _read_text(text)


def _read_text(text: str) -> Section:
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    number = 0
    try:
        for number, line in enumerate(text.split("\n"), 1):
            line = line.rstrip("\r").strip(" ")
            if line and not line.startswith("#"):
                word, _, rest = line.partition(" ")
                option = find_option(word)
                if not values and option.word != "connection":
                    raise OptionError(word, 'stands before "connection", which begins a section')
                _add(values, option, word, _read(option, word, rest.lstrip(" ")))
                lines.setdefault(option.word, number)
    except ConfigError as error:
        raise ConfigError(f"line {number}: {error}") from None
    try:
        return _make(values)
    except OptionError as error:
        place = f"line {lines[error.word]}: " if error.word in lines else ""
        raise ConfigError(f"{place}{error}") from None


def _read(option: BridgeOption, word: str, text: str) -> Any:
    try:
        check_characters(text)
        return option.kind.read(text)
    except ConfigError as error:
        raise OptionError(word, error) from None


def _add(values: dict[str, Any], option: BridgeOption, word: str, value: object) -> None:
    if option.kind is TOPIC:
        values.setdefault(option.field, []).append(value)
        if len(values[option.field]) > MAX_TOPICS:
            raise OptionError(word, f"more than {MAX_TOPICS} topics")
    elif option.field in values:
        only_one = "one section is one bridge" if word == "connection" else "it may be given once"
        raise OptionError(word, f"stands there a second time; {only_one}")
    else:
        values[option.field] = value


def _make(values: dict[str, Any]) -> Section:
    if "name" not in values:
        raise ConfigError('no "connection": a section begins with connection NAME')
    for word in ("address", "topic"):
        if OPTIONS[word].field not in values:
            raise OptionError("connection", f"{quote(values['name'])} has no {word}")
    return Section(**{**values, "topics": tuple(values["topics"])})


def _read_json(text: str) -> Section:
    values: dict[str, Any] = {}
    try:
        members = json.loads(text, object_pairs_hook=_Members)
    except json.JSONDecodeError as error:
        raise ConfigError(f"line {error.lineno}: column {error.colno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError):  # A number of thousands of digits; thousands of brackets.
        raise ConfigError("not a JSON object of options") from None
    for word, value in members:
        option = find_option(word)
        if option.kind is TOPIC and type(value) is list:
            for number, each in enumerate(value, 1):
                _add(values, option, word, _from_json(option, f"{word} {number}", each))
        else:
            _add(values, option, word, _from_json(option, word, value))
    return _make(values)


class _Members(tuple[tuple[str, Any], ...]):
    """A JSON object as its pairs, in which a name that is given twice can be seen."""

    __slots__ = ()


def _from_json(option: BridgeOption, word: str, value: object) -> Any:
    if isinstance(value, _Members) and option.kind is TOPIC:
        return _topic_from_json(word, value)
    if option.kind is ADDRESSES and type(value) is list and all(isinstance(each, str) for each in value):
        value = " ".join(value)
    if isinstance(value, str):
        return _read(option, word, value)
    if isinstance(value, bool | int | float) and not option.kind.is_text:
        return _read(option, word, json.dumps(value))
    types = "a string" if option.kind.is_text else "a string, a number or a boolean"
    raise OptionError(word, f"its value is not {types}")


def _topic_from_json(word: str, members: Iterable[tuple[str, Any]]) -> TopicLine:
    given: dict[str, Any] = {}
    try:
        for name, value in members:
            check_characters(name)
            if name not in TOPIC_FIELDS:
                raise ConfigError(f"{quote(name)} is none of {', '.join(TOPIC_FIELDS)}")
            if name in given:
                raise ConfigError(f"{name} is given twice")
            if type(value) is not (int if name == "qos" else str):
                raise ConfigError(f"{name} is not a {'number' if name == 'qos' else 'string'}")
            given[name] = value
        if "pattern" not in given:
            raise ConfigError("has no pattern")
        return TopicLine(**given)
    except ConfigError as error:
        raise OptionError(word, error) from None


def _to_json(option: BridgeOption, value: Any) -> object:
    if option.kind is TOPIC:
        return [
            {name: each for name in TOPIC_FIELDS if (each := getattr(line, name)) != TOPIC_FIELDS[name]}
            for line in value
        ]
    if option.kind is ADDRESSES:
        return [str(address) for address in value]
    return value if isinstance(value, bool | int | float | str) else option.kind.write(value)


def _settings(section: Section) -> list[tuple[BridgeOption, Any]]:
    """The options that are not the default, with their values."""
    defaults = {each.name: each.default for each in fields(Section)}
    found = [(option, getattr(section, option.field)) for option in OPTIONS.values()]
    return [(o, value) for o, value in found if defaults[o.field] is MISSING or value != defaults[o.field]]


def _check(section: Section) -> None:
    """Raises OptionError for a value that cannot be written and read back, and for a contradiction."""
    for option, value in _settings(section):
        if option.kind is TOPIC:
            if section.follows:
                if value:
                    raise OptionError(option.word, "its filters are set while it runs")
            elif not 1 <= len(value) <= MAX_TOPICS:
                raise OptionError(option.word, f"{len(value)} topics are not from 1 to {MAX_TOPICS}")
            read = tuple(_read(option, option.word, option.kind.write(line)) for line in value)
        else:
            read = _read(option, option.word, option.kind.write(value))
        if read != value:
            raise OptionError(option.word, "its value cannot be written")
    if len(section.to_text().encode()) > MAX_TEXT_BYTES:
        raise ConfigError(f"the section is longer than {MAX_TEXT_BYTES} bytes")
    for word, needed in NEEDS:
        given = getattr(section, word) not in (None, False)
        if given and not any(getattr(section, each) is not None for each in needed):
            raise OptionError(word, f"needs {' or '.join(needed)}")
    if (
        section.notifications
        and section.notification_topic is None
        and is_wildcard(section.remote_clientid or "")
    ):
        raise OptionError("remote_clientid", "contains + or #, and so needs a notification_topic")
