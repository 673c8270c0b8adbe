"""A stream divided among several Delta tables, each batch in one step (`steps`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hedgerow.pipeline.delta import UPKEEP, Delta, Upkeep, WrittenFile
from hedgerow.pipeline.lake import Writing, to_arrow, write_files
from hedgerow.pipeline.steps import Change, Step, load_step, make_step, store_step
from hedgerow.pipeline.tables import check_lake_belongs, checkpoint_place, table_place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

KEPT_STEPS = 16

Division = Callable[["DataFrame"], Mapping[str, "DataFrame"]]


class Divider:
    """For `foreachBatch` of the query `query`. `divide` makes of a batch the rows of each table."""

    def __init__(
        self,
        place: str,
        query: str,
        schemas: Mapping[str, StructType],
        divide: Division,
        files: int,
        upkeep: Upkeep = UPKEEP,
    ) -> None:
        self._place = place
        self._query = query
        self._schemas = schemas
        self._divide = divide
        self._files = files
        self._upkeep = upkeep
        self._steps = Path(checkpoint_place(place, f"{query}-steps"))
        check_lake_belongs(place, schemas, query)
        for name, schema in schemas.items():
            Delta(place, name, upkeep=upkeep).create(to_arrow(schema))

    def write(self, rows: DataFrame, batch_id: int) -> None:
        path = self._steps / f"{batch_id:012}.json"
        step = load_step(path)
        if step is None:
            step = self._prepare(rows, batch_id)
            store_step(path, step)
        make_step(step, self._place, self._upkeep)
        (self._steps / f"{batch_id - KEPT_STEPS:012}.json").unlink(missing_ok=True)

    def _prepare(self, rows: DataFrame, batch_id: int) -> Step:
        rows = rows.persist()
        try:
            changes = {
                name: Change(self._written(part, name, batch_id), [])
                for name, part in self._divide(rows).items()
            }
        finally:
            rows.unpersist()
        return Step(f"{self._query}/{query_life(rows.sparkSession)}", batch_id, changes)

    def _written(self, rows: DataFrame, name: str, batch_id: int) -> list[WrittenFile]:
        ordered = rows.select(*self._schemas[name].names).coalesce(self._files)
        return write_files(ordered, Writing(table_place(self._place, name), (), False, f"{batch_id:08}"))


def query_life(spark: SparkSession) -> str:
    """The id of the query that this thread works for: one with a new checkpoint has another."""
    life = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
    assert life is not None
    return life
