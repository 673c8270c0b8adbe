"""docs/reference/configuration.md: every key, from the table of keys, the defaults and what readers refuse.

A reader says in its error what it would have taken. So each is given values that mean nothing to any, and its
refusals tell the kind of its values and their range.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from hedgerow.broker.limits import KIB, MIB, Limits
from hedgerow.errors import ConfigError
from hedgerow.federation import config as federation
from hedgerow.journal import config as journal
from hedgerow.kinds import CHAPTERS, DASHBOARD, NODE, SIDECAR
from hedgerow.multicast import config as multicast
from hedgerow.node.config import LoginHook, Tls, WebTokenRules
from hedgerow.node.config_keys import FIELDS as NODE_FIELDS
from hedgerow.node.config_keys import LISTENERS
from hedgerow.node.values import DURATION_UNITS, GIB, Address, Key, read_boolean
from hedgerow.sensors import config as sensors
from reference_pages.source import code, head, said_of, table

_TEXTS = tomllib.loads(Path(__file__).with_name("configuration_notes.toml").read_text())
SECTION_TEXTS: dict[str, str] = _TEXTS["sections"]
DEFAULTS: dict[str, str] = _TEXTS["defaults"]
NOTES: dict[str, str] = _TEXTS["notes"]

ROOMS = (("federation", federation), ("journal", journal), ("multicast", multicast), ("sensors", sensors))

# Where the value of a key is in the settings, if not under the last part of its name.
FIELDS = {
    **NODE_FIELDS,
    **{f"{table}.{name}": field for table, room in ROOMS for name, field in room.FIELDS.items()},
}
# By command: those that take keys as flags.
KINDS = {kind.command.removeprefix("hedgerow "): kind for kind in (NODE, SIDECAR, DASHBOARD)}
# Nothing sensible, and numbers beyond everything: who reads them says what it would take.
PROBES: tuple[object, ...] = ("\x7f", -(10**30), 0, 10**30, 999_999_999)
SIZES = {"GiB": GIB, "MiB": MIB, "KiB": KIB}


def page() -> str:
    names = {key.name for key in NODE.known_keys}
    if unknown := (NOTES.keys() | DEFAULTS.keys()) - names:
        raise ConfigError(f"notes on keys that are not there: {', '.join(sorted(unknown))}")
    lines = head(
        "Every key of the configuration",
        "[Configuration](../configuration.md) says how a file is written, what addresses, sizes, durations "
        "and paths look like, and what follows from what. A key in a table stands below the table's heading "
        "in the file: `tls.key` is `key` below `[tls]`. The column *for* names the commands that take it. "
        "*Takes effect* says what a change of it, or of the file that it names, needs: a reload (SIGHUP), "
        "for all connections or only for new ones, or a restart.",
    )
    for section, keys in _sections().items():
        lines += [f"## {code(f'[{section}]') if section else 'Addresses and the node'}", ""]
        if section in SECTION_TEXTS:
            lines += [SECTION_TEXTS[section], ""]
        lines += table(
            ("key", "flag", "value", "default", "from – to", "for", "takes effect", ""), map(_row, keys)
        )
    return "\n".join(lines)


def _sections() -> dict[str, list[Key]]:
    sections: dict[str, list[Key]] = {}
    for key in NODE.known_keys:
        section, dot, _ = key.name.partition(".")
        sections.setdefault(section if dot else "", []).append(key)
    return sections


def _row(key: Key) -> tuple[str, ...]:
    kind, span = _what_it_takes(key)
    flag = f"`--limit {key.name.partition('.')[2]}=…`" if key.flag == "--limit" else code(key.flag)
    value, default = _value(key, kind), _default(key, kind)
    return code(key.name), flag, value, default, span, _commands(key), key.takes_effect, _text(key)


def _commands(key: Key) -> str:
    return ", ".join(name for name, kind in KINDS.items() if key in kind.keys)


def _text(key: Key) -> str:
    if key.name.startswith("limits."):
        text = said_of(Limits)[key.name.partition(".")[2]]
    else:
        # The flag's help also tells what has a column of its own here.
        text = re.sub(r"(; may be repeated(, the best first)?)?( \([^()]*\))?$", r"\2", key.help)
    if text.split()[0][1:].islower():  # not of QoS and its like
        text = text[0].lower() + text[1:]
    note = NOTES.get(key.name, "")
    return f"{text.rstrip('.')}. {note}" if note else text.rstrip(".")


def _value(key: Key, kind: str) -> str:
    if key.read is read_boolean:
        return "`true` or `false`"
    if key.read is sensors.read_sensor_topics:
        return f"a table; as a flag {code(key.metavar)}"
    value = kind or (code(key.metavar) if key.metavar else "")
    return f"{value}, or a list" if key.repeated else value


# What a reader takes


def _what_it_takes(key: Key) -> tuple[str, str]:
    """The kind of its values in words, if the reader says one, and their range."""
    refusals = [_refusal(key, probe) for probe in PROBES]
    kind = ""
    for refusal in refusals:
        if found := re.search(r"is none of (.+)$", refusal) or re.search(r": there are (.+)$", refusal):
            return " or ".join(map(code, re.split(r", | and ", found[1]))), ""
        if found := re.search(r"is not (a (?:size|duration|whole number|number))\b", refusal):
            kind = kind or found[1]
    for refusal in refusals:
        if found := re.search(r"is not from ([0-9.e+]+)(?: s| bytes)? (?:to ([0-9.e+]+)|on)\b", refusal):
            low, high = (_amount(float(bound or "inf"), kind) for bound in found.groups())
            return kind, f"{low} – {high}" if "e+" not in high else f"{low} or more"
    return kind, ""


def _refusal(key: Key, probe: object) -> str:
    try:
        key.read(probe, Path("/nowhere"))
    except ConfigError as error:
        return str(error)
    return ""


def _amount(number: float, kind: str) -> str:
    if number == float("inf"):
        return "never"
    units = SIZES if kind == "a size" else _durations() if kind == "a duration" else {}
    for unit, size in units.items():
        if number >= size and (number / size).is_integer():
            return f"{number / size:,.15g} {unit}"
    return f"{number:,.15g}"


def _durations() -> dict[str, float]:
    """The longest first; the smallest for what is less than a second."""
    return dict(sorted(DURATION_UNITS.items(), key=lambda item: -item[1]))


# Defaults


def _default(key: Key, kind: str) -> str:
    if key.name in DEFAULTS:
        return DEFAULTS[key.name]
    if key.name not in LISTENERS:
        return _show(_find_default(key), kind)
    shown = {
        name: _show(getattr(each.defaults, key.name) or "off", kind)
        for name, each in KINDS.items()
        if key in each.keys
    }
    first, *others = shown.items()
    return "; ".join([first[1], *(f"{name}: {text}" for name, text in others if text != first[1])])


def _show(value: object, kind: str) -> str:
    if isinstance(value, bool):
        return code(str(value).lower())
    if value is None or value in ((), frozenset(), ""):
        return "none"
    if isinstance(value, dict):
        return code("{" + ", ".join(f'{number:02} = "{topic}"' for number, topic in value.items()) + "}")
    if isinstance(value, tuple) and all(isinstance(each, Address) for each in value):
        return code(", ".join(f'"{each}"' for each in value))
    if isinstance(value, int | float):
        text = _amount(value, kind)
        text = text.replace(",", "")  # which nobody may write
        return code(text if text.replace(".", "").isdigit() else f'"{text}"')
    return code(f'"{value}"')


# Tables of which there is none by default.
WHOLE: dict[str, Any] = {"tls": Tls, "jwt": WebTokenRules, "hook": LoginHook}


def _find_default(key: Key) -> object:
    """Where it is: in what the node has by itself, in what its room has, or in the settings within those."""
    table, _, rest = key.name.partition(".")
    if table in WHOLE:
        found = WHOLE[table].__dataclass_fields__
        default = (found.get(rest) or found[f"{rest}_s"]).default
        return None if default is MISSING else default
    name = FIELDS.get(key.name, key.name.rpartition(".")[2])
    outer: Any = next((each.settings() for each in CHAPTERS if key in each.keys), NODE.defaults)
    for place in (outer, *(getattr(outer, field.name) for field in fields(outer))):
        if is_dataclass(place) and name in {field.name for field in fields(place)}:
            return getattr(place, name)
    raise LookupError(f"nobody knows the default of {key.name}")
