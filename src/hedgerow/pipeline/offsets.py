"""Offsets: up to which position each journal has been taken, and how far the next batch goes.

An offset is `{"version": 1, "journals": {id of a journal: position}}`; every position below has been taken.
Journals are known by their ids, which stay when a directory is moved, and differ when another journal is
put into its place.

A journal that is new to a query joins in two steps: one batch only notes from which position it is to be
read, and the next reads. So what a batch reads follows from its two offsets alone, and a batch that is read
again after a crash has the same rows, whatever retention and the options have come to meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from hedgerow.errors import HedgerowError, StoreError
from hedgerow.journal import JournalReader
from hedgerow.journal.io.files import is_journal
from hedgerow.pipeline.options import EARLIEST, LATEST, ReadOptions, is_position

VERSION = 1
# Below this, what a task costs by itself is more than what it reads.
LEAST_ROWS_PER_PART = 50_000
MOST_ROWS_PER_PART = 500_000
_MAGIC = re.compile(r"[*?\[]")

Positions = dict[str, int]
"""By a journal's id."""


class Range(NamedTuple):
    """Positions from `start` to before `end` of a journal."""

    journal: str
    directory: str
    start: int
    end: int


def encode(positions: Mapping[str, int]) -> dict[str, Any]:
    return {"version": VERSION, "journals": dict(sorted(positions.items()))}


def decode(offset: object) -> Positions:
    """HedgerowError: it is none of ours."""
    if isinstance(offset, dict) and offset.get("version") == VERSION:
        positions = offset.get("journals")
        if isinstance(positions, dict) and all(map(is_position, positions.values())):
            return dict(positions)
    raise HedgerowError(
        f"the checkpoint holds an offset that this version does not know: {str(offset)[:200]}. "
        "It was written by a newer version, or by another source: give the query a checkpoint of its own"
    )


def find(patterns: tuple[str, ...]) -> dict[str, JournalReader]:
    """The journals that there are now, by id. A directory that is named, and not matched by a glob, must
    hold one. HedgerowError: it does not, or two hold the same."""
    found: dict[str, JournalReader] = {}
    for pattern in patterns:
        named = Path(pattern)
        is_glob = bool(_MAGIC.search(pattern)) and not named.is_dir()
        for directory in sorted(Path(named.anchor).glob(pattern[1:])) if is_glob else [named]:
            try:
                reader = JournalReader(directory)
            except StoreError:
                if is_glob and not is_journal(directory):
                    continue  # It may match other things, and a journal that is just being made.
                raise
            other = found.setdefault(reader.journal_id, reader)
            if other.directory != reader.directory and not _is_same(other.directory, reader.directory):
                raise HedgerowError(
                    f"{other.directory} and {reader.directory} hold the same journal {reader.journal_id}: "
                    "one is a copy, and its messages would be read twice. Name only one of them"
                )
    return found


def starting_positions(found: Mapping[str, JournalReader], options: ReadOptions) -> Positions:
    """Where a new query begins. HedgerowError: a position is asked for that there is not."""
    positions = options.starting_position
    if not isinstance(positions, str):
        known = {*found, *(str(reader.directory) for reader in found.values())}
        if unknown := sorted(set(positions) - known):
            raise HedgerowError(
                f"option startingPosition names {', '.join(unknown)}, and there is no such journal; "
                f"there are {_list(found)}"
            )
    return {journal: _starting_position(reader, options) for journal, reader in found.items()}


def read_until(found: Mapping[str, JournalReader], options: ReadOptions) -> Positions:
    """Where `read` ends: there, or where the journal ends."""
    asked = options.ending_position
    ends = end_positions(found)
    if asked == LATEST:
        return ends
    if asked == EARLIEST:
        return {journal: reader.first_position for journal, reader in found.items()}
    assert not isinstance(asked, str)
    names = {journal: (journal, str(reader.directory)) for journal, reader in found.items()}
    return {
        journal: min([ends[journal], *(asked[name] for name in names[journal] if name in asked)])
        for journal in ends
    }


def joining_position(reader: JournalReader, options: ReadOptions) -> int:
    """Where a journal begins that appears while a query is running: with `latest` at its first message, as
    all of it has come since the query began."""
    return (
        reader.first_position if options.starting_position == LATEST else _starting_position(reader, options)
    )


def _starting_position(reader: JournalReader, options: ReadOptions) -> int:
    positions = options.starting_position
    if options.starting_time is not None:
        return reader.position_at(options.starting_time)
    if positions == EARLIEST:
        return reader.first_position
    end = reader.end_position
    if positions == LATEST:
        return end
    assert not isinstance(positions, str)
    position = positions.get(reader.journal_id, positions.get(str(reader.directory)))
    if position is None:
        return reader.first_position
    if position > end:
        raise HedgerowError(
            f"option startingPosition is {position} for the journal in {reader.directory}, and "
            f"that ends at {end}"
        )
    return position


def end_positions(found: Mapping[str, JournalReader]) -> Positions:
    return {journal: reader.end_position for journal, reader in found.items()}


def check(taken: Mapping[str, int], found: Mapping[str, JournalReader], options: ReadOptions) -> None:
    """HedgerowError: what a checkpoint has taken is not what there is, and what to do."""
    for journal, position in taken.items():
        reader = found.get(journal)
        if reader is None:
            if options.ignores_missing:
                continue
            raise HedgerowError(
                f"the checkpoint has taken {position} positions of the journal {journal}, which is not in "
                f"{', '.join(options.journals)}; there are {_list(found)}. Bring its directory back; or set "
                "the option missingJournals to ignore, if it is gone for good; or, if the checkpoint is that "
                "of another query, give this one a checkpoint of its own"
            )
        if position > (end := reader.end_position):
            raise HedgerowError(
                f"the checkpoint has taken the journal in {reader.directory} up to position {position}, and "
                f"it ends at {end}. After a power cut, start the node or the recorder that writes it, which "
                "finds the rest. If it was restored from an older copy, new messages get positions that "
                "were taken before: bring the newer copy back, or move it away so that a new journal begins"
            )


def admit(
    taken: Mapping[str, int],
    ends: Mapping[str, int],
    firsts: Mapping[str, int],
    max_rows: int | None,
) -> Positions:
    """Up to where the next batch takes each journal of `taken`.

    Every journal that has something gets an equal share of `max_rows`, at least one row; what it does not
    need goes to the others. So a journal that is far behind does not hold up the rest. What retention has
    removed (below `firsts`) is no row and counts for nothing.
    """
    begins = {journal: max(position, firsts.get(journal, 0)) for journal, position in taken.items()}
    waiting = {journal: ends.get(journal, 0) - begin for journal, begin in begins.items()}
    waiting = {journal: rows for journal, rows in waiting.items() if rows > 0}
    admitted = dict(taken)
    room = sum(waiting.values()) if max_rows is None else max_rows
    for left, journal in zip(
        range(len(waiting), 0, -1), sorted(waiting, key=lambda j: waiting[j]), strict=True
    ):
        rows = min(waiting[journal], max(1, room // left))
        admitted[journal] = begins[journal] + rows
        room -= rows
    return admitted


def rows_per_part(rows: int, cores: int) -> int:
    """Of so many rows, so that each core has a part, and none a large one."""
    return min(MOST_ROWS_PER_PART, max(LEAST_ROWS_PER_PART, -(-rows // cores)))


def split(whole: Range, rows: int) -> list[Range]:
    """Parts of about the same size, of at most `rows`."""
    size = whole.end - whole.start
    parts = -(-size // rows)
    cuts = [whole.start + size * number // parts for number in range(parts + 1)] if size > 0 else []
    return [whole._replace(start=start, end=end) for start, end in pairwise(cuts)]


def gather(parts: list[Range], rows: int) -> list[tuple[Range, ...]]:
    """Small ones together, up to `rows`: twenty journals with ten rows each are not twenty tasks."""
    gathered: list[tuple[Range, ...]] = []
    size = rows
    for part in parts:
        size += part.end - part.start
        if size > rows:
            gathered.append((part,))
            size = part.end - part.start
        else:
            gathered[-1] += (part,)
    return gathered


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _list(found: Mapping[str, JournalReader]) -> str:
    some = [f"{journal} in {reader.directory}" for journal, reader in list(found.items())[:5]]
    return (", ".join(some) + (", …" if len(found) > len(some) else "")) or "none"
