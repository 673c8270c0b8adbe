"""The pipeline's tables, read without Spark: what has written them is not asked whether it has.

`reckon` holds bronze against what was published: every message is to be there, and in the journal of each
node once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hedgerow.pipeline.tables import has_sink_list, listed_since, table_files, table_place


def load_rows(place: str, name: str, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of a table as it is now, without Spark; none where there is no such table."""
    from pyarrow.parquet import ParquetFile

    for path in listed_files(place, name):
        yield from ParquetFile(path).read(columns=list(columns)).to_pylist()


def listed_files(place: str, name: str) -> dict[Path, float]:
    """The files of a table, and since when each is part of it: since its batch is in the sink's list. A table
    that no stream writes has no list, and is all that is there; of a Delta table the log says what is."""
    where = Path(table_place(place, name))
    if has_sink_list(where):
        return listed_since(where)
    return {path: path.stat().st_mtime for path in table_files(place, name)} if where.is_dir() else {}


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
