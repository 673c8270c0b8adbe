"""The `[journal]` table of a configuration: what a node records, where, and how much of it is kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hedgerow.broker.limits import MIB
from hedgerow.errors import ConfigError, TopicError
from hedgerow.node.config import Chapter, Given
from hedgerow.node.values import (
    A_DURATION,
    DURATION_UNITS,
    TIB,
    Key,
    duration_within,
    parse_number,
    read_boolean,
    read_directory_path,
    read_text,
    size_within,
)
from hedgerow.topics import split_shared, validate_filter

MAX_FILTERS = 1_000  # Each is looked at when a topic is new.
MAX_AGE_S = 10 * 365 * 86_400.0


@dataclass(slots=True, frozen=True)
class JournalConfig:
    topics: tuple[str, ...] = ()
    """The filters of what is recorded; none: the node has no journal."""
    directory: Path = Path()
    """Where it is, if there is one."""
    max_bytes: int | None = None
    max_age_s: float | None = None
    drop_committed: bool = False
    is_local: bool = False
    """Nothing is brought here for it: it has what clients of this node publish, or want."""

    @property
    def interests(self) -> tuple[str, ...]:
        return () if self.is_local else self.topics

    @property
    def retains_all(self) -> bool:
        return self.max_bytes is None and self.max_age_s is None and not self.drop_committed


FIELDS = {"max_age": "max_age_s", "local": "is_local"}


def make_journal(given: Given) -> JournalConfig:
    table = given.table("journal")
    if "topics" not in table:
        first = given.where(f"journal.{next(iter(table))}")
        raise ConfigError(f"{first}: needs journal.topics too (--journal FILTER)")
    if "directory" not in table:
        data: Path | None = given.values.get("data")
        if data is None:
            raise ConfigError(
                f"{given.where('journal.topics')}: where is the journal to be? Set journal.directory "
                "(--journal-dir DIR), or data (--data DIR), and it is DIR/journal"
            )
        table["directory"] = data / "journal"
    return JournalConfig(**{FIELDS.get(name, name): value for name, value in table.items()})


def read_filters(value: object, base: Path) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    if not 0 < len(values) <= MAX_FILTERS:
        raise ConfigError(f"1 to {MAX_FILTERS:,} topic filters, not {len(values)}")
    return tuple(dict.fromkeys(read_filter(read_text(each, base)) for each in values))


def read_filter(text: str) -> str:
    try:
        if split_shared(text)[0] is not None:
            raise ConfigError(f'"{text}": a journal has no shared subscriptions; name the filter alone')
        return validate_filter(text)
    except TopicError as error:
        raise ConfigError(str(error)) from None


def read_max_bytes(value: object, base: Path) -> int:
    return size_within(value, MIB, 1024 * TIB)


def read_max_age(value: object, base: Path) -> float | None:
    age_s = parse_number(value, DURATION_UNITS, A_DURATION)
    return None if age_s == float("inf") else duration_within(value, 1, MAX_AGE_S)


JOURNAL_KEYS = (
    Key(
        "journal.topics",
        "--journal",
        "FILTER",
        read_filters,
        "record what is published to these topics; may be repeated",
        repeated=True,
    ),
    Key(
        "journal.directory",
        "--journal-dir",
        "DIR",
        read_directory_path,
        "keep the journal here, not in the directory journal of --data",
    ),
    Key(
        "journal.max_bytes",
        "--journal-max-bytes",
        "SIZE",
        read_max_bytes,
        "remove the oldest of the journal beyond so many bytes",
    ),
    Key(
        "journal.max_age",
        "--journal-max-age",
        "DURATION",
        read_max_age,
        "remove what the journal recorded longer ago",
    ),
    Key(
        "journal.drop_committed",
        "--journal-drop-committed",
        "",
        read_boolean,
        "remove what every reader of the journal has taken",
    ),
    Key(
        "journal.local",
        "--journal-local",
        "",
        read_boolean,
        "record only what comes to this node anyway: have the federation bring nothing for the journal",
    ),
)

CHAPTER = Chapter(JournalConfig, JOURNAL_KEYS, make_journal)
