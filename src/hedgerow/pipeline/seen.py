"""Which messages are in `readings` already, and which in `quarantine`: so that a copy that comes later is
known for one.

Ids count up, so 64 in a row are one *word*: origin, epoch, sequence / 64, and two numbers of 64 bits, what
is in readings and what is in quarantine. A million words are at most 64 million messages and 60 MB; beyond,
those are forgotten that were added to longest ago, and a copy of theirs that comes so late is taken for new.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_WORDS = 1_000_000
_KEY = ["origin", "epoch", "word"]
_BITS = ("read", "refused")
SCHEMA = pa.schema(
    [("origin", pa.string()), *((name, pa.int64()) for name in ("epoch", "word", *_BITS, "batch"))]
)


class Seen:
    def __init__(self, words: pa.Table | None = None, max_words: int = MAX_WORDS) -> None:
        self._words = SCHEMA.empty_table() if words is None else words
        self._max_words = max_words

    @property
    def words(self) -> pa.Table:
        return self._words

    def known(self, words: pa.Table) -> pa.Table:
        """What is known of these words: a row for each that is."""
        found = self._words.join(words.select(_KEY), keys=_KEY, join_type="left semi")
        # No bit is there twice (`add`), so that their sum is all of them.
        summed = found.group_by(_KEY).aggregate([(name, "sum") for name in _BITS])
        return summed.select([*_KEY, *(f"{name}_sum" for name in _BITS)]).rename_columns([*_KEY, *_BITS])

    def add(self, words: pa.Table, batch: int) -> None:
        """May be told twice."""
        if not words.num_rows:
            return
        both = words.join(self.known(words), keys=_KEY, right_suffix="_known")
        columns = {name: both[name] for name in _KEY}
        for name in _BITS:
            known = pc.fill_null(both[f"{name}_known"], 0)
            columns[name] = pc.bit_wise_and(both[name], pc.bit_wise_not(known))
        columns["batch"] = pa.repeat(pa.scalar(batch, pa.int64()), both.num_rows)
        self._words = pa.concat_tables([self._words, pa.table(columns).cast(SCHEMA)])
        if self._words.num_rows > self._max_words:
            self._fold()

    def store(self, path: Path) -> None:
        self._fold()
        store_words(self._words, path)

    def _fold(self) -> None:
        sums = [(name, "sum") for name in _BITS]
        folded = self._words.group_by(_KEY).aggregate([*sums, ("batch", "max")]).select(
            [*_KEY, *(f"{name}_sum" for name in _BITS), "batch_max"]
        )  # fmt: skip
        folded = folded.rename_columns(SCHEMA.names)
        if folded.num_rows > self._max_words:
            # Some more than must go, so that it is not done again with the next batch.
            kept = self._max_words * 7 // 8
            folded = folded.sort_by([("batch", "descending")]).slice(0, kept)
        self._words = folded.combine_chunks()


def as_rows(spark: SparkSession, words: pa.Table) -> DataFrame:
    """With columns named as those that are known."""
    return spark.createDataFrame(words.rename_columns([*_KEY, "known_read", "known_refused"]))


def store_words(words: pa.Table, path: Path) -> None:
    fresh = path.with_suffix(".new")
    parquet.write_table(words, fresh, compression="zstd")
    fresh.replace(path)


def load_words(path: Path) -> pa.Table:
    return parquet.read_table(path)
