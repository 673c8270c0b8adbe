"""One batch into several Delta tables, in one step: whatever is killed and when, all of them get it, once.

The files of all tables are written first, and nobody sees them. Then the *step*, a small file that names
them, is stored: from here on the batch is decided, and is not calculated again, not with other rules either.
Then each table is told, in a commit that carries the batch's number; whoever comes back to a step tells the
tables that have not heard of it. Killed before the step was stored, nothing has happened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hedgerow.errors import HedgerowError
from hedgerow.pipeline.delta import UPKEEP, Delta, Upkeep, WrittenFile
from hedgerow.pipeline.files import replace_text


class Change(NamedTuple):
    """Of a table: the files that it gets, and those that they replace."""

    added: list[WrittenFile]
    removed: list[str]


@dataclass(frozen=True)
class Step:
    query: str
    """Under which the tables know it, with the number."""
    batch: int
    changes: Mapping[str, Change] = field(default_factory=dict)
    """By table, in the order in which they are told."""

    def to_json(self) -> str:
        changes = {name: [change.added, change.removed] for name, change in self.changes.items()}
        return json.dumps({"query": self.query, "batch": self.batch, "changes": changes})

    @classmethod
    def from_json(cls, text: str) -> Step:
        found = json.loads(text)
        changes = {
            name: Change([WrittenFile(*file) for file in added], removed)
            for name, (added, removed) in found["changes"].items()
        }
        return cls(found["query"], found["batch"], changes)


def store_step(path: Path, step: Step) -> None:
    """Durably: what is in it has been decided."""
    replace_text(path, step.to_json(), is_durable=True)


def load_step(path: Path) -> Step | None:
    try:
        return Step.from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def is_possible(step: Step, place: str) -> bool:
    """Or has a table that has not heard of the step lost a file that it is to replace, to whoever else tends
    the table? Then the step has not begun, and is to be prepared anew."""
    for name, change in step.changes.items():
        table = Delta(place, name)
        if change.removed and not table.has(step.query, step.batch):
            return set(change.removed) <= set(table.files() or ())
    return True


def make_step(step: Step, place: str, upkeep: Upkeep = UPKEEP) -> None:
    """Tell the tables. HedgerowError: one has not taken it, and why; it may be made again."""
    for name, change in step.changes.items():
        table = Delta(place, name, upkeep=upkeep)
        if (change.added or change.removed) and not table.has(step.query, step.batch):
            try:
                table.commit(change.added, None, step.query, step.batch, change.removed)
            except Exception as error:  # deltalake's have no common ancestor but this.
                raise HedgerowError(f"the table {name} below {place} was not written: {error}") from error
