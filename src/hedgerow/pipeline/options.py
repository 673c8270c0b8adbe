"""The options of the data source and of the sink `hedgerow`, read and checked.

Spark hands options over as strings, with names in small letters. A name that nobody knows is refused and
the nearest one told: an option that is silently left out would read the wrong messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches

from hedgerow.client.urls import parse_url
from hedgerow.errors import ConfigError, TopicError
from hedgerow.journal import COLUMNS
from hedgerow.pipeline.places import directory_of
from hedgerow.topics import split_shared, validate_filter

ALL_COLUMNS = ("journal", *COLUMNS)
EARLIEST = "earliest"
LATEST = "latest"
ROWS_PER_BATCH = 1_000_000
MAX_POSITION = 2**63 - 1

READ_OPTIONS = (
    "journals", "topics", "columns", "startingPosition", "startingTime", "rowsPerBatch", "rowsPerPartition",
    "reader", "gaps", "missingJournals", "endingPosition", "endingTime",
    "parallelism",
)  # fmt: skip
WRITE_OPTIONS = (
    "broker", "query", "username", "password", "caFile", "certFile", "keyFile", "insecure", "invalid",
    "timeout",
)  # fmt: skip
TIMEOUT_S = 60.0
# Spark's own: what was given to `load`, and what a query is set up with.
_SPARKS = ("path", "checkpointlocation")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_NAME_TAKES = "it takes up to 100 letters, digits, '_', '-' and '.', a letter, digit or '_' first"


@dataclass(frozen=True)
class ReadOptions:
    journals: tuple[str, ...]
    """Directories and globs, absolute."""
    topics: tuple[str, ...] = ()
    """Topic filters; a message matches one of them. None: all messages."""
    columns: tuple[str, ...] = ALL_COLUMNS
    starting_position: str | Mapping[str, int] = EARLIEST
    """`earliest`, `latest`, or positions by a journal's id or directory (absolute)."""
    starting_time: float | None = None
    ending_position: str | Mapping[str, int] = LATEST
    """Of `read`, as `starting_position`; this one is not read any more."""
    ending_time: float | None = None
    """Nor is what was received then or later."""
    rows_per_batch: int = ROWS_PER_BATCH
    """Positions in a micro-batch, over all journals, whether or not their topics match."""
    rows_per_partition: int | None = None
    """None: by the number of rows and `parallelism`."""
    parallelism: int | None = None
    """Tasks that run at once. None: as many as there are cores where the query is planned."""
    reader: str | None = None
    """Under this name the journals are told what has been taken. None: they are not told."""
    gaps: str | None = None
    """The directory to which gaps are written."""
    ignores_missing: bool = False
    """Journals that the checkpoint knows and that are gone are passed over."""


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """ConfigError: an option that is unknown or cannot be used, and what it takes."""
    given = {name.lower(): value for name, value in options.items()}
    check_names(given, READ_OPTIONS)
    starting_position = _position("startingPosition", given, EARLIEST)
    starting_time = _time("startingTime", given)
    if starting_time is not None and "startingposition" in given:
        raise ConfigError("options startingPosition and startingTime: give one of them")
    columns = _columns(given.get("columns"))
    if "endingtime" in given and "received_at" not in columns:
        raise ConfigError("option endingTime needs received_at among the columns")
    return ReadOptions(
        journals=_journals(given),
        topics=_topics(given.get("topics")),
        columns=columns,
        starting_position=starting_position,
        starting_time=starting_time,
        ending_position=_position("endingPosition", given, LATEST),
        ending_time=_time("endingTime", given),
        rows_per_batch=_count(given, "rowsPerBatch") or ROWS_PER_BATCH,
        rows_per_partition=_count(given, "rowsPerPartition"),
        parallelism=_count(given, "parallelism"),
        reader=_reader(given.get("reader")),
        gaps=str(directory_of(given["gaps"])) if given.get("gaps") else None,
        ignores_missing=one_of(given, "missingJournals", ("fail", "ignore")) == "ignore",
    )


@dataclass(frozen=True)
class WriteOptions:
    broker: str
    """A URL, as `hedgerow.connect` takes it."""
    query: str
    """The name that the ids of what is published bear."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    is_insecure: bool = False
    skips_invalid: bool = False
    """Rows that cannot be published are left out and counted, and do not fail the batch."""
    timeout_s: float = TIMEOUT_S
    """How long the broker may take nothing before the batch fails."""


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """ConfigError: an option that is unknown, missing or cannot be used, and what it takes."""
    given = {name.lower(): value for name, value in options.items()}
    check_names(given, WRITE_OPTIONS)
    for name, example in (("broker", "mqtt://localhost"), ("query", "alarms")):
        if not given.get(name):
            raise ConfigError(f"the sink hedgerow needs the option {name}, such as {example}")
    parse_url(given["broker"])
    if not _NAME.fullmatch(given["query"]):
        raise ConfigError(f"option query is {given['query']!r}: {_NAME_TAKES}")
    return WriteOptions(
        broker=given["broker"],
        query=given["query"],
        username=given.get("username"),
        password=given.get("password"),
        ca_file=given.get("cafile"),
        cert_file=given.get("certfile"),
        key_file=given.get("keyfile"),
        is_insecure=one_of(given, "insecure", ("false", "true")) == "true",
        skips_invalid=one_of(given, "invalid", ("fail", "skip")) == "skip",
        timeout_s=_seconds(given.get("timeout")),
    )


def check_names(given: Collection[str], known: Collection[str]) -> None:
    """`given` are in small letters."""
    by_small = {name.lower(): name for name in known}
    for name in sorted(given):
        if name not in by_small and name not in _SPARKS:
            nearest = get_close_matches(name, by_small, n=1)
            hint = f"did you mean {by_small[nearest[0]]}?" if nearest else f"there are {', '.join(known)}"
            raise ConfigError(f"unknown option {name!r}: {hint}")


def one_of(given: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    """The first is what holds when nothing is said."""
    value = given.get(name.lower(), values[0])
    if value not in values:
        raise ConfigError(f"option {name} is {value!r}: it takes {' or '.join(values)}")
    return value


def _journals(given: Mapping[str, str]) -> tuple[str, ...]:
    if "journals" in given and "path" in given:
        raise ConfigError("journals are named both in load(…) and in the option journals: use one of them")
    text = given.get("journals", given.get("path", ""))
    paths = _texts("journals", text)
    if not paths:
        raise ConfigError(
            "which journals? Set the option journals to the directory that a node or a recorder writes, "
            "to a glob such as /var/lib/hedgerow/*/journal, or to a JSON array of them"
        )
    return tuple(dict.fromkeys(str(directory_of(path)) for path in paths))


def _topics(text: str | None) -> tuple[str, ...]:
    topics = _texts("topics", text or "")
    try:
        for topic in topics:
            if split_shared(topic)[0] is not None:
                raise ConfigError(f"option topics: {topic!r} is a shared subscription; name the filter alone")
        return tuple(validate_filter(topic) for topic in topics)
    except TopicError as error:
        raise ConfigError(f"option topics: {error}") from error


def _columns(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ALL_COLUMNS
    columns = _texts("columns", text) if text.lstrip().startswith("[") else _split(text)
    for name in columns:
        if name not in ALL_COLUMNS:
            nearest = get_close_matches(name, ALL_COLUMNS, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(ALL_COLUMNS)}"
            raise ConfigError(f"option columns: no column {name!r}; {hint}")
    if not columns or len(set(columns)) < len(columns):
        raise ConfigError(f"option columns is {text!r}: name at least one, and each once")
    return tuple(columns)


def _position(option: str, given: Mapping[str, str], default: str) -> str | dict[str, int]:
    text = given.get(option.lower(), default)
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    takes = f'it takes {EARLIEST}, {LATEST} or JSON such as {{"/data/journal": 1000}}'
    try:
        positions = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"option {option} is {text!r}: {takes}") from error
    if not isinstance(positions, dict):
        raise ConfigError(f"option {option} is {text!r}: {takes}")
    for name, position in positions.items():
        if not is_position(position):
            raise ConfigError(f"option {option} has {position!r} for {name}: not a position")
    return {str(directory_of(name)) if "/" in name else name: number for name, number in positions.items()}


def is_position(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_POSITION


def _time(option: str, given: Mapping[str, str]) -> float | None:
    text = given.get(option.lower())
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"option {option} is {text!r}: it takes ISO 8601, such as 2026-11-15T06:30:00Z"
        ) from error
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _count(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not re.fullmatch("[0-9]{1,18}", text) or not int(text):
        raise ConfigError(f"option {name} is {text!r}: it takes a number of rows, 1 or more")
    return int(text)


def _seconds(text: str | None) -> float:
    try:
        seconds = TIMEOUT_S if text is None else float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"option timeout is {text!r}: it takes seconds, such as 60")
    return seconds


def _reader(name: str | None) -> str | None:
    if name is not None and (not _NAME.fullmatch(name) or name.endswith(".new")):
        raise ConfigError(f"option reader is {name!r}: {_NAME_TAKES}, not '.new' last")
    return name


def _texts(name: str, text: str) -> list[str]:
    """One, or a JSON array."""
    if not text.lstrip().startswith("["):
        return [text] if text else []
    try:
        texts = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"option {name} is {text!r}: neither one nor a JSON array ({error})") from error
    if not all(isinstance(item, str) and item for item in texts):
        raise ConfigError(f"option {name} is {text!r}: a JSON array of texts that are not empty")
    return list(texts)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
