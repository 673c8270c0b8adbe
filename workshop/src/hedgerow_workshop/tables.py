"""The pipeline's tables of Parquet, read without Spark: what has written them is not asked whether it has.

`reckon` holds bronze against what was published: every message is to be there, and in the journal of each
node once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from hedgerow.pipeline.tables import table_place

SINK_LIST = "_spark_metadata"
"""Where Spark's file sink lists the files of each batch."""


def load_rows(place: str, name: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of a table of Parquet as it is now, without Spark; none where there is no such table."""
    from pyarrow.parquet import ParquetFile

    for path in listed_files(place, name):
        yield from ParquetFile(path).read(columns=list(columns)).to_pylist()


def listed_files(place: str, name: str) -> dict[Path, float]:
    """The files of a table of Parquet, and since when each is part of it: since its batch is in the sink's
    list. A table that no stream writes has no list, and is all that is there."""
    where = Path(table_place(place, name))
    entries = list((where / SINK_LIST).glob("[0-9]*"))
    if not entries:
        return {path: path.stat().st_mtime for path in sorted(where.rglob("[!._]*.parquet"))}
    found: dict[Path, float] = {}
    for entry in sorted(entries, key=lambda path: int(path.name.partition(".")[0])):
        for line in entry.read_text().splitlines()[1:]:
            path = Path(unquote(urlsplit(json.loads(line)["path"]).path))
            found.setdefault(path, entry.stat().st_mtime)
    return found


class Reckoning(NamedTuple):
    published: int
    lost: int
    doubled: int

    @property
    def is_even(self) -> bool:
        return not (self.lost or self.doubled)

    def __str__(self) -> str:
        found = self.published - self.lost
        return f"{found:,} of {self.published:,} messages, {self.lost:,} lost, {self.doubled:,} doubled"


def reckon(published: Collection[Hashable], rows: Iterable[tuple[str, Hashable]]) -> Reckoning:
    """`rows` are the journal and the key of each row of bronze; those of other messages do not count."""
    copies = Counter(row for row in rows if row[1] in published)
    found = {key for _, key in copies}
    return Reckoning(len(published), len(published) - len(found), copies.total() - len(copies))
