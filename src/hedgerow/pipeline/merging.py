"""Tables of parts (`jobs/rollup`): each batch appends its own, and now and then many become few.

A batch is in all of the tables once (`divide`). Every `FOLD_EVERY` batches the files that are small are read,
merged and replaced in one commit, which is no news to whoever reads the table as a stream; every `FOLD_ALL`
batches larger ones too. So a minute of a sensor is a row for each batch at first, and few rows soon after.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hedgerow.pipeline.delta import UPKEEP, Delta, Upkeep
from hedgerow.pipeline.divide import Divider, query_life
from hedgerow.pipeline.lake import Writing, write_files
from hedgerow.pipeline.sorting import struct

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from hedgerow.pipeline.jobs.rollup import Merging

logger = logging.getLogger(__name__)

FOLD_EVERY, FOLD_ALL = 64, 4_096
SMALL_BYTES = 1024 * 1024


class Merger:
    """For `foreachBatch` of the query `query`."""

    def __init__(
        self,
        place: str,
        query: str,
        tables: Mapping[str, Merging],
        files: int,
        upkeep: Upkeep = UPKEEP,
        fold_every: int = FOLD_EVERY,
    ) -> None:
        self._place = place
        self._query = query
        self._tables = tables
        self._files = files
        self._upkeep = upkeep
        self._fold_every = fold_every
        self._schemas = {name: struct(table.schema) for name, table in tables.items()}
        self._divider = Divider(place, query, self._schemas, self._parts, files, upkeep)

    def write(self, rows: DataFrame, batch_id: int) -> None:
        self._divider.write(rows, batch_id)
        if (batch_id + 1) % self._fold_every:
            return
        most = SMALL_BYTES if (batch_id + 1) % FOLD_ALL else self._upkeep.target_bytes
        for name in self._tables:
            try:
                self._fold(rows.sparkSession, name, batch_id, most)
            except Exception as error:  # deltalake's have no common ancestor but this.
                logger.warning("%s is folded the next time: %s", name, error)

    def _parts(self, rows: DataFrame) -> Mapping[str, DataFrame]:
        return {name: table.parts(rows) for name, table in self._tables.items()}

    def _fold(self, spark: SparkSession, name: str, batch_id: int, most: int) -> None:
        delta = Delta(self._place, name, upkeep=self._upkeep)
        files = delta.small_files(most)
        query = f"{self._query}-fold/{query_life(spark)}"
        if len(files) < 2 or delta.has(query, batch_id):
            return
        source = spark.read.format("hedgerow-table").option("files", json.dumps(files))
        merged = self._tables[name].merge(source.load(delta.where)).coalesce(self._files)
        writing = Writing(delta.where, (), False, f"fold-{batch_id:08}")
        rows = merged.select(*self._schemas[name].names)
        delta.commit(write_files(rows, writing), None, query, batch_id, files)
